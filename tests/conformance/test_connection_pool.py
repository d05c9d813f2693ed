"""The pool: one connection an address, made when needed, replaced when broken, and no address holds
up another.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import ConnectFailed, ConnectionLost, HandshakeFailed, RemotingError
from rmq_ray.model.ids import Address
from rmq_ray.remoting.pool import ConnectionPool
from rmq_ray.remoting.wire.frame import BINARY, Command
from tests.support.faults.stopwatch import Stopwatch
from tests.support.wire import (
    CREDENTIALS,
    ECHO,
    HOLD,
    PUSH_FIRST,
    Echo,
    Served,
    ended_well,
    eventually,
)

pytestmark = pytest.mark.timeout(60)
HELLO = Command(ECHO, body=b"hello", serialize=BINARY)


@pytest.fixture(name="pool")
def _pool() -> Iterator[ConnectionPool]:
    pool = ConnectionPool(CREDENTIALS, RemotingLimits(), SYSTEM_CLOCK)
    yield pool
    pool.close()


@pytest.fixture(name="served")
def _served() -> Iterator[Served]:
    with Served(Echo()) as served:
        yield served


@pytest.fixture(name="silent")
def _silent() -> Iterator[socket.socket]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def attempts_at(listening: socket.socket) -> int:
    """How many connections have come."""
    found = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return found
        found += 1


def test_many_threads_share_one_connection(pool: ConnectionPool, served: Served) -> None:
    answers: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(pool.request(served.address, HELLO, 5_000).body_bytes()),
            daemon=True,
        )
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == [b"hello"] * 20 and served.listener.connections == 1


def test_two_addresses_have_two_connections(pool: ConnectionPool, served: Served) -> None:
    with Served(Echo()) as other:
        assert (
            pool.request(served.address, HELLO, 5_000).body
            == pool.request(other.address, HELLO, 5_000).body
        )
        assert served.listener.connections == other.listener.connections == 1


def test_a_broken_connection_is_replaced_on_next_use(pool: ConnectionPool, served: Served) -> None:
    outcomes: list[Any] = []
    pool.request_async(served.address, Command(HOLD), 10_000, outcomes.append)
    assert eventually(lambda: served.handler.held)
    served.call(lambda: [peer.close("for the test") for peer in served.listener.peers])
    assert eventually(lambda: outcomes) and isinstance(outcomes[0], ConnectionLost)
    assert eventually(lambda: served.listener.connections == 0)
    assert pool.request(served.address, HELLO, 5_000).body_bytes() == b"hello"


def test_an_address_where_nobody_listens_fails_at_once_and_serves_when_somebody_does(
    pool: ConnectionPool,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
    for use in (
        lambda: pool.request(address, HELLO, 1_000),
        lambda: pool.oneway(address, HELLO),
        lambda: pool.request_async(address, HELLO, 1_000, print),
    ):
        with pytest.raises(ConnectFailed, match="nothing was sent"):
            use()


def test_connecting_to_a_silent_address_holds_up_nobody_else_and_waiters_share_its_failure(
    served: Served, silent: socket.socket
) -> None:
    pool = ConnectionPool(CREDENTIALS, RemotingLimits(connect_timeout_ms=700), SYSTEM_CLOCK)
    failures: list[RemotingError] = []

    def work() -> None:
        try:
            pool.request(Address(*silent.getsockname()), HELLO, 1_000)
        except ConnectFailed as error:
            failures.append(error)

    watch = Stopwatch()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(10)]
    for thread in threads:
        thread.start()
    assert pool.request(served.address, HELLO, 5_000).code == 0
    assert watch.lived_s < 0.6
    for thread in threads:
        thread.join(10)
    assert len(failures) == 10 and watch.lived_s < 2.5  # not ten time-outs one after the other
    assert attempts_at(silent) == 1
    pool.close()


def test_a_refused_handshake_is_told_apart_from_a_failed_connect(served: Served) -> None:
    pool = ConnectionPool(replace(CREDENTIALS, secret=b"wrong"), RemotingLimits(), SYSTEM_CLOCK)
    with pytest.raises(HandshakeFailed):
        pool.request(served.address, HELLO, 5_000)
    pool.close()


def test_dropping_an_address_closes_its_connection(pool: ConnectionPool, served: Served) -> None:
    pool.oneway(served.address, HELLO)
    assert eventually(lambda: served.listener.connections == 1)
    pool.drop(served.address)
    pool.drop(served.address)
    assert eventually(lambda: served.listener.connections == 0)
    assert pool.request(served.address, HELLO, 5_000).code == 0


def test_a_closed_pool_sends_nothing(pool: ConnectionPool, served: Served) -> None:
    assert pool.request(served.address, HELLO, 5_000).code == 0
    pool.close()
    with pytest.raises(ConnectFailed, match="closed"):
        pool.request(served.address, HELLO, 5_000)
    assert eventually(lambda: served.listener.connections == 0) and served.handler.seen == 1


def test_callbacks_of_the_pool_reach_its_owner(served: Served) -> None:
    pushed: list[int] = []
    lost: list[Any] = []
    pool = ConnectionPool(
        CREDENTIALS,
        RemotingLimits(),
        SYSTEM_CLOCK,
        lambda command, connection: pushed.append(command.code),
        lambda *args: lost.append(args),
    )
    assert pool.request(served.address, Command(PUSH_FIRST), 5_000).code == 0
    served.call(lambda: [peer.close("for the test") for peer in served.listener.peers])
    assert eventually(lambda: lost) and pushed == [40] and lost[0][0].address == served.address
    pool.close()


def test_a_forked_child_opens_connections_of_its_own(pool: ConnectionPool, served: Served) -> None:
    assert pool.request(served.address, HELLO, 5_000).code == 0
    child = os.fork()
    if child == 0:  # only plain exits here: the child shares the test runner's memory
        verdict = 1
        try:
            verdict = (
                0
                if pool.request(served.address, Command(ECHO, body=b"child"), 5_000).body_bytes()
                == b"child"
                else 2
            )
        finally:
            os._exit(verdict)
    assert ended_well(child)
    assert served.handler.seen == 2 and eventually(lambda: served.listener.connections == 1)
    assert pool.request(served.address, HELLO, 5_000).code == 0
