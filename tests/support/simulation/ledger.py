"""What really happened in a simulated history, and the checkers that compare it with the promises.

The ledger sees what brokers store, commit and lock, and what listeners get and answer. It knows
nothing of how the product decides.

    acknowledged survives   every send that was acknowledged lies at its offset at the end, and
                            offsets are dense
    at least once           nothing counts as consumed before a listener was done with it or its
                            copy for another try was stored
    offsets                 go back only by the word of the latest puller (ordered: of the lock's
                            holder), or at a broker's death as far as the last saving
    zombies                 a commit of an ordered queue comes from whom the lock was granted to
                            last
    order                   of an ordered queue nothing is handed out before everything in front of
                            it is settled, and not to two at once
    locks                   a queue is granted to another client only when it was given up or its
                            holder was silent for long enough
    accounting              at rest: sent = acknowledged + dead-lettered (+ filtered), nothing
                            waits, every queue has one owner
    dead letters            only after all tries, or a rejection
    hand-over               without any fault, whoever lets go of a queue has told its offset before
    lives of a topic        nothing that was sent before the topic was deleted is stored in it or
                            read from it afterwards; offsets go on where the old ones ended
    own writes              what the broker stores when its time has come goes to the queue that was
                            meant, or to its number modulo the queues, and to none that is gone
    beginnings              a group that has a position in the topic begins a queue at the first
                            message where all of it came since; only one that is new, and is to
                            begin at the end, leaves anything out
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_ray.clock import Clock
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, WAITING_TOPICS
from rmq_ray.server.pop.pop_ledger import COMMITTER
from rmq_ray.server.tables.offset_table import Commit

VIOLATIONS_MAX = 20
SAVED_WITHIN_MS = 11_000  # offsets are saved 10 s after a start, then every 5 s
SEEN_WITHIN_MS = 1_000  # what a broker answers, where nothing goes wrong
RECORD_BYTES_MAX = 400  # of what is stored here
TOLD_WITHIN_MS = 1_500.0  # what a member asked about the group counts for a second


@dataclass(frozen=True, slots=True)
class Stored:
    """A record: the number of its message, how often that had failed, when it was stored, where
    the log ended then.
    """

    number: int
    times: int
    at_ms: float
    log_end: int


@dataclass(slots=True)
class Holder:
    """Who was granted a queue's lock last."""

    client_id: str
    epoch: int
    asked_ms: float
    given_up: bool = False


class Ledger:
    """Of one history. ``topic``: the one that is consumed; ``from_end``: a group that is new begins
    at the end; ``popping``: by simple consumers; ``violations``: what broke a promise, in words.
    """

    def __init__(
        self,
        clock: Clock,
        topic: str,
        orderly: bool,
        from_end: bool,
        popping: bool,
        tries_max: int,
        lock_ms: int,
        young_bytes: float,
    ) -> None:
        self.clock = clock
        self.topic = topic
        self.orderly = orderly
        self.from_end = from_end
        self.popping = popping
        self.calm = True
        self.violations: list[str] = []
        self.sent: dict[int, tuple[str, int, int]] = {}
        self.accepted: set[int] = set()
        """Acknowledged to be stored in the topic later: delayed messages, commits of halves."""
        self.meant: dict[int, int] = {}
        """Number -> the queue that it is to be stored in later."""
        self.queues: dict[str, Callable[[str], tuple[int, int]]] = {}
        """Broker -> how many queues a topic has there for reading and for writing."""
        self.log_ends: Counter[str] = Counter()
        """Broker -> the end of its log."""
        self.begins: Counter[tuple[str, str, int]] = Counter()
        """Where the queues of the topic that is there now begin."""
        self.void: set[int] = set()
        """What was sent to a topic that was deleted since."""
        self.kept: set[int] = set()
        """Those of them of which a copy lay in the retry topic then: the group's own."""
        self.passed: set[int] = set()
        """What a group that was new left out."""
        self.unwanted: set[int] = set()
        self.acked: set[int] = set()
        self.begun: Counter[int] = Counter()
        self.rejected: set[int] = set()
        self.copies: dict[int, int] = {}
        """Number -> the greatest count of failures of a stored copy."""
        self.dead: Counter[int] = Counter()
        self.records: dict[tuple[str, str, int], list[Stored]] = defaultdict(list)
        self.committed: dict[tuple[str, str, int], int] = {}
        self.events: Counter[str] = Counter()
        self._tries_max = tries_max
        self._lock_ms = lock_ms
        self._young_bytes = young_bytes
        self._pullers: dict[tuple[str, str, int], Any] = {}
        self._changes: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
        self._died_ms: dict[str, float] = {}
        self._stopped_ms: Counter[str] = Counter()
        self._holders: dict[tuple[str, str, int], Holder] = {}
        self._settled_to: Counter[tuple[str, str, int]] = Counter()
        self._logged: dict[str, set[int]] = defaultdict(set)
        self._ended: dict[str, set[int]] = defaultdict(set)
        """Broker -> what it had of topics that were deleted since."""
        self._begun: set[tuple[str, str, int]] = set()
        self._since_ms: dict[str, float] = {}
        """Broker -> since when the group has a position in the topic that is there now."""

    def violated(self, what: str) -> None:
        """A promise was broken."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"at {self.clock.monotonic_ms() / 1000:.1f} s: {what}")

    # --- what brokers do --------------------------------------------------------------------------

    def stored(
        self, broker: str, topic: str, queue_id: int, offset: int, body: bytes, times: int
    ) -> None:
        """A record is in a log."""
        watched = topic == self.topic or topic in WAITING_TOPICS
        if not (watched or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))) or not body.isdigit():
            return  # an event of the broker's own
        number = int(body)
        if topic not in WAITING_TOPICS:
            known = self.records[broker, topic, queue_id]
            if offset != len(known):
                self.violated(
                    f"{topic} queue {queue_id} of {broker}: message {number} got offset "
                    f"{offset}, the next free one is {len(known)}"
                )
            known.append(Stored(number, times, self.clock.monotonic_ms(), self.log_ends[broker]))
            if number in self.void and self._is_given_up(broker, topic, number):
                self.violated(
                    f"message {number} was sent before the topic was deleted, and is stored in "
                    f"{topic} queue {queue_id} of {broker}"
                )
        if topic == self.topic:
            self._check_queue(broker, number, queue_id)
        elif topic != HALF_TOPIC:
            self.copies[number] = max(self.copies.get(number, 0), times)
        self._logged[broker].add(number)
        if topic.startswith(DLQ_PREFIX):
            self.dead[number] += 1
            told = self.calm or not self.popping  # of each try: a lost answer to a pop is one
            if told and number not in self.rejected and self.begun[number] <= self._tries_max:
                self.violated(
                    f"message {number} is a dead letter after {self.begun[number]} of "
                    f"{self._tries_max + 1} tries"
                )

    def _check_queue(self, broker: str, number: int, queue_id: int) -> None:
        reading, writing = self.queues[broker](self.topic)
        meant = self.meant.get(number)
        if meant is not None and queue_id != (meant if meant < writing else meant % writing):
            self.violated(
                f"message {number} of queue {meant} is stored in queue {queue_id} of {broker}, "
                f"which has {writing}"
            )
        if queue_id >= max(reading, writing):
            self.violated(
                f"message {number} is stored in queue {queue_id} of {broker}, which is gone"
            )

    def _is_given_up(self, broker: str, topic: str, number: int) -> bool:
        """Whether a message of the deleted topic may not be stored in ``topic`` any more. Its copy
        for another try may where one was in the retry topic already, and where its consumer wrote
        it elsewhere, because the message's own broker was down: that is the group's own.
        """
        if topic.startswith(RETRY_PREFIX):
            return number in self._ended[broker] and number not in self.kept
        return topic == self.topic

    def topic_ended(self, broker: str, topic: str) -> None:
        """The topic was deleted there: what was sent to it is no part of one made again."""
        if topic != self.topic:
            return
        self._ended[broker] |= self._logged[broker]
        self.void |= self._logged[broker]
        for (_, name, _), records in self.records.items():
            if name != topic:
                self.kept |= {record.number for record in records} & self.void
        self._since_ms.pop(broker, None)
        for key in [key for key in self.records if key[:2] == (broker, topic)]:
            self.begins[key] = self._settled_to[key] = len(self.records[key])
            self._begun.discard(key)
            self._changes.pop(key, None)
            self.committed.pop(key, None)

    def read(self, broker: str, topic: str, queue_id: int, offset: int) -> None:
        """Somebody reads the topic, from a record at ``offset`` on."""
        begin = self.begins[broker, topic, queue_id]
        if offset < begin:
            self.violated(
                f"{topic} queue {queue_id} of {broker}: offset {offset} was read, which is of the "
                f"topic that was deleted; this one begins at {begin}"
            )

    def watch(self, broker: str, core: Any, again: bool) -> None:
        """A broker serves: see its commits, pulls and locks from here on. ``again``: it was killed
        before.
        """
        offsets, locks = core.tables.offsets, core.members.locks
        commit, pulled, lock, unlock = offsets.commit, offsets.pulled, locks.lock, locks.unlock

        def watched_commit(
            topic: str,
            group: str,
            queue_id: int,
            offset: int,
            client: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Commit:
            before = offsets.query(topic, group, queue_id)
            outcome: Commit = commit(topic, group, queue_id, offset, client, *args, **kwargs)
            if topic not in WAITING_TOPICS:
                self._commit(
                    (broker, topic, queue_id), before, offsets.query(topic, group, queue_id), client
                )
            return outcome

        def watched_pulled(topic: str, group: str, queue_id: int, client: Any, *args: Any) -> Any:
            self._pullers[broker, topic, queue_id] = client
            return pulled(topic, group, queue_id, client, *args)

        def watched_lock(
            group: str, client_id: str, queues: Any, now_ms: float, *args: Any, **kwargs: Any
        ) -> Any:
            granted = lock(group, client_id, queues, now_ms, *args, **kwargs)
            for grant in granted:
                self._granted(
                    (broker, grant.queue.topic, grant.queue.queue_id), client_id, grant.epoch
                )
            return granted

        def watched_unlock(group: str, client_id: str, queues: Any, *args: Any) -> Any:
            for queue in queues:
                held = self._holders.get((broker, queue.topic, queue.queue_id))
                if held is not None and held.client_id == client_id:
                    held.given_up = True
            return unlock(group, client_id, queues, *args)

        offsets.commit, offsets.pulled, locks.lock, locks.unlock = (
            watched_commit,
            watched_pulled,
            watched_lock,
            watched_unlock,
        )
        if again:
            self._restored(
                broker,
                {
                    (broker, topic, queue): at
                    for (topic, _), queues in offsets.tables().items()
                    for queue, at in queues.items()
                },
            )

    def broker_stopped(self, broker: str, duration_ms: float) -> None:
        """It does nothing for so long, nor does it save."""
        self._stopped_ms[broker] += duration_ms

    def broker_killed(self, broker: str) -> None:
        """Its memory is gone."""
        self._died_ms[broker] = self.clock.monotonic_ms()
        for held in [held for key, held in self._holders.items() if key[0] == broker]:
            held.asked_ms = max(held.asked_ms, self.clock.monotonic_ms())

    def _restored(self, broker: str, tables: dict[tuple[str, str, int], int]) -> None:
        limit_ms = self._died_ms[broker] - SAVED_WITHIN_MS - self._stopped_ms.pop(broker, 0)
        for key, changes in self._changes.items():
            if key[0] != broker:
                continue
            old = [value for at_ms, value in changes if at_ms <= limit_ms]
            least = (
                min(old[-1:] + [value for at_ms, value in changes if at_ms > limit_ms], default=0)
                if old
                else 0
            )
            restored = tables.get(key, 0)
            if restored < least:
                self.violated(
                    f"{key}: after the restart the offset is {restored}, although {least} "
                    f"was reached {self._died_ms[broker] - limit_ms:.0f} ms before it died"
                )
            self.committed[key] = restored
            changes.append((self.clock.monotonic_ms(), restored))

    def _commit(
        self, key: tuple[str, str, int], before: int | None, after: int | None, client: Any
    ) -> None:
        if after is None or after == before:
            return
        self.committed[key] = after
        self._changes[key].append((self.clock.monotonic_ms(), after))
        if before is not None and after < before:
            self.events["lowered"] += 1
            if not self.orderly and client != COMMITTER and self._pullers.get(key) != client:
                self.violated(
                    f"{key}: {client} put the offset back from {before} to {after}, "
                    f"{self._pullers.get(key)} pulled last"
                )
        held = self._holders.get(key)
        if self.orderly and held is not None and client not in (held.client_id, held.epoch):
            self.violated(
                f"{key}: the commit {after} of {client} counts, although the lock is "
                f"{held.client_id}'s"
            )
        records = self.records[key]
        if key not in self._begun:
            self._begin(key, after)
        for offset in range(before or 0, min(after, len(records))):
            if not self._settled(records[offset]):
                self.violated(
                    f"{key}: {client} committed {after} past message "
                    f"{records[offset].number} at {offset}, which nobody is done with"
                )
                break
        if after > len(records):
            self.violated(f"{key}: commit {after} beyond the end {len(records)}")

    def _granted(self, key: tuple[str, str, int], client_id: str, epoch: int) -> None:
        now_ms, held = self.clock.monotonic_ms(), self._holders.get(key)
        if (
            held is not None
            and held.client_id != client_id
            and not held.given_up
            and now_ms - held.asked_ms <= self._lock_ms
        ):
            self.violated(
                f"{key}: locked for {client_id}, although {held.client_id} asked "
                f"{now_ms - held.asked_ms:.0f} ms ago"
            )
        self._holders[key] = Holder(client_id, epoch, now_ms)

    def _settled(self, record: Stored) -> bool:
        number = record.number
        return (
            number in self.acked
            or self.copies.get(number, -1) > record.times
            or number in self.unwanted
            or number in self.passed
            or number in self.void
        )

    def _begin(self, key: tuple[str, str, int], offset: int) -> None:
        """The group has its first position in a queue."""
        self._begun.add(key)
        now_ms, records = self.clock.monotonic_ms(), self.records[key]
        if key[1] != self.topic:
            return
        since_ms = min(self._since_ms.values(), default=now_ms)
        is_new = not self._since_ms
        self._since_ms.setdefault(key[0], now_ms)
        begin, log_end = self.begins[key], self.log_ends[key[0]] + RECORD_BYTES_MAX
        if not self.from_end or len(records) == begin or not self._is_old(key, log_end):
            return
        if records[begin].at_ms < since_ms + TOLD_WITHIN_MS:
            left_out = {record.number for record in records[begin:offset]} - self.acked
            self.events["left out"] += len(left_out)
            self.passed |= left_out
        seen = (
            record.log_end
            for known, stored in self.records.items()
            if known[0] == key[0]
            for record in stored
            if record.at_ms < now_ms - SEEN_WITHIN_MS
        )
        if is_new and self.calm and offset == begin and self._is_old(key, max(seen, default=0)):
            self.violated(f"{key}: a group that is new begins at {offset} instead of the end")

    def _is_old(self, key: tuple[str, str, int], log_end: int) -> bool:
        """Whether the first message of a queue is no more in memory when the log ends there."""
        return log_end - self.records[key][self.begins[key]].log_end > self._young_bytes

    # --- what listeners do ------------------------------------------------------------------------

    def begin(
        self, client_id: str, queue: MessageQueue, messages: list[Any], may_be_late: bool
    ) -> None:
        """A listener gets messages. ``may_be_late``: its process has just been stopped and
        went on.
        """
        for message in messages:
            number = int(message.body)
            self.begun[number] += 1
            self.events["handed out"] += 1
            self.events["duplicates"] += number in self.acked
            if number in self.unwanted:
                self.violated(
                    f"message {number} was handed out, although its tag was not subscribed"
                )
        if self.orderly:
            self._begin_in_order(
                (queue.broker_name, queue.topic, queue.queue_id),
                client_id,
                messages[0].queue_offset,
                may_be_late,
            )

    def done(self, messages: list[Any]) -> None:
        """A listener succeeded."""
        self.acked.update(int(message.body) for message in messages)

    def handed_over(self, queue: MessageQueue, finished: int, since_ms: float) -> None:
        """A consumer has let go of a queue in which it was done with everything below ``finished``;
        it began to at ``since_ms``.
        """
        key = (queue.broker_name, queue.topic, queue.queue_id)
        before = [value for at_ms, value in self._changes[key] if at_ms < since_ms][-1:]
        told = max(
            [
                self.begins[key],
                *before,
                *(value for at_ms, value in self._changes[key] if at_ms >= since_ms),
            ]
        )  # the new owner may have put it back again
        while told < finished and self.records[key][told].number in self.unwanted | self.passed:
            told += 1
        if self.calm and told < finished:
            self.violated(
                f"{key}: let go at {told}, although everything below {finished} was done "
                f"with and nothing had gone wrong"
            )

    def _begin_in_order(
        self, key: tuple[str, str, int], client_id: str, offset: int, may_be_late: bool
    ) -> None:
        records = self.records[key]
        while self._settled_to[key] < offset and self._settled(records[self._settled_to[key]]):
            self._settled_to[key] += 1
        if self._settled_to[key] < offset:
            at = self._settled_to[key]
            self.violated(
                f"{key}: offset {offset} is handed out before message {records[at].number} "
                f"at {at} is settled"
            )
        held = self._holders.get(key)
        if not may_be_late and (held is None or held.client_id != client_id):
            self.violated(
                f"{key}: offset {offset} is handed out by {client_id}, the lock is "
                f"{held.client_id if held else 'nobody'}'s"
            )

    # --- the end ----------------------------------------------------------------------------------

    def at_rest(self) -> bool:
        """Nothing waits: everything stored is settled, and the offsets say so."""
        return all(
            self.is_read(key) for key in self.records if not key[1].startswith(DLQ_PREFIX)
        ) and all(map(self._is_done, self.copies.keys() | self.sent.keys() | self.accepted))

    def _is_done(self, number: int) -> bool:
        return (
            number in self.acked
            or self.dead[number] > 0
            or number in self.unwanted
            or number in self.passed
            or number in self.void
        )

    def is_read(self, key: tuple[str, str, int]) -> bool:
        """Whether the group's offset is at the end of the queue. One that was taken from readers
        was read before that, and an offset that was not saved then is not missed.
        """
        begin, end = self.begins[key], len(self.records[key])
        if begin == end or self.committed.get(key, 0) >= end:
            return True
        return not self._is_there(key) and all(map(self._settled, self.records[key][begin:]))

    def _is_there(self, key: tuple[str, str, int]) -> bool:
        return key[2] < self.queues[key[0]](key[1])[0]

    def readable(self) -> list[MessageQueue]:
        """The queues of the topic that have messages and are there for readers."""
        return [
            MessageQueue(topic, broker, queue_id)
            for (broker, topic, queue_id), records in self.records.items()
            if topic == self.topic and self._is_there((broker, topic, queue_id))
        ]

    def check_end(
        self, found: dict[tuple[str, str, int], list[int]], owners: dict[MessageQueue, list[str]]
    ) -> None:
        """``found``: what the stores hold; ``owners``: who holds each queue of the topic."""
        for number, (broker, queue_id, offset) in sorted(self.sent.items()):
            key = broker, self.topic, queue_id
            here, at = found.get(key, []), offset - self.begins[key]
            if number not in self.void and (not 0 <= at < len(here) or here[at] != number):
                self.violated(
                    f"message {number} was acknowledged at {broker} queue {queue_id} offset "
                    f"{offset} and is not there"
                )
        for number in sorted(self.sent.keys() | self.accepted):
            if not self._is_done(number):
                self.violated(
                    f"message {number} was never processed: {self.begun[number]} tries, sent to "
                    f"{self.sent.get(number, 'be stored later')}"
                )
        for key, records in sorted(self.records.items()):
            if found.get(key, []) != [record.number for record in records[self.begins[key] :]]:
                self.violated(f"{key}: the store holds other messages than were stored")
            if not key[1].startswith(DLQ_PREFIX) and not self.is_read(key):
                self.violated(
                    f"{key}: at rest the offset is {self.committed.get(key, 0)} of {len(records)}"
                )
        for queue, holders in sorted(owners.items()):
            if len(holders) != 1:
                self.violated(
                    f"{queue} has {len(holders)} owners at rest: {', '.join(holders) or 'none'}"
                )
