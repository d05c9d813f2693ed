"""Streams that begin with rows that only the topic's table has, and go on in the log: on RayDP,
with a broker in this process, so that its retention takes what it may at a given moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from rmq_ray import spark as mqs
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import OffsetOutOfRange, SparkError, TableNotFound
from rmq_ray.model.message import Message
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.registry import TableRegistry
from rmq_ray.table.rules import TableSpec
from rmq_ray.table.source import TopicSource
from rmq_ray.table.storage import Storage
from rmq_ray.table.upkeep import rewrite
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.outcomes import judging

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket")
WAIT_S, LATER_MS = 120, 80 * 3_600_000
TOPIC, BODY = "seamed", 8_000
Kept = dict[int, list[int]]


class Rig:
    """A topic of one broker, and its table, which takes what it is told to."""

    def __init__(self, live: LiveCluster, folder: Path) -> None:
        self.live, self.sent = live, 0
        self._spec = TableSpec(TOPIC, str(folder))
        TableRegistry(live).keep(self._spec)
        self._source = TopicSource(live, TOPIC)
        target = ManifestTable(Storage(str(folder)), TOPIC, "w")
        self._archivist = Archivist(self._spec, self._source, target, SYSTEM_CLOCK)

    def send(self, count: int) -> None:
        """Bodies begin with numbers, from 0 on."""
        with Producer("p", discovery=self.live) as producer:
            for _ in range(count):
                producer.send(Message(TOPIC, (b"%d " % self.sent).ljust(BODY, b".")))
                self.sent += 1

    def archive(self) -> None:
        """All that is there."""
        self._archivist.turn(force=True)

    def compact(self) -> None:
        """One file of all."""
        small = list(self._archivist.files)
        by_queue = {one.queue_id: [f for f in small if f.queue_id == one.queue_id] for one in small}
        made = [f for run in by_queue.values() for f in rewrite(self._spec.to_json(), run, "c")]
        self._archivist.replace_files(small, made)
        self._archivist.sweep()

    def forget(self) -> int:
        """Let retention take all segments that are full; how many messages that were."""
        self._source.hold({}, 0)
        store = self.live.store()

        async def remove() -> None:
            store.opened.retention.request()
            store.opened.retention.run(SYSTEM_CLOCK.now_ms() + LATER_MS, store.end_offset)

        self.live.run(remove())
        return sum(store.bounds(TOPIC, queue)[0] for queue in (0, 1))

    def close(self) -> None:
        self._source.close()
        TableRegistry(self.live).forget(TOPIC)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with LiveCluster(tmp_path / "store") as live:
        admin = Admin(live)
        for topic in (TOPIC, "no-table"):
            admin.create_topic(topic, queues=2)
        admin.close()
        made = Rig(live, tmp_path / "table")
        yield made
        made.close()


def stream(session: Any, rig: Rig, topic: str = TOPIC, **settings: Any) -> Any:
    where = {
        "cluster": CLUSTER,
        "name_servers": rig.live.lookup().name_servers,
        "secret": SECRET,
        "columns": ["body"],
        "source": "table+log",
    }
    return mqs.read_stream(session, topic, **{**where, **settings})


def by_frame(stream: Any, keep: Callable[[Any, int], None], checkpoint: Path) -> int:
    """Structured Streaming; how many rows were lost."""
    writer = stream.dataframe().writeStream.foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(WAIT_S)
    sources = [source for batch in query.recentProgress for source in batch["sources"]]
    return max((int(source["metrics"]["rowsLost"]) for source in sources), default=0)


def by_loop(stream: Any, keep: Callable[[Any, int], None], checkpoint: Path) -> int:
    """``foreach_batch``."""
    query = stream.foreach_batch(keep, checkpoint=checkpoint, available_now=True)
    assert query.await_termination(WAIT_S)
    return int(query.rows_lost)


def keeper(kept: Kept, dies_at: int = -1) -> Callable[[Any, int], None]:
    """A sink that overwrites by number, and may die behind its write."""

    def keep(df: Any, number: int) -> None:
        kept[number] = sorted(int(bytes(row.body).split()[0]) for row in df.collect())
        if number == dies_at:
            raise RuntimeError("the driver died here")

    return keep


@pytest.mark.parametrize("way", [by_frame, by_loop])
def test_a_stream_begins_in_the_table_goes_on_in_the_log_and_over_a_restart_has_each_row_once(
    session: Any, rig: Rig, tmp_path: Path, way: Callable[..., int]
) -> None:
    rig.send(100)
    rig.archive()
    assert 30 < rig.forget() < 100, "what only the table has"
    rig.send(20)
    kept: Kept = {}
    settings = {"max_rows_per_trigger": 30}
    with pytest.raises((StreamingQueryException, RuntimeError), match="died here"):
        way(stream(session, rig, **settings), keeper(kept, dies_at=2), tmp_path / "c")
    halfway = list(kept[2])
    rig.archive()
    rig.compact()
    rig.send(80)
    rig.archive()
    assert rig.forget() > 120, "also what the batch that died had from the log"
    rig.send(10)
    lost = way(stream(session, rig, **settings), keeper(kept), tmp_path / "c")
    with judging():
        assert lost == 0
        assert kept[2] == halfway, "the batch came again with the same rows"
        assert sorted(row for rows in kept.values() for row in rows) == list(range(210))
    assert max(map(len, kept.values())) == 30
    rig.send(5)
    more: Kept = {}
    lost = way(stream(session, rig, source="log"), keeper(more), tmp_path / "c")
    with judging():
        assert lost == 0
        assert [row for rows in more.values() for row in rows] == list(range(210, 215))


def test_what_neither_has_is_an_error_or_counted_and_a_topic_without_a_table_is_told(
    session: Any, rig: Rig, tmp_path: Path
) -> None:
    rig.send(60)
    rig.archive()
    rig.send(100)
    lost = rig.forget() - 60
    assert lost > 0
    rig.archive()
    kept: Kept = {}
    with pytest.raises(OffsetOutOfRange, match="before the table had it"):
        by_loop(stream(session, rig), keeper(kept), tmp_path / "c")
    assert kept == {}
    settings = {"fail_on_data_loss": False, "max_rows_per_trigger": 50}
    counted = by_loop(stream(session, rig, **settings), keeper(kept), tmp_path / "c")
    with judging():
        assert counted == lost
        assert sorted(row for rows in kept.values() for row in rows) == [
            *range(60),
            *range(60 + lost, 160),
        ]
    with pytest.raises(TableNotFound, match="create one"):
        stream(session, rig, "no-table").dataframe()
    with pytest.raises(SparkError, match="has no end"):
        stream(session, rig, source="table")
