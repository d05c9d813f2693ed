"""Sends of many threads at once share frames: who finds enough frames out joins a group, and the group leaves with the next answer.

    thread 1, 2   alone: one record, one frame each, written by the calling thread
    thread 3..n   join the open group and sleep ── an answer comes ──> its thread ships the group, and so on

One thread's send is one round trip, as ever; the more threads, the more messages a frame. A group never waits for company: it leaves as
soon as one of the frames out is answered. Called by ``ProducerCore.send`` for ordinary messages to any queue.

Invariants: while a topic has an open group for a broker, a frame to that broker is out, whose end ships the group; a thread waits on a
lock of its own, which is released once per group; each frame out belongs to exactly one ``leave``.
"""

from __future__ import annotations

import threading

from rmq_ray.client.batching import RECORD_OVERHEAD, encode_load
from rmq_ray.client.identity import ProducerIdentity
from rmq_ray.client.launching import Job, Launcher
from rmq_ray.client.outgoing import Outgoing
from rmq_ray.client.send_future import FINISHED, BatchOutcome
from rmq_ray.client.sending import Delivery, Sending
from rmq_ray.errors import SendTimeout
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult

FRAMES_ALONE_MAX = 2
"""Frames of a topic to one broker out before threads share. Measured with 64 threads: 1 and 2 give 34,000 messages a second, 4 gives
23,000, 8 gives 22,000, no sharing 17,000; with 2 the next frame is on its way while one is answered."""
WAIT_SLICE_S = 0.5  # cancellation reaches a thread between waits only

Key = tuple[str, str]
"""Topic and broker name: a broker that hangs holds up nobody who sends to another."""


class Group:
    """Messages of several threads that will be one frame. Guarded by the combiner's lock until it leaves."""

    __slots__ = ("bodies", "bytes", "flags", "left", "locks", "outcome", "queue", "started_ms", "texts")

    def __init__(self, queue: MessageQueue, started_ms: float) -> None:
        self.queue = queue
        self.started_ms = started_ms
        self.outcome = BatchOutcome(queue)
        self.bodies: list[bytes] = []
        self.texts: list[str] = []
        self.flags: list[int] = []
        self.locks: list[threading.Lock] = []
        self.bytes = 0
        self.left = False

    def release(self) -> None:
        """Wake every thread of the group."""
        for lock in self.locks:
            lock.release()


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
                group = self._open[key] = Group(queue, self._clock.monotonic_ms())
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
        """Sleep until the group is answered; the first to wake ships the next group. Raises the frame's ``SendError``."""
        lock = self._own_lock()
        woken = False
        try:
            for _ in range(int(2 * self._timeout_ms / 1000 / WAIT_SLICE_S) + 2):  # a time-out until it leaves, another until it ends
                if lock.acquire(timeout=WAIT_SLICE_S) and group.outcome.state is FINISHED:
                    woken = True
                    break
                self._rescue(group)
        except BaseException:
            self._mine.lock = None  # it may still be released for this group
            raise
        finally:
            if not group.left and self._first_to_leave(group):
                self.leave(group.queue)
        if not woken:
            self._mine.lock = None
            raise SendTimeout(f"no answer within {2 * self._timeout_ms:.0f} ms; the message may be stored", group.queue.topic)
        if group.outcome.error is not None:
            raise type(group.outcome.error)(*group.outcome.error.args)
        return group.outcome.result(index)

    def _fits(self, group: Group, message: Outgoing) -> bool:
        config = self._sending.config
        size = len(message.body) + len(message.text) + RECORD_OVERHEAD
        return group.bytes + size <= config.batch_bytes_max and len(group.bodies) < config.batch_messages_max

    def _ship(self, group: Group) -> None:
        job = Job(group.outcome, lambda wait: self._encode(group, wait), None, None)
        group.outcome.on_finish = group.release
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
        attempts = self._sending.attempts_since(self._clock.monotonic_ms(), group.queue.topic, False, self._timeout_ms, codes_retried=True)
        load = encode_load(self._identity, group.queue, group.bodies, group.texts, self._clock.now_ms(), self._timeout_ms if wait else 0.0, flags)
        group.outcome.message_ids, group.outcome.sizes = load.message_ids, load.sizes
        return Delivery(load, group.queue, attempts, False)
