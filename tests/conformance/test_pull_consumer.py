"""The pull consumer over real connections: what is polled, where it goes on, what is committed; a
broker in memory, and a real one.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.pull.pulled_batch import PulledBatch
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import (
    ClientError,
    CommitFailed,
    ConfigError,
    NotAssigned,
    OffsetOutOfRange,
    SubscriptionInvalid,
    TopicNotFound,
)
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.groups import ConsumeType
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.model.pulling import PullStatus
from rmq_ray.protocol.filters.subscriptions import sql
from rmq_ray.remoting.wire.bodies_groups import encode_offsets
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.brokers.pull_broker import PullCluster
from tests.support.waiting import eventually

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(4)]


@pytest.fixture
def cluster() -> Iterator[PullCluster]:
    with PullCluster(topics={"orders": 4}) as running:
        yield running


def consumer(cluster: Any, **options: Any) -> PullConsumer:
    options.setdefault("start_from", "first")
    return PullConsumer("reader", discovery=cluster, **options)


def bodies(queue_id: int, count: int, start: int = 0) -> list[bytes]:
    return [b"%d-%d" % (queue_id, i) for i in range(start, start + count)]


def drain(pc: PullConsumer, count: int, size: int = 100) -> list[Any]:
    """Messages of as many polls as it takes."""
    found: list[Any] = []
    eventually(lambda: found.extend(pc.poll(size, timeout=0.2)) or len(found) >= count, every_s=0)
    return found


@pytest.mark.seed("S4-003", "S0-006")
def test_assigned_queues_are_read_in_order_each_message_once(cluster: PullCluster) -> None:
    for queue_id in range(4):
        cluster.put("orders", queue_id, bodies(queue_id, 3_000))
    with consumer(cluster) as pc:
        pc.assign(QUEUES[:2])
        found = drain(pc, 6_000, size=777)
        assert not pc.poll(10, timeout=0.05)
    for queue in QUEUES[:2]:
        assert [message.body for message in found if message.queue == queue] == bodies(
            queue.queue_id, 3_000
        )
    assert len(found) == 6_000


@pytest.mark.seed("S0-016")
def test_a_poll_returns_at_once_what_is_there_and_waits_for_the_first_message_only(
    cluster: PullCluster,
) -> None:
    with consumer(cluster) as pc:
        pc.assign(QUEUES)
        assert len(pc.poll(10, timeout=0.0)) == 0
        eventually(lambda: len(cluster.pull_brokers[0].pulls) == 4)
        threading.Timer(0.1, cluster.put, ("orders", 2, [b"late"])).start()
        assert [message.body for message in pc.poll(10, timeout=10)] == [b"late"]


def test_a_poll_is_cut_at_its_maximum_and_the_position_follows(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 10))
    with consumer(cluster, auto_commit=False) as pc:
        pc.assign(QUEUES[:1])
        assert pc.position(QUEUES[0]) == 0
        first = pc.poll(4, timeout=5)
        assert (
            [message.queue_offset for message in first],
            first.next_offsets,
            pc.position(QUEUES[0]),
        ) == ([0, 1, 2, 3], {QUEUES[0]: 4}, 4)
        assert [message.queue_offset for message in pc.poll(100, timeout=5)] == [4, 5, 6, 7, 8, 9]
        assert pc.position(QUEUES[0]) == 10


def test_a_batch_is_a_list_of_messages_and_a_table_with_the_same_rows(cluster: PullCluster) -> None:
    for queue_id in range(4):
        cluster.put(
            "orders",
            queue_id,
            bodies(queue_id, 50),
            "KEYS\x01k1 k2\x02TAGS\x01paid\x02region\x01eu",
        )
    with consumer(cluster) as pc:
        pc.assign(QUEUES)
        eventually(lambda: pc.stats()["prefetched"] == 200)
        batch = pc.poll(170, timeout=5)
    assert (len(batch), len(batch[:3]), batch[-1].body, bool(batch), bool(PulledBatch())) == (
        170,
        3,
        list(batch)[169].body,
        True,
        False,
    )
    table = batch.to_arrow()
    assert table.schema == SCHEMA
    assert table.column("body").to_pylist() == [message.body for message in batch]
    assert table.column("queue_offset").to_pylist() == [message.queue_offset for message in batch]
    assert table.column("keys")[0].as_py() == ["k1", "k2"] and table.column("properties")[
        0
    ].as_py() == [("region", "eu")]
    assert batch.to_arrow(["tag"]).to_pydict() == {"tag": ["paid"] * 170}
    assert PulledBatch().to_arrow().schema == SCHEMA
    again = pickle.loads(pickle.dumps(batch))
    assert [message.body for message in again] == [
        message.body for message in batch
    ] and again.to_arrow() == table


def test_only_messages_of_the_wanted_tags_are_polled_and_the_position_passes_the_others(
    cluster: PullCluster,
) -> None:
    for tag in ("paid", "lost", "refund", "lost"):
        cluster.put("orders", 0, [tag.encode()] * 50, f"TAGS\x01{tag}")
    with consumer(cluster) as pc:
        pc.assign(QUEUES[:1], "paid || refund")
        found = drain(pc, 100)
        assert Counter(message.body for message in found) == {b"paid": 50, b"refund": 50}
        eventually(lambda: pc.position(QUEUES[0]) == 200)
        assert pc.commit() == {QUEUES[0]: 200}


def test_seek_goes_back_and_forth_and_forgets_what_was_pulled(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 100))
    with consumer(cluster, auto_commit=False) as pc:
        pc.assign(QUEUES[:1])
        pc.seek(QUEUES[0], 90)
        assert [message.queue_offset for message in pc.poll(5, timeout=5)] == [90, 91, 92, 93, 94]
        pc.seek(QUEUES[0], 10)
        assert pc.position(QUEUES[0]) == 10
        assert next(iter(pc.poll(5, timeout=5))).queue_offset == 10
        pc.seek_to_end(QUEUES[0])
        assert len(pc.poll(5, timeout=0.1)) == 0
        pc.seek_to_begin(QUEUES[0])
        assert pc.poll(5, timeout=5)[0].queue_offset == 0


def test_a_seek_beyond_the_bounds_is_refused_with_both_of_them(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 100))
    cluster.run(_cut(cluster, 40))
    with consumer(cluster) as pc:
        pc.assign(QUEUES[:1])
        assert pc.watermark_offsets(QUEUES[0]) == (40, 100)
        for offset in (39, 101, -1):
            with pytest.raises(OffsetOutOfRange) as caught:
                pc.seek(QUEUES[0], offset)
            assert caught.value.args[1:] == (offset, 40, 100)
        pc.seek(QUEUES[0], 100)
        with pytest.raises(NotAssigned, match="is not assigned"):
            pc.seek(QUEUES[1], 0)


async def _cut(cluster: PullCluster, low: int) -> None:
    cluster.pull_brokers[0].cut("orders", 0, low)


def test_messages_that_expired_under_way_are_skipped_and_what_was_pulled_still_comes(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, bodies(0, 20))
    with consumer(
        cluster,
        config=ConsumerConfig(
            "reader", pull_records=5, threshold_messages=1, flow_control_delay_ms=20
        ),
    ) as pc:
        pc.assign(QUEUES[:1])
        eventually(lambda: pc.stats()["prefetched"] == 5)
        cluster.run(_cut(cluster, 15))
        found = drain(pc, 10)
        assert [message.queue_offset for message in found] == [0, 1, 2, 3, 4, 15, 16, 17, 18, 19]
        assert pc.stats()["offsets_moved"] == 1


def test_only_what_was_committed_is_told_to_the_broker(cluster: PullCluster) -> None:
    broker = cluster.pull_brokers[0]
    cluster.put("orders", 0, bodies(0, 100))
    with consumer(cluster, auto_commit=False) as pc:
        pc.assign(QUEUES[:1])
        first, second = pc.poll(10, timeout=5), pc.poll(10, timeout=5)
        assert pc.committed(QUEUES[0]) is None
        assert pc.commit(second) == {QUEUES[0]: 20}
        assert pc.commit(first) == {QUEUES[0]: 10}  # an older one does not go back
        assert pc.committed(QUEUES[0]) == 20
        pc.poll(10, timeout=5)
    assert broker.offsets["reader", ("orders", 0)] == 20
    with consumer(cluster, auto_commit=False) as pc:
        pc.assign(QUEUES[:1])
        assert pc.poll(1, timeout=5)[0].queue_offset == 20
        assert pc.commit() == {QUEUES[0]: 21}
        pc.seek(QUEUES[0], 5)
        pc.poll(1, timeout=5)
        assert pc.commit() == {QUEUES[0]: 6}
    assert broker.offsets["reader", ("orders", 0)] == 6


def test_a_commit_that_does_not_wait_travels_with_the_next_pull_and_at_the_end(
    cluster: PullCluster,
) -> None:
    broker = cluster.pull_brokers[0]
    cluster.put("orders", 0, bodies(0, 100))
    with consumer(cluster, auto_commit=False) as pc:
        pc.assign(QUEUES[:1])
        batch = pc.poll(60, timeout=5)
        assert pc.commit(batch, wait=False) == batch.next_offsets == {QUEUES[0]: 60}
        assert pc.committed(QUEUES[0]) == 60, "to this consumer it counts"
        cluster.put("orders", 0, bodies(0, 1))  # wakes the pull that is parked; another follows
        eventually(lambda: ("pull", "orders", 0, 60) in broker.committed)
        assert ("request", "orders", 0, 60) not in broker.committed, "nobody asked and waited"
        with pytest.raises(OffsetOutOfRange):
            pc.commit({QUEUES[0]: 500}, wait=False)
        rest = pc.poll(20, timeout=5)
        pc.commit(rest, wait=False)
    assert broker.offsets["reader", ("orders", 0)] == 80


def test_a_commit_that_no_broker_takes_is_an_error_and_another_queues_commit_is_left_out(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, bodies(0, 10))
    with consumer(cluster, auto_commit=False) as pc:
        pc.assign(QUEUES[:1])
        batch = pc.poll(10, timeout=5)
        assert pc.commit({QUEUES[3]: 7}) == {}
        cluster.stop(cluster.pull_brokers[0])
        with pytest.raises(CommitFailed) as caught:
            pc.commit(batch)
        assert caught.value.retriable and str(QUEUES[0]) in caught.value.args[1]
        cluster.start(cluster.pull_brokers[0])
        assert eventually(lambda: _commits(pc, batch)) == {QUEUES[0]: 10}


def test_a_commit_outside_of_a_queue_is_refused_and_leaves_no_trace(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 10))
    with consumer(cluster, auto_commit=False) as pc:
        pc.assign(QUEUES[:1])
        pc.poll(4, timeout=5)
        for offset in (11, 10**12, -1):
            with pytest.raises(OffsetOutOfRange, match=f"offset {offset} .* cannot be committed"):
                pc.commit({QUEUES[0]: offset})
        wrong: Any
        for wrong in (2.5, "3", None, True):
            with pytest.raises(ClientError, match="whole number"):
                pc.commit({QUEUES[0]: wrong})
            with pytest.raises(ClientError, match="whole number"):
                pc.seek(QUEUES[0], wrong)
            with pytest.raises(ClientError, match="whole number"):
                pc.pull(QUEUES[0], "*", wrong)
        assert pc.committed(QUEUES[0]) in (None, 0)
        assert pc.commit({QUEUES[0]: 3}) == {QUEUES[0]: 3}


def _commits(pc: PullConsumer, batch: PulledBatch) -> dict[MessageQueue, int] | None:
    try:
        return pc.commit(batch)
    except CommitFailed:
        return None


def test_auto_commit_covers_what_earlier_polls_returned_and_on_close_everything(
    cluster: PullCluster,
) -> None:
    broker = cluster.pull_brokers[0]
    cluster.put("orders", 0, bodies(0, 100))
    with consumer(cluster, auto_commit_interval_ms=1_000) as pc:
        pc.assign(QUEUES[:1])
        pc.poll(10, timeout=5)
        assert pc.committed(QUEUES[0]) is None
        pc.poll(10, timeout=5)
        assert pc.committed(QUEUES[0]) == 10
    assert broker.offsets["reader", ("orders", 0)] == 20


def test_a_program_that_fails_gets_its_last_batch_again(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 100))
    with pytest.raises(RuntimeError), consumer(cluster) as pc:
        pc.assign(QUEUES[:1])
        pc.poll(10, timeout=5)
        pc.poll(10, timeout=5)
        raise RuntimeError("while working on the second batch")
    assert cluster.pull_brokers[0].offsets["reader", ("orders", 0)] == 10


def test_paused_queues_hold_no_memory_and_come_back_without_loss(cluster: PullCluster) -> None:
    for queue_id in range(2):
        cluster.put("orders", queue_id, bodies(queue_id, 100))
    with consumer(cluster) as pc:
        pc.assign(QUEUES[:2])
        eventually(lambda: pc.stats()["prefetched"] == 200)
        pc.pause([QUEUES[0]])
        assert (pc.stats()["prefetched"], pc.paused()) == (100, [QUEUES[0]])
        assert {message.queue for message in drain(pc, 100)} == {QUEUES[1]}
        assert not pc.poll(10, timeout=0.05)
        pc.resume()
        assert [message.queue_offset for message in drain(pc, 100)] == list(range(100))
        pc.pause("orders")
        cluster.put("orders", 1, [b"later"])
        assert not pc.poll(10, timeout=0.05)
        pc.resume("orders")
        assert pc.poll(10, timeout=5)[0].body == b"later"


def test_what_is_pulled_ahead_is_bounded_over_all_queues(cluster: PullCluster) -> None:
    for queue_id in range(4):
        cluster.put("orders", queue_id, bodies(queue_id, 1_000))
    config = ConsumerConfig("reader", pull_records=50, flow_control_delay_ms=50)
    with consumer(cluster, config=config, prefetch_messages=120) as pc:
        pc.assign(QUEUES)
        eventually(lambda: pc.stats()["held_back"].get("messages"))
        assert pc.stats()["prefetched"] <= 120 + 4 * 50
        assert len(drain(pc, 4_000)) == 4_000


@pytest.mark.seed("S1-050")
def test_a_consumer_without_queues_pulls_nothing_by_itself(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 10))
    with consumer(cluster) as pc:
        assert len(pc.pull(QUEUES[0], "*", 0, 4).messages) == 4
        assert (
            len(cluster.pull_brokers[0].pulls),
            pc.stats()["pulls"],
            cluster.pull_brokers[0].committed,
        ) == (1, 0, [])


def test_subscribed_consumers_divide_the_queues_and_one_that_leaves_gives_its_share_back(
    cluster: PullCluster,
) -> None:
    with consumer(cluster) as one:
        one.subscribe("orders")
        eventually(lambda: one.assignment() == QUEUES)
        assert (
            cluster.pull_brokers[0].heartbeats[-1].consumers[0].consume_type
            is ConsumeType.CONSUME_ACTIVELY
        )
        with consumer(cluster) as two:
            two.subscribe("orders", "*")
            eventually(lambda: len(one.assignment()) == len(two.assignment()) == 2)
            assert sorted(one.assignment() + two.assignment()) == QUEUES
            for queue_id in range(4):
                cluster.put("orders", queue_id, bodies(queue_id, 25))
            found = drain(one, 50) + drain(two, 50)
            assert {message.body for message in found} == {
                body for queue_id in range(4) for body in bodies(queue_id, 25)
            }
        eventually(lambda: one.assignment() == QUEUES)
        one.unsubscribe("orders")
        eventually(lambda: one.assignment() == [])


def test_a_restarted_broker_is_read_on(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 10))
    with consumer(cluster) as pc:
        pc.assign(QUEUES[:1])
        drain(pc, 10)
        cluster.stop(cluster.pull_brokers[0])
        cluster.start(cluster.pull_brokers[0])
        cluster.put("orders", 0, bodies(0, 10, 10))
        assert [message.body for message in drain(pc, 10)] == bodies(0, 10, 10)


def test_a_broker_that_is_away_at_first_is_read_when_it_comes(cluster: PullCluster) -> None:
    cluster.stop(cluster.pull_brokers[0])
    with consumer(cluster) as pc:
        pc.assign(QUEUES[:1])
        assert not pc.poll(10, timeout=0.1)
        cluster.start(cluster.pull_brokers[0])
        cluster.put("orders", 0, [b"x"])
        assert drain(pc, 1)[0].body == b"x"


def test_misuse_is_told(cluster: PullCluster) -> None:
    pc = consumer(cluster)
    with pytest.raises(ClientError, match="start it"):
        pc.poll()
    with pc:
        with pytest.raises(NotAssigned, match="no queues"):
            pc.poll()
        with pytest.raises(TopicNotFound, match="nowhere"):
            pc.fetch_message_queues("nowhere")
        pc.assign(QUEUES)
        with pytest.raises(ClientError, match="after assign"):
            pc.subscribe("orders")
        with pytest.raises(ClientError, match="max_messages"):
            pc.poll(0)
        with pytest.raises(ClientError, match="max_messages"):
            pc.poll("x")  # type: ignore[arg-type]
        for timeout in (None, "1", float("nan"), float("inf")):
            with pytest.raises(ClientError, match="timeout must be"):
                pc.poll(1, timeout=timeout)  # type: ignore[arg-type]
        with pytest.raises(ClientError, match=r"\{queue: time\}"):
            pc.offsets_for_times(QUEUES[0])  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="takes what poll"):
            pc.commit(QUEUES[0])  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="list of MessageQueue"):
            pc.assign(None)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="moment"):
            pc.offsets_for_times({QUEUES[0]: "x"})  # type: ignore[dict-item]
        with pytest.raises(ClientError, match="seconds, perhaps"):
            pc.offsets_for_times({QUEUES[0]: 1_795_834_904})
        with pytest.raises(ClientError, match="no MessageQueue"):
            pc.assign(["orders"])  # type: ignore[list-item]
        with pytest.raises(NotAssigned):
            pc.position(MessageQueue("orders", "broker-b", 0))
        with pytest.raises(ClientError, match="offset must be"):
            pc.pull(QUEUES[0], "*", -1)
    assert pc.state is ServiceState.SHUTDOWN_ALREADY
    for call in (pc.poll, pc.commit, pc.start, lambda: pc.assign(QUEUES)):
        with pytest.raises(ClientError):
            call()
    pc.close()
    with consumer(cluster) as other, pytest.raises(ClientError, match="after subscribe"):
        other.subscribe("orders")
        other.assign(QUEUES)


def test_close_ends_a_poll_that_waits(cluster: PullCluster) -> None:
    pc = consumer(cluster)
    pc.start()
    pc.assign(QUEUES)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            pc.poll(10, timeout=30)
        except ClientError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    eventually(lambda: pc.stats()["queues"])
    pc.close()
    waiting.join(5)
    assert ended and not waiting.is_alive()


def test_a_pickled_consumer_is_one_that_was_not_started(cluster: PullCluster) -> None:
    cluster.put("orders", 0, [b"x"])
    with consumer(cluster, start_from="first") as pc:
        pc.assign(QUEUES)
        copy = pickle.loads(pickle.dumps(pc))
    assert (copy.group, copy.state, copy.assignment()) == ("reader", ServiceState.CREATE_JUST, [])
    with copy:
        copy.assign(QUEUES)
        assert drain(copy, 1)[0].body == b"x"


def test_single_pulls_of_a_real_broker_meet_every_status_and_say_where_to_go_on(
    tmp_path: Path,
) -> None:
    with (
        LiveCluster(tmp_path, segment_bytes=1 << 16, consume_queue_entries=16) as live,
        Producer("p", discovery=live) as producer,
    ):
        for i in range(8):
            producer.send("orders", b"%d" % i, tag="ab"[i % 2], queue=QUEUES[0])
        with consumer(live) as pc:
            found = {
                "FOUND": pc.pull(QUEUES[0], "a", 2, 100),
                "by its end": pc.pull(QUEUES[0], "*", 8),
                "no tag": pc.pull(QUEUES[0], "none", 3),
                "beyond": pc.pull(QUEUES[0], "*", 9),
                "empty": pc.pull(QUEUES[1], "*", 0),
                "empty beyond": pc.pull(QUEUES[1], "*", 4),
                "one": pc.pull(QUEUES[0], "*", 5, 1),
            }
            assert {
                what: (result.status, result.next_offset, result.max_offset)
                for what, result in found.items()
            } == {
                "FOUND": (PullStatus.FOUND, 8, 8),
                "by its end": (PullStatus.NO_NEW_MSG, 8, 8),
                "no tag": (PullStatus.NO_MATCHED_MSG, 8, 8),
                "beyond": (PullStatus.OFFSET_ILLEGAL, 8, 8),
                "empty": (PullStatus.NO_NEW_MSG, 0, 0),
                "empty beyond": (PullStatus.OFFSET_ILLEGAL, 0, 0),
                "one": (PullStatus.FOUND, 6, 8),
            }
            assert [message.body for message in found["FOUND"].messages] == [b"2", b"4", b"6"]
            threading.Timer(0.1, producer.send, ("orders", b"late"), {"queue": QUEUES[0]}).start()
            assert pc.pull(QUEUES[0], "*", 8, wait=10).messages[0].body == b"late"
            times = [message.store_ms for message in pc.pull(QUEUES[0], "*", 0, 100).messages]
            assert pc.offsets_for_times({QUEUES[0]: 0, QUEUES[1]: 5}) == {
                QUEUES[0]: 0,
                QUEUES[1]: 0,
            }
            assert pc.offsets_for_times({QUEUES[0]: times[-1]})[QUEUES[0]] == times.index(times[-1])
            assert pc.offsets_for_times({QUEUES[0]: times[-1] + 1}) == {QUEUES[0]: 9}
            with pytest.raises(TopicNotFound):
                pc.pull(MessageQueue("orders", "broker-z", 0))
            producer.send_batch(
                [Message("orders", b"%d" % i) for i in range(50)], queue=QUEUES[2]
            )  # all stored in one millisecond
            (same,) = {message.store_ms for message in pc.pull(QUEUES[2], "*", 0, 100).messages}
            assert [
                pc.offsets_for_times({QUEUES[2]: same + by})[QUEUES[2]]
                for by in (-1_000, -1, 0, 1, 1_000)
            ] == [0, 0, 0, 50, 50]


def test_a_killed_poller_of_a_real_broker_goes_on_at_its_commit(tmp_path: Path) -> None:
    with LiveCluster(tmp_path) as live, Producer("p", discovery=live) as producer:
        for i in range(100):
            producer.send("orders", b"%d" % i, queue=QUEUES[0])
        with consumer(live, auto_commit=False) as pc:
            pc.assign(QUEUES[:1])
            batch = pc.poll(60, timeout=5)
            pc.commit(batch)
            pc.poll(20, timeout=5)
        with consumer(live, auto_commit=False) as pc:
            pc.assign(QUEUES[:1])
            assert pc.position(QUEUES[0]) == 60 == pc.committed(QUEUES[0])
            pc.seek(QUEUES[0], 0)
            assert [message.body for message in drain(pc, 100)] == [b"%d" % i for i in range(100)]


def test_a_filter_of_sql_is_checked_by_the_broker_and_lets_pass_what_it_says(
    tmp_path: Path,
) -> None:
    with LiveCluster(tmp_path) as live, Producer("p", discovery=live) as producer:
        for i in range(20):
            producer.send("orders", b"%d" % i, properties={"amount": str(i)}, queue=QUEUES[0])
        with consumer(live) as pc:
            with pytest.raises(SubscriptionInvalid):
                pc.assign(QUEUES[:1], sql("amount >"))
            pc.assign(QUEUES[:1], sql("amount >= 15"))
            assert [message.body for message in drain(pc, 5)] == [b"15", b"16", b"17", b"18", b"19"]
            assert len(pc.pull(QUEUES[0], sql("amount BETWEEN 3 AND 4"), 0).messages) == 2


def test_names_are_put_into_the_namespace_and_messages_taken_out_of_it(
    cluster: PullCluster,
) -> None:
    cluster.create("ns%orders", 2)
    cluster.put("ns%orders", 1, [b"x"])
    with consumer(cluster, namespace="ns") as pc:
        assert pc.group == "ns%reader"
        assert pc.fetch_message_queues("orders") == [
            MessageQueue("ns%orders", "broker-a", number) for number in range(2)
        ]
        pc.assign([MessageQueue("orders", "broker-a", 1)])
        batch = pc.poll(10, timeout=5)
        pc.pause("orders")
        assert pc.paused() == ["ns%orders"]
        pc.resume("orders")
        assert (batch[0].topic, batch.to_arrow()["topic"].to_pylist(), batch.queues) == (
            "orders",
            ["orders"],
            [MessageQueue("ns%orders", "broker-a", 1)],
        )


def test_operators_see_the_consumer_and_move_it(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 50))
    with consumer(cluster, auto_commit=False) as pc:
        pc.assign(QUEUES[:1])
        pc.commit(pc.poll(10, timeout=5))
        address = Address("127.0.0.1", 1)
        status = pc.handle_request(
            Command(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                fields={"topic": "orders", "group": "reader"},
            ),
            address,
        )
        asked = {"consumerGroup": "reader", "clientId": "any"}
        info = pc.handle_request(
            Command(RequestCode.GET_CONSUMER_RUNNING_INFO, fields=asked), address
        )
        assert (
            status is not None
            and b":10" in status.body_bytes()
            and info is not None
            and b"CONSUME_ACTIVELY" in info.body_bytes()
        )
        refused = pc.handle_request(
            Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields={}), address
        )
        assert refused is not None and refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        reset = Command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            flag=FLAG_ONEWAY,
            fields={},
            body=encode_offsets({QUEUES[0]: 3, QUEUES[1]: 7}),
        )
        assert pc.handle_request(reset, address) is None
        eventually(lambda: pc.position(QUEUES[0]) == 3)
        assert pc.poll(1, timeout=5)[0].queue_offset == 3
        eventually(lambda: pc.committed(QUEUES[0]) == 3)
