"""What one stranger may cost a port: floods of connections and of beginnings are refused, counted,
leave nothing behind, and others notice nothing.
"""

from __future__ import annotations

import gc
import socket
import struct
import time
from typing import Any

import pytest

from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.errors import ConfigError
from rmq_ray.model.ids import Address
from rmq_ray.remoting.handshake import ClientHandshake
from rmq_ray.remoting.listener import QUIET_MAX
from rmq_ray.remoting.peer import ServerPeer
from rmq_ray.remoting.wire.frame import HEADER_READ_MAX, JSON, Command, encode_bytes
from tests.support.waiting import eventually
from tests.support.wire import CREDENTIALS, ECHO, Echo, RawClient, Served

pytestmark = pytest.mark.timeout(180)


class OtherHost(RawClient):
    """A client whose connection comes from another address of this machine."""

    def __init__(self, address: Address) -> None:
        self.sock = socket.create_connection(
            (address.host, address.port), timeout=5, source_address=("127.0.0.2", 0)
        )
        client = ClientHandshake(CREDENTIALS, b"n" * 32)
        client.finish(self.ask(client.prove(self.ask(client.hello()))))


def peers_in_memory() -> int:
    gc.collect()
    return sum(isinstance(found, ServerPeer) for found in gc.get_objects())


def test_half_open_connections_of_an_address_are_refused_above_their_limit() -> None:
    limits = RemotingLimits(half_open_per_host_max=100, handshake_timeout_ms=120_000)
    with Served(Echo(), limits=limits) as served, RawClient(served.address, CREDENTIALS) as ours:
        half_open = [RawClient(served.address) for _ in range(100)]
        assert eventually(lambda: served.listener.connections == 101)
        for _ in range(1_900):
            with RawClient(served.address) as refused:
                assert refused.ended()
        assert served.listener.refused == 1_900 and served.listener.connections == 101
        assert ours.echo()
        with OtherHost(served.address) as other:
            assert other.echo()
        half_open.pop().sock.close()
        assert eventually(lambda: served.listener.connections == 100)
        with RawClient(served.address, CREDENTIALS) as again:
            assert again.echo()
        for client in half_open:
            client.sock.close()


def test_one_address_leaves_room_for_others() -> None:
    limits = RemotingLimits(connections_max=4, connections_per_host_max=3)
    with Served(Echo(), limits=limits) as served:
        ours = [RawClient(served.address, CREDENTIALS) for _ in range(3)]
        with RawClient(served.address) as fourth:
            assert fourth.ended()
        with OtherHost(served.address) as other:
            assert other.echo() and all(client.echo() for client in ours)
        for client in ours:
            client.sock.close()
        assert eventually(lambda: not served.listener.connections)
        with RawClient(served.address, CREDENTIALS) as again:
            assert again.echo()


def test_foreign_clients_that_asked_are_not_half_open() -> None:
    limits = RemotingLimits(half_open_per_host_max=2)
    with Served(Echo(), ForeignClients.OPEN, limits) as served:
        clients = [RawClient(served.address) for _ in range(2)]
        assert all(client.echo() for client in clients)
        clients += [RawClient(served.address) for _ in range(2)]
        assert all(client.echo() for client in clients)
        for client in clients:
            client.sock.close()


def test_ten_thousand_handshakes_cut_at_every_byte_leave_nothing() -> None:
    told: list[str] = []
    before = peers_in_memory()  # of tests that ran in this process
    with Served(Echo()) as served, RawClient(served.address, CREDENTIALS) as ours:
        served.listener._on_refused = lambda _peer, reason: told.append(reason)  # noqa: SLF001
        client = ClientHandshake(CREDENTIALS, b"n" * 32)
        hello = encode_bytes(client.hello())
        for number in range(10_000):
            with RawClient(served.address) as cut:
                cut.sock.sendall(hello[: number % len(hello)])
            if number % 1_000 == 0:
                assert ours.echo()
        assert eventually(lambda: served.listener.connections == 1, 30)
        assert eventually(lambda: served.call(peers_in_memory) <= before + 2, 30)
        assert len(served.listener._quiet_until) <= QUIET_MAX  # noqa: SLF001
        assert ours.echo() and not [text for text in told if "handshake" in text]


def test_a_handshake_that_drips_is_closed_in_its_time() -> None:
    hello = encode_bytes(ClientHandshake(CREDENTIALS, b"n" * 32).hello())
    limits = RemotingLimits(handshake_timeout_ms=300)
    with Served(Echo(), limits=limits) as served, RawClient(served.address) as slow:
        begun = time.monotonic()

        def closed_after_a_byte() -> bool:
            try:
                slow.sock.sendall(hello[:1])
                return slow.ended(0.1)
            except ConnectionError:
                return True

        assert eventually(closed_after_a_byte, 10)
        assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize("header", [HEADER_READ_MAX + 1, 8 << 20])
def test_a_giant_header_is_not_parsed(header: int, caplog: Any) -> None:
    with Served(Echo(), ForeignClients.OPEN) as served, RawClient(served.address) as other:
        with RawClient(served.address) as stranger:
            stranger.sock.sendall(struct.pack(">II", header + 4, JSON << 24 | header))
            stranger.sock.sendall(b" " * header)
            assert stranger.ended()
        assert other.echo() and served.handler.seen == 1
        assert f"header of {header} bytes; at most {HEADER_READ_MAX} are read" in caplog.text


def test_headers_as_long_as_rocketmqs_are_read() -> None:
    with Served(Echo(), ForeignClients.OPEN) as served, RawClient(served.address) as stranger:
        properties = "é" * 32_767
        answer = stranger.ask(Command(ECHO, 1, fields={"i": properties}, serialize=JSON))
        assert answer.fields == {"i": properties}


@pytest.mark.parametrize("setting", ["half_open_per_host_max", "connections_per_host_max"])
@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True])
def test_limits_that_cannot_be_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        RemotingLimits(**{setting: value})
