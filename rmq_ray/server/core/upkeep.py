"""A broker's old files: when a cycle of retention runs, and what it takes from groups that lag
(store-format 13; operations: retention).

    every 10 s, or an administrator asks ─> a cycle in a thread: segments, then topics
    but for the first minute of a store's serving, where nobody asks
        ─> did queues begin later than before?
        ─> what groups had not consumed of the gone: expired

So that the accounts of a group add up: acknowledged + to be retried + dead letters + backlog +
expired = stored since it began. Decides what counts as expired. Does not decide which segments go
(``store.reading.retention``). Called by the broker's core, in its loop.

Invariants: a message expires at most once for a group; a group that has no progress in a queue yet
loses nothing there, it begins where the queue does. Pins are forgotten with a store that is closed
(a start of the broker, another role); who renews its own more often than each ``FIRST_CLEAN_MS``,
as tables do (``table.retention_hold``), has them again before the first cycle, however long the
recovery took.
"""

from __future__ import annotations

import logging
from functools import partial
from heapq import nlargest
from typing import Any

from rmq_ray.errors import BrokerBusy, RmqError
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.core.retention_risk import (
    AtRisk,
    Committed,
    RetentionRisk,
    by_topic,
    groups_at_risk,
)
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.retention import RetentionReport, Room

log = logging.getLogger("rmq_ray.server")
FIRST_CLEAN_MS, CLEAN_MS = 60_000, 10_000  # cleanResourceInterval
TOLD = 20  # groups in the status, lines in the log for one cycle
GROUPS_MAX = 200_000

Minima = dict[tuple[str, int], int]
Cycle = tuple[RetentionReport, int, list[AtRisk] | None]
"""What a cycle did, how many queues of topics with an own retention begin elsewhere now, and which
groups are about to lose messages; None where that was not looked at.
"""
RISK_CYCLES = 6
"""Groups are looked at each minute."""


class Upkeep:
    """Of one broker; loop only."""

    def __init__(self, runtime: BrokerRuntime, storage: BrokerStorage) -> None:
        self._identity, self._clock = runtime.identity, runtime.clock
        self._offload = runtime.offload
        self._keeper, self._tables = storage.keeper, storage.tables
        self._running = False
        self._first_ms = 0.0
        self._cycles = 0
        self.risk = RetentionRisk()
        self._room = Room.ENOUGH
        self._minima: Minima = {}
        self._expired: dict[tuple[str, str], int] = {}
        self.total = 0
        """Messages that expired for a group, summed over groups, since the process began."""

    def serving(self, store: MessageStore) -> None:
        """The store is recovered: what it lacks now expired in an earlier life."""
        self._minima = _minima(store)
        self._first_ms = self._clock.monotonic_ms() + FIRST_CLEAN_MS

    def clean_in_turn(self) -> None:
        """What is done every ``CLEAN_MS``: a cycle, but for the first minute of the serving."""
        if self._clock.monotonic_ms() >= self._first_ms:
            self.clean()

    def clean(self) -> None:
        """One cycle beside the loop; nothing while one runs."""
        store = self._keeper.store
        if store is None or self._running:
            return
        self._running = True
        committed: Committed | None = None
        if not self._identity.is_slave and self._cycles % RISK_CYCLES == 0:
            tables = self._tables.offsets.tables()
            committed = {key: dict(queues) for key, queues in tables.items()}
        self._cycles += 1
        try:
            self._offload.submit(lambda: self._cycle(store, committed), self._cleaned)
        except BrokerBusy:
            self._running = False  # the next turn does it

    def _cycle(self, store: MessageStore, committed: Committed | None) -> Cycle:
        """In a thread: old segments, then what topics keep less long than the store, then who may
        lose messages next.
        """
        now_ms, hours = self._clock.now_ms(), self._tables.topics.retention()
        report = store.clean(now_ms)
        moved = store.expire_topics(now_ms, hours)
        if committed is None:
            return report, moved, None
        reserved = self._tables.settings.config.store.reserved_hours
        return report, moved, groups_at_risk(store, committed, hours, reserved, now_ms)

    def delete_expired(self, command: Command, peer: Peer) -> Command:
        """329: segments older than the reserved time go with this and the next 19 cycles, whatever
        the hour. The answer does not wait for them.
        """
        if self._keeper.store is None:
            raise self._keeper.refusal()
        self._keeper.store.request_cleaning()
        self.clean()
        return command.answer()

    def clean_expired_queues(self, command: Command, peer: Peer) -> Command:
        """306: files of queues whose messages have all left the log go, as in each cycle; one runs
        now. The answer does not wait for it.
        """
        if self._keeper.store is None:
            raise self._keeper.refusal()
        self.clean()
        return command.answer()

    def clean_unused_topics(self, command: Command, peer: Peer) -> Command:
        """316: queues of topics that this broker does not have any more go."""
        store, topics = self._keeper.store, self._tables.topics
        if store is None:
            raise self._keeper.refusal()
        unused = [
            topic
            for topic in sorted(store.topics())
            if topics.get(topic) is None and not topics.is_system(topic)
        ]
        for topic in unused:
            if not self._identity.is_slave:  # which has its master's deletions
                store.end_topic(topic)
            self._tables.offsets.forget_topic(topic)
        self._tables.save_topics(partial(self._keeper.free_topics, unused))
        return command.answer()

    def status(self) -> dict[str, Any]:
        """``expired_messages``, and of which groups."""
        worst = nlargest(TOLD, self._expired.items(), key=lambda item: item[1])
        return {
            **self.risk.status(),
            "expired_messages": self.total,
            "expired": [
                {"group": group, "topic": topic, "messages": count}
                for (topic, group), count in worst
            ],
        }

    def _cleaned(self, outcome: object) -> None:
        self._running = False
        if isinstance(outcome, RmqError):
            log.error("old files were not removed: %s", outcome)
            self._keeper.check(outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        elif isinstance(outcome, tuple):
            report, moved, at_risk = outcome
            told = report.room is not self._room
            self._tell_room(report)
            self.risk.tell_disk(
                report.disk,
                self._tables.settings.config.store,
                plenty=report.room is Room.ENOUGH,
                told=told,
            )
            if at_risk is not None:
                self.risk.tell_groups(at_risk)
            if report.segments:
                log.info(
                    "retention removed %d segments (%s): the log begins at %d now",
                    report.segments,
                    report.reason.value,
                    report.begin,
                )
            if (report.segments or moved) and self._keeper.store is not None:
                self._account(self._keeper.store)

    def _tell_room(self, report: RetentionReport) -> None:
        """One line when the disk comes near to being full, when it is, and when that ends."""
        before, self._room = self._room, report.room
        if self._room is before:
            return
        if self._room is Room.FULL:
            log.error("the disk is full (%s): sends are refused until space is freed", report.disk)
        elif self._room is Room.SHORT:
            log.warning(
                "the disk fills up (%s): first the oldest segments go, whatever their age, then "
                "sends are refused; free space or add a larger disk",
                report.disk,
            )
        else:
            log.info("the disk has room again (%s)", report.disk)

    def _account(self, store: MessageStore) -> None:
        """Which progress of groups lies before the queues' beginnings now."""
        before, self._minima = self._minima, _minima(store)
        if self._identity.is_slave:  # its groups are the master's
            return
        risen = {key: low for key, low in self._minima.items() if low > before.get(key, 0)}
        before = {
            key: max(before.get(key, 0), store.lives.begin(*key)) for key in risen
        }  # what lies below was another topic's
        lost: dict[tuple[str, str], int] = {}
        for topic, group, queue_id, offset in self._tables.offsets.of_queues(by_topic(risen)):
            count = risen[topic, queue_id] - max(offset, before.get((topic, queue_id), 0))
            if count > 0:
                lost[topic, group] = lost.get((topic, group), 0) + count
        for told, ((topic, group), count) in enumerate(
            sorted(lost.items(), key=lambda item: -item[1])
        ):
            if told < TOLD:
                log.warning(
                    "%d messages of %s expired before group %s consumed them: it lags more "
                    "than the retention",
                    count,
                    topic,
                    group,
                )
            self.total += count
            if (topic, group) in self._expired or len(self._expired) < GROUPS_MAX:
                self._expired[topic, group] = self._expired.get((topic, group), 0) + count


def _minima(store: MessageStore) -> Minima:
    return {key: low for key, (low, _) in store.queues().items() if low}
