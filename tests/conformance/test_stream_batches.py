"""What the driver of a stream learns from brokers on real ports and disks: ends, positions of
groups, cuts of a log. No Spark: nothing is read here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.instance import outage
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.client.scan.topic_state import TopicState
from rmq_ray.codec.arrow.arrow_rows import Rows
from rmq_ray.data.streaming import iter_batches
from rmq_ray.errors import (
    ClientError,
    ClusterError,
    ConnectFailed,
    ConnectionLost,
    GroupInUse,
    GroupNotFound,
    OffsetOutOfRange,
    SparkError,
    TopicNotFound,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import ClusterAddress
from rmq_ray.protocol.scan.scan_positions import LikeGroup
from rmq_ray.protocol.scan.stream_offsets import StreamPosition
from rmq_ray.spark.batch import require_alone
from rmq_ray.spark.batches import Batches, Reading
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.waiting import eventually

QUEUES = [
    MessageQueue("orders", broker, number)
    for broker in ("broker-a", "broker-b")
    for number in range(2)
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("streams"), brokers=2) as running:
        fill(running, "orders", "cut", "kept")
        yield running


def fill(cluster: LiveCluster, *topics: str) -> None:
    """Make these topics; ten messages in each of ``QUEUES``."""
    admin = Admin(cluster)
    for topic in topics:
        admin.create_topic(topic, queues=2)
    admin.close()
    with Producer("p", discovery=cluster) as p:
        for queue in QUEUES:
            for n in range(10):
                p.send(queue.topic, b"%d" % n, queue=queue)


@pytest.fixture
def asked(cluster: LiveCluster) -> Iterator[TopicState]:
    with TopicState(cluster, "orders") as made:
        yield made


class Expecting:
    """A ``Discovery`` that knows which brokers there should be, as that of a Ray cluster does."""

    def __init__(self, cluster: LiveCluster, *names: str) -> None:
        self._cluster, self._names = cluster, names

    def lookup(self) -> ClusterAddress:
        return self._cluster.lookup()

    def broker_names(self) -> tuple[str, ...]:
        return self._names


def batches(where: Any, topic: str = "orders", **settings: Any) -> Batches:
    if isinstance(where, LiveCluster):
        where = Expecting(where, *("broker-a", "broker-b")[: len(where.brokers)])
    return Batches(None, where, Reading((topic,), Rows(("body",)), **settings))  # type: ignore[arg-type]


def test_a_stream_goes_from_its_begin_to_the_end_in_batches_of_the_limit(
    cluster: LiveCluster,
) -> None:
    stream = batches(cluster, rows_max=15)
    position, rows = stream.begin(), []
    while (end := stream.next(position)) is not position:
        rows.append(sum(high - low for low, high in end.ranges(position).values()))
        position = end
    assert (
        rows == [15, 15, 10]
        and position.offsets == dict.fromkeys(QUEUES, 10)
        and set(position.epochs) == {"broker-a", "broker-b"}
    )
    assert stream.next(stream.begin(), dict.fromkeys(QUEUES, 2)).offsets == dict.fromkeys(
        QUEUES, 2
    ), "no further than the target"
    stream.close()


def test_the_group_of_a_stream_is_listed_described_and_deleted_like_any_other(
    cluster: LiveCluster,
) -> None:
    admin = Admin(cluster)
    stream = batches(cluster, rows_max=15, group="hourly")
    assert "hourly" not in admin.groups()
    end = stream.next(stream.begin())
    stream.commit(end)
    assert "hourly" in admin.groups() and admin.group_clients("hourly") == []
    assert sum(row["lag"] for row in admin.group_lag("hourly")) == 25
    admin.delete_group("hourly")
    assert "hourly" not in admin.groups()
    for asked in (admin.group_clients, admin.delete_group, admin.group_lag):
        with pytest.raises(GroupNotFound):
            asked("hourly")
    stream.commit(stream.next(end))
    assert "hourly" in admin.groups(), "it runs, and goes on telling how far it is"
    stream.close()
    admin.close()


def test_a_stream_begins_where_it_is_told_to(cluster: LiveCluster, asked: TopicState) -> None:
    asked.commit("readers", {QUEUES[0]: 4})
    for start, offsets in (
        ("latest", 10),
        ('{"orders": {"broker-a": {"0": 3, "1": -1}}}', None),
        (LikeGroup("readers"), None),
        (0, 0),
    ):
        stream = batches(cluster, start=start)
        found = stream.begin().offsets
        expected = {'{"': [3, 10, 0, 0], "Li": [4, 0, 0, 0]}.get(str(start)[:2], [offsets] * 4)
        assert [found[queue] for queue in QUEUES] == expected, start
        stream.close()


def test_wrong_beginnings_and_settings_are_typed_errors(cluster: LiveCluster) -> None:
    for settings, error in (
        ({"start": '{"orders": {"broker-a": {"0": 11}}}'}, OffsetOutOfRange),
        ({"start": "{"}, ClientError),
        ({"start": "soon"}, ClientError),
        ({"start": LikeGroup("typo")}, GroupNotFound),
        ({"start": '{"orders": {"broker-a": {"7": 1}}}'}, ClientError),
        ({"rows_max": 0}, SparkError),
        ({"topic": "not-there"}, TopicNotFound),
    ):
        with pytest.raises(error):
            batches(Expecting(cluster, "broker-a", "broker-b"), **settings).begin()


def test_a_topic_whose_only_broker_is_down_is_waited_for_and_not_taken_for_one_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LiveCluster(tmp_path) as alone:
        admin = Admin(alone)
        admin.create_topic("orders", queues=1)
        alone.run(alone.brokers.pop().stop())
        eventually(lambda: not admin.brokers())  # the name server has forgotten it, and its queues
        admin.close()
        monkeypatch.setattr(outage, "PATIENCE_MS", 300)
        stream = batches(Expecting(alone, "broker-a"))
        with pytest.raises(
            ClusterError, match="broker-a did not come back .* orders may be theirs"
        ):
            stream.begin()
        stream.close()


def test_shards_share_the_queues_of_their_namespace(cluster: LiveCluster) -> None:
    admin = Admin(cluster)
    admin.create_topic("ns%orders", queues=1)
    admin.close()
    bodies = {
        MessageQueue("ns%orders", broker, 0): broker.encode() for broker in ("broker-a", "broker-b")
    }
    with Producer("p", discovery=cluster) as p:
        for queue, body in bodies.items():
            p.send(queue.topic, body, queue=queue)
    told = cluster.lookup()
    where = {"cluster": told.cluster, "name_servers": told.name_servers, "secret": told.secret}
    found = []
    for rank in range(2):
        with iter_batches(
            "orders", group="sharing", shard=(rank, 2), namespace="ns", **where
        ) as batches:
            found += next(batches)["body"].to_pylist()
    assert found == list(bodies.values())


def test_a_name_server_that_restarts_is_asked_again(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, asked, faults = (
        batches(cluster),
        TopicState.now,
        [ConnectFailed("refused"), ConnectionLost("reset")],
    )

    def now(self: TopicState, brokers_expected: Collection[str] = ()) -> Any:
        if faults:
            raise faults.pop()
        return asked(self, brokers_expected)

    monkeypatch.setattr(TopicState, "now", now)
    assert stream.ends() == dict.fromkeys(QUEUES, 10) and not faults
    monkeypatch.setattr(outage, "PATIENCE_MS", 0)
    faults.append(ConnectFailed("refused"))
    with pytest.raises(ConnectFailed):
        stream.ends()
    stream.close()


def test_positions_of_a_group_are_told_and_seen(cluster: LiveCluster, asked: TopicState) -> None:
    asked.commit("nightly", dict.fromkeys(QUEUES, 7))
    assert asked.positions("nightly", asked.now()) == dict.fromkeys(QUEUES, 7)
    admin = Admin(cluster)
    assert [row["lag"] for row in admin.group_lag("nightly")] == [3] * 4
    admin.close()


def test_a_group_whose_consumers_run_is_left_to_them(
    cluster: LiveCluster, asked: TopicState
) -> None:
    require_alone(asked, "billing")
    with PushConsumer(
        "billing",
        discovery=cluster,
        listener=lambda messages, ctx: None,
        subscriptions={"orders": "*"},
    ):
        eventually(lambda: asked.members("billing"))
        with pytest.raises(GroupInUse, match="1 consumers of group 'billing' run"):
            require_alone(asked, "billing")
    eventually(lambda: not asked.members("billing"))


def test_a_position_behind_a_cut_of_the_log_is_an_error_or_goes_back_counted(
    cluster: LiveCluster,
) -> None:
    queue = MessageQueue("cut", "broker-a", 0)
    with Producer("p", discovery=cluster) as p:
        for _ in range(4):
            p.send("cut", b"before", queue=queue)
        stream = batches(cluster, "cut")
        position = stream.next(stream.begin())
        assert position.offsets[queue] == 4
        store = cluster.store(0)
        cut = store.log_offset_of("cut", 0, 2)

        async def lose() -> (
            None
        ):  # as a power loss would, in the books: what lies from here on is not what was read
            store.opened.epochs.begin(cut)

        cluster.run(lose())
        p.send("cut", b"behind", queue=queue)
    with pytest.raises(
        OffsetOutOfRange, match="lost the end of its log; messages from offset 2 on"
    ):
        stream.next(position)
    stream.close()
    lossy = batches(cluster, "cut", fail_on_data_loss=False)
    end = lossy.next(position)
    assert end.ranges(position) == {queue: (2, 5)} and lossy.rows_lost == 2
    assert lossy.next(end) is end and end.epochs["broker-a"] > position.epochs["broker-a"]
    lossy.close()


def test_a_new_epoch_behind_what_was_read_moves_nothing(cluster: LiveCluster) -> None:
    queue = MessageQueue("kept", "broker-b", 1)
    with Producer("p", discovery=cluster) as p:
        p.send("kept", b"x", queue=queue)
        stream = batches(cluster, "kept")
        position = stream.next(stream.begin())
        store = cluster.store(1)

        async def restart() -> None:
            store.opened.epochs.begin(store.end_offset)

        cluster.run(restart())
        p.send("kept", b"y", queue=queue)
    assert stream.next(position).ranges(position) == {queue: (1, 2)}
    stream.close()


def test_a_position_behind_the_end_is_an_error_or_the_beginning_of_a_topic_that_was_made_anew(
    cluster: LiveCluster,
) -> None:
    stream, lossy = batches(cluster), batches(cluster, fail_on_data_loss=False)
    ahead = StreamPosition(dict.fromkeys(QUEUES, 12))
    with pytest.raises(OffsetOutOfRange, match="there is no such message"):
        stream.next(ahead)
    back = lossy.next(ahead)
    assert (
        back.ranges(ahead) == dict.fromkeys(QUEUES, (0, 10))
        and lossy.next(back) is back
        and lossy.rows_lost == 0
    )
    stream.close()
    lossy.close()


def test_a_topic_that_is_deleted_under_a_running_stream_has_nothing_new_until_it_is_there_again(
    cluster: LiveCluster,
) -> None:
    admin, queue = Admin(cluster), MessageQueue("gone", "broker-a", 0)
    admin.create_topic("gone", queues=1)
    with Producer("p", discovery=cluster) as p:
        for _ in range(3):
            p.send("gone", b"old", queue=queue)
        stream, lossy = batches(cluster, "gone"), batches(cluster, "gone", fail_on_data_loss=False)
        position = stream.next(stream.begin())
        assert lossy.next(position) is position
        admin.delete_topic("gone")
        assert stream.next(position) is position
        admin.create_topic("gone", queues=1)
        p.send("gone", b"new", queue=queue)
    for each in (stream, lossy):
        assert each.next(position).ranges(position) == {queue: (3, 4)}
    for each in (stream, lossy, admin):
        each.close()


def test_what_retention_took_is_an_error_or_passed_over_and_counted(cluster: LiveCluster) -> None:
    store = cluster.store(0)
    kept, bounds = store.bounds, (4, 10)
    store.bounds = lambda topic, queue_id: (
        bounds if (topic, queue_id) == ("orders", 0) else kept(topic, queue_id)
    )  # type: ignore[method-assign]
    try:
        behind = StreamPosition(dict.fromkeys(QUEUES, 1))
        stream, lossy = batches(cluster), batches(cluster, fail_on_data_loss=False)
        with pytest.raises(
            OffsetOutOfRange,
            match=(
                r"offset 1 of .*broker-a, queueId=0.*\[4, 10\): retention has removed what lay "
                r"before"
            ),
        ):
            stream.next(behind)
        end = lossy.next(behind)
        assert (
            end.ranges(behind) == {QUEUES[0]: (4, 10)} | dict.fromkeys(QUEUES[1:], (1, 10))
            and lossy.rows_lost == 3
        )
        stream.close()
        lossy.close()
    finally:
        del store.bounds  # type: ignore[method-assign]


def test_queues_that_come_later_are_read_from_their_beginning(cluster: LiveCluster) -> None:
    stream = batches(cluster, rows_max=12)
    before = StreamPosition(dict.fromkeys(QUEUES[:2], 10), {"broker-a": 1})
    end = stream.next(before)
    assert end.ranges(before) == dict.fromkeys(QUEUES[2:], (0, 6)) and stream.next(end).ranges(
        end
    ) == dict.fromkeys(QUEUES[2:], (6, 10))
    stream.close()
