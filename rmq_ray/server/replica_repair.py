"""A slave asks its master for what is broken in its own log, before it goes on following (reliability: how a copy is made).

    quarantined stretch ──REPLICATE from there, with the master told to look at it again──> whole there, too? ──> mended in place (``store.mending``)

Decides: how many stretches are tried in a session, and that what the master has broken, too, stays as it is. Does not decide which bytes are good (the
store). Called by ``Replica`` at the begin of each session, in its loop.

Invariants: a poll says what this slave has, as every other one; nothing is written that is no whole record; a stretch that cannot be mended keeps nobody
from following.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.codes import RequestCode
from rmq_ray.remoting.frame import BINARY, Command
from rmq_ray.remoting.replicas import Replicate, pack_replicate, unpack_piece
from rmq_ray.server.offload import ThreadOffload
from rmq_ray.server.replica_stream import TIMEOUT_MS, sound_answer
from rmq_ray.store.follower_store import FollowerStore

log = logging.getLogger("rmq_ray.server.replication")
STRETCHES_MAX = 100  # of one session
BEYOND_BYTES = 1 << 20  # a master ends its pieces at whole frames: up to 512 KiB before their end


async def repair(connection: AsyncConnection, store: FollowerStore, thread: ThreadOffload, polls: Callable[[], None]) -> int:
    """How many broken stretches are whole now. Raises what the connection raises, and the store's errors."""
    mended = 0
    for log_offset, size in (await thread.run(store.broken_stretches))[:STRETCHES_MAX]:
        data = await _fetched(connection, store, log_offset, size, polls)
        if data is not None and await thread.run(partial(store.mend, log_offset, data)):
            mended += 1
        else:
            log.error("%d bytes at log offset %d stay broken: the master has no whole records for them", size, log_offset)
    return mended


async def _fetched(connection: AsyncConnection, store: FollowerStore, log_offset: int, size: int, polls: Callable[[], None]) -> bytes | None:
    """The master's bytes of this stretch; None where they are broken there, or it has not all of them in one piece."""
    polls()
    asked = Replicate(store.epoch, log_offset, size + BEYOND_BYTES, store.end_offset, store.flushed_offset, 0, 0, log_offset)
    answer = sound_answer(await connection.request(Command(RequestCode.REPLICATE, body=pack_replicate(asked), serialize=BINARY), TIMEOUT_MS))
    piece = unpack_piece(answer.body)
    is_broken = any(begin < log_offset + size and begin + length > log_offset for begin, length, _ in piece.broken)
    if piece.epoch != store.epoch or piece.offset != log_offset or len(piece.data) < size or is_broken:
        return None
    return bytes(piece.data[:size])
