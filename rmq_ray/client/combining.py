"""Sends of many threads at once share frames: who finds enough frames out joins a group, and the group leaves with the next answer.

    thread 1, 2   alone: one record, one frame each, written by the calling thread
    thread 3..n   join the open group and sleep ── an answer comes ──> its threads wake one another; the last one ships the group, and so on

One thread's send is one round trip, as ever; the more threads, the more messages a frame. A group leaves when one of the frames out is answered and that
one's threads are awake, at most 2 ms later: those who send again at once share the next frame. Called by ``ProducerCore.send`` for ordinary messages
to any queue.

Waking in a chain is what makes this cheap: threads that are woken together queue for the interpreter lock and are switched to twice each.

Invariants: while a topic has an open group for a broker, a frame to that broker is out, whose end ships the group; a thread waits on a
lock of its own, which is released once per group, by the thread before it; each frame out belongs to exactly one ``leave``.
"""

from __future__ import annotations

import threading

from rmq_ray.client.batching import RECORD_OVERHEAD, encode_load
from rmq_ray.client.identity import ProducerIdentity
from rmq_ray.client.launching import Job, Launcher
from rmq_ray.client.outgoing import Outgoing
from rmq_ray.client.send_future import FINISHED, BatchOutcome
from rmq_ray.client.sending import Delivery, Sending
from rmq_ray.clock import Clock
from rmq_ray.errors import SendTimeout
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult

FRAMES_ALONE_MAX = 2
"""Frames of a topic to one broker out before threads share. Measured with 64 threads: 1 and 2 give 34,000 messages a second, 4 gives
23,000, 8 gives 22,000, no sharing 17,000; with 2 the next frame is on its way while one is answered."""
SHIP_WITHIN_MS = 2.0  # of an answer, however long its threads take to wake
WAIT_SLICE_S = 0.5  # cancellation reaches a thread between waits only

Key = tuple[str, str]
"""Topic and broker name: a broker that hangs holds up nobody who sends to another."""


class Group:
    """Messages of several threads that will be one frame. Guarded by the combiner's lock until it leaves."""

    __slots__ = ("bodies", "bytes", "clock", "ended_ms", "flags", "left", "locks", "outcome", "queue", "texts")

    def __init__(self, queue: MessageQueue, clock: Clock) -> None:
        self.queue = queue
        self.clock = clock
        self.ended_ms = 0.0
        self.outcome = BatchOutcome(queue)
        self.bodies: list[bytes] = []
        self.texts: list[str] = []
        self.flags: list[int] = []
        self.locks: list[threading.Lock | None] = []
        """Of the threads, in the order in which they wake; None for one that does not wait any more."""
        self.bytes = 0
        self.left = False

    def ended(self) -> None:
        """The frame is answered or given up: wake the first thread."""
        self.ended_ms = self.clock.monotonic_ms()
        self.wake_from(0)

    def wake_from(self, index: int) -> bool:
        """Wake the next thread that waits; False when there is none."""
        for at in range(index, len(self.locks)):
            lock = self.locks[at]
            if lock is not None:
                lock.release()
                return True
        return False


class _Mine(threading.local):
    lock: threading.Lock | None = None


class Combiner:
    """See the module. Thread-safe."""

    def __init__(self, sending: Sending, identity: ProducerIdentity, launcher: Launcher) -> None:
        self._sending = sending
        self._identity = identity
        self._launcher = launcher
        self._clock = sending.clock
        self._timeout_ms = float(sending.config.send_timeout_ms)
        self._lock = threading.Lock()
        self._mine = _Mine()
        self._out: dict[Key, int] = {}
        self._open: dict[Key, Group] = {}

    def enter(self, message: Outgoing, queue: MessageQueue) -> tuple[Group, int] | None:
        """A place in a group for ``queue``'s broker; None = go alone, to ``queue``, and call ``leave`` afterwards whatever happens."""
        key = (queue.topic, queue.broker_name)
        with self._lock:
            out = self._out.get(key, 0)
            group = self._open.get(key)
            if out < FRAMES_ALONE_MAX or (group is not None and not self._fits(group, message)):
                self._out[key] = out + 1
                return None
            if group is None:
                group = self._open[key] = Group(queue, self._clock)
            group.bodies.append(message.body)
            group.texts.append(message.text)
            group.flags.append(message.flag)
            group.locks.append(self._own_lock())
            group.bytes += len(message.body) + len(message.text) + RECORD_OVERHEAD
            return group, len(group.bodies) - 1

    def leave(self, queue: MessageQueue) -> None:
        """A frame that was for ``queue``'s broker is answered: the open group takes its place, if there is one."""
        key = (queue.topic, queue.broker_name)
        with self._lock:
            group = self._open.pop(key, None)
            if group is None:
                out = self._out.get(key, 0) - 1
                if out > 0:
                    self._out[key] = out
                else:
                    self._out.pop(key, None)
        if group is not None:
            self._ship(group)

    def wait(self, group: Group, index: int) -> SendResult:
        """Sleep until the group is answered; then wake the next thread, or ship the next group. Raises the frame's ``SendError``."""
        lock = self._own_lock()
        woken = False
        try:
            for _ in range(int(2 * self._timeout_ms / 1000 / WAIT_SLICE_S) + 2):  # a time-out until it leaves, another until it ends
                woken = lock.acquire(timeout=WAIT_SLICE_S)
                if group.outcome.state is FINISHED:
                    break
                self._rescue(group)
        finally:
            if not woken:
                self._mine.lock = None  # it may still be released for this group
            self._go(group, index)
        if group.outcome.state is not FINISHED:
            raise SendTimeout(f"no answer within {2 * self._timeout_ms:.0f} ms; the message may be stored", group.queue.topic)
        if group.outcome.error is not None:
            raise type(group.outcome.error)(*group.outcome.error.args)
        return group.outcome.result(index)

    def _go(self, group: Group, index: int) -> None:
        """This thread waits no more: the group's next one wakes; after the last one, or when that takes long, the next group is shipped."""
        if group.outcome.state is FINISHED:
            last = not group.wake_from(index + 1) or self._clock.monotonic_ms() - group.ended_ms > SHIP_WITHIN_MS
        else:  # interrupted, or out of time
            group.locks[index] = None
            last = not any(group.locks)
        if last and not group.left and self._first_to_leave(group):
            self.leave(group.queue)

    def _fits(self, group: Group, message: Outgoing) -> bool:
        config = self._sending.config
        size = len(message.body) + len(message.text) + RECORD_OVERHEAD
        return group.bytes + size <= config.batch_bytes_max and len(group.bodies) < config.batch_messages_max

    def _ship(self, group: Group) -> None:
        job = Job(group.outcome, lambda wait: self._encode(group, wait), None, None)
        group.outcome.on_finish = group.ended
        self._launcher.admit(job)
        self._launcher.launch(job)

    def _first_to_leave(self, group: Group) -> bool:
        with self._lock:
            first, group.left = not group.left, True
            return first

    def _rescue(self, group: Group) -> None:
        """Nothing was answered for long: ship an open group anyway. Whoever should have (an interrupted thread) is counted out."""
        key = (group.queue.topic, group.queue.broker_name)
        with self._lock:
            if self._open.get(key) is not group:
                return
            del self._open[key]
            self._out[key] = 1
        self._ship(group)

    def _own_lock(self) -> threading.Lock:
        lock = self._mine.lock
        if lock is None:
            lock = self._mine.lock = threading.Lock()
            lock.acquire()
        return lock

    def _encode(self, group: Group, wait: bool) -> Delivery:
        flags = group.flags if any(group.flags) else None
        attempts = self._sending.attempts_since(self._clock.monotonic_ms(), group.queue, False, self._timeout_ms, codes_retried=True)
        load = encode_load(self._identity, group.queue, group.bodies, group.texts, self._clock.now_ms(), self._timeout_ms if wait else 0.0, flags)
        group.outcome.message_ids, group.outcome.sizes = load.message_ids, load.sizes
        return Delivery(load, group.queue, attempts, False)
