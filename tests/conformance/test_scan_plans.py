"""Plans of bulk reads by time, by group, by several topics and patterns; what is read when
retention was faster.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan.range_plan import plan_ranges
from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan, open_reader, plan_scan
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.record import decode_record
from rmq_ray.errors import (
    ClientError,
    ClusterError,
    GroupNotFound,
    OffsetOutOfRange,
    TopicNotFound,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_positions import LikeGroup
from tests.support.brokers.live_cluster import LiveCluster

LOSSY = ScanOptions(fail_on_data_loss=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("positions"), brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LiveCluster) -> Iterator[Admin]:
    made = Admin(cluster)
    yield made
    made.close()


@pytest.fixture(scope="module")
def middle_ms(cluster: LiveCluster, admin: Admin) -> int:
    """Topics eu-orders and us-orders of two queues a broker: ten messages to each queue, a pause,
    ten more. The time of the pause.
    """
    queues = [
        (topic, broker, number)
        for topic in ("eu-orders", "us-orders")
        for broker in ("broker-a", "broker-b")
        for number in range(2)
    ]
    for topic in ("eu-orders", "us-orders"):
        admin.create_topic(topic, queues=2)
    middle = 0
    with Producer("p", discovery=cluster) as p:
        for half in range(2):
            for topic, broker, number in queues:
                for n in range(10):
                    p.send(
                        topic, b"%d" % (10 * half + n), queue=MessageQueue(topic, broker, number)
                    )
            if half == 0:
                SYSTEM_CLOCK.sleep_ms(20)
                middle = SYSTEM_CLOCK.now_ms()
                SYSTEM_CLOCK.sleep_ms(20)
    return middle


def rows(plan: ScanPlan) -> dict[MessageQueue, list[int]]:
    found: dict[MessageQueue, list[int]] = {}
    reader = open_reader(plan)
    for split in plan.splits:
        for records, sizes in reader.read(split, 1 << 20):
            at = 0
            for size in sizes.tolist():
                found.setdefault(split.queue, []).append(
                    int(decode_record(bytes(records[at : at + size])).body)
                )
                at += size
    reader.close()
    return found


def test_a_time_is_the_first_message_stored_then_or_later(
    cluster: LiveCluster, middle_ms: int
) -> None:
    assert set(
        map(tuple, rows(plan_scan(cluster, "eu-orders", middle_ms, "latest", 4)).values())
    ) == {tuple(range(10, 20))}
    assert set(
        map(tuple, rows(plan_scan(cluster, "eu-orders", "earliest", middle_ms, 4)).values())
    ) == {tuple(range(10))}
    assert plan_scan(cluster, "eu-orders", SYSTEM_CLOCK.now_ms() + 60_000, "latest", 4).rows == 0
    assert plan_scan(cluster, "eu-orders", 0, "latest", 4).rows == 80


def test_a_group_stands_where_it_committed_and_queues_it_never_read_begin_at_their_start(
    cluster: LiveCluster, admin: Admin, middle_ms: int
) -> None:
    queue = MessageQueue("us-orders", "broker-a", 1)
    admin._commit("daily", queue, 15)
    found = rows(plan_scan(cluster, "us-orders", LikeGroup("daily"), "latest", 4))
    assert found[queue] == list(range(15, 20)) and len(found) == 4
    with pytest.raises(TopicNotFound):
        plan_scan(cluster, "nowhere", LikeGroup("daily"), "latest", 4)


def test_several_topics_and_patterns_are_one_plan(cluster: LiveCluster, middle_ms: int) -> None:
    both = plan_scan(cluster, ["eu-orders", "us-orders", "eu-orders"], "earliest", "latest", 1)
    assert both.rows == 160 and {split.queue.topic for split in both.splits} == {
        "eu-orders",
        "us-orders",
    }
    pattern = ScanOptions(pattern=True)
    assert plan_scan(cluster, ".*-orders", "earliest", "latest", 1, (), pattern).rows == 160
    assert plan_scan(cluster, "eu.*", "earliest", "latest", 1, (), pattern).rows == 80
    offsets = (
        '{"eu-orders":{"broker-a":{"0":-1,"1":19},"broker-b":{"0":-1,"1":-1}},'
        '"us-orders":{"broker-b":{"1":18}}}'
    )
    assert (
        plan_scan(cluster, ["eu-orders", "us-orders"], offsets, "latest", 1).rows == 1 + 2 + 3 * 20
    )
    with pytest.raises(TopicNotFound, match="no topic of this cluster matches"):
        plan_scan(cluster, "eu", "earliest", "latest", 1, (), pattern)
    with pytest.raises(ClientError, match="no regular expression"):
        plan_scan(cluster, "(", "earliest", "latest", 1, (), pattern)
    with pytest.raises(ClientError, match="at least one topic"):
        plan_scan(cluster, [], "earliest", "latest", 1)


def test_a_plan_of_ranges_reads_no_others(cluster: LiveCluster, middle_ms: int) -> None:
    ranges = {
        MessageQueue("us-orders", "broker-b", 1): (3, 20),
        MessageQueue("eu-orders", "broker-a", 0): (0, 2),
    }
    found = rows(plan_ranges(cluster, ranges, 1))
    assert found == {queue: list(range(*bounds)) for queue, bounds in ranges.items()}
    assert plan_ranges(cluster, {}, 1).splits == ()
    with pytest.raises(ClusterError, match="not there now"):
        plan_ranges(cluster, {MessageQueue("us-orders", "broker-b", 9): (3, 4)}, 1)


def test_the_size_of_splits_has_bounds(cluster: LiveCluster, middle_ms: int) -> None:
    sizes = [
        split.end - split.start
        for split in plan_scan(
            cluster, "eu-orders", "earliest", "latest", 1, (), ScanOptions(rows_max=7)
        ).splits
    ]
    assert max(sizes) == 7 and sum(sizes) == 80
    assert (
        len(
            plan_scan(
                cluster, "eu-orders", "earliest", "latest", 80, (), ScanOptions(rows_min=20)
            ).splits
        )
        == 4
    )
    with pytest.raises(ClientError, match="rows_min"):
        plan_scan(
            cluster, "eu-orders", "earliest", "latest", 1, (), ScanOptions(rows_min=10, rows_max=5)
        )


def test_offsets_that_are_not_there_are_an_error_or_moved(
    cluster: LiveCluster, middle_ms: int
) -> None:
    queue = MessageQueue("eu-orders", "broker-a", 0)
    with pytest.raises(OffsetOutOfRange, match="fail_on_data_loss=False"):
        plan_scan(cluster, "eu-orders", {queue: 25}, "latest", 1)
    assert plan_scan(cluster, "eu-orders", {queue: 25}, "latest", 1, (), LOSSY).rows == 60


def test_a_group_that_never_committed_is_an_error_and_not_the_beginning(
    cluster: LiveCluster, admin: Admin, middle_ms: int
) -> None:
    for read in (
        lambda: plan_scan(cluster, "eu-orders", LikeGroup("typo"), "latest", 1),
        lambda: plan_scan(cluster, "eu-orders", "earliest", LikeGroup("typo"), 1),
        lambda: plan_scan(
            cluster, ["eu-orders", "us-orders"], LikeGroup("typo"), "latest", 1, (), LOSSY
        ),
        lambda: admin.to_arrow("eu-orders", start=LikeGroup("typo")),
    ):
        with pytest.raises(
            GroupNotFound, match="'typo' has no position in eu-orders.*rmq-ray group list"
        ):
            read()
    admin._commit("elsewhere", MessageQueue("us-orders", "broker-a", 0), 3)
    with pytest.raises(GroupNotFound):
        plan_scan(cluster, "eu-orders", LikeGroup("elsewhere"), "latest", 1)
    assert (
        plan_scan(cluster, ["eu-orders", "us-orders"], LikeGroup("elsewhere"), "latest", 1).rows
        == 157
    ), "where it has none: from the beginning"
    with pytest.raises(ClientError, match="group"):
        plan_scan(cluster, "eu-orders", LikeGroup("no such name!"), "latest", 1)
