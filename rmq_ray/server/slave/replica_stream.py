"""The bytes of one session of a slave: polls the master, has them checked, written and made
visible; before that, the repair of broken stretches.

    poll ─> piece ───> checked ──> written, synced where that counts ──> dispatched
              └─> the next poll                            (three pieces at once, in two threads)

Decides: when to ask for what, what is looked at together with the piece before it, what the master
is to look at again. Does not decide which bytes are good (the store), whom to follow (``replica``).
Made by ``Replica`` for each session; runs in its loop.

Invariants: one poll is under way at most; a poll's positions are what the store really has; while
more bytes are known to be there the next poll is sent before the last piece is taken; pieces are
written, and become visible, in the order of the log; one is looked at beside the writing of another
only where both are long; bytes of an epoch that this slave does not have are not taken; a buffer is
received into again when its piece is visible.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from rmq_ray.clock import Clock
from rmq_ray.errors import (
    ConnectionLost,
    LogDiverged,
    RemotingError,
    RequestTimeout,
    ResponseError,
    StoreCorrupt,
    StoreNotReady,
    StoreUnreadable,
)
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.replicas import (
    BYTES_MAX,
    WANTED,
    GivenBytes,
    LogPiece,
    Replicate,
    pack_given,
    pack_replicate,
    unpack_piece,
    unpack_wanted,
)
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.store.replication.follower_check import Broken, CheckedPiece
from rmq_ray.store.replication.follower_store import FollowerStore
from rmq_ray.store.replication.mending import piece_bytes, sound_bytes

log = logging.getLogger("rmq_ray.server.replication.replication")
POLL_WAIT_MS = 500  # an idle slave reports as often
TIMEOUT_MS = 3_000
PASSING = (RequestTimeout, StoreUnreadable)
"""What says nothing of a stretch: it is tried again when all others were."""
SUSPECTS_MAX = 3  # the same bytes, read again by the master
LONG_BYTES = 1 << 20
WRITING_MAX = 2  # pieces that are being written or dispatched
STRETCHES_MAX = 100  # broken ones that are asked for in one session
SESSION_MS = 2_000
BEYOND_BYTES = 1 << 20  # a master ends its pieces at whole frames: up to 512 KiB before their end


class Threads(NamedTuple):
    """``writer``: everything that is done to the store, but for long pieces, which ``helper``
    checks and dispatches.
    """

    writer: ThreadOffload
    helper: ThreadOffload


class StreamEvents(NamedTuple):
    """``polls()`` is called before every poll, ``confirmed(end, opened end)`` once a piece says how
    far the master's log is confirmed, ``noted(end)`` behind every piece with the master's end.
    """

    polls: Callable[[], None]
    confirmed: Callable[[int, int], None]
    noted: Callable[[int], None]


class ReplicaStream:
    """``flush_counts``: a copy counts when it is on this disk."""

    def __init__(
        self,
        keeper: StoreKeeper,
        connection: AsyncConnection,
        store: FollowerStore,
        threads: Threads,
        bytes_max: int,
        events: StreamEvents,
        flush_counts: bool,
    ) -> None:
        self._keeper = keeper
        self._connection = connection
        self._store = store
        self._threads = threads
        self._bytes_max = bytes_max
        self._polls, self._tell_confirmed, self._noted = events
        self._flush_counts = flush_counts
        self._position = store.end_offset
        """What is checked ends here; ``_rest`` lies behind it and is no whole frame yet."""
        self._rest = b""
        self._broken: Broken = []
        self._confirmed, self._suspect, self._suspected = 0, -1, 0
        self._writing: deque[asyncio.Task[None]] = deque()

    async def run(self) -> None:
        """Until the connection, the master or the store ends it, with their errors."""
        poll = self._poll(self._position)
        try:
            while True:
                answer = sound_answer(await poll)
                piece = unpack_piece(answer.body)
                self._check(piece)
                if answer.fields and WANTED in answer.fields:
                    await self._give(answer.fields[WANTED])
                self._confirmed = piece.confirmed
                self._tell_confirmed(piece.confirmed, self._store.opened_end)
                received = piece.offset + len(piece.data)
                ahead = received < piece.end and self._suspect < 0
                if ahead:
                    poll = self._poll(received)
                if not await self._take(piece, answer, ahead) and ahead:
                    await asyncio.gather(poll, return_exceptions=True)  # thrown away
                    ahead = False
                self._noted(piece.end)
                if not ahead:
                    poll = self._poll(self._position + len(self._rest))
        finally:
            poll.cancel()
            await asyncio.gather(poll, *self._writing, return_exceptions=True)

    async def _give(self, wanted: str) -> None:
        """The master has a stretch broken that this copy may have whole."""
        log_offset, size = unpack_wanted(wanted)
        data = await self._threads.writer.run(
            lambda: sound_bytes(self._store.readable(), log_offset, size)
        )
        body = pack_given(GivenBytes(self._store.epoch, log_offset, data))
        sound_answer(
            await self._connection.request(
                Command(RequestCode.GIVE_RECORDS, body=body, serialize=BINARY), TIMEOUT_MS
            )
        )

    def _check(self, piece: LogPiece) -> None:
        position = self._position + len(self._rest)
        if self._keeper.store is not self._store:
            raise StoreNotReady("the slave's store is read again")
        if piece.epoch != self._store.epoch:
            raise RemotingError(
                f"the master is in epoch {piece.epoch} now, this slave in "
                f"{self._store.epoch}: it follows anew",
                str(self._connection.address),
            )
        if piece.offset != position:
            raise RemotingError(
                f"bytes of log offset {piece.offset} came, asked was for {position}",
                str(self._connection.address),
            )
        if len(self._rest) > BYTES_MAX:
            raise LogDiverged(
                f"{len(self._rest)} bytes at log offset {self._position} hold no whole frame",
                self._position,
            )

    def _poll(self, offset: int) -> asyncio.Task[Command]:
        store = self._store
        asked = Replicate(
            store.epoch,
            offset,
            self._bytes_max,
            store.end_offset,
            store.flushed_offset,
            self._confirmed,
            POLL_WAIT_MS,
            self._suspect,
        )
        command = Command(RequestCode.REPLICATE, body=pack_replicate(asked), serialize=BINARY)
        self._polls()
        return asyncio.get_running_loop().create_task(
            self._connection.request(command, POLL_WAIT_MS + TIMEOUT_MS)
        )

    async def _take(self, piece: LogPiece, answer: Command, ahead: bool) -> bool:
        """True when bytes were good, or more are needed; False when the master is to look at them
        again. Raises ``StoreCorrupt`` when it has often enough.
        """
        data: Any = b"".join((self._rest, piece.data)) if self._rest else piece.data
        self._broken = [*self._broken, *piece.broken] if self._rest else piece.broken
        try:
            if ahead and len(data) >= LONG_BYTES:
                taken = await self._take_beside(data, answer)
            else:
                taken = await self._take_now(data)
                self._connection.give_back(answer)
        except StoreCorrupt:
            self._suspect, self._suspected, self._rest = self._position, self._suspected + 1, b""
            if self._suspected > SUSPECTS_MAX:
                raise
            return False
        self._position += taken
        self._rest = bytes(data[taken:])
        self._suspect, self._suspected = -1, 0 if taken else self._suspected
        return True

    async def _take_now(self, data: Any) -> int:
        await self._written(0)
        store, start, broken, confirmed, flush = (
            self._store,
            self._position,
            self._broken,
            self._confirmed,
            self._flush_counts,
        )

        def work() -> int:
            checked = store.check(start, data, broken)
            taken = _append(store, checked, flush)
            store.advance(confirmed, checked)
            return taken

        return await self._threads.writer.run(work)

    async def _take_beside(self, data: Any, answer: Command) -> int:
        """Check here and now; on return the bytes are being written."""
        store, start, broken = self._store, self._position, self._broken
        checked = await self._threads.helper.run(lambda: store.check(start, data, broken))
        if not checked.taken:
            return await self._take_now(data)
        await self._written(WRITING_MAX - 1)
        self._writing.append(
            asyncio.get_running_loop().create_task(
                self._write(checked, answer), name="a piece of the log"
            )
        )
        return checked.taken

    async def _write(self, checked: CheckedPiece, answer: Command) -> None:
        store, confirmed, flush = self._store, self._confirmed, self._flush_counts
        await self._threads.writer.run(lambda: _append(store, checked, flush))
        await self._threads.helper.run(lambda: store.advance(confirmed, checked))
        self._connection.give_back(answer)

    async def _written(self, left: int) -> None:
        """All pieces are written and dispatched but for the last ``left``; raises what that
        raised.
        """
        while len(self._writing) > left:
            await self._writing.popleft()


class Repair:
    """Asks the master for what is broken in this log, before it goes on following (reliability: how
    a copy is made). Of one slave, over all its sessions. ``polls()`` is called before every poll.
    ``mended``: stretches that are whole now.

        quarantined stretch ──REPLICATE from there──> whole there? ──> mended in place

    Invariants: a poll says what this slave has, as every other one, and never makes the master
    suspect its own bytes: where a stretch begins may be wrong here; nothing is written that is no
    whole record; a stretch that cannot be mended keeps nobody from following: it is asked for once
    in an epoch of the master, and no session spends longer than ``SESSION_MS`` and one request on
    all of them.
    """

    def __init__(self, thread: ThreadOffload, polls: Callable[[], None], clock: Clock) -> None:
        self._thread = thread
        self._polls = polls
        self._clock = clock
        self._epoch = -1
        self._tried: set[tuple[int, int]] = set()
        self._unsaid: set[tuple[int, int]] = set()
        self.mended = 0

    async def run(
        self, connection: AsyncConnection, store: FollowerStore, master_begin: int
    ) -> None:
        """One session's. ``master_begin``: where the master's log begins. Raises what the
        connection raises when it is lost, ``LogDiverged`` where this slave must not follow this
        master, the store's errors.
        """
        if self._epoch != store.epoch:
            self._epoch, self._tried, self._unsaid = store.epoch, set(), set()
        listed = await self._thread.run(store.broken_stretches)
        if self._tried.issuperset(listed):
            self._tried -= self._unsaid
            self._unsaid.clear()
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
            is_whole = await self._mended(connection, store, *stretch)
        except ConnectionLost:
            self._tried.discard(stretch)
            raise
        except (LogDiverged, ResponseError, RequestTimeout, StoreUnreadable) as error:
            if ResponseCode.MASTER_FENCED in error.args:
                raise
            if ResponseCode.SYSTEM_BUSY in error.args:
                self._tried.discard(stretch)
            elif isinstance(error, PASSING):
                self._unsaid.add(stretch)
            log.error("%d bytes at log offset %d stay broken: %s", stretch[1], stretch[0], error)
            return ResponseCode.SYSTEM_ERROR in error.args or isinstance(error, StoreUnreadable)
        if is_whole:
            self._tried.discard(stretch)
        else:
            log.error(
                "%d bytes at log offset %d stay broken: the master has no whole records for them",
                stretch[1],
                stretch[0],
            )
        return True

    async def _mended(
        self, connection: AsyncConnection, store: FollowerStore, log_offset: int, size: int
    ) -> bool:
        """Whether all of the stretch is whole now: one piece after the other."""
        end = log_offset + size
        while log_offset < end:  # ends: log_offset rises, or it is left
            asked = piece_bytes(store.readable(), log_offset, end - log_offset)
            data = await self._fetched(connection, store, log_offset, asked) if asked else None
            if not data:
                return False
            taken = await self._thread.run(
                partial(self._mend, store, log_offset, data, end - log_offset)
            )
            if not taken:
                return False
            log_offset += taken
        return True

    def _mend(self, store: FollowerStore, log_offset: int, data: bytes, left: int) -> int:
        """In the thread, which goes on where the session ends meanwhile: it is counted there."""
        taken = store.mend(log_offset, data)
        self.mended += taken == left
        return taken

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


def _append(store: FollowerStore, checked: CheckedPiece, flush: bool) -> int:
    """Sync, too, where a copy counts only then. How many bytes were taken."""
    taken = store.take(checked)
    if flush and store.flushed_offset < store.end_offset:
        store.sync()
    return taken


def sound_answer(answer: Command) -> Command:
    """The answer; a refusal is raised: ``LogDiverged``, ``ResponseError``."""
    if answer.code == ResponseCode.SUCCESS:
        return answer
    if answer.code in (ResponseCode.LOG_DIVERGED, ResponseCode.MASTER_FENCED):
        raise LogDiverged(answer.remark or f"refused with code {answer.code}", answer.code)
    raise ResponseError(answer.remark or f"refused with code {answer.code}", answer.code)
