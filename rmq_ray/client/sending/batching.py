"""Batches that fill by themselves: where ``send_async`` puts a message, and when a batch leaves.

    send_async ──append──> OpenBatch ──full, old or flushed──> AsyncSend ──> AsyncSender
                           (one per topic, or per given queue)

A topic's batch sticks to one queue until it leaves; the next batch takes the next queue. Who fills
a batch encodes and writes it; the worker thread only ships what is older than ``linger_ms``. A
batch has a place in its broker's window from its first message on, so memory is bounded by window
and batch size, and a caller beyond them waits (or gets ``BrokerBusy``). A batch leaves when half of
its time is over, at once if its first caller has waited that long: those who join it get no more
time than is left of his. Messages of one batch have the same time-out, by and large: one with
another leaves it behind.

Decides when a batch is full or old. Does not decide what is sent again
(``client.sending.async_sender``). Invariants: messages of one thread to one queue leave in the
order of its calls; nothing is appended to a batch that left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.client.outgoing.callbacks import Callbacks
from rmq_ray.client.outgoing.producer_identity import ProducerIdentity
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.outgoing.send_payload import (
    RECORD_OVERHEAD,
    FrameParts,
    RecordsPayload,
    encode_records,
)
from rmq_ray.client.sending.async_sender import AsyncSend, AsyncSender, InFlightWindow
from rmq_ray.client.sending.batch_bisect import SplitBatch
from rmq_ray.client.sending.send_engine import LEFT_TO_SHARE, InFlightSend, SendEngine
from rmq_ray.clock import left_ms
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import BrokerBusy
from rmq_ray.model.ids import MessageQueue

_blank_future = object.__new__

Key = str | MessageQueue
FindQueues = Callable[[str, float], Sequence[MessageQueue]]
"""(topic, time-out in ms) -> the queues that may be written; raises ``SendError``."""


class OpenBatch:
    """Messages of one topic and queue that wait for company. Guarded by the accumulator's lock
    until it leaves.
    """

    __slots__ = (
        "bodies",
        "bytes",
        "flags",
        "key",
        "ordered",
        "outcome",
        "pinned",
        "queue",
        "send",
        "started_ms",
        "texts",
        "timeout_ms",
        "weight",
    )

    def __init__(
        self,
        key: Key,
        queue: MessageQueue,
        started_ms: float,
        timeout_ms: float,
        weight: int,
        callbacks: Callbacks,
    ) -> None:
        self.key = key
        self.queue = queue
        self.pinned = isinstance(key, MessageQueue)
        self.ordered = False
        self.started_ms = started_ms
        self.timeout_ms = timeout_ms
        self.weight = weight
        self.outcome = BatchOutcome(queue, callbacks)
        self.bodies: list[bytes] = []
        self.texts: list[str] = []
        self.flags: list[int] | None = None
        self.bytes = 0
        self.send: AsyncSend | None = None

    def suits(self, timeout_ms: float) -> bool:
        """Whether a message with this time-out may join: its own would be cut short, or drawn out,
        by the batch's.
        """
        return self.timeout_ms * LEFT_TO_SHARE <= timeout_ms <= self.timeout_ms / LEFT_TO_SHARE

    def put_flag(self, flag: int, index: int) -> None:
        """The flag word of the message at ``index``; those before the first one that is not 0 are
        filled in.
        """
        if self.flags is None:
            self.flags = [0] * index
        self.flags.append(flag)


class Accumulator:
    """See the module. Thread-safe."""

    def __init__(
        self,
        engine: SendEngine,
        identity: ProducerIdentity,
        sender: AsyncSender,
        window: InFlightWindow,
        worker: ClientTimers,
        find_queues: FindQueues,
        callbacks: Callbacks,
    ) -> None:
        self._engine = engine
        self._config: ProducerConfig = engine.config
        self._bytes_max, self._messages_max = (
            engine.config.batch_bytes_max,
            engine.config.batch_messages_max,
        )
        self._clock = engine.clock
        self._identity = identity
        self._sender = sender
        self._window = window
        self._worker = worker
        self._find_queues = find_queues
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._open: dict[Key, OpenBatch] = {}

    def append(
        self,
        key: Key,
        body: bytes,
        text: str,
        timeout_ms: float,
        flag: int = 0,
        ordered: bool = False,
    ) -> SendFuture:
        """Put a message into the batch of ``key`` (a topic, or the queue that it must go to) and
        ship the batch when it is full.

        ``text``: as ``property_text`` makes it. ``ordered``: one frame of this queue out at a time.
        Blocks, or raises ``BrokerBusy``, when the broker's window is full.
        """
        size = len(body) + len(text) + RECORD_OVERHEAD
        left: OpenBatch | None = None
        with self._lock:
            batch = self._open.get(key)
            if batch is not None:
                filled = batch.bytes + size
                if filled > self._bytes_max or (
                    timeout_ms != batch.timeout_ms and not batch.suits(timeout_ms)
                ):
                    left, batch = self._leave(batch), None
                else:
                    bodies = batch.bodies
                    index = len(bodies)
                    bodies.append(body)
                    batch.texts.append(text)
                    batch.bytes = filled
                    if flag or batch.flags is not None:
                        batch.put_flag(flag, index)
                    if ordered:
                        batch.ordered = True
                    if index + 1 >= self._messages_max:
                        left = self._leave(batch)
        if left is not None:
            self._ship(left)
        if batch is None:
            return self._append_new(key, (body, text, flag, size), timeout_ms, ordered)
        future = _blank_future(SendFuture)  # what its constructor does, at half the cost
        future._outcome, future._index = batch.outcome, index
        return future

    def flush(self, key: Key | None = None) -> None:
        """Ship the batch of ``key``, or all of them (None), without waiting for answers."""
        with self._lock:
            batches = (
                list(self._open.values())
                if key is None
                else [self._open[key]]
                if key in self._open
                else []
            )
            for batch in batches:
                self._leave(batch)
        for batch in batches:
            self._ship(batch)

    def leave_all(self) -> None:
        """Hand all open batches to the sender, which is to end them; nothing is sent."""
        with self._lock:
            for batch in list(self._open.values()):
                self._leave(batch)

    def outcomes(self) -> list[BatchOutcome]:
        """Of the batches that are open."""
        return [batch.outcome for batch in list(self._open.values())]

    @property
    def until_ms(self) -> float:
        """When the time of the last open batch is over, monotonic; 0 where there is none."""
        with self._lock:
            open_ = list(self._open.values())
        return max((batch.started_ms + batch.timeout_ms for batch in open_), default=0.0)

    def _append_new(
        self, key: Key, message: tuple[bytes, str, int, int], timeout_ms: float, ordered: bool
    ) -> SendFuture:
        """The key has no open batch: open one (or join one that another thread opened meanwhile)
        and put the message in.
        """
        started_ms = self._clock.monotonic_ms()
        weight = max(message[3], self._config.batch_bytes_max)
        queues = (key,) if isinstance(key, MessageQueue) else self._find_queues(key, timeout_ms)
        queue = self.take_place(queues, weight, left_ms(self._clock, timeout_ms, started_ms))
        left: OpenBatch | None = None
        displaced: OpenBatch | None = None
        body, text, flag, size = message
        with self._lock:
            batch = self._open.get(key)
            if batch is not None and (
                batch.bytes + size > self._bytes_max or not batch.suits(timeout_ms)
            ):  # other threads' one, opened meanwhile
                displaced, batch = self._leave(batch), None
            opened = batch is None
            if batch is None:
                batch = self._open[key] = OpenBatch(
                    key, queue, started_ms, timeout_ms, weight, self._callbacks
                )
            batch.ordered = batch.ordered or ordered
            future, full = self._put(batch, body, text, flag, size)
            linger_ms = min(
                self._config.linger_ms,
                left_ms(self._clock, batch.timeout_ms, batch.started_ms) - batch.timeout_ms / 2,
            )
            if (
                full or linger_ms <= 0
            ):  # after that a batch, and who joined it, would have little time
                left = self._leave(batch)
        if not opened:
            self._window.free(queue.broker_name, weight)
        if displaced is not None:
            self._ship(displaced)
        if left is not None:
            self._ship(left)
        else:
            self._worker.after(linger_ms, lambda: self._linger_over(batch))
        return future

    def _put(
        self, batch: OpenBatch, body: bytes, text: str, flag: int, size: int
    ) -> tuple[SendFuture, bool]:
        index = len(batch.bodies)
        batch.bodies.append(body)
        batch.texts.append(text)
        batch.bytes += size
        if flag or batch.flags is not None:
            batch.put_flag(flag, index)
        return SendFuture(batch.outcome, index), index + 1 >= self._messages_max

    def _leave(self, batch: OpenBatch) -> OpenBatch:
        """Under the lock: nothing more is appended, and the batch has its place among those of its
        queue.
        """
        del self._open[batch.key]
        # a bound method cannot carry the batch
        prepare: Callable[[bool], InFlightSend] = lambda wait: self._encode(batch, wait)  # noqa: E731
        separate = (lambda: self._separate(batch)) if len(batch.bodies) > 1 else None
        batch.send = AsyncSend(
            batch.outcome,
            prepare,
            batch.queue.broker_name,
            batch.queue,
            batch.started_ms + batch.timeout_ms,
            batch.weight,
            batch.ordered,
            separate,
        )
        self._sender.admit(batch.send)
        return batch

    def _ship(self, batch: OpenBatch) -> None:
        if batch.send is not None:
            self._sender.launch(batch.send)

    def _linger_over(self, batch: OpenBatch) -> None:
        """In the worker thread, ``linger_ms`` after the batch was opened, or when half of its time
        is over.
        """
        with self._lock:
            if self._open.get(batch.key) is not batch:
                return
            self._leave(batch)
        self._ship(batch)

    def _encode(self, batch: OpenBatch, wait: bool) -> InFlightSend:
        wait_ms = left_ms(self._clock, batch.timeout_ms, batch.started_ms) if wait else 0.0
        flight = self._in_flight(
            batch, batch.queue, (batch.bodies, batch.texts, batch.flags), batch.outcome, wait_ms
        )
        batch.bodies, batch.texts, batch.flags = [], [], None
        return flight

    def _in_flight(
        self,
        batch: OpenBatch,
        queue: MessageQueue,
        parts: FrameParts,
        outcome: BatchOutcome,
        wait_ms: float,
    ) -> InFlightSend:
        """A frame of the batch with these messages; its time is the batch's."""
        bodies, texts, flags = parts
        payload = encode_records(
            self._identity, queue, bodies, texts, self._clock.now_ms(), wait_ms, flags
        )
        outcome.message_ids, outcome.sizes = payload.message_ids, payload.sizes
        return self._engine.in_flight(
            payload,
            queue,
            batch.pinned,
            batch.timeout_ms,
            batch.started_ms,
            codes_retried=False,
        )

    def _separate(self, batch: OpenBatch) -> SplitBatch:
        """The batch was refused, or could not be encoded: its messages, to be sent where it was
        sent last. Nobody keeps bodies that are encoded.
        """
        sent = batch.send.flight if batch.send is not None else None
        if sent is None:
            parts, queue = (batch.bodies, batch.texts, batch.flags), batch.queue
        else:
            assert isinstance(sent.payload, RecordsPayload)
            parts, queue = sent.payload.parts(), sent.queue
        return SplitBatch(
            parts, queue, lambda part, outcome: self._in_flight(batch, queue, part, outcome, 0.0)
        )

    def take_place(
        self, queues: Sequence[MessageQueue], weight: int, timeout_ms: float
    ) -> MessageQueue:
        """The next queue whose broker's window has room for ``weight`` bytes; else wait for room in
        that of the next queue's broker.
        """
        turn = self._engine.round_robin.of(queues[0].topic)
        choose = self._engine.choice.next
        first = queue = choose(queues, turn)
        for _ in range(len(queues)):
            if self._window.try_take(queue.broker_name, weight):
                return queue
            queue = choose(queues, turn, queue.broker_name)
            if queue.broker_name == first.broker_name:
                break
        config = self._config
        waited = 0.0 if config.on_full == "raise" else timeout_ms
        if waited and self._window.take(first.broker_name, weight, waited):
            return first
        raise BrokerBusy(
            f"{config.frames_in_flight_max} frames to {first.broker_name} "
            f"(frames_in_flight_max) or {config.buffer_bytes_max} bytes (buffer_bytes_max) "
            f"stayed unanswered for {waited:.0f} ms; nothing was sent, send again later",
            first.topic,
        )
