"""Whether a group is new: what other brokers say of it, and what follows while one is silent."""

from __future__ import annotations

import pytest

from rmq_ray.client.consumer.known_group import FRESH_MS, KnownGroup
from rmq_ray.errors import ConnectFailed, RemotingError
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.clients.scripted_client import ScriptedClient

BROKERS = {name: Address("10.0.0.1", 10_911 + port) for port, name in enumerate("abc")}
SILENT = ConnectFailed("no connection")


def client_of(**told: int | RemotingError | ResponseCode | None) -> ScriptedClient:
    """What each broker answers: for how long it knows the group, an error or a refusal."""
    client = ScriptedClient()
    client.known["orders"] = TopicRoute(
        tuple(QueueData(name, 1, 1, 6) for name in told),
        tuple(BrokerData("c", name, {0: str(BROKERS[name])}) for name in told),
    )
    client.routes.refresh("orders")
    names = {address: name for name, address in BROKERS.items()}

    def answer(command: Command, address: Address) -> Command | RemotingError:
        said = told[names[address]]
        if isinstance(said, RemotingError):
            client.clock.advance_ms(2 * FRESH_MS)  # it takes its time
            return said
        if isinstance(said, ResponseCode):
            return command.answer(said)
        return command.answer(22, fields={} if said is None else {"rmqKnownMs": str(said)})

    client.answer(RequestCode.QUERY_CONSUMER_OFFSET, answer)
    return client


def test_the_broker_that_has_known_it_longest_counts_and_this_one_is_not_asked() -> None:
    client = client_of(a=9_999, b=20, c=300)
    assert KnownGroup(client, "g").elsewhere_ms("orders", "a") == 300
    assert [address for address, _ in client.sent] == [BROKERS["b"], BROKERS["c"]]
    assert KnownGroup(client_of(a=7, b=None), "g").elsewhere_ms("orders", "a") is None


@pytest.mark.parametrize("silent", [SILENT, ResponseCode.STILL_RECOVERING])
def test_while_a_broker_is_silent_a_group_that_nobody_else_knows_is_not_called_new(
    silent: RemotingError | ResponseCode,
) -> None:
    with pytest.raises(ConnectFailed):
        KnownGroup(client_of(a=None, b=silent, c=None), "g").elsewhere_ms("orders", "a")
    known_here = KnownGroup(client_of(a=5, b=silent, c=None), "g")
    assert known_here.elsewhere_ms("orders", "a") is None
    client = client_of(a=None, b=silent, c=300)
    assert KnownGroup(client, "g").elsewhere_ms("orders", "a") == 300


@pytest.mark.parametrize("said", [None, 300, SILENT])
def test_what_was_told_counts_for_a_second_from_when_it_was_told(
    said: int | RemotingError | None,
) -> None:
    client = client_of(a=5, b=said)
    known = KnownGroup(client, "g")
    before = [known.elsewhere_ms("orders", "a") for _ in range(3)]
    asked = [address for address, _ in client.sent]
    assert asked.count(BROKERS["b"]) == 1 and len(set(before)) == 1
    client.clock.advance_ms(FRESH_MS)
    known.elsewhere_ms("orders", "a")
    assert [address for address, _ in client.sent].count(BROKERS["b"]) == 2
