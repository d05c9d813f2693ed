"""A small server of a test's own: what serves a connection is known, and ends with the test that
began it.

A connection that nobody closes is found by the garbage collector, in the middle of another test,
which fails for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

CLOSE_S = 1.0  # for what was written and is not read
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Accepting:
    """``serve`` for each connection, which is closed when that has ended, however it ends. In one
    loop.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}

    async def start(self) -> int:
        """Listen on loopback; the port."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """On return nothing is served and no connection is open."""
        if self._server is not None:
            self._server.close()
        accepted = list(self._serving)
        for serving in self._serving.values():
            serving.cancel()
        await asyncio.gather(*accepted, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = asyncio.current_task()
        assert accepted is not None
        self._serving[accepted] = serving = asyncio.ensure_future(self._serve(reader, writer))
        try:
            await asyncio.gather(serving, return_exceptions=True)
        finally:
            del self._serving[accepted]
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await writer.wait_closed()
            writer.transport.abort()
