"""A peer without a socket: lets a handler serve one frame that came another way (an actor call),
never suspending.

For drivers that cannot reach a port (``ray://``). Uses the same ``handle(command, peer)`` as the
listener.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rmq_ray.errors import MalformedFrame, RequestTimeout
from rmq_ray.remoting.handler import Handler
from rmq_ray.remoting.wire.frame import Command, decode, encode_bytes


class LoopbackPeer:
    """Takes the one answer; see ``ports.Peer``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.host, self.port = "127.0.0.1", 0
        self.closed = False
        self.trusted = self.member = True
        self.account = ""
        self.may_suspend = self.hung_up = False
        self.attributes: dict[str, Any] = {}
        self.answer: asyncio.Future[Command] = loop.create_future()

    def send(self, command: Command) -> None:
        """Keep the answer; the server's own requests have nowhere to go."""
        if command.is_response and not self.answer.done():
            self.answer.set_result(command)

    def close(self, reason: str) -> None:
        """Nothing more is wanted of this caller."""
        self.closed = True


async def call(handler: Handler, frame: bytes, timeout_ms: int = 10_000) -> bytes:
    """Serve one frame (with its length field); the answer's frame, empty for oneway requests.

    Raises ``MalformedFrame`` for bytes that are no frame and ``RequestTimeout`` when no answer
    came.
    """
    if len(frame) < 8 or int.from_bytes(frame[:4], "big") != len(frame) - 4:
        raise MalformedFrame(
            f"{len(frame)} bytes are not one whole frame: its first four bytes must hold the "
            f"length of the rest",
            "actor call",
        )
    command = decode(memoryview(bytearray(frame))[4:])
    peer = LoopbackPeer(asyncio.get_running_loop())
    try:
        answer = handler.handle(command, peer)
        if answer is None and not command.is_oneway:
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await peer.answer
    except TimeoutError:
        raise RequestTimeout(
            f"request {command.code} was not answered within {timeout_ms} ms", "actor call"
        ) from None
    finally:
        peer.closed = True
        handler.closed(peer)
    return b"" if answer is None else encode_bytes(answer)
