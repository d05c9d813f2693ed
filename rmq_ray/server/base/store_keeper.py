"""The life of a broker's store: opened and recovered beside the loop, served from, given up at the
first failed write, opened again.

    STARTING ──open, recover──> SERVING ──write or fsync failed─> FAILED ──re-read──> SERVING
        │                                                           │
        └──in use, disk failed: again after a pause                 └──disk still bad: again after a
                                                                    pause
        └──missing, foreign, corrupt, unwritable──> BROKEN          any ──stop──> CLOSED

Decides: whether there is a store to serve from, and what callers are told when there is none. Does
not decide how recovery works (``store.recovery.recovery``) or what becomes of waiting sends (the
``StoreOwner``).

Invariants: ``store`` is None unless SERVING; a store that failed is never written again, only a
freshly recovered one is; the thread that recovers touches nothing of the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rmq_ray.errors import (
    BrokerBusy,
    RmqError,
    StoreFailed,
    StoreFull,
    StoreInUse,
    StoreNotReady,
    StoreUnreadable,
)
from rmq_ray.server.base.offload import Offload
from rmq_ray.store.front.message_store import MessageStore, StoreState

log = logging.getLogger("rmq_ray.server")
RETRY_MS = 2_000  # between attempts to open a store that may come back by itself
TRANSIENT = (StoreInUse, StoreFailed, StoreFull)
# of a first start: somebody else has the store; a restarted broker waits on, its predecessor is
# going away
IN_USE_TRIES = 2


class KeeperState(Enum):
    """See the drawing above."""

    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    BROKEN = "broken"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class StoreOwner:
    """What the broker does for its store, and hears of it. ``make`` builds it unopened,
    ``prepare(store)`` reads what else the broker needs of the directory; both run in a thread.

    In the loop: ``serving(store)`` and ``lost()`` just before and after it serves, ``durable()``
    after the log became durable further on, ``broken(error)`` when it is given up.
    ``covered``: how much of the log, below what is on disk, may stand behind a progress that is
    saved: what the next master has, too.
    """

    make: Callable[[], MessageStore]
    prepare: Callable[[MessageStore], None]
    serving: Callable[[MessageStore], None]
    lost: Callable[[], None]
    durable: Callable[[], None]
    broken: Callable[[RmqError], None]
    covered: Callable[[int], int]


class StoreKeeper:
    """One store. ``reopens``: whether one that failed is opened again here; a deposed master's is
    not.
    """

    def __init__(self, offload: Offload, *, reopens: bool) -> None:
        self._offload = offload
        self._owner: StoreOwner  # from ``start`` on
        self._busy = False
        self._refused = 0
        self._failed_store: MessageStore | None = None
        self._create = False
        self._identity: str | None = None
        self._retry_at_ms = 0.0
        self._durable_posted = False
        self.store: MessageStore | None = None
        self.state = KeeperState.STARTING
        self.error: RmqError | None = None
        self.reopened = 0
        self._reopens = reopens
        self.last_recovery: Any = None

    def start(self, create: bool, identity: str | None, owner: StoreOwner) -> None:
        """Begin to open."""
        self._create, self._identity, self._owner = create, identity, owner
        self._open()

    def covered(self, log_offset: int) -> int:
        """See ``StoreOwner``; asked while there is a store."""
        return self._owner.covered(log_offset)

    def tick(self, now_ms: float) -> None:
        """Try again where the cause may have gone; ``now_ms`` is monotonic."""
        if (
            self.state in (KeeperState.STARTING, KeeperState.FAILED)
            and not self._busy
            and (self._reopens or self.state is KeeperState.STARTING)
        ):
            if self._retry_at_ms == 0.0:
                self._retry_at_ms = now_ms + RETRY_MS
            elif now_ms >= self._retry_at_ms:
                self._retry_at_ms = 0.0
                self._open()

    def check(self, error: Exception) -> None:
        """Told of every error that a request met: the one that means a failed log ends the serving.
        A bad sector does not: whoever reads it would stop the broker for everybody, again and
        again.
        """
        if isinstance(error, StoreFailed) and not isinstance(error, StoreUnreadable):
            self.failed(error)

    def failed(self, error: RmqError) -> None:
        """A write or fsync of the serving store failed: stop serving, read the disk again. Callable
        more than once.
        """
        store = self.store
        if store is None:
            return
        log.error("the log failed, nothing is acknowledged until it was read again: %s", error)
        self._failed_store = store
        self.store, self.state, self.error = None, KeeperState.FAILED, error
        self._owner.lost()
        if self._reopens:
            self._open()

    def close(self) -> MessageStore | None:
        """Stop serving for good; the store, to be shut down by the caller in a thread. None while a
        thread opens it: it is shut down when that thread has ended, so that nobody writes without
        the lock.
        """
        store, self.store, self.state = self.store or self._failed_store, None, KeeperState.CLOSED
        return None if self._busy else store

    def free_topics(self, topics: Iterable[str], error: Exception | None) -> None:
        """Called when the tables were written, or with the ``error`` of it: that these topics are
        gone is on disk, so their files go. Those that cannot go now are removed by the next start.
        """
        if error is not None or self.store is None:
            return
        for topic in topics:
            try:
                count = self.store.delete_topic(topic)
            except RmqError as fault:
                log.warning("queues of %s, which was deleted, stay: %s", topic, fault)
            else:
                log.info("%d queues of topic %s, which is no more, were removed", count, topic)

    def refusal(self) -> RmqError:
        """What a request that needs the store is told now."""
        if self.state is KeeperState.BROKEN and self.error is not None:
            return self.error
        if self.state is KeeperState.FAILED:
            return StoreNotReady(f"the log failed and is read again: {self.error}; send again")
        if self.state is KeeperState.CLOSED:
            return StoreNotReady("the broker is stopping; send again")
        waiting = f" ({self.error})" if self.error is not None else ""
        return StoreNotReady(f"the broker still reads its disk{waiting}; send again")

    def _open(self) -> None:
        if self.state is KeeperState.CLOSED:
            return
        self._busy = True
        try:
            self._offload.submit(self._opened_store, self._opened)
        except BrokerBusy as error:
            self._busy, self.error = False, error  # the next tick tries again

    def _opened_store(self) -> MessageStore:
        """In a thread: a recovered store, or its error."""
        if self._failed_store is not None:
            self.last_recovery = self._failed_store.reopen()
            self._owner.prepare(self._failed_store)
            return self._failed_store
        store = self._owner.make()
        store.open(self._create, self._identity)
        try:
            self.last_recovery = store.recover()
            self._owner.prepare(store)
            return store
        except RmqError:
            store.shutdown()
            raise

    def _opened(self, store: MessageStore | Exception) -> None:
        self._busy = False
        if self.state is KeeperState.CLOSED:
            left = self._failed_store if isinstance(store, Exception) else store
            if left is not None:
                left.shutdown()
            return
        if isinstance(store, RmqError):
            self._not_opened(store)
            return
        if isinstance(store, Exception):
            raise store
        if self._failed_store is None:
            store.start(self._durable_from_thread)
        else:
            self._failed_store = None
            self.reopened += 1
        self._owner.serving(store)
        self.store, self.state, self.error = store, KeeperState.SERVING, None

    def _not_opened(self, error: RmqError) -> None:
        self.error = error
        self._retry_at_ms = 0.0
        self._refused += 1
        given_up = isinstance(error, StoreInUse) and self._create and self._refused >= IN_USE_TRIES
        if isinstance(error, TRANSIENT) and not given_up:
            log.warning("the store cannot be opened yet: %s", error)
        else:
            log.error("the store cannot be opened: %s", error)
            self.state = KeeperState.BROKEN
            self._owner.broken(error)

    def _durable_from_thread(self, _log_offset: int) -> None:
        """From the flush thread: one notice in the loop stands for all that come before it runs."""
        if not self._durable_posted:
            self._durable_posted = True
            self._offload.post(self._durable_in_loop)

    def _durable_in_loop(self) -> None:
        self._durable_posted = False
        store = self.store
        if store is None:
            return
        self._owner.durable()
        if store.state is StoreState.FAILED:
            self.failed(StoreFailed("a write or fsync of the log failed"))
