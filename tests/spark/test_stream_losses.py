"""What a stream says when the log is not what its checkpoint knows: retention was faster, the log's
end was lost, the topic was made anew.

On RayDP, with brokers in this process, so that their files can be made old and their epochs new at
a given moment. Each is tried with ``dataframe()``, where the query fails with our error in its text
or counts in its progress, and with ``foreach_batch``, which raises it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from rmq_ray import spark as mqs
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import OffsetOutOfRange, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.outcomes import judging

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket"
)  # pyspark leaves the sockets of collect() to the garbage collector
WAIT_S, LATER_MS = (
    120,
    80 * 3_600_000,
)  # segments are kept for 72 hours, and for an hour more by those who read them


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("losses")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(live: LiveCluster) -> Iterator[Admin]:
    made = Admin(live)
    yield made
    made.close()


class Reader:
    """Streams of one topic whose checkpoints live as long as this does. Each call goes to the end
    and returns (offsets read, rows lost).
    """

    def __init__(self, session: Any, live: LiveCluster, topic: str, directory: Path) -> None:
        self._session, self._topic, self._directory = session, topic, directory
        self._where = {
            "cluster": CLUSTER,
            "name_servers": live.lookup().name_servers,
            "secret": SECRET,
            "columns": ["queue_offset"],
        }

    def frame(self, **settings: Any) -> tuple[list[int], int]:
        """``dataframe()``; Spark's exception where it fails."""
        out = str(self._directory / f"out-{len(list(self._directory.glob('out-*')))}")
        frame = mqs.read_stream(self._session, self._topic, **self._where, **settings).dataframe()
        rows: list[int] = []
        writer = frame.writeStream.foreachBatch(
            lambda df, _number: rows.extend(row[0] for row in df.collect())
        )
        query = (
            writer.option("checkpointLocation", str(self._directory / "frame"))
            .queryName(Path(out).name)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        lost = [
            int(source["metrics"]["rowsLost"])
            for batch in query.recentProgress
            for source in batch["sources"]
        ]
        return sorted(rows), max(lost, default=0)

    def loop(self, **settings: Any) -> tuple[list[int], int]:
        """``foreach_batch``."""
        rows: list[int] = []
        stream = mqs.read_stream(self._session, self._topic, **self._where, **settings)
        query = stream.foreach_batch(
            lambda df, _number: rows.extend(row[0] for row in df.collect()),
            checkpoint=self._directory / "loop",
            available_now=True,
        )
        assert query.await_termination(WAIT_S)
        return sorted(rows), query.rows_lost

    def check_both(self, offsets: list[int], lost: int, **settings: Any) -> None:
        """The same from either."""
        frame, loop = self.frame(**settings), self.loop(**settings)
        with judging():
            assert frame == loop == (offsets, lost)

    def both_refuse(self, kind: type[Exception], message: str) -> None:
        """With an error of this kind."""
        with pytest.raises(
            (StreamingQueryException, kind), match=rf"{kind.__name__}[\s\S]*{message}|{message}"
        ):
            self.frame()
        with pytest.raises(kind, match=message):
            self.loop()


def send(live: LiveCluster, topic: str, count: int, size: int = 10) -> None:
    with Producer("losses", discovery=live) as p:
        for _ in range(count):
            p.send_batch([Message(topic, b"x" * size)], queue=MessageQueue(topic, "broker-a", 0))


@pytest.fixture
def reader(
    session: Any, live: LiveCluster, admin: Admin, tmp_path: Path, request: pytest.FixtureRequest
) -> Reader:
    """Of a topic of one queue with 20 messages, all of them read."""
    topic = request.param
    admin.create_topic(topic, queues=1)
    send(live, topic, 20)
    made = Reader(session, live, topic, tmp_path)
    made.check_both(list(range(20)), 0)
    return made


@pytest.mark.parametrize("reader", ["old"], indirect=True)
def test_retention_that_overtook_a_checkpoint_is_an_error_or_the_rest_is_counted(
    live: LiveCluster, reader: Reader
) -> None:
    send(live, "old", 40, 10_000)  # more than a segment of 256 KiB
    store = live.store()

    async def remove() -> int:
        store.opened.retention.request()
        return store.opened.retention.run(
            SYSTEM_CLOCK.now_ms() + LATER_MS, store.end_offset
        ).segments

    assert live.run(remove()) >= 1
    low, high = store.bounds("old", 0)
    assert 20 < low < high == 60
    reader.both_refuse(
        OffsetOutOfRange,
        r"offset 20 of .*retention has removed what lay before; say fail_on_data_loss=False",
    )
    reader.check_both(list(range(low, 60)), low - 20, fail_on_data_loss=False)
    reader.check_both([], 0)  # the stream has gone on, and is whole again


@pytest.mark.parametrize("reader", ["cut"], indirect=True)
def test_a_checkpoint_of_an_epoch_whose_end_was_lost_never_reads_other_messages_under_old_offsets(
    live: LiveCluster, reader: Reader
) -> None:
    store = live.store()
    cut = store.log_offset_of("cut", 0, 15)

    async def lose() -> (
        None
    ):  # as a power loss would, in the books: what lies from offset 15 on is not what was read
        store.opened.epochs.begin(cut)

    live.run(lose())
    send(live, "cut", 5)
    reader.both_refuse(
        OffsetOutOfRange,
        "lost the end of its log; messages from offset 15 on are others now; say "
        "fail_on_data_loss=False",
    )
    reader.check_both(list(range(15, 25)), 5, fail_on_data_loss=False)
    reader.check_both([], 0)


@pytest.mark.parametrize("reader", ["anew"], indirect=True)
def test_a_topic_that_is_deleted_ends_a_stream_and_one_made_anew_is_read_from_its_beginning(
    live: LiveCluster, admin: Admin, reader: Reader
) -> None:
    admin.delete_topic("anew")
    reader.both_refuse(TopicNotFound, "topic 'anew' does not exist")
    admin.create_topic("anew", queues=1)
    send(live, "anew", 5)
    reader.check_both(list(range(20, 25)), 0)
    send(live, "anew", 3)
    admin.delete_topic("anew")
    admin.create_topic("anew", queues=1)
    send(live, "anew", 2)
    reader.both_refuse(OffsetOutOfRange, r"offset 25 of .*say fail_on_data_loss=False")
    reader.check_both([28, 29], 3, fail_on_data_loss=False)
