"""Threads that ask at once share frames. A crowd is ``CROWD_MIN`` threads or more that are in a
request for one key. Of a crowd, whoever finds two frames unanswered joins a group and sleeps.

    fewer threads  alone: one item, one frame each, written by the calling thread
    a crowd        two frames are out: join the open group and sleep ── an answer comes ──> its
                   threads wake one another, two at a time, and ask again: who makes the open group
                   half of all threads here, or is the last one to wake, ships it

One thread's request is one round trip, as ever; the more threads, the more items a frame. With many
threads two frames take turns: one is at the broker while the threads of the other wake and gather.
While nobody here is awake, more go out. A group is sent at most 2 ms after an answer that freed a
place, however long threads take. Decides who goes alone, who joins, who wakes whom and when a group
is sent, and what messages become on the wire (``SendCoalescer``). Halves and ends of transactions
are grouped by the same rules (``client.transaction.transaction_sending``).

    member   WAITING ──its frame ends──> READY, in line ──one before it wakes──> AWAKE
             ──it looks at the line──> gone

One line for all groups, and few awake: threads that are woken together queue for the interpreter
lock and are switched to twice each.

Invariants: while a key has an open group, a frame of that key is out or threads are waking, whose
end ships the group; a member's lock is released by whoever made it AWAKE, once; each frame out
belongs to exactly one ``lone_ended`` or one group's end. A line that stops (a thread was killed
while it was AWAKE) goes on within half a second: who is READY for longer wakes by itself.

Invariants of messages: a frame is stored whole or not at all; each thread gets a verdict of its
own: of a frame that is refused because of one message, every thread sends its message again, alone,
within the frame's time; nobody loses more than a tenth of a time-out by joining: a group that has
waited longer leaves without him.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from rmq_ray.client.outgoing.confirming import own_copy
from rmq_ray.client.outgoing.producer_identity import ProducerIdentity
from rmq_ray.client.outgoing.send_future import BatchOutcome
from rmq_ray.client.outgoing.send_payload import RECORD_OVERHEAD, SizedPayload, encode_records
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.sending.async_sender import AsyncSend, AsyncSender
from rmq_ray.client.sending.batch_bisect import ONE_OF_MANY
from rmq_ray.client.sending.send_engine import LEFT_TO_SHARE, InFlightSend, SendEngine
from rmq_ray.clock import Clock, left_ms
from rmq_ray.errors import SendTimeout
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult

FRAMES_ALONE_MAX = 2
"""Frames of a key out before threads share, and while they do: the next frame is on its way while
one is answered.
"""
FRAMES_IDLE_MAX = 4
"""Frames out while no thread here is awake: the broker takes longer than they do (it syncs each
frame) and would wait for them afterwards.
"""
AWAKE_MAX = 2
"""Threads on their way out at once: while one has the interpreter lock, the next one's core
wakes.
"""
CROWD_MIN = 6
"""Threads here from which on they share: a group of one or two costs more than as many frames of
their own.
"""
SHIP_WITHIN_MS = 2.0  # of an answer, however long its threads take to wake
WAIT_SLICE_S = 0.5  # cancellation reaches a thread between waits only
WAIT_SLACK_MS = 1_000.0  # beyond the time-out, for frames that end at it

Key = tuple[str, str]
"""Topic and broker name: a broker that hangs holds up nobody who sends to another."""
Alone = Callable[[SendRequest, MessageQueue, float], SendResult]
"""Sends a message in a frame of its own, to this queue first, in the time of a send that began then
(monotonic); as ``SendEngine.send``.
"""

Item = TypeVar("Item")


class MemberState(Enum):
    """Where a thread in a group stands; see the drawing."""

    WAITING = 1
    READY = 2
    AWAKE = 3


WAITING, READY, AWAKE = MemberState.WAITING, MemberState.READY, MemberState.AWAKE


class GroupMember:
    """A thread, again and again. ``state`` is guarded by the lock of the ``GroupCommit``."""

    __slots__ = ("lock", "state", "taken")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.state = WAITING
        self.taken = False


class Group(Generic[Item]):
    """Items of several threads that will be one frame. Guarded by the lock of its ``commit`` until
    it leaves.
    """

    __slots__ = ("bytes", "commit", "done", "items", "key", "members")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.done = False
        self.items: list[Item] = []
        self.members: list[GroupMember | None] = []
        """The threads, in the order in which they wake; None for one that does not wait any
        more.
        """
        self.bytes = 0
        self.commit: GroupCommit[Any, Any] | None = None

    def ended(self) -> None:
        """The frame is answered or given up, and what it came to is written down: its threads stand
        in line.
        """
        self.done = True
        if self.commit is not None:
            self.commit.line_up(self)


G = TypeVar("G", bound=Group[Any])


class _Own(threading.local):
    member: GroupMember | None = None


class GroupCommit(ABC, Generic[Item, G]):
    """See the module. Thread-safe. ``items_max``, ``bytes_max``: of a group."""

    alone_max: ClassVar[int] = FRAMES_ALONE_MAX
    idle_max: ClassVar[int] = FRAMES_IDLE_MAX
    crowd_min: ClassVar[int] = CROWD_MIN

    def __init__(self, clock: Clock, items_max: int, bytes_max: int) -> None:
        self._clock = clock
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._own = _Own()
        self._out: dict[Any, int] = {}
        self._inside: dict[Any, int] = {}
        self._open: dict[Any, G] = {}
        self._ready: deque[GroupMember] = deque()
        self._awake = 0
        """Threads that are AWAKE: each will look at the line."""
        self._freed_ms = 0.0

    @abstractmethod
    def _ship(self, group: G) -> None:
        """Send the group off without waiting; ``group.ended`` is called once, when it is answered
        or given up.
        """

    def join(self, key: Any, item: Item, size: int, make: Callable[[], G]) -> tuple[G, int] | None:
        """A place in a group of ``key``; None = go alone, and call ``lone_ended`` afterwards
        whatever happens. ``make``: a new group.
        """
        with self._lock:
            out = self._out.get(key, 0)
            group = self._open.get(key)
            self._inside[key] = self._inside.get(key, 0) + 1
            full = group is not None and (
                group.bytes + size > self._bytes_max or len(group.items) >= self._items_max
            )
            few = out < self.alone_max or self._inside[key] < self.crowd_min
            if full or (group is None and few and not self._awake):
                self._out[key] = out + 1
                return None
            if group is None:
                group = self._open[key] = make()
                group.commit = self
            index = len(group.items)
            group.items.append(item)
            group.members.append(self._own_member())
            group.bytes += size
            idle = not self._awake and not self._ready and 3 * len(group.items) >= self._inside[key]
            due = self._due(key, self.idle_max if idle else self.alone_max)
        if due is not None:
            self._ship(due)
        return group, index

    def lone_ended(self, key: Any) -> None:
        """A frame of ``key`` that went alone is over: the open group leaves in its place, if there
        is one.
        """
        with self._lock:
            self._count_down(self._inside, key)
            self._free(key)
            due = self._due(key, self.alone_max)
        if due is not None:
            self._ship(due)

    def ship_now(self, group: G) -> None:
        """An open group that has waited too long to be joined leaves now, whatever is out."""
        with self._lock:
            found = self._open.get(group.key) is group
            if found:
                self._take_out(group.key)
        if found:
            self._ship(group)

    def sleep(self, group: G, index: int, patience_ms: float) -> bool:
        """Until the group is done; then the next thread wakes, or a group that is due leaves.
        False: not done within ``patience_ms``.
        """
        deadline = self._clock.monotonic_ms() + patience_ms
        member = group.members[index]
        assert member is not None
        woken = False
        try:
            while not woken and (left := deadline - self._clock.monotonic_ms()) > 0:
                woken = member.lock.acquire(timeout=min(WAIT_SLICE_S, left / 1000))
                if not woken and self._look_around(group, member):
                    break
        finally:
            self._go(group, index, member, woken)
        return group.done

    def line_up(self, group: G) -> None:
        """Of a group that ended: its threads wake after those who are in line."""
        with self._lock:
            self._free(group.key)
            for member in group.members:
                if member is not None:
                    member.state = READY
                    self._ready.append(member)
            woken = [each for _ in range(AWAKE_MAX) if (each := self._next_in_line()) is not None]
        for member in woken:
            member.lock.release()

    # --- a thread that waits ----------------------------------------------------------------------

    def _go(self, group: G, index: int, member: GroupMember, woken: bool) -> None:
        """This thread waits no more: the next in line wakes, or a group that is due leaves."""
        follower: GroupMember | None = None
        with self._lock:
            self._count_down(self._inside, group.key)
            member.taken = False
            if member.state is AWAKE:
                self._awake = max(0, self._awake - 1)  # who looked around may have counted anew
                follower = self._next_in_line()
            elif member.state is READY:
                self._ready.remove(member)
            else:
                group.members[index] = None
            if not woken:
                self._own.member = None  # its lock may still be released for this wait
            due = self._due(group.key, self.alone_max)
        if follower is not None:
            follower.lock.release()
        if due is not None:
            self._ship(due)

    def _look_around(self, group: G, member: GroupMember) -> bool:
        """Nobody woke this thread for long. True when its frame has ended all the same; else an
        open group that nothing will ship leaves: whoever should have sent it off (an interrupted
        thread) is counted out.
        """
        key = group.key
        with self._lock:
            if member.state is READY:  # whoever should have woken it is gone
                self._ready.remove(member)
                member.state = AWAKE
                self._awake = 1
            if group.done or self._open.get(key) is not group:
                return group.done
            del self._open[key]
            self._out[key], self._inside[key] = 1, len(group.items)
        self._ship(group)
        return False

    def _own_member(self) -> GroupMember:
        member = self._own.member
        # taken: a finalizer or signal handler asks inside this thread's wait
        if member is None or member.taken:
            member = GroupMember()
            if self._own.member is None:
                self._own.member = member
        member.taken, member.state = True, WAITING
        return member

    # --- under the lock ---------------------------------------------------------------------------

    def _due(self, key: Any, out_max: int) -> G | None:
        """The open group if it is to leave now; it counts as out then."""
        group = self._open.get(key)
        if group is None or self._out.get(key, 0) >= out_max:
            return None
        gathering = self._awake > 0 and 2 * len(group.items) < self._inside.get(key, 0)
        if gathering and self._clock.monotonic_ms() - self._freed_ms < SHIP_WITHIN_MS:
            return None
        self._take_out(key)
        return group

    def _take_out(self, key: Any) -> None:
        del self._open[key]
        self._out[key] = self._out.get(key, 0) + 1

    def _free(self, key: Any) -> None:
        self._count_down(self._out, key)
        self._freed_ms = self._clock.monotonic_ms()

    def _next_in_line(self) -> GroupMember | None:
        """Who wakes now; None when nobody is to."""
        if not self._ready or self._awake >= AWAKE_MAX:
            return None
        member = self._ready.popleft()
        member.state = AWAKE
        self._awake += 1
        return member

    @staticmethod
    def _count_down(counts: dict[Any, int], key: Any) -> None:
        left = counts.get(key, 0) - 1
        if left > 0:
            counts[key] = left
        else:
            counts.pop(key, None)


class MessageGroup(Group[SendRequest]):
    """Messages that will be one frame, for ``queue``. ``began_ms``: when its time began to run,
    monotonic: that of who opens it.
    """

    __slots__ = ("began_ms", "outcome", "queue")

    def __init__(self, key: Key, queue: MessageQueue, began_ms: float) -> None:
        super().__init__(key)
        self.queue = queue
        self.began_ms = began_ms
        self.outcome = BatchOutcome(queue)
        self.outcome.on_finish = self.ended

    def ended(self) -> None:
        """See ``Group.ended``."""
        # group and outcome would be garbage that only the collector finds: it ran ten times a
        # second for that
        self.outcome.on_finish = None
        super().ended()


class SendCoalescer(GroupCommit[SendRequest, MessageGroup]):
    """Messages of many threads in shared frames. Decides what a group becomes on the wire and what
    each thread is told. Thread-safe.
    """

    def __init__(
        self, engine: SendEngine, identity: ProducerIdentity, sender: AsyncSender, alone: Alone
    ) -> None:
        config = engine.config
        super().__init__(engine.clock, config.batch_messages_max, config.batch_bytes_max)
        self._timeout_ms = float(config.send_timeout_ms)
        self._apart_ms = self._timeout_ms * (1 - LEFT_TO_SHARE)
        self._engine = engine
        self._identity = identity
        self._sender = sender
        self._alone = alone

    def enter(
        self, message: SendRequest, queue: MessageQueue, began_ms: float
    ) -> tuple[MessageGroup, int] | None:
        """A place in a group for ``queue``'s broker; None = go alone, to ``queue``, and call
        ``lone_ended_to`` afterwards whatever happens.

        ``began_ms``: when the message's time began to run, monotonic.
        """
        key = (queue.topic, queue.broker_name)
        found = self._open.get(key)
        if (
            found is not None and found.began_ms < began_ms - self._apart_ms
        ):  # its frame would take that much time from this message
            self.ship_now(found)
        return self.join(
            key,
            message,
            len(message.body) + len(message.text) + RECORD_OVERHEAD,
            lambda: MessageGroup(key, queue, began_ms),
        )

    def lone_ended_to(self, queue: MessageQueue) -> None:
        """``lone_ended`` of a frame that went to ``queue``'s broker."""
        self.lone_ended((queue.topic, queue.broker_name))

    def wait(self, group: MessageGroup, index: int) -> SendResult:
        """Sleep until the group is answered, or its time is over. Raises a ``SendError``."""
        if not self.sleep(group, index, self._timeout_ms + WAIT_SLACK_MS):
            raise SendTimeout(
                f"no answer within {self._timeout_ms:.0f} ms; the message may be stored",
                group.queue.topic,
            )
        error = group.outcome.error
        if error is None:
            return group.outcome.result(index)
        if isinstance(error, ONE_OF_MANY) and len(group.items) > 1:
            return self._alone(group.items[index], group.queue, group.began_ms)
        raise own_copy(group.outcome.error_at(index) or error)

    def _ship(self, group: MessageGroup) -> None:
        until_ms = group.began_ms + self._timeout_ms
        self._sender.submit(
            AsyncSend(
                group.outcome, lambda wait: self._in_flight(group, wait), None, None, until_ms
            )
        )

    def _in_flight(self, group: MessageGroup, wait: bool) -> InFlightSend:
        payload = self._payload(
            group, left_ms(self._clock, self._timeout_ms, group.began_ms) if wait else 0.0
        )
        group.outcome.message_ids, group.outcome.sizes = payload.message_ids, payload.sizes
        return self._engine.in_flight(payload, group.queue, False, self._timeout_ms, group.began_ms)

    def _payload(self, group: MessageGroup, timeout_ms: float) -> SizedPayload:
        """The group's frame; waits up to ``timeout_ms`` for a frame id."""
        items = group.items
        flags = [item.flag for item in items]
        bodies, texts = [item.body for item in items], [item.text for item in items]
        return encode_records(
            self._identity,
            group.queue,
            bodies,
            texts,
            self._clock.now_ms(),
            timeout_ms,
            flags if any(flags) else None,
        )
