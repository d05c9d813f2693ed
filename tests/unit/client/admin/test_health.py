"""What a load balancer is told, whatever name servers and brokers say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.health import Health, look
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClientError, ClusterError, ConnectFailed, RmqError
from rmq_ray.model.ids import MASTER_ID, Address
from rmq_ray.model.topics import BrokerData
from rmq_ray.remoting.wire.bodies import encode_cluster_info
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

TIMEOUT_MS = 1_000.0


DOWN = ConnectFailed("cannot connect to h:1: nobody; nothing was sent", "h:1")
WELL = Command(ResponseCode.SUCCESS)


class Servers:
    """As a client instance: a name server that knows these brokers, and what each of them answers.
    An answer takes its share of the time where the broker is down.
    """

    client_id = "c"

    def __init__(self, **brokers: Command | RmqError) -> None:
        self.clock = ManualClock()
        self.shares_ms: list[float] = []
        self.connecting_ms = 0.0
        """What an answer takes at least where the broker is down."""
        self.answers = list(brokers.values())
        masters = [
            BrokerData("live", name, {MASTER_ID: f"h:{port}"})
            for port, name in enumerate(brokers, 1)
        ]
        slave = BrokerData("live", "without-master", {1: "h:99"})
        self.known: Command | RmqError = Command(
            ResponseCode.SUCCESS, body=encode_cluster_info([*masters, slave])
        )
        self.link = SimpleNamespace(ask_name_servers=self.told)

    def told(self, command: Command, timeout_ms: float, until_ms: float) -> Command:
        assert command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        assert (timeout_ms, until_ms) == (TIMEOUT_MS / 2, TIMEOUT_MS / 2)
        return given(self.known)

    def invoke(self, address: Address, command: Command, timeout_ms: float) -> Command:
        assert command.code == RequestCode.HEART_BEAT
        self.shares_ms.append(timeout_ms)
        answer = self.answers[address.port - 1]
        if isinstance(answer, RmqError):
            self.clock.advance_ms(max(timeout_ms, self.connecting_ms))
        return given(answer)


def given(answer: Command | RmqError) -> Command:
    if isinstance(answer, RmqError):
        raise answer
    return answer


def seen(servers: Servers) -> Health:
    return look(cast(Any, servers), TIMEOUT_MS)


def test_one_master_that_answers_is_enough_and_the_next_is_not_asked() -> None:
    servers = Servers(a=WELL, b=DOWN)
    assert (seen(servers), len(servers.shares_ms)) == (Health("a"), 1) and seen(servers)


def test_those_that_are_down_share_the_time_with_the_one_that_answers() -> None:
    servers = Servers(a=DOWN, b=DOWN, c=WELL, d=WELL)
    assert seen(servers) == Health("c")
    assert servers.shares_ms == [250.0] * 3


def test_where_each_takes_longer_than_its_share_the_rest_is_not_asked() -> None:
    servers = Servers(a=DOWN, b=DOWN, c=DOWN, d=DOWN, e=WELL)
    servers.connecting_ms = 400.0
    assert "no time was left for 2 more" in seen(servers).problem
    assert servers.clock.monotonic_ms() <= TIMEOUT_MS + servers.connecting_ms


@pytest.mark.parametrize(
    ("brokers", "known", "problem"),
    [
        ({}, None, "no broker is registered"),
        ({"a": WELL}, DOWN, "no name server answers: cannot connect to h:1"),
        ({"a": WELL}, Command(16, remark="not yours"), "the name server refused: not yours"),
        ({"a": WELL}, Command(0, body=b"nonsense"), "no name server answers"),
        ({"a": DOWN}, None, "broker a does not answer: cannot connect"),
        ({"a": Command(7)}, None, "broker a is not ready: code 7"),
        ({"a": Command(7), "b": DOWN}, None, "broker b does not answer"),
    ],
)
def test_what_is_wrong_is_said_and_not_raised(
    brokers: dict[str, Command | RmqError], known: Command | RmqError | None, problem: str
) -> None:
    servers = Servers(**brokers)
    servers.known = known or servers.known
    found = seen(servers)
    assert not found and found.broker == "" and problem in found.problem


def test_a_broker_without_an_address_is_not_ready() -> None:
    servers = Servers()
    nowhere = [BrokerData("live", "a", {MASTER_ID: "nowhere"})]
    servers.known = Command(ResponseCode.SUCCESS, body=encode_cluster_info(nowhere))
    assert "'nowhere' is not host:port" in seen(servers).problem


def test_a_cluster_that_is_not_found_is_no_error_and_a_time_out_that_is_none_is_one() -> None:
    def lookup() -> NoReturn:
        raise ClusterError("no cluster 'live' runs here")

    admin = Admin(cast(Any, SimpleNamespace(lookup=lookup)))
    assert admin.health().problem == "no cluster 'live' runs here"
    with pytest.raises(ClientError, match="timeout is 0"):
        admin.health(0)
