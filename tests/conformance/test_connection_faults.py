"""Peers that stop, die, vanish or speak nonsense; processes that fork; threads that are
interrupted.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import threading
import time
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import (
    ConnectFailed,
    ConnectionLost,
    HandshakeFailed,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.frame import BINARY, FLAG_RESPONSE, Command, encode_bytes
from tests.support.faults.stopwatch import Stopwatch
from tests.support.wire import (
    CREDENTIALS,
    ECHO,
    HOLD,
    Echo,
    Served,
    echo_process,
    ended_well,
    eventually,
    scripted,
)

pytestmark = pytest.mark.timeout(60)
LIMITS = RemotingLimits()


def echo(connection: Connection, body: bytes = b"hello", timeout_ms: int = 5_000) -> bytes:
    return connection.request(Command(ECHO, body=body, serialize=BINARY), timeout_ms).body_bytes()


def test_a_killed_peer_fails_everything_that_waits_at_once() -> None:
    lost: list[Any] = []
    with echo_process() as (process, address):
        connection = Connection(
            address, CREDENTIALS, LIMITS, SYSTEM_CLOCK, on_lost=lambda *args: lost.append(args)
        )
        assert echo(connection) == b"hello"
        outcomes: list[Any] = []
        for _ in range(100):
            connection.request_async(Command(HOLD), 30_000, outcomes.append)
        errors: list[Exception] = []

        def wait() -> None:
            try:
                connection.request(Command(HOLD), 30_000)
            except RemotingError as error:
                errors.append(error)

        threads = [threading.Thread(target=wait, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        waiting = connection._waiting._waiting
        eventually(lambda: sum(waiter.sent for waiter in list(waiting.values())) == 108)
        process.send_signal(signal.SIGKILL)
        watch = Stopwatch()
        for thread in threads:
            thread.join(5)
        assert eventually(lambda: len(outcomes) == 100) and watch.lived_s < 2
        assert {type(outcome) for outcome in outcomes + errors} == {ConnectionLost} and len(
            errors
        ) == 8
        assert len({id(error) for error in errors}) == 8  # each its own object
        assert eventually(lambda: len(lost) == 1) and lost[0][0] is connection
        with pytest.raises(ConnectFailed, match="nothing was sent"):
            echo(connection)


def test_a_stopped_peer_costs_each_request_its_time_out_and_serves_again_when_it_goes_on() -> None:
    with echo_process() as (process, address):
        connection = Connection(address, CREDENTIALS, LIMITS, SYSTEM_CLOCK)
        assert echo(connection) == b"hello"
        process.send_signal(signal.SIGSTOP)
        watch = Stopwatch()
        with pytest.raises(RequestTimeout):
            echo(connection, timeout_ms=300)
        assert watch.lived_s < 1.5
        process.send_signal(signal.SIGCONT)
        assert (
            echo(connection, b"again") == b"again"
        )  # the late answer to the first request is dropped


def test_a_stopped_peer_holds_a_writer_for_seconds_and_then_the_outcome_is_unknown() -> None:
    with echo_process() as (process, address):
        connection = Connection(address, CREDENTIALS, LIMITS, SYSTEM_CLOCK)
        process.send_signal(signal.SIGSTOP)
        outcomes: list[Any] = []
        connection.request_async(Command(HOLD), 30_000, outcomes.append)
        watch = Stopwatch()
        with pytest.raises(ConnectionLost, match="does not read"):
            echo(connection, bytes(15_000_000), timeout_ms=10_000)
        assert watch.lived_s < 8
        assert (
            not connection.alive
            and eventually(lambda: outcomes)
            and isinstance(outcomes[0], ConnectionLost)
        )


def test_frames_that_never_left_a_stuck_connection_are_definitely_not_sent() -> None:
    with echo_process() as (process, address):
        connection = Connection(address, CREDENTIALS, LIMITS, SYSTEM_CLOCK)
        process.send_signal(signal.SIGSTOP)
        errors: dict[str, Exception] = {}

        def send(name: str, body: bytes) -> None:
            try:
                echo(connection, body, 20_000)
            except RemotingError as error:
                errors[name] = error

        first = threading.Thread(target=send, args=("long", bytes(15_000_000)), daemon=True)
        first.start()
        assert eventually(lambda: connection._outbox.lock.locked())
        second = threading.Thread(target=send, args=("queued", b"q"), daemon=True)
        second.start()
        first.join(15)
        second.join(15)
        assert isinstance(errors["long"], ConnectionLost) and isinstance(
            errors["queued"], ConnectFailed
        )


def test_too_many_queued_bytes_are_refused_and_not_sent() -> None:
    with echo_process() as (process, address):
        connection = Connection(
            address, CREDENTIALS, RemotingLimits(unsent_bytes_max=1 << 20), SYSTEM_CLOCK
        )
        process.send_signal(signal.SIGSTOP)
        outcomes: list[Any] = []
        blocked = threading.Thread(
            target=lambda: connection.request_async(
                Command(ECHO, body=bytes(15_000_000)), 20_000, outcomes.append
            ),
            daemon=True,
        )
        blocked.start()
        assert eventually(lambda: connection._outbox.lock.locked())
        with pytest.raises(TooManyRequests, match="nothing was sent"):
            for _ in range(30):
                connection.request_async(
                    Command(ECHO, body=bytes(100_000)), 20_000, outcomes.append
                )
        connection.close()
        blocked.join(10)
        assert eventually(lambda: len(outcomes) >= 2)


NO_HANDSHAKE = {
    "nothing": b"",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "length 0": struct.pack(">i", 0),
    "negative length": struct.pack(">i", -1),
    "broken header": struct.pack(">ii", 8, 1000) + b"abcd",
    "no nonce": encode_bytes(Command(0, -1, FLAG_RESPONSE)),
    "short nonce": encode_bytes(Command(0, -1, FLAG_RESPONSE, body=b"\x91\xc4\x02ab")),
    "apache rocketmq": encode_bytes(
        Command(3, -1, FLAG_RESPONSE, remark=" request type 20001 not supported")
    ),
}
NONSENSE = [
    struct.pack(">i", -7),
    struct.pack(">i", 16_777_213),
    struct.pack(">ii", 8, 9 << 24) + b"abcd",
    struct.pack(">ii", 8, 100) + b"abcd",
    b"\x16\x03\x01\x02\x00",
]


@pytest.mark.parametrize("answer", NO_HANDSHAKE.values(), ids=NO_HANDSHAKE.keys())
def test_a_port_of_another_program_is_found_out_in_the_handshake(answer: bytes) -> None:
    def script(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)

    with (
        scripted(script) as address,
        pytest.raises((HandshakeFailed, ConnectFailed), match=str(address)),
    ):
        Connection(address, CREDENTIALS, LIMITS, SYSTEM_CLOCK)


def test_a_server_that_never_answers_the_handshake_fails_within_the_connect_time_out() -> None:
    with scripted(lambda sock: None) as address:
        watch = Stopwatch()
        with pytest.raises(ConnectFailed, match="handshake"):
            Connection(address, CREDENTIALS, RemotingLimits(connect_timeout_ms=300), SYSTEM_CLOCK)
        assert watch.lived_s < 2


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_server_that_speaks_nonsense_ends_its_connection(nonsense: bytes) -> None:
    def script(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(nonsense)

    lost: list[Any] = []
    with scripted(script) as address:
        connection = Connection(
            address, None, LIMITS, SYSTEM_CLOCK, on_lost=lambda *args: lost.append(args)
        )
        with pytest.raises(ConnectionLost):
            echo(connection)
        assert not connection.alive and eventually(lambda: len(lost) == 1)


def test_answers_that_nobody_asked_for_are_dropped() -> None:
    def script(sock: socket.socket) -> None:
        sock.recv(4096)
        for opaque in (77, -1, 1):
            sock.sendall(encode_bytes(Command(0, opaque, FLAG_RESPONSE, body=b"%d" % opaque)))

    with scripted(script) as address:
        connection = Connection(address, None, LIMITS, SYSTEM_CLOCK)
        assert echo(connection) == b"1" and connection.alive
        connection.close()


def test_an_answer_that_comes_byte_by_byte_is_read() -> None:
    def script(sock: socket.socket) -> None:
        sock.recv(4096)
        for byte in encode_bytes(Command(0, 1, FLAG_RESPONSE, body=b"slow")):
            sock.sendall(bytes((byte,)))
            time.sleep(0.001)

    with scripted(script) as address:
        connection = Connection(address, None, LIMITS, SYSTEM_CLOCK)
        assert echo(connection) == b"slow"
        connection.close()


def test_a_forked_child_cannot_use_or_disturb_the_parents_connection() -> None:
    with Served(Echo()) as served:
        connection = Connection(served.address, CREDENTIALS, LIMITS, SYSTEM_CLOCK)
        assert echo(connection) == b"hello"
        child = os.fork()
        if child == 0:  # only plain exits here: the child shares the test runner's memory
            verdict = 1
            try:
                echo(connection, timeout_ms=500)
            except ConnectFailed:
                connection.close()
                verdict = 2 if connection.alive else 0
            finally:
                os._exit(verdict)
        assert ended_well(child)
        assert echo(connection, b"parent") == b"parent" and connection.alive
        assert served.handler.seen == 2
        connection.close()


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt and ray.cancel."""


def test_a_waiting_thread_can_be_interrupted_and_later_answers_wake_nobody_wrongly() -> None:
    with Served(Echo()) as served:
        connection = Connection(served.address, CREDENTIALS, LIMITS, SYSTEM_CLOCK)
        caught: list[str] = []
        after: list[bytes] = []

        def work() -> None:
            try:
                connection.request(Command(HOLD, body=b"held"), 30_000)
            except Interrupted:
                caught.append("interrupted")
            for number in range(20):
                after.append(echo(connection, b"%d" % number))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert eventually(lambda: served.handler.held)
        watch = Stopwatch()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted)
        )
        assert (
            eventually(lambda: caught) and watch.lived_s < 2
        )  # waits are cut into slices of half a second
        held, peer = served.handler.held[0]
        served.call(lambda: peer.send(held.answer(body=b"late")))
        thread.join(10)
        assert after == [b"%d" % number for number in range(20)]
        connection.close()


def test_an_answer_that_is_handed_over_while_its_thread_is_interrupted_wakes_no_later_request() -> (
    None
):
    with Served(Echo()) as served:
        connection = Connection(served.address, CREDENTIALS, LIMITS, SYSTEM_CLOCK)
        caught: list[str] = []
        go_on = threading.Event()
        after: list[bytes] = []

        def work() -> None:
            try:
                connection.request(Command(HOLD, body=b"held"), 30_000)
            except Interrupted:
                caught.append("interrupted")
            go_on.wait(10)
            for number in range(20):
                after.append(echo(connection, b"%d" % number))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert eventually(lambda: served.handler.held)
        waiter = connection._waiting.take(
            next(iter(connection._waiting._waiting))
        )  # as the reader does before it releases the lock
        assert waiter is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted)
        )
        assert eventually(lambda: caught)
        waiter.resolve(Command(0, body=b"stale"))
        go_on.set()
        thread.join(10)
        assert after == [b"%d" % number for number in range(20)]
        connection.close()
