"""Tables that are sent again under the same frame ids: stored once, on real ports and disks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import ClientError, SendError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.derived_frames import DerivedFrames
from tests.support.brokers.live_cluster import LiveCluster

QUEUES = [
    MessageQueue("totals", broker, number)
    for broker in ("broker-a", "broker-b")
    for number in range(2)
]
TABLE = pa.table({"body": [b"row %d" % n + bytes(50) for n in range(3_000)]})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("placed"), brokers=2) as running:
        admin = Admin(running)
        admin.create_topic("totals", queues=2)
        admin.close()
        yield running


def stored(cluster: LiveCluster) -> int:
    return sum(
        cluster.store(number).bounds("totals", queue_id)[1]
        for number in range(2)
        for queue_id in range(2)
    )


def test_a_table_that_another_producer_sends_again_under_the_same_ids_is_stored_once(
    cluster: LiveCluster,
) -> None:
    before = stored(cluster)
    for _ in range(2):
        with Producer("sink", discovery=cluster, batch_bytes_max=20_000) as producer:
            results = producer.send_arrow(
                "totals", TABLE, place=DerivedFrames("job/1", 0, QUEUES).place
            )
            assert sum(result.count for result in results) == 3_000 and {
                result.queue for result in results
            } == set(QUEUES)
    assert stored(cluster) - before == 3_000


def test_another_batch_of_the_same_writer_is_stored_too(cluster: LiveCluster) -> None:
    before = stored(cluster)
    with Producer("sink", discovery=cluster, batch_bytes_max=20_000) as producer:
        for batch in (2, 3):
            producer.send_arrow(
                "totals", TABLE, place=DerivedFrames(f"job/{batch}", 0, QUEUES).place
            )
        producer.send_arrow("totals", TABLE)
    assert stored(cluster) - before == 9_000


def test_other_rows_under_the_same_ids_are_refused(cluster: LiveCluster) -> None:
    with Producer("sink", discovery=cluster, batch_bytes_max=20_000) as producer:
        producer.send_arrow("totals", TABLE, place=DerivedFrames("job/4", 0, QUEUES).place)
        with pytest.raises(SendError, match="other bytes"):
            producer.send_arrow(
                "totals", TABLE.slice(1), place=DerivedFrames("job/4", 0, QUEUES).place
            )


def test_places_go_with_plain_producers_only(cluster: LiveCluster) -> None:
    with (
        Producer("sink", discovery=cluster, compression="zlib") as producer,
        pytest.raises(ClientError, match="place="),
    ):
        producer.send_arrow("totals", TABLE, place=DerivedFrames("job/5", 0, QUEUES).place)
