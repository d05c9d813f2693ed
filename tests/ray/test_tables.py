"""Topics as tables, as users make them: rows as others read them, kills, upkeep, commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import duckdb
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.catalog import load_catalog

import rmq_ray as rmq
from rmq_ray.actors import gateway, names
from rmq_ray.cli.main import main
from rmq_ray.errors import ConfigError, TableError, TableExists, TableNotFound, TableStorageError
from tests.support.outcomes import judging
from tests.support.pages import all_blocks, block
from tests.support.waiting import eventually

PAGE = "docs/tables.md"


@pytest.fixture
def topic(mq: rmq.Cluster) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=3)
    return name


def send(mq: rmq.Cluster, topic: str, first: int, count: int) -> None:
    """Bodies are the numbers from ``first`` on."""
    with mq.producer() as producer:
        for low in range(first, first + count, 500):
            high = min(low + 500, first + count)
            producer.send_batch(topic, [b"%d" % n for n in range(low, high)])


def by_duckdb(folder: Path, glob: str = "day=*/*.parquet") -> tuple[int, int, int]:
    """(rows, different rows, sum of bodies), by a reader that knows nothing of us."""
    query = f"""select count(*), count(distinct (broker, queue_id, queue_offset)),
                       coalesce(sum(cast(body::varchar as bigint)), 0)
                from read_parquet('{folder}/{glob}')"""
    (found,) = duckdb.sql(query).fetchall()
    return found


def once(count: int) -> tuple[int, int, int]:
    return count, count, count * (count - 1) // 2


@judging()
def check_once(folder: Path, count: int) -> None:
    """So many rows, none twice."""
    assert by_duckdb(folder) == once(count)


@judging()
def check_equal(mq: rmq.Cluster, topic: str) -> list[dict[str, Any]]:
    """Table and log have the same rows; what ``verify`` says of each queue."""
    found = mq.tables.verify(topic)
    assert all(row["equal"] for row in found)
    return found


@judging()
def check_read_by_manifest(folder: Path, count: int) -> None:
    """A process that has only DuckDB and the page's program reads exactly what counts."""
    wanted, sums = '"count(*)"', '"count(*), sum(cast(body::varchar as int))"'
    code = block(PAGE, "What is there").replace("/data/orders", str(folder))
    assert wanted in code
    done = subprocess.run(
        [sys.executable, "-I", "-c", code.replace(wanted, sums)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.findall(r"\d+", done.stdout)[-2:] == [str(count), str(count * (count - 1) // 2)]


def check_metrics(mq: rmq.Cluster, topic: str, rows: int) -> None:
    """Lag and rows, by the names of the page."""
    with urlopen(mq.metrics(host="127.0.0.1", port=0), timeout=20) as answer:
        text = answer.read().decode()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("topic") == topic and sample.name.startswith("rmq_table_")
    }
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert set(found) == set(re.findall(r"^\| `(rmq_table_\w+)` \| gauge", page, re.MULTILINE))
    assert (found["rmq_table_rows"], found["rmq_table_lag_messages"]) == (rows, 0)
    assert found["rmq_table_up"] == 1


def test_a_topic_is_a_table_that_duckdb_reads_without_us_and_metrics_tell(
    mq: rmq.Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(mq, topic, 0, 3_000)
    start, *lines = all_blocks(PAGE)[0][1].splitlines()
    assert start == "mq = rmq.start()"
    on_page = "\n".join(lines).replace('"orders"', repr(topic))
    exec(on_page.replace("/data/orders", str(tmp_path / "t")), {"mq": mq})
    assert "3000" in capsys.readouterr().out
    mq.tables.alter(topic, max_lag_s=10)
    offsets = mq.tables.describe(topic)["offsets"]
    check_once(tmp_path / "t", 3_000)
    check_read_by_manifest(tmp_path / "t", 3_000)
    send(mq, topic, 3_000, 1)
    eventually(lambda: by_duckdb(tmp_path / "t") == once(3_001), 25)

    def told() -> tuple[int, int, str]:
        (row,) = [one for one in mq.tables.list() if one["topic"] == topic]
        return row["rows"], row["lag_messages"], row["error"]

    eventually(lambda: told() == (3_001, 0, ""), 10)  # a file is there just before its commit
    assert sum(offsets["broker-a"].values()) == 3_000
    check_metrics(mq, topic, 3_001)
    mq.admin.delete_topic(topic)
    eventually(lambda: mq.tables.describe(topic)["topic_gone"], 20)
    check_once(tmp_path / "t", 3_001)  # the table outlives its topic
    mq.tables.drop(topic)


def test_an_archivist_that_is_killed_goes_on_with_each_row_once_and_with_what_was_altered(
    mq: rmq.Cluster, topic: str, tmp_path: Path
) -> None:
    mq.tables.create(topic, str(tmp_path / "t"), max_lag_s=10)
    handle = gateway.find(names.archivist(mq.name, topic))
    killed = 0
    mq.tables.alter(topic, max_lag_s=20)
    for round_ in range(4):
        send(mq, topic, round_ * 5_000, 5_000)
        pid = gateway.call(handle, "pid", timeout_s=60)
        reference = handle.flush.remote(60.0)
        os.kill(pid, signal.SIGKILL)
        killed += 1
        del reference
        eventually(lambda old=pid: _pid(handle) not in (None, old), 90)
    mq.tables.flush(topic)
    check_once(tmp_path / "t", 20_000)
    assert killed == 4
    eventually(lambda: mq.tables.describe(topic)["max_lag_s"] == 20)
    assert sum(row["table_rows"] for row in check_equal(mq, topic)) == 20_000
    mq.tables.drop(topic)


def test_a_table_whose_folder_was_deleted_is_filled_anew_from_the_log(
    mq: rmq.Cluster, topic: str, tmp_path: Path
) -> None:
    send(mq, topic, 0, 1_000)
    mq.tables.create(topic, str(tmp_path / "t"))
    mq.tables.flush(topic)
    shutil.rmtree(tmp_path / "t")
    send(mq, topic, 1_000, 500)

    def whole() -> bool:
        with suppress(rmq.ClusterError):  # the archivist begins anew as a process of its own
            mq.tables.flush(topic)
            return by_duckdb(tmp_path / "t") == once(1_500)
        return False

    eventually(whole, 90)
    check_equal(mq, topic)
    mq.tables.drop(topic)


def _pid(handle: Any) -> int | None:
    try:
        return int(gateway.call(handle, "pid", timeout_s=5))
    except rmq.ClusterError:
        return None


def test_small_files_become_large_ones_and_old_days_go(
    mq: rmq.Cluster, topic: str, tmp_path: Path
) -> None:
    mq.tables.create(topic, str(tmp_path / "t"))
    for round_ in range(4):
        send(mq, topic, round_ * 300, 300)
        mq.tables.flush(topic)
    done = mq.tables.compact(topic)
    assert 4 == done["files_before"] > done["files_after"] > 0
    check_once(tmp_path / "t", 1_200)
    assert len(list((tmp_path / "t").glob("day=*/*.parquet"))) == done["files_after"]
    check_equal(mq, topic)
    assert mq.tables.expire(topic, 86_400)["files"] == 0
    send(mq, topic, 1_200, 10)
    mq.tables.flush(topic)
    check_once(tmp_path / "t", 1_210)
    other = tmp_path / "t" / "day=2026-11-25" / "report.parquet"
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(b"somebody's")
    assert mq.tables.drop(topic, delete_files=True) == {"foreign_files": 1}
    assert [path for path in (tmp_path / "t").rglob("*") if path.is_file()] == [other]


def test_wrong_wishes_are_refused_with_what_to_do(
    mq: rmq.Cluster, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(rmq.TopicNotFound):
        mq.tables.create("no-such-topic", str(tmp_path))
    with pytest.raises(ConfigError, match="max_lag_s must be 10"):
        mq.tables.create(topic, str(tmp_path), max_lag_s=1)
    with pytest.raises(ConfigError, match="absolute path"):
        mq.tables.create(topic, "somewhere")
    with pytest.raises(TableStorageError, match="goes on by itself"):
        mq.tables.create(topic, "/proc/nothing/here")
    with pytest.raises(TableNotFound, match="rmq-ray table create"):
        mq.tables.flush(topic)
    others = tmp_path / "used" / "rows.parquet"
    others.parent.mkdir()
    others.write_bytes(b"somebody's")
    with pytest.raises(TableError, match="like rows.parquet: give the table a folder of its own"):
        mq.tables.create(topic, str(others.parent))
    assert list(others.parent.iterdir()) == [others]
    mq.tables.create(topic, str(tmp_path / "t"))
    with pytest.raises(TableExists, match="drop"):
        mq.tables.create(topic, str(tmp_path / "other"))
    other = f"{topic}-2"
    mq.admin.create_topic(other)
    with pytest.raises(TableError, match="location of its own"):
        mq.tables.create(other, str(tmp_path / "t"))
    mq.tables.drop(topic)


def test_bodies_become_columns_what_does_not_fit_is_kept_and_taken_later(
    mq: rmq.Cluster, topic: str, tmp_path: Path
) -> None:
    mq.tables.create(
        topic, str(tmp_path / "t"), decode="json", columns={"user": "string", "amount": "int"}
    )
    with mq.producer() as producer:
        producer.send_batch(
            topic, [json.dumps({"user": f"u{n}", "amount": n, "x": 1}).encode() for n in range(50)]
        )
        producer.send(topic, json.dumps({"user": "big", "amount": 1 << 40}).encode())
        producer.send(topic, b"no json")
    mq.tables.flush(topic)
    folder = tmp_path / "t"
    assert _amounts(folder) == (50, 1_225)
    reasons = duckdb.sql(f"select _reason from '{folder}/_rejected/*/*.parquet'").fetchall()
    assert len(reasons) == 2 and any("$.amount" in reason for (reason,) in reasons)
    with pytest.raises(TableError, match="cannot become"):
        mq.tables.alter(topic, columns={"user": "long", "amount": "int"})
    mq.tables.alter(topic, columns="user string, amount long, tip double")
    assert mq.tables.replay(topic) == {"taken": 1, "rejected": 1}
    assert _amounts(folder) == (51, 1_225 + (1 << 40))
    assert mq.tables.replay(topic) == {"taken": 0, "rejected": 1}
    with mq.producer() as producer:
        producer.send(topic, b'{"user": "late", "amount": 1, "tip": 0.5}')
    mq.tables.flush(topic)
    assert _amounts(folder) == (52, 1_226 + (1 << 40))
    described = mq.tables.describe(topic)
    assert (described["rows"], described["rejected_rows"]) == (52, 1)
    check_equal(mq, topic)
    mq.tables.drop(topic)


def _amounts(folder: Path) -> tuple[int, int]:
    (found,) = duckdb.sql(
        f"select count(*), sum(amount) from read_parquet('{folder}/day=*/*.parquet', "
        "union_by_name=true)"
    ).fetchall()
    return found[0], int(found[1])


def test_a_table_in_an_iceberg_catalog_is_read_by_pyiceberg(
    mq: rmq.Cluster, topic: str, tmp_path: Path
) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    mq.tables.create(topic, str(tmp_path / "t"), catalog={"name": "lake", **properties})
    for round_ in range(3):
        send(mq, topic, round_ * 500, 500)
        mq.tables.flush(topic)
    assert mq.tables.compact(topic)["files_after"] <= 3
    catalog = load_catalog("lake", **properties)
    found = catalog.load_table(("default", topic)).scan().to_arrow()
    with judging():
        assert sorted(int(body) for body in found.column("body").to_pylist()) == list(range(1_500))
        assert mq.tables.to_arrow(topic).num_rows == 1_500
    check_equal(mq, topic)
    assert mq.tables.drop(topic, delete_files=True) == {"foreign_files": 0}
    assert not [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    assert not catalog.table_exists(("default", topic))
    catalog.engine.dispose()


def test_the_command_line_does_the_same(mq: rmq.Cluster, topic: str, tmp_path: Path) -> None:
    send(mq, topic, 0, 100)

    def run(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(
            main, ["--cluster", mq.name, "--format", "json", "-y", "table", *words]
        )
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if done.stdout.strip() and code == 0 else None

    run("create", topic, "--location", str(tmp_path / "t"), "--max-lag", "10s")
    assert sum(run("flush", topic)["offsets"]["broker-a"].values()) == 100
    assert [row["rows"] for row in run("list") if row["topic"] == topic] == [100]
    assert run("describe", topic)["max_lag_s"] == 10
    run("alter", topic, "--max-lag", "1m")
    run("pause", topic)
    assert run("describe", topic)["state"] == "paused"
    run("resume", topic)
    run("compact", topic)
    run("expire", topic, "--older-than", "30d")
    assert all(row["equal"] for row in run("verify", topic))
    run("create", topic, "--location", str(tmp_path), "--max-lag", "10x", code=2)
    assert run("drop", topic, "--delete-files")["foreign_files"] == 0
    run("flush", topic, code=1)
    assert not list((tmp_path / "t").glob("day=*/*.parquet"))
