"""Real listeners for tests: in a thread of this process, or in a process of their own that can be
stopped and killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, RemotingLimits, TlsSettings
from rmq_ray.errors import BrokerBusy
from rmq_ray.model.ids import Address
from rmq_ray.remoting.handshake import AccountKey, ClientHandshake, Credentials
from rmq_ray.remoting.listener import Listener, PortOptions
from rmq_ray.remoting.wire.frame import BINARY, FLAG_ONEWAY, Command, decode, encode_bytes
from tests.support.waiting import eventually

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
CREDENTIALS = Credentials("test", "broker", b"a secret of tests")

ECHO, HOLD, RELEASE, PUSH_FIRST, REFUSE, FAIL, ASK_BACK, BIG, SLOW_LOOP, LATE_AND_NOW = range(1, 11)
"""What ``Echo`` does with a request of this code."""


@dataclass
class Echo:
    """A handler of many moods; notes what it saw."""

    held: list[tuple[Command, Any]] = field(default_factory=list)
    oneways: list[bytes] = field(default_factory=list)
    closings: list[Any] = field(default_factory=list)
    trusted: list[bool] = field(default_factory=list)
    whose: list[tuple[str, bool]] = field(default_factory=list)
    """Account and membership of who asked."""
    seen: int = 0
    ask_ms: int = 20_000
    """How long it waits for the answer when it asks back."""

    def handle(self, command: Command, peer: Any) -> Command | None:
        self.seen += 1
        self.trusted.append(peer.trusted)
        self.whose.append((peer.account, peer.member))
        if command.is_oneway:
            self.oneways.append(command.body_bytes())
            return None
        act = {
            HOLD: self._hold,
            RELEASE: self._release,
            PUSH_FIRST: self._push_first,
            ASK_BACK: self._ask_back,
        }.get(command.code)
        if act is not None:
            return act(command, peer)
        if command.code == REFUSE:
            raise BrokerBusy("busy with tests")
        if command.code == FAIL:
            raise ValueError("a fault of the handler")
        if command.code == LATE_AND_NOW:
            peer.send(command.answer(body=command.body_bytes()))
            return None
        if command.code == BIG:
            return command.answer(body=b"y" * int(command.body_bytes()))
        return command.answer(fields=command.fields, body=command.body)

    def closed(self, peer: Any) -> None:
        self.closings.append(peer)

    def _hold(self, command: Command, peer: Any) -> None:
        command.body = command.body_bytes()
        self.held.append((command, peer))

    def _release(self, command: Command, peer: Any) -> Command:
        for held, its_peer in reversed(self.held):
            its_peer.send(held.answer(body=held.body))
        self.held.clear()
        return command.answer()

    def _push_first(self, command: Command, peer: Any) -> Command:
        peer.send(Command(40, 4_000, FLAG_ONEWAY, {"consumerGroup": "g"}))
        return command.answer()

    def _ask_back(self, command: Command, peer: Any) -> None:
        def answered(outcome: Any) -> None:
            peer.send(
                command.answer(
                    body=outcome.body
                    if isinstance(outcome, Command)
                    else type(outcome).__name__.encode()
                )
            )

        ask = Command(307, body=command.body_bytes(), serialize=BINARY)
        peer.request(ask, self.ask_ms, answered)


class Served:
    """A listener in a loop of its own thread."""

    def __init__(
        self,
        handler: Any,
        foreign: ForeignClients = ForeignClients.CLOSED,
        limits: RemotingLimits | None = None,
        clock: Any = SYSTEM_CLOCK,
        busy_poll_us: int = 0,
        tls: TlsSettings | None = None,
        account_key: AccountKey | None = None,
    ) -> None:
        self.handler = handler
        self.loop = asyncio.new_event_loop()
        self.listener = Listener(
            handler,
            CREDENTIALS,
            foreign,
            limits or RemotingLimits(),
            clock,
            "test server",
            PortOptions(busy_poll_us=busy_poll_us, tls=tls, account_key=account_key),
        )
        self.address = Address("127.0.0.1", 1)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        self.address = asyncio.run_coroutine_threadsafe(
            self.listener.start("127.0.0.1", 0), self.loop
        ).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.listener.close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def call(self, function: Callable[[], T]) -> T:
        """Run something inside the server's loop."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001 - handed to the test
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result(10)


@contextmanager
def echo_process() -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """An ``Echo`` in a process of its own; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.wire"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        yield process, Address("127.0.0.1", int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def scripted(script: Callable[[socket.socket], None]) -> Iterator[Address]:
    """A server that runs a script with its one connection."""
    listening = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def run() -> None:
        with suppress(OSError):  # the client may be gone before the script's end
            sock, _ = listening.accept()
            accepted.append(sock)
            script(sock)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Address(*listening.getsockname())
    finally:
        listening.close()
        for sock in accepted:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for sock in accepted:
            sock.close()


HANG_S = 60
"""Nothing takes as long, unless it hangs."""


class RawClient:
    """A socket with frames and no manners."""

    _opaques = itertools.count(1)

    def __init__(self, address: Address, credentials: Credentials | None = None) -> None:
        self.sock = socket.create_connection((address.host, address.port), timeout=HANG_S)
        if credentials is not None:
            client = ClientHandshake(credentials, b"n" * 32)
            client.finish(self.ask(client.prove(self.ask(client.hello()))))

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, command: Command) -> None:
        self.sock.sendall(encode_bytes(command))

    def receive(self) -> Command:
        (size,) = struct.unpack(">i", self._exactly(4))
        return decode(memoryview(self._exactly(size)))

    def ask(self, command: Command) -> Command:
        self.send(command)
        return self.receive()

    def echo(self, body: bytes = b"alive") -> bool:
        return (
            self.ask(Command(ECHO, next(self._opaques), body=body, serialize=BINARY)).body_bytes()
            == body
        )

    def ended(self, timeout_s: float = 5.0) -> bool:
        """The server closed, without another byte, within the time."""
        self.sock.settimeout(timeout_s)
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = self.sock.recv(count - len(found))
            if not piece:
                raise ConnectionResetError("closed")
            found += piece
        return found


def ended_well(child: int) -> bool:
    """A child process ends in time with exit code 0."""
    found: list[int] = []

    def look() -> bool:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            found.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    return eventually(look) and found == [0]


async def _serve_for_ever() -> None:
    listener = Listener(
        Echo(), CREDENTIALS, ForeignClients.CLOSED, RemotingLimits(), SYSTEM_CLOCK, "echo process"
    )
    address = await listener.start("127.0.0.1", 0)
    print(address.port, flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(_serve_for_ever())
