"""``plan`` and ``up`` from a topology file, on one node: a first start makes stores, a later one
wants them back and goes on with the tables, and what is wrong starts nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

import rmq_ray as rmq
from rmq_ray.actors import gateway
from rmq_ray.actors.control.changes import How, PlannedChange
from rmq_ray.actors.control.survey import Survey
from rmq_ray.cluster import plan, start_from
from rmq_ray.errors import ConfigError, StoreForeign, StoreMissing
from tests.support.outcomes import judging

FILE = """\
cluster = "{name}"
[defaults.store]
segment_bytes = 1048576
flush = "sync"
[[brokers]]
name = "broker-a"
store = {{ path = "a" }}
[[brokers]]
name = "broker-b"
store = {{ path = "b" }}
"""
BROKERS = ("broker-a", "broker-b")
OTHER = 'name = "broker-b"\nstore = { path = "b" }'


def write(folder: Path, name: str, **changes: str) -> Path:
    text = FILE.format(name=name)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "rmq.toml").write_text(text)
    return folder / "rmq.toml"


@dataclass
class FirstRun:
    """What a first start was like; the cluster has stopped again, its stores lie beside
    ``file``.
    """

    file: Path
    before: Survey
    made_before: bool
    running: Survey
    status: dict[str, Any]
    changes: tuple[PlannedChange, ...]
    refusal: str
    status_after_refusal: dict[str, Any]
    table: Path


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstRun]:
    file = write(tmp_path_factory.mktemp("topology"), "topo-first")
    before, made_before = plan(file), (file.parent / "a").exists()
    cluster = start_from(file)
    try:
        cluster.admin.create_topic("orders", queues=4)
        with rmq.Producer(cluster=cluster.name) as producer:
            producer.send("orders", b"kept")
        table = file.parent / "table"
        cluster.tables.create("orders", str(table))
        cluster.tables.flush("orders")
        running, status = plan(file), cluster.status()
        changed = write(
            file.parent,
            "topo-first",
            **{'flush = "sync"': 'flush = "async"', OTHER: OTHER.replace('b"', 'c"')},
        )
        changes = plan(changed).changes
        with pytest.raises(rmq.ClusterError) as refusal:
            start_from(changed)
        write(file.parent, "topo-first")
        assert start_from(file).name == cluster.name
        seen = FirstRun(
            file,
            before,
            made_before,
            running,
            status,
            changes,
            str(refusal.value),
            cluster.status(),
            table,
        )
    finally:
        cluster.stop()
    assert gateway.archivists(cluster.name) == []
    yield seen


def test_a_plan_says_what_would_be_made_and_makes_nothing(first_run: FirstRun) -> None:
    steps = first_run.before.steps
    assert [(step.actor, step.action) for step in steps] == [
        ("name-server-0", "create"),
        ("broker-a", "create"),
        ("broker-b", "create"),
    ]
    assert (
        steps[1].store.startswith("made new")
        and not first_run.made_before
        and not first_run.before.running
    )


def test_a_started_cluster_has_the_files_settings_and_its_stores_are_known(
    first_run: FirstRun,
) -> None:
    known = json.loads((first_run.file.parent / "rmq.stores.json").read_text())
    assert known == {name: first_run.status[f"{name}/0"]["identity"] for name in BROKERS}
    assert {first_run.status[f"{name}/0"]["flush"] for name in BROKERS} == {"sync"}
    assert (
        first_run.running.running
        and not first_run.running.changes
        and {step.action for step in first_run.running.steps} == {"attach"}
    )


def test_a_running_cluster_with_other_settings_is_left_as_it_is(first_run: FirstRun) -> None:
    assert [(change.part, change.how, change.what) for change in first_run.changes] == [
        ("broker-b", How.REFUSE, "is gone from the file"),
        ("broker-c", How.CREATE, f"is new, store {first_run.file.parent / 'c'}"),
        ("broker-a", How.RESTART, "flush sync -> async"),
    ]
    assert "broker-a: flush sync -> async" in first_run.refusal
    assert "`rmq-ray up --config`" in first_run.refusal and "rmq-ray down" in first_run.refusal
    assert [first_run.status[f"{name}/0"]["pid"] for name in BROKERS] == [
        first_run.status_after_refusal[f"{name}/0"]["pid"] for name in BROKERS
    ]


def test_a_store_that_is_gone_is_never_made_again_and_another_brokers_is_refused(
    first_run: FirstRun, tmp_path: Path
) -> None:
    folder = shutil.copytree(first_run.file.parent, tmp_path / "copy")
    file, store = folder / "rmq.toml", folder / "b"
    shutil.rmtree(store)
    with pytest.raises(
        StoreMissing,
        match=(
            r"rmq.toml, line 10, on .*/b does not exist, expected is store .* of broker-b: mount "
            r"its disk"
        ),
    ):
        start_from(file)
    store.mkdir()
    with pytest.raises(StoreMissing, match="/b is empty.*remove broker-b from .*rmq.stores.json"):
        start_from(file)
    shutil.copytree(folder / "a", store, dirs_exist_ok=True)
    with pytest.raises(
        StoreForeign, match="is store .*, expected is .* of broker-b: mount the right disk"
    ):
        start_from(file)
    found = plan(file)
    assert [step.action for step in found.steps] == [
        "create",
        "create",
        "refuse",
    ] and not found.running


def test_unknown_resources_and_directories_of_others_are_refused_with_their_lines(
    tmp_path: Path,
) -> None:
    file = write(
        tmp_path,
        "topo-none",
        **{
            'name = "broker-b"': 'name = "broker-b"\nresource = "no_such_disk"',
            'path = "b"': 'path = "/b"',
        },
    )
    with pytest.raises(
        ConfigError,
        match=(
            "rmq.toml, line 10: no node of this Ray cluster offers the resource 'no_such_disk': "
            "none is offered"
        ),
    ):
        start_from(file)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").touch()
    with pytest.raises(
        StoreForeign,
        match=(
            r"line 7, on .*/a holds files that are no store \(thesis.tex\): give broker-a an "
            r"empty directory"
        ),
    ):
        start_from(write(tmp_path, "topo-none"))
    assert gateway.find("topo-none/controller") is None and not (tmp_path / "b").exists()


def test_a_later_start_finds_the_stores_with_their_messages_and_tables_go_on(
    first_run: FirstRun,
) -> None:
    known = json.loads((first_run.file.parent / "rmq.stores.json").read_text())
    assert [step.store.split(",")[0] for step in plan(first_run.file).steps[1:]] == [
        f"found {known[name]}" for name in BROKERS
    ]
    again = start_from(first_run.file)
    try:
        with rmq.PullConsumer("late", cluster=again.name) as consumer:
            ends = [
                consumer.watermark_offsets(queue)[1]
                for queue in consumer.fetch_message_queues("orders")
            ]
        with judging():
            assert sum(ends) == 1
        with again.producer() as producer:
            producer.send("orders", b"late")
        again.tables.flush("orders")
        rows = duckdb.read_parquet(f"{first_run.table}/day=*/*.parquet")
        with judging():
            assert sorted(rows.select("body").fetchall()) == [(b"kept",), (b"late",)]
        again.tables.pause("orders")
        assert again.tables.describe("orders")["state"] == "paused"
    finally:
        again.stop()
