"""Broken stretches of a master's log, for which slaves are asked before a reader is given what lies
behind them (docs/reliability.md).

    a reader, or a start, finds one ─> wanted ─answer to a poll of a slave that reaches so far─>
    asked ─GIVE_RECORDS─> mended: off the list
            └─ nothing sound there, gone, silent for ASK_MS ─> the next slave; none is left: given
               up, until a slave joins anew, or one that was silent is asked again

Decides: which stretch is asked for next, of whom, and how long readers wait for it. Does not decide
which bytes are good (``store.replication.mending``) or how an answer travels (``replication``).

Invariants: one stretch is asked for at a time, each slave once for it between two joins; readers
wait only while a slave that may have it follows, so for ``ASK_MS`` a slave at the most for what
stands first in the list. ``awaits`` is called by any thread, everything else in the loop.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from rmq_ray.clock import Clock
from rmq_ray.errors import BrokerBusy, RmqError
from rmq_ray.protocol.election.replication import Follower
from rmq_ray.server.base.offload import Offload
from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.replication.mending import (
    NOTHING,
    Mended,
    mend_stretch,
    mendable,
    piece_bytes,
)

log = logging.getLogger("rmq_ray.server.replication.replication")
ASK_MS = 2_000
SILENT_MS = 60_000
"""Who did not answer is asked again so much later."""
STRETCHES_MAX = 100
"""So many are wanted at a time; a reader that meets another one passes it."""


class Asked(NamedTuple):
    """Of whom a stretch is asked. ``deadline_ms``: monotonic."""

    log_offset: int
    size: int
    broker_id: int
    deadline_ms: float


class Mender:
    """Of one master. ``followers()``: who follows now. ``ask(broker id)``: answer a poll of that
    slave soon; the answer carries ``asked``.
    """

    def __init__(
        self,
        keeper: StoreKeeper,
        clock: Clock,
        offload: Offload,
        followers: Callable[[], list[Follower]],
        ask: Callable[[int], None],
    ) -> None:
        self._keeper = keeper
        self._clock = clock
        self._offload = offload
        self._followers = followers
        self._ask = ask
        self._lock = threading.Lock()
        self._wanted: dict[int, set[int]] = {}
        """Log offset -> slaves that were asked in vain."""
        self._given_up: set[int] = set()
        self._can_ask = False
        self._mending = self._told = False
        self._silent: dict[int, float] = {}
        """Slaves that did not answer in time -> when they are asked again, if they do not join anew
        before.
        """
        self.asked: Asked | None = None
        self.mended = 0
        """Stretches that are whole now."""

    def serving(self, store: MessageStore) -> None:
        """The store is recovered; nobody follows yet."""
        self.lost()
        store.readable().reader.wait_for_copies(self.awaits)

    def lost(self) -> None:
        """The store failed, or is another one."""
        with self._lock:
            self._wanted.clear()
            self._given_up.clear()
            self._can_ask = False
        self._silent.clear()
        self.asked = None

    def awaits(self, log_offset: int | None) -> bool:
        """Whether a slave is asked for the listed bytes at ``log_offset``, from now on or already;
        None: for any. Any thread.
        """
        with self._lock:
            if not self._can_ask or log_offset is None:
                return bool(self._wanted)
            if log_offset in self._wanted:
                return True
            if log_offset in self._given_up or len(self._wanted) >= STRETCHES_MAX:
                return False
            self._wanted[log_offset] = set()
        self._offload.post(self._next)
        return True

    def joined(self, broker_id: int) -> None:
        """A slave has said what it has: everything that is listed is asked for again."""
        self._silent.pop(broker_id, None)
        store = self._keeper.store
        if store is None:
            return
        listed = [offset for offset, _ in mendable(store.opened)][:STRETCHES_MAX]
        with self._lock:
            self._can_ask = True
            self._given_up.clear()
            for offset in listed:
                self._wanted[offset] = set()
        self._next()

    def left(self, broker_id: int) -> None:
        """Its connection ended."""
        if self.asked is not None and self.asked.broker_id == broker_id and not self._mending:
            self._in_vain(self.asked)
        self._look_round()

    def tells(self, broker_id: int) -> bool:
        """Whether the next answer to this slave is to carry ``asked``."""
        return self.asked is not None and self.asked.broker_id == broker_id and not self._told

    def tell(self, broker_id: int) -> Asked | None:
        """What the answer that leaves now is to carry: once each."""
        if not self.tells(broker_id):
            return None
        self._told = True
        return self.asked

    def given(self, broker_id: int, log_offset: int, data: bytes) -> None:
        """A slave's answer. One that comes too late, or is for something else, is not looked at."""
        asked, store = self.asked, self._keeper.store
        if (
            asked is None
            or store is None
            or self._mending
            or (asked.broker_id, asked.log_offset) != (broker_id, log_offset)
        ):
            return
        if not data:
            self._in_vain(asked)
            return
        self._mending = True
        try:
            self._offload.submit(
                lambda: mend_stretch(store.readable(), log_offset, data, appends=False),
                lambda outcome: self._mended(asked, outcome),
            )
        except BrokerBusy:
            self._mending = False
            self._in_vain(asked)

    def tick(self, now_ms: float) -> None:
        """Time has passed."""
        asked = self.asked
        if asked is not None and now_ms >= asked.deadline_ms and not self._mending:
            self._silent[asked.broker_id] = now_ms + SILENT_MS
            self._in_vain(asked)
            self._look_round()
        for follower in self._followers() if self._silent else ():
            if follower.connected and now_ms >= self._silent.get(follower.broker_id, math.inf):
                self.joined(follower.broker_id)

    # --- inside -----------------------------------------------------------------------------------

    def _look_round(self) -> None:
        """Nobody waits where no slave is left that answers."""
        if not any(
            follower.connected and follower.broker_id not in self._silent
            for follower in self._followers()
        ):
            with self._lock:
                self._wanted.clear()
                self._can_ask = False

    def _mended(self, asked: Asked, outcome: Mended | Exception) -> None:
        self._mending = False
        if isinstance(outcome, RmqError):
            self._keeper.check(outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        mended = NOTHING if isinstance(outcome, RmqError) else outcome
        if not mended.taken:
            if self.asked is asked:
                self._in_vain(asked)
            return
        store = self._keeper.store
        following = asked.log_offset + mended.taken
        more = 0 if store is None else store.opened.quarantine.size_of(following)
        self.mended += not more
        with self._lock:
            tried = self._wanted.pop(asked.log_offset, set())
            if not mended.changed:  # a reader that lists it again is not to wait for it again
                self._given_up.add(asked.log_offset)
            if more:
                self._wanted[following] = tried
        if self.asked is asked:
            self.asked = None
        self._next()

    def _in_vain(self, asked: Asked) -> None:
        with self._lock:
            if asked.log_offset in self._wanted:
                self._wanted[asked.log_offset].add(asked.broker_id)
        self.asked = None
        self._next()

    def _next(self) -> None:
        """Ask for the first that is wanted, unless one is asked for."""
        store = self._keeper.store
        while self.asked is None and store is not None:  # ends: each round takes one off, or asks
            with self._lock:
                offset = next(iter(self._wanted), None)
                if offset is None:
                    return
                tried = set(self._wanted[offset])
            parts = store.opened
            size = piece_bytes(parts, offset, parts.quarantine.size_of(offset))
            can = [
                follower
                for follower in self._followers()
                if follower.connected
                and follower.broker_id not in tried
                and follower.broker_id not in self._silent
                and follower.written >= offset + size
            ]
            if not size or not can:
                self._give_up(offset, size)
                continue
            chosen = max(can, key=lambda follower: (follower.in_sync, -follower.broker_id))
            self._told = False
            self.asked = Asked(offset, size, chosen.broker_id, self._clock.monotonic_ms() + ASK_MS)
            self._ask(chosen.broker_id)

    def _give_up(self, offset: int, size: int) -> None:
        with self._lock:
            self._wanted.pop(offset, None)
            self._given_up.add(offset)
        if size:
            log.error("bytes at log offset %d stay broken: no slave has them whole", offset)
