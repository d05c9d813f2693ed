"""A loopback of this run's own that can be cut, for all or between two processes, that loses
packets, and on which a proxy can stand in front of a port.

The run has a network namespace for itself (``boots.enter_namespace``); rules of nftables drop what
goes to a port, or comes from it, so that programs see silence, not a refusal. A proxy gets new
connections by redirection; those that exist are reset first, so that clients come again.

Decides how a network may fail. Does not choose when or whom.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rmq_ray.errors import RmqError
from rmq_ray.remoting.wire.frame import decode
from tests.support.brokers.accepting import Accepting
from tests.support.faults.lossy_proxy import FRAME_MAX

MARK = 7
"""On what the proxy sends itself: it is not redirected to the proxy."""
LATE_S = (0.05, 2.0)
LOOK_S = 0.02
SHARE = 0.2
"""Of answers that are lost, late, repeated or torn."""
_RULES = """
table inet torture {{
  set theirs {{ type inet_service; }}
  chain came {{ type filter hook input priority 0; policy accept;
    {came}
  }}
  chain goes {{ type nat hook output priority -100; policy accept;
    {goes}
  }}
}}
"""


def why_not() -> str | None:
    """Why the network cannot be broken on this machine; None = it can."""
    if shutil.which("nft") is None and shutil.which("nft", path="/usr/sbin") is None:
        return "no nft; install Debian's nftables"
    return None


@contextmanager
def _rules(came: str = "", goes: str = "") -> Iterator[None]:
    _nft("-f", "-", told=_RULES.format(came=came, goes=goes))
    try:
        yield
    finally:
        _nft("delete", "table", "inet", "torture")


@contextmanager
def cut(port: int, *, requests: bool, answers: bool) -> Iterator[None]:
    """Nothing gets to a port, nothing comes from it, or both."""
    rules = [f"tcp dport {port} drop"] * requests + [f"tcp sport {port} drop"] * answers
    with _rules("\n".join(rules)):
        yield


@contextmanager
def apart(port: int, pid: int, *, requests: bool, answers: bool) -> Iterator[None]:
    """``cut`` for one process alone: its connections to the port, and those that it makes
    meanwhile, within ``LOOK_S``.
    """
    rules = [f"tcp dport {port} tcp sport @theirs drop"] * requests
    rules += [f"tcp sport {port} tcp dport @theirs drop"] * answers
    with _rules("\n".join(rules)):
        known: set[str] = set()
        _cut_new(known, port, pid)
        with _again_and_again(lambda: _cut_new(known, port, pid)):
            yield


def _cut_new(known: set[str], port: int, pid: int) -> None:
    told = subprocess.run(
        ["ss", "-Htnp", "dport", "=", f":{port}"], capture_output=True, text=True, check=True
    ).stdout
    theirs = [line.split() for line in told.splitlines() if f"pid={pid}," in line]
    new = {columns[3].rpartition(":")[2] for columns in theirs} - known
    if new:
        _nft("add", "element", "inet", "torture", "theirs", f"{{ {', '.join(new)} }}")
        known |= new


@contextmanager
def _again_and_again(work: Callable[[], None]) -> Iterator[None]:
    """In a copy of this thread: it is in the same namespaces."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(LOOK_S):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def lossy(port: int, percent: int) -> Iterator[None]:
    """So many of a port's packets are lost; they are sent again, later."""
    dice = f"numgen random mod 100 < {percent} drop"
    with _rules(f"tcp dport {port} {dice}\ntcp sport {port} {dice}"):
        yield


@contextmanager
def proxied(port: int, kind: str, seed: int) -> Iterator[None]:
    """A proxy stands in front of a port; ``kind``: see ``_Proxy``."""
    proxy = _Proxy(port, kind, seed)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        there = asyncio.run_coroutine_threadsafe(proxy.server.start(), loop).result(10)
        redirect = f"tcp dport {port} meta mark != {MARK} redirect to :{there}"
        reset = f"tcp dport {port} meta mark != {MARK} reject with tcp reset"
        with _rules(reset, redirect):
            yield
    finally:
        asyncio.run_coroutine_threadsafe(proxy.server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


class _Proxy:
    """Passes requests on as they came; of answers a share is

    lost       swallowed, or its connection ends instead
    late       up to two seconds, and what comes behind it
    overtaken  late, but not what comes behind it
    repeated   comes twice
    torn       its first half comes, then its connection ends
    """

    def __init__(self, port: int, kind: str, seed: int) -> None:
        self._port, self._kind = port, kind
        self._random = random.Random(seed)
        self.server = Accepting(self._serve)

    async def _serve(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        upstream = socket.socket()
        upstream.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        upstream.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(upstream, ("127.0.0.1", self._port))
        except OSError:
            upstream.close()
            to_client.transport.abort()
            return
        from_broker, to_broker = await asyncio.open_connection(sock=upstream)
        pumps = [
            asyncio.create_task(_pass_on(from_client, to_broker)),
            asyncio.create_task(self._spoil(from_broker, to_client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_broker.transport.abort()
            to_client.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _spoil(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await source.readexactly(4)
                frame = head + await source.readexactly(min(int.from_bytes(head), FRAME_MAX))
                if _is_answer(frame) and self._random.random() < SHARE:
                    if self._kind == "late":
                        await asyncio.sleep(self._random.uniform(*LATE_S))
                    elif self._kind == "overtaken":
                        asyncio.get_running_loop().call_later(
                            self._random.uniform(*LATE_S), target.write, frame
                        )
                        continue
                    elif self._kind == "repeated":
                        frame += frame
                    elif self._kind == "torn":
                        target.write(frame[: len(frame) // 2])
                        await target.drain()
                        return
                    elif self._random.random() < 0.5:
                        continue
                    else:
                        return
                target.write(frame)
                await target.drain()
        except (asyncio.IncompleteReadError, OSError):
            return


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    except OSError:
        return


def _is_answer(frame: bytes) -> bool:
    """Not so a part of a handshake."""
    try:
        return bool(decode(memoryview(frame)[4:]).is_response)
    except RmqError:
        return False


def _nft(*arguments: str, told: str = "") -> None:
    done = subprocess.run(
        ["nft", *arguments], input=told, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"nft: {done.stderr.strip()}")
