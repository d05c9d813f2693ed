"""A slave asks its master for what is broken in its own log, before it goes on following
(reliability: how a copy is made).

    quarantined stretch ──REPLICATE from there──> whole there? ──> mended in place (``store.front.mending``)

Decides: how many stretches are tried in a session, and which ones not again. Does not decide which
bytes are good (the store). Made by ``Replica``, which calls it at the begin of each session, in its
loop.

Invariants: a poll says what this slave has, as every other one, and never makes the master suspect
its own bytes: where a stretch begins may be wrong here; nothing is written that is no whole record;
a stretch that cannot be mended keeps nobody from following: it is asked for once in an epoch of the
master, and no session spends longer than ``SESSION_MS`` and one request on all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from rmq_ray.clock import Clock
from rmq_ray.errors import (
    ConnectionLost,
    LogDiverged,
    RequestTimeout,
    ResponseError,
    StoreUnreadable,
)
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.replicas import Replicate, pack_replicate, unpack_piece
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.server.slave.replica_stream import TIMEOUT_MS, sound_answer
from rmq_ray.store.replication.follower_store import FollowerStore

log = logging.getLogger("rmq_ray.server.replication.replication")
STRETCHES_MAX = 100  # of one session
SESSION_MS = 2_000
BEYOND_BYTES = 1 << 20  # a master ends its pieces at whole frames: up to 512 KiB before their end


class Repair:
    """Of one slave, over all its sessions. ``polls()`` is called before every poll. ``mended``:
    stretches that are whole now.
    """

    def __init__(self, thread: ThreadOffload, polls: Callable[[], None], clock: Clock) -> None:
        self._thread = thread
        self._polls = polls
        self._clock = clock
        self._epoch = -1
        self._tried: set[tuple[int, int]] = set()
        self.mended = 0

    async def run(
        self, connection: AsyncConnection, store: FollowerStore, master_begin: int
    ) -> None:
        """One session's. ``master_begin``: where the master's log begins. Raises what the
        connection raises when it is lost, ``LogDiverged`` where this slave must not follow this
        master, the store's errors.
        """
        if self._epoch != store.epoch:
            self._epoch, self._tried = store.epoch, set()
        listed = await self._thread.run(store.broken_stretches)
        deadline_ms = self._clock.monotonic_ms() + SESSION_MS
        for stretch in [
            found for found in listed if found[0] >= master_begin and found not in self._tried
        ][:STRETCHES_MAX]:
            if self._clock.monotonic_ms() >= deadline_ms or not await self._try(
                connection, store, stretch
            ):
                return

    async def _try(
        self, connection: AsyncConnection, store: FollowerStore, stretch: tuple[int, int]
    ) -> bool:
        """False where nothing more is to be asked in this session."""
        self._tried.add(stretch)
        try:
            data = await self._fetched(connection, store, *stretch)
            is_whole = data is not None and await self._thread.run(
                partial(store.mend, stretch[0], data)
            )
        except ConnectionLost:
            self._tried.discard(stretch)
            raise
        except (LogDiverged, ResponseError, RequestTimeout, StoreUnreadable) as error:
            if ResponseCode.MASTER_FENCED in error.args:
                raise
            if ResponseCode.SYSTEM_BUSY in error.args:
                self._tried.discard(stretch)
            log.error("%d bytes at log offset %d stay broken: %s", stretch[1], stretch[0], error)
            return ResponseCode.SYSTEM_ERROR in error.args or isinstance(error, StoreUnreadable)
        if is_whole:
            self._tried.discard(stretch)
            self.mended += 1
        else:
            log.error(
                "%d bytes at log offset %d stay broken: the master has no whole records for them",
                stretch[1],
                stretch[0],
            )
        return True

    async def _fetched(
        self, connection: AsyncConnection, store: FollowerStore, log_offset: int, size: int
    ) -> bytes | None:
        """The master's bytes of this stretch; None where they are broken there, or it has not all
        of them in one piece.
        """
        self._polls()
        asked = Replicate(
            store.epoch,
            log_offset,
            size + BEYOND_BYTES,
            store.end_offset,
            store.flushed_offset,
            0,
            0,
        )
        answer = sound_answer(
            await connection.request(
                Command(RequestCode.REPLICATE, body=pack_replicate(asked), serialize=BINARY),
                TIMEOUT_MS,
            )
        )
        piece = unpack_piece(answer.body)
        is_broken = any(
            begin < log_offset + size and begin + length > log_offset
            for begin, length, _ in piece.broken
        )
        if (
            piece.epoch != store.epoch
            or piece.offset != log_offset
            or len(piece.data) < size
            or is_broken
        ):
            return None
        return bytes(piece.data[:size])
