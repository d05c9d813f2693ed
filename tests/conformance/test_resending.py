"""Messages that are found by id or key and sent once more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq_ray.client.admin.resending import Resending
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import AdminError, ClientError, SendError
from rmq_ray.model.message import Message, decode_properties
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.faults.chaos import read_log


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture
def admin(cluster: LiveCluster) -> Iterator[Resending]:
    made = Resending(cluster)
    yield made
    made.close()


def send(cluster: LiveCluster, topic: str, count: int, **settings: object) -> list[str]:
    with Producer("p", discovery=cluster, **settings) as p:  # type: ignore[arg-type]
        return [
            p.send(
                Message(topic, b"%d" % i * 500, "paid", [f"k{i}", "all"], {"region": "eu"}, flag=7)
            ).message_id
            for i in range(count)
        ]


def bodies(cluster: LiveCluster, topic: str) -> list[bytes]:
    return sorted(bytes(record.body) for record in read_log(cluster, topic).values())


def test_what_is_resent_is_the_same_message_with_an_id_of_its_own(
    cluster: LiveCluster, admin: Resending
) -> None:
    ids = send(cluster, "r-ids", 3)
    (dry,) = admin.resend_messages("r-ids", message_ids=[ids[1]])
    assert (
        dry["message_id"] == ids[1]
        and "resent_as" not in dry
        and len(bodies(cluster, "r-ids")) == 3
    )
    (row,) = admin.resend_messages("r-ids", message_ids=[ids[1], ids[1]], execute=True)
    assert row["resent_as"] not in ids
    (again,) = [
        record
        for record in read_log(cluster, "r-ids").values()
        if row["resent_as"] in record.properties
    ]
    first = next(
        record for record in read_log(cluster, "r-ids").values() if ids[1] in record.properties
    )
    found, before = decode_properties(again.properties), decode_properties(first.properties)
    assert (again.body, again.flag, found["TAGS"], found["KEYS"], found["region"]) == (
        first.body,
        7,
        "paid",
        "k1 all",
        "eu",
    )
    assert before["KEYS"] == found["KEYS"] and "PGROUP" not in found


def test_all_messages_of_a_key_go_oldest_first_elsewhere_if_asked(
    cluster: LiveCluster, admin: Resending
) -> None:
    ids = send(cluster, "r-key", 4, compression="zlib", compress_over_bytes=100)
    rows = admin.resend_messages("r-key", key="all", to="r-other", execute=True)
    assert [row["message_id"] for row in rows] == ids
    assert (
        bodies(cluster, "r-other") == [b"%d" % i * 500 for i in range(4)]
        and len(bodies(cluster, "r-key")) == 4
    )
    assert [row["message_id"] for row in admin.resend_messages("r-key", key="all", limit=2)] == ids[
        2:
    ]
    assert admin.resend_messages("r-key", key="nobody", execute=True) == []


def test_nothing_is_sent_unless_all_of_it_is_there_and_lawful(
    cluster: LiveCluster, admin: Resending
) -> None:
    (one,) = send(cluster, "r-bad", 1)
    with pytest.raises(AdminError, match="has no message 00"):
        admin.resend_messages("r-bad", message_ids=[one, "0" * 32], execute=True)
    for how in ({}, {"message_ids": [one], "key": "k0"}):
        with pytest.raises(ClientError, match="one of the two"):
            admin.resend_messages("r-bad", execute=True, **how)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="dlq resend g"):
        admin.resend_messages("%DLQ%g", key="k", execute=True)
    with pytest.raises((ClientError, SendError)):
        admin.resend_messages("r-bad", key="k0", to="bad topic!", execute=True)
    assert len(bodies(cluster, "r-bad")) == 1
