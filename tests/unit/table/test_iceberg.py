"""The same rows in an Iceberg catalog: commits whose outcome nobody heard, commits of others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from rmq_ray.clock import ManualClock
from rmq_ray.codec.arrow.arrow_rows import Rows
from rmq_ray.errors import (
    CommitRefused,
    CommitterReplaced,
    RmqError,
    TableError,
    TableStorageError,
)
from rmq_ray.model.arrow import COLUMNS, SCHEMA
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.columns import schema_of
from rmq_ray.table.iceberg import IcebergTable, load_catalog, told
from rmq_ray.table.reading import TablePiece
from rmq_ray.table.rules import DataFile, TableSpec, compactable
from rmq_ray.table.upkeep import redecode, rewrite
from tests.support.tables.table_rig import (
    START_MS,
    TOPIC,
    Faults,
    Killed,
    MemoryTopic,
    expected_rows,
    rows_in,
    spec_at,
)

REJECTED_ROWS = f"{TOPIC}__rejected"
LATE = datetime(2100, 1, 1, tzinfo=UTC)
LEFT = "broker-a-0001-00000000000000000009-e1-g000001-dead.parquet"
SPARKS = "store_day=2023-11-14/00000-7-0b7e2f4a-1c7e-4d57-9a38-7f5f3b0f9c11-0-00001.parquet"


class FaultyCatalog(SqlCatalog):
    """Each commit is a step that may fail, before it is carried out or after."""

    faults = Faults()
    behind: Any = None
    """Called once in front of the next commit: another committer's."""

    def commit_table(self, *arguments: Any) -> Any:
        if self.behind is not None:
            other, self.behind = self.behind, None
            other()
        result: list[Any] = []
        self.faults.step(lambda: result.append(super(FaultyCatalog, self).commit_table(*arguments)))
        return result[0]


@dataclass(frozen=True)
class Replaying:
    catalog: FaultyCatalog
    topic: MemoryTopic
    worker: Archivist
    replay: Callable[[], object]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[FaultyCatalog]:
    made = FaultyCatalog(
        "c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}"
    )
    made.faults = Faults()
    yield made
    made.engine.dispose()


def spec_of(tmp_path: Path, **settings: Any) -> TableSpec:
    return spec_at(tmp_path / "t", catalog={"name": "c"}, **settings)


def archivist(spec: TableSpec, topic: MemoryTopic, catalog: Any, writer: str) -> Archivist:
    table = IcebergTable(spec, schema_of(spec.columns), writer, catalog)
    return Archivist(spec, topic, table, ManualClock(START_MS))


def rows(catalog: Any, name: str = TOPIC) -> list[tuple[int, int, bytes]]:
    return rows_in(catalog.load_table(("default", name)).scan().to_arrow())


def filled(count: int = 40) -> MemoryTopic:
    topic = MemoryTopic(2)
    for n in range(count):
        topic.send(n % 2, b"%d" % n)
    return topic


def put(tmp_path: Path, *names: str) -> list[Path]:
    """Files at the location that no snapshot names."""
    paths = [tmp_path / "t" / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    return paths


def test_a_table_that_its_catalog_lost_waits_for_it_with_every_row(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    topic, spec, name = filled(), spec_of(tmp_path), ("default", TOPIC)
    one = archivist(spec, topic, catalog, "one")
    one.turn(force=True)
    metadata = catalog.load_table(name).metadata_location
    catalog.drop_table(name)
    topic.send(0, b"behind")
    with pytest.raises(CommitterReplaced, match="waits for the catalog"):
        one.turn(force=True)
    with pytest.raises(TableStorageError, match="register it again"):
        archivist(spec, topic, catalog, "two")
    catalog.register_table(name, metadata)
    archivist(spec, topic, catalog, "three").turn(force=True)
    assert rows(catalog) == expected_rows(topic)


def test_pyiceberg_reads_every_row_and_the_snapshot_says_how_far_it_is(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    topic, spec = filled(), spec_of(tmp_path)
    one = archivist(spec, topic, catalog, "w")
    assert one.turn(force=True) and rows(catalog) == expected_rows(topic)
    table = catalog.load_table(("default", TOPIC))
    said = table.current_snapshot().summary.additional_properties["rmq.offsets"]
    assert said == '{"orders":{"broker-a":{"0":20,"1":20}}}'
    assert table.format_version == 2 and str(table.spec().fields[0].transform) == "day"
    assert table.scan(row_filter="store_ts >= '2030-01-01T00:00:00+00:00'").to_arrow().num_rows == 0
    first = table.scan().to_arrow().sort_by("queue_offset").to_pylist()[0]
    assert (first["keys"], first["properties"], first["tag"]) == (["k0"], [("p", "1")], "t")
    assert one.opened().rows == 40 and len(one.files) == 2
    assert archivist(spec, topic, catalog, "x").opened().offsets == dict.fromkeys(topic.queues, 20)


@pytest.mark.parametrize("seed", range(6))
def test_every_row_is_there_once_whatever_becomes_of_a_commit(
    tmp_path: Path, catalog: FaultyCatalog, seed: int
) -> None:
    chance, topic = random.Random(seed), MemoryTopic(2)
    spec = spec_of(tmp_path, decode="json", columns={"n": "int"})
    workers = [archivist(spec, topic, catalog, "w0")]
    for step in range(8):
        for _ in range(chance.randrange(1, 12)):
            topic.send(chance.randrange(2), b'{"n": 1}' if chance.random() < 0.7 else b"bad")
        catalog.faults.arm(chance, 3)
        worker = chance.choice(workers)
        try:
            worker.turn(force=True)
        except Killed:
            workers.remove(worker)
        except RmqError:
            pass
        catalog.faults.at = -1
        if not workers or chance.random() < 0.3:
            workers.append(archivist(spec, topic, catalog, f"w{step + 1}"))
    for _ in range(3):
        with suppress(CommitRefused):  # it reads the table again
            workers[-1].turn(force=True)
    found = rows(catalog) + (
        rows(catalog, f"{TOPIC}__rejected")
        if catalog.table_exists(("default", f"{TOPIC}__rejected"))
        else []
    )
    assert sorted(found) == expected_rows(topic)
    assert all(body == b'{"n": 1}' for _, _, body in rows(catalog))


def test_a_catalog_that_answers_500_after_committing_is_looked_up(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    topic = filled()
    one = archivist(spec_of(tmp_path), topic, catalog, "w")
    one.opened()
    catalog.faults.at, catalog.faults.after = 0, True
    assert one.turn(force=True)
    assert rows(catalog) == expected_rows(topic)
    assert len(catalog.load_table(("default", TOPIC)).snapshots()) == 1


def test_of_two_committers_one_is_refused_and_adds_nothing(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    topic, spec = filled(), spec_of(tmp_path)
    one, two = (archivist(spec, topic, catalog, name) for name in ("one", "two"))
    one.opened(), two.opened()
    catalog.behind = lambda: two.turn(force=True)
    with pytest.raises(CommitRefused, match="another committer"):
        one.turn(force=True)
    topic.send(0, b"more")
    assert one.turn(force=True)
    assert rows(catalog) == expected_rows(topic)


def test_a_compaction_of_others_between_reading_and_committing_costs_nothing(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    topic = filled()
    one = archivist(spec_of(tmp_path), topic, catalog, "w")
    one.turn(force=True)

    def foreign() -> None:
        table = catalog.load_table(("default", TOPIC))
        table.overwrite(table.scan().to_arrow())

    for n in range(10):
        topic.send(n % 2, b"more %d" % n)
    catalog.behind = foreign
    assert one.turn(force=True)
    assert rows(catalog) == expected_rows(topic)
    foreign()
    fresh = archivist(spec_of(tmp_path), topic, catalog, "x")
    assert fresh.opened().offsets == dict.fromkeys(topic.queues, 25)
    assert not fresh.turn(force=True)
    files = fresh.files
    assert {one.queue_id for one in files} == {-1}, "they are not ours"
    piece = TablePiece(spec_of(tmp_path).to_json(), tuple(files), (("broker-a", 0, 3, 25),))
    found = pa.Table.from_batches(piece.read(Rows(tuple(COLUMNS))))
    assert sorted(found.column("queue_offset").to_pylist()) == list(range(3, 25))
    assert found.schema == SCHEMA


def test_columns_are_added_and_widened_and_old_snapshots_go(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    topic = MemoryTopic(1)
    topic.send(0, b'{"n": 1}')
    spec = spec_of(tmp_path, decode="json", columns={"n": "int"})
    one = archivist(spec, topic, catalog, "w")
    one.turn(force=True)
    wider = spec_of(tmp_path, decode="json", columns={"n": "long", "who": "string"})
    one._target.alter(schema_of(wider.columns))
    one.take_spec(wider)
    topic.send(0, b'{"n": 1099511627776, "who": "ann"}')
    one.turn(force=True)
    table = catalog.load_table(("default", TOPIC)).scan().to_arrow().sort_by("queue_offset")
    assert table.column("n").to_pylist() == [1, 1 << 40]
    assert table.column("who").to_pylist() == [None, "ann"]
    assert one._target.expire_versions(int(LATE.timestamp() * 1000)) == 1
    assert one.turn(force=True) is False and len(rows(catalog)) == 2


def test_columns_that_did_not_reach_the_catalog_are_added_by_the_next_committer(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    topic = MemoryTopic(1)
    topic.send(0, b'{"n": 1}')
    archivist(spec_of(tmp_path, decode="json", columns={"n": "int"}), topic, catalog, "w").turn(
        force=True
    )
    topic.send(0, b'{"n": 1099511627776, "who": "ann"}')
    wider = spec_of(tmp_path, decode="json", columns={"n": "long", "who": "string"})
    archivist(wider, topic, catalog, "x").turn(force=True)
    table = catalog.load_table(("default", TOPIC)).scan().to_arrow().sort_by("queue_offset")
    assert table.column("n").to_pylist() == [1, 1 << 40]
    assert table.column("who").to_pylist() == [None, "ann"]


def test_upkeep_of_a_catalogs_table_keeps_each_row_once(tmp_path: Path) -> None:
    properties = {"name": "own", "type": "sql", "uri": f"sqlite:///{tmp_path}/own.db"}
    spec = spec_at(
        tmp_path / "t", catalog=properties, decode="json", columns={"n": "int"}, namespace="default"
    )
    catalog, topic = load_catalog(properties), MemoryTopic(1)
    worker = archivist(spec, topic, catalog, "w")
    for body in (b'{"n": 1}', b'{"n": 2}', b'{"n": 1099511627776}', b"bad"):
        topic.send(0, body)
        worker.turn(force=True)
    small = [one for one in worker.files if not one.rejected]
    assert len(small) == 2 and all(one.queue_id == 0 for one in small)
    worker.replace_files(small, rewrite(spec.to_json(), small, "w-c"))
    (large,) = (one for one in worker.files if not one.rejected)
    assert (large.rows, large.first, large.next) == (2, 0, 2)
    wider = replace(spec, columns={"n": "long"})
    worker._target.alter(schema_of(wider.columns))
    worker.take_spec(wider)
    bad = [one for one in worker.files if one.rejected]
    made = redecode(wider.to_json(), bad, "w-r")
    worker.replace_files(bad, made, "first")
    assert [body for _, _, body in rows(catalog)] == [row[2] for row in expected_rows(topic)[:3]]
    assert rows(catalog, f"{TOPIC}__rejected") == [(0, 3, b"bad")]
    worker.replace_files([], made[:1], "first")
    assert len(rows(catalog)) == 3, "what was taken once is not taken again"
    catalog.engine.dispose()


@pytest.fixture
def replaying(tmp_path: Path) -> Iterator[Replaying]:
    """A row was rejected and can be read by now."""
    properties = {"name": "own", "type": "sql", "uri": f"sqlite:///{tmp_path}/own.db"}
    spec = spec_at(
        tmp_path / "t", catalog=properties, decode="json", columns={"n": "int"}, namespace="default"
    )
    catalog, topic = FaultyCatalog("own", uri=properties["uri"]), MemoryTopic(1)
    catalog.faults = Faults()
    worker = archivist(spec, topic, catalog, "w")
    topic.send(0, b'{"n": 1099511627776}')
    worker.turn(force=True)
    wider = replace(spec, columns={"n": "long"})
    worker._target.alter(schema_of(wider.columns))
    worker.take_spec(wider)
    bad = [one for one in worker.files if one.rejected]
    made = redecode(wider.to_json(), bad, "w-r")
    yield Replaying(catalog, topic, worker, lambda: worker.replace_files(bad, made, "first"))
    catalog.engine.dispose()


def test_a_replay_of_which_one_half_failed_is_brought_to_its_end(replaying: Replaying) -> None:
    """Rows that stayed rejected beside their replay would be taken in again by the next one."""
    catalog = replaying.catalog
    catalog.faults.at = 1  # behind the table's own commit
    replaying.replay()
    assert catalog.faults.at == -1 and len(rows(catalog)) == 1
    assert rows(catalog, REJECTED_ROWS) == []


def test_rows_go_on_where_another_engine_replaced_what_a_replay_removes(
    replaying: Replaying, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = replaying.catalog
    theirs = catalog.load_table(f"default.{REJECTED_ROWS}")
    theirs.overwrite(theirs.scan().to_arrow())
    with pytest.raises(CommitRefused):
        replaying.replay()
    assert "they stay rejected beside their replay" in caplog.text
    replaying.topic.send(0, b'{"n": 7}')
    assert replaying.worker.turn(force=True)
    assert len(rows(catalog)) == 2 and len(rows(catalog, REJECTED_ROWS)) == 1


def test_what_dead_committers_left_is_swept_when_it_is_a_day_old_and_files_of_others_stay(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    topic = filled()
    one = archivist(spec_of(tmp_path), topic, catalog, "w")
    one.turn(force=True)
    left = put(tmp_path, f"data/day=2023-11-14/{LEFT}", f"_rmq/staging/data+day=2023-11-14+{LEFT}")
    others = put(
        tmp_path, "data/day=2023-11-14/x.parquet", f"data/{SPARKS}", "_rmq/staging/notes.txt"
    )
    now_ms = int(left[0].stat().st_mtime * 1000)
    assert one._target.sweep(now_ms + 86_000_000) == 0 and all(path.exists() for path in left)
    assert one._target.sweep(now_ms + 86_500_000) == 2
    assert not any(path.exists() for path in left) and rows(catalog) == expected_rows(topic)
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("name", [SPARKS, f"day=2023-11-14/{LEFT}"], ids=["theirs", "ours"])
@pytest.mark.parametrize("scheme", ["file:", ""], ids=["sparks", "none"])
def test_files_that_another_engine_committed_are_the_tables_however_it_spells_their_place(
    tmp_path: Path, catalog: FaultyCatalog, scheme: str, name: str
) -> None:
    topic, spec = filled(), spec_of(tmp_path)
    one = archivist(spec, topic, catalog, "w")
    one.turn(force=True)
    path = tmp_path / "t" / "data" / name
    theirs = catalog.load_table(("default", TOPIC))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(theirs.scan().to_arrow().cast(SCHEMA), path)
    theirs.delete()
    theirs.add_files([f"{scheme}{path}"])
    theirs.maintenance.expire_snapshots().older_than(LATE).commit()

    def read() -> list[int]:
        piece = TablePiece(spec.to_json(), one._target.files(), (("broker-a", 1, 3, 20),))
        batches = list(piece.read(Rows(tuple(COLUMNS))))
        return sorted(pa.Table.from_batches(batches).column("queue_offset").to_pylist())

    swept = one._target.sweep(int(path.stat().st_mtime * 1000) + 2 * 86_400_000)
    assert path.exists() and rows(catalog) == expected_rows(topic)
    assert swept == 2, "what the compaction replaced, and no snapshot has any more"
    assert read() == list(range(3, 20))
    (file,) = one._target.files()
    assert file.path == f"data/{name}"
    one.replace_files([file], [])
    assert rows(catalog) == []


def test_a_drop_takes_the_tables_files_alone_and_tells_how_many_others_stay(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    spec = spec_of(tmp_path, decode="json", columns={"n": "int"})
    topic = MemoryTopic(1)
    topic.send(0, b"bad"), topic.send(0, b'{"n": 1}')
    one = archivist(spec, topic, catalog, "w")
    one.turn(force=True)
    put(tmp_path, f"data/day=2023-11-14/{LEFT}", f"data/day=2023-11-14/.{LEFT}.crc")
    others = put(tmp_path, "report.parquet", f"data/{SPARKS}", "metadata/notes.txt")
    assert one._target.drop() == len(others)
    assert {path for path in (tmp_path / "t").rglob("*") if path.is_file()} == set(others)
    assert not catalog.list_tables("default")


@pytest.mark.parametrize("gone", [[""], ["__rejected"], ["", "__rejected"]])
def test_a_drop_takes_the_files_of_a_table_that_the_catalog_does_not_know_any_more(
    tmp_path: Path, catalog: FaultyCatalog, gone: list[str]
) -> None:
    spec = spec_of(tmp_path, decode="json", columns={"n": "int"})
    topic = MemoryTopic(1)
    topic.send(0, b"bad"), topic.send(0, b'{"n": 1}')
    one = archivist(spec, topic, catalog, "w")
    one.turn(force=True)
    (other,) = put(tmp_path, "report.parquet")
    for suffix in gone:
        catalog.drop_table(("default", f"{TOPIC}{suffix}"))
    assert one._target.drop() == 1
    assert {path for path in (tmp_path / "t").rglob("*") if path.is_file()} == {other}
    assert not catalog.list_tables("default")
    assert one._target.drop() == 1, "once more is no error"


def test_a_table_is_made_at_an_empty_place_or_gone_on_with_at_its_own_and_nowhere_else(
    tmp_path: Path, catalog: FaultyCatalog
) -> None:
    def check(spec: TableSpec) -> None:
        IcebergTable(spec, schema_of(spec.columns), catalog=catalog).check_location()

    spec = spec_of(tmp_path)
    check(spec)
    (other,) = put(tmp_path, "data/rows.parquet")
    with pytest.raises(TableError, match="like data/rows.parquet: give .* of its own"):
        check(spec)
    other.unlink()
    archivist(spec, filled(), catalog, "w").turn(force=True)
    put(tmp_path, "data/rows.parquet")
    check(spec)
    check(replace(spec, location=f"file://{tmp_path}//t/"))
    with pytest.raises(TableError, match="already: create it with that location"):
        check(replace(spec, location=str(tmp_path / "other")))
    with pytest.raises(TableError, match="has files that are not this table's"):
        check(replace(spec, namespace="other"))
    catalog.create_table(("default", "mine"), SCHEMA, location=f"file://{tmp_path}/mine")
    catalog.load_table(("default", "mine")).append(SCHEMA.empty_table())
    with pytest.raises(TableError, match="was not made of a topic"):
        check(replace(spec, topic="mine", location=str(tmp_path / "mine")))


def test_files_of_others_are_not_compacted_by_us() -> None:
    foreign = [DataFile(f"data/{n}", "2023-11-14", "", -1, 0, 9, 9, 100) for n in range(2)]
    assert compactable(foreign, 1 << 20) == []


def test_a_catalog_that_is_away_is_told_with_what_to_do(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with pytest.raises(TableStorageError, match="check that it answers"), told(spec):
        raise CommitFailedException("x")
    with pytest.raises(RmqError, match="properties"):
        load_catalog({"name": "nobody-knows-this-one"})
    assert pa.types.is_list(schema_of({}).field("keys").type)
