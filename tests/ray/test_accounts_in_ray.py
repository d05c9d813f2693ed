"""Clients inside Ray that are an account: they and what travels to tasks and actors have its rights
and no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd
from rmq_ray.actors.discovery import use_cluster
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.model.ids import Address
from rmq_ray.protocol.access.signature import ACCESS_KEY, SIGNATURE, sign
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.waiting import eventually

SECRET = "the secret of the shop"
REFUSED = "web-shop may not .* on topic wages"


@pytest.fixture
def mq(start: Callable[..., rmq.Cluster]) -> Iterator[rmq.Cluster]:
    cluster = start(foreign="acl")
    cluster.admin.acl.create("web-shop", SECRET, topics={"orders": "PUB|SUB"})
    for topic in ("orders", "wages"):
        cluster.admin.create_topic(topic, queues=1)
    yield cluster
    use_cluster(cluster.name)


@ray.remote(num_cpus=0)
def sends(producer: rmq.Producer) -> str:
    """In a task, which has Ray and so could be a member."""
    with producer:
        producer.send("orders", b"of a task")
        with pytest.raises(rmq.NotAuthorized) as caught:
            producer.send("wages", b"of a task")
        return str(caught.value)


def test_an_account_in_ray_has_its_rights_wherever_its_clients_go(mq: rmq.Cluster) -> None:
    shop = rmq.connect(mq.name, access_key="web-shop", secret_key=SECRET)
    with shop.producer() as producer:
        producer.send("orders", b"of the driver")
        with pytest.raises(rmq.NotAuthorized, match=REFUSED):
            producer.send("wages", b"of the driver")
    assert re.search(REFUSED, ray.get(sends.remote(shop.producer())))
    actor: Any = rmq.ProducerActor.options(num_cpus=0).remote("of-an-actor")
    ray.get(actor.send.remote("orders", b"of an actor"))
    with pytest.raises(rmq.NotAuthorized, match=REFUSED):
        ray.get(actor.send.remote("wages", b"of an actor"))
    assert mqd.read_topic("orders").count() == 3
    with pytest.raises(rmq.NotAuthorized, match=REFUSED):
        mqd.read_topic("wages")
    mq.admin.acl.grant("web-shop", topic="wages", right="PUB")

    def sent() -> bool:
        try:
            return bool(ray.get(actor.send.remote("wages", b"now")))
        except rmq.NotAuthorized:
            return False

    eventually(sent)
    assert shop.status(), "what asks the controller is open to all who have Ray"


def test_a_request_of_mqadmin_to_a_broker_changes_the_accounts_of_the_cluster(
    mq: rmq.Cluster,
) -> None:
    mq.admin.acl.create("operator", SECRET, admin=True)
    address = Address.parse(mq.addresses["broker-a"][0])
    connection = Connection(address, None, RemotingLimits(), SYSTEM_CLOCK)
    try:
        for key, code in (("web-shop", 1), ("operator", 0)):
            fields = {"accessKey": "made-by-tool", "secretKey": SECRET, ACCESS_KEY: key}
            fields[SIGNATURE] = sign(fields, b"", SECRET)
            asked = Command(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields=fields)
            answer = connection.request(asked, 20_000)
            assert answer.code == code, answer.remark
            made = [one["access_key"] for one in mq.admin.acl.users()]
            assert ("made-by-tool" in made) is (code == 0)
    finally:
        connection.close()
