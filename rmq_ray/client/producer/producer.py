"""The producer that users call: names, checks and life cycle (protocol-behaviour 8, 27).

    with Producer("web", discovery=...) as producer:
        producer.send("orders", b"body", tag="paid", keys=["o-1"], properties={"region": "eu"})

Decides what a call means and whether it is legal; ``ProducerCore`` does the work. Thread-safe. A
producer that was pickled carries its configuration only and connects anew where it is unpickled;
one that was started and then inherited through a fork is refused in the child.

Invariants: nothing is sent before every check passed; after ``close`` every call raises
``ClientError``; no producer id crosses a process boundary.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.outgoing.send_batches import batch_of, split_batch
from rmq_ray.client.outgoing.send_future import SendFuture
from rmq_ray.client.outgoing.send_request import (
    Selector,
    SendRequest,
    checked_request,
    is_special,
    placed,
    timeout_in_ms,
    when,
)
from rmq_ray.client.producer.producer_base import ProducerBase
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.send_steps import send_frames
from rmq_ray.client.transaction import transaction
from rmq_ray.client.transaction.transaction import Transaction
from rmq_ray.client.transaction.transaction_checks import Checker
from rmq_ray.clock import Clock
from rmq_ray.config import ProducerConfig, RemotingLimits
from rmq_ray.errors import ClientError
from rmq_ray.extras import named
from rmq_ray.model.ids import FrameId, MessageQueue
from rmq_ray.model.message import Message, SendResult
from rmq_ray.ports import Discovery
from rmq_ray.protocol.validators import NO_KEYS, check_send_topic, property_text

if TYPE_CHECKING:
    from rmq_ray.client.messages.received import MessageExt
    from rmq_ray.client.producer.request_reply import AskOptions, InFlightRequest, Reply

_living: weakref.WeakSet[Producer] = weakref.WeakSet()
_PLAIN_TOPICS_MAX = 4_096


class Producer(ProducerBase):
    """Sends messages of one producer group.

    ``group``: unique among producers of one client id. ``discovery``: where the name servers are.
    Settings are those of ``ProducerConfig``, as ``config`` or as keywords. ``client_id``: None = a
    client of its own; equal ids share connections. ``hooks``, ``checks``: see
    ``client.interceptors.send_hooks``. ``checker(message)``: says what became of a half message of
    the group, from the start on (see ``transaction``). All of them are pickled with the producer.
    Times given to calls are seconds.
    """

    def _configure(
        self,
        discovery: Discovery,
        config: ProducerConfig,
        limits: RemotingLimits | None,
        clock: Clock,
        client_id: str | None,
    ) -> None:
        super()._configure(discovery, config, limits, clock, client_id)
        self._lock = threading.RLock()  # a signal handler that closes may have interrupted a start
        self._plain_topics: set[str] = set()
        self._plain_below = min(
            config.body_bytes_max + 1,
            sys.maxsize if self._steps is None else self._steps.plain_below,
        )
        _living.add(self)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect. The first send does so too. ``ClientError`` when it was started before, its
        group is taken, or a signal handler closes it meanwhile.
        """
        with self._lock:
            if self._state is not ServiceState.CREATE_JUST:
                raise ClientError(
                    f"producer {self.group!r} cannot start: it is {self._state.value}; make "
                    f"a new one",
                    self.group,
                )
            self._start_core()

    def close(self) -> None:
        """Send what lingers, wait for answers up to the send time-out, unregister. Later calls do
        nothing.
        """
        with self._lock:
            core, self._core = self._core, None
            if self._state is not ServiceState.INHERITED:
                self._state = ServiceState.SHUTDOWN_ALREADY
        if core is not None:
            core.close()

    def flush(self, timeout: float | None = None) -> None:
        """Send what lingers and wait until every ``send_async`` so far has ended (see its future).
        ``SendTimeout`` after ``timeout`` s, ``ClientError`` in a callback of such a future.
        """
        (self._core or self._ready()).flush(self._time(timeout))

    def __enter__(self) -> Self:
        if self._state is ServiceState.CREATE_JUST:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- sending ----------------------------------------------------------------------------------

    def send(  # noqa: PLR0913 - the public signature
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        message_group: str | None = None,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message, written by the calling thread, and wait until the broker has it.

        ``queue``, ``selector(queues, message, arg)`` (see ``client.outgoing.selectors``) or
        ``message_group``: where it must go; messages of one group, or that selectors sent to one
        queue, keep their order. ``delay_level``: 1..18; or ``delay``, ``deliver_at``: exact, with a
        ``recall_handle`` in the result. ``timeout``: s, for the whole call. Raises ``SendError``: a
        definite failure, or ``SendUnknown`` / ``SendTimeout``: it may be stored.
        """
        core = self._core or self._ready()
        unplaced = queue is None and selector is None and message_group is None and arg is None
        untimed = (
            type(delay_level) is int
            and not delay_level
            and delay is None
            and deliver_at is None
            and timeout is None
        )
        plain = unplaced and untimed and type(body) is bytes and 0 < len(body) < self._plain_below
        topic = topic_or_message if plain and type(topic_or_message) is str else None
        known = topic is not None and (topic in self._plain_topics or self._is_plain(topic))
        if known and topic is not None and body is not None:
            text = (
                ""
                if tag is None and keys is NO_KEYS and properties is None
                else property_text(tag, keys, properties)
            )
            return core.send_plain(SendRequest(topic, body, text))
        timeout_ms = self._time(timeout)
        message = checked_request(
            topic_or_message,
            body,
            (tag, keys, properties),
            when(delay_level, delay, deliver_at),
            self._config.body_bytes_max,
        )
        placement = placed(queue, selector, arg, message_group)
        if self._steps is not None:
            return self._steps.send(core, message, placement, timeout_ms)
        if placement is not None:
            timeout_ms = core.place(message, placement, timeout_ms)
        return core.send(message, timeout_ms)

    def send_async(  # noqa: PLR0913 - the public signature
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        message_group: str | None = None,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        timeout: float | None = None,
    ) -> SendFuture:
        """Put one message into a batch and return its future; see ``send`` for the arguments.

        The future's callbacks run one after the other in the producer's own thread: keep them
        short. What one raises, or exits with, is logged; who waits in one for a future of this
        producer gets a ``ClientError``. Messages leave when their batch is full or ``linger_ms``
        old. Waits, or raises ``BrokerBusy`` (``on_full``), while ``frames_in_flight_max`` frames of
        the broker or ``buffer_bytes_max`` bytes of all are unanswered. Its ``cancel()`` is False.
        """
        core = self._core or self._ready()
        timeout_ms = self._timeout_ms if timeout is None else timeout_in_ms(timeout)
        if (
            (
                queue is None
                and selector is None
                and message_group is None
                and arg is None
                and delay is None
                and deliver_at is None
            )
            and (type(delay_level) is int and not delay_level and type(body) is bytes)
            and type(topic_or_message) is str
            and 0 < len(body) < self._plain_below
            and (topic_or_message in self._plain_topics or self._is_plain(topic_or_message))
        ):
            text = (
                ""
                if tag is None and keys is NO_KEYS and properties is None
                else property_text(tag, keys, properties)
            )
            return core.batches.append(topic_or_message, body, text, timeout_ms)
        message = checked_request(
            topic_or_message,
            body,
            (tag, keys, properties),
            when(delay_level, delay, deliver_at),
            self._config.body_bytes_max,
        )
        placement = placed(queue, selector, arg, message_group)
        if self._steps is not None:
            return self._steps.send_async(core, message, placement, timeout_ms)
        if placement is not None:
            timeout_ms = core.place(message, placement, timeout_ms)
        return core.send_async(message, timeout_ms)

    def send_oneway(  # noqa: PLR0913 - the public signature
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        message_group: str | None = None,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        """Send one message without any answer: it may be lost unnoticed. Raises ``SendError`` when
        it could not be written.
        """
        core = self._core or self._ready()
        message = checked_request(
            topic_or_message,
            body,
            (tag, keys, properties),
            when(delay_level, delay, deliver_at),
            self._config.body_bytes_max,
        )
        placement = placed(queue, selector, arg, message_group)
        if self._steps is not None:
            self._steps.send_oneway(core, message, placement, self._timeout_ms)
            return
        core.send_oneway(
            message,
            self._timeout_ms
            if placement is None
            else core.place(message, placement, self._timeout_ms),
        )

    def send_batch(
        self,
        messages: Sequence[Message] | str,
        bodies: Sequence[bytes | Message] | MessageQueue | None = None,
        queue: MessageQueue | None = None,
        *,
        tags: str | Sequence[str | None] | None = None,
        keys: str | Sequence[str | Sequence[str] | None] | None = None,
        properties: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic to one queue and wait; a frame is stored whole or not at all.

        ``send_batch([Message("orders", b"1"), ...])``, or ``send_batch("orders", [b"1", b"2"])``: a
        topic and bodies (a list or an Arrow array), among which may be messages of it. A queue may
        follow messages directly. ``tags``, ``keys``, ``properties``: of bodies; one for all, or a
        list with one for each (None = none), where several keys of one message are a list.

        Returns one result per frame sent (their ``count`` adds up to ``len(messages)``): one,
        unless the batch exceeds ``batch_bytes_max``. ``timeout``: s, per frame; the first one's
        covers the wait for a route. Raises ``SendError``; when earlier frames are stored already,
        ``args[2]`` is how many messages that were.
        """
        core = self._core or self._ready()
        timeout_ms = self._time(timeout)
        batch, queue = batch_of(messages, bodies, queue, (tags, keys, properties))
        topic, frames = split_batch(batch, self._config)
        return send_frames(core, self._steps, topic, frames, queue, timeout_ms)

    def send_batch_async(
        self,
        messages: Sequence[Message] | str,
        bodies: Sequence[bytes | Message] | MessageQueue | None = None,
        queue: MessageQueue | None = None,
        *,
        tags: str | Sequence[str | None] | None = None,
        keys: str | Sequence[str | Sequence[str] | None] | None = None,
        properties: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
        timeout: float | None = None,
    ) -> Future[list[SendResult]]:
        """``send_batch`` without waiting for the broker: a future of its results. The next batch is
        made while the broker stores this one; batches of a queue leave in the order of the calls.

        Waits, or raises ``BrokerBusy``, as ``send_async`` does; callbacks run as its. Where frames
        of a batch that was cut are stored beside one that failed, the error's ``args[2]`` are the
        ranges of messages [(first, behind last), ...] that are stored.
        """
        core = self._core or self._ready()
        timeout_ms = self._time(timeout)
        batch, queue = batch_of(messages, bodies, queue, (tags, keys, properties))
        topic, frames = split_batch(batch, self._config)
        from rmq_ray.client.sending.batch_sending import begin_batch

        return begin_batch(core, self._steps, topic, frames, queue, timeout_ms)

    def send_arrow(  # noqa: PLR0913 - the public signature
        self,
        topic: str,
        data: object,
        *,
        body: str = "body",
        key: str | None = None,
        tag: str | None = None,
        properties: str | Sequence[str] = (),
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        place: Callable[[int], tuple[MessageQueue, FrameId]] | None = None,
    ) -> list[SendResult]:
        """Send the rows of a ``pyarrow.Table`` or ``RecordBatch`` and wait; no Python object per
        message.

        ``body``: a binary or string column. ``key``: string or list<string>; ``tag``: string;
        ``properties``: one map column, or names of string columns. Null means none, but for bodies.
        ``queue``: where all rows go, in their order; None = each frame of ``batch_bytes_max`` bytes
        to the next queue. ``timeout``: s, per frame, for all that it waits for. ``place``: see
        ``protocol.scan.scan_splits``. Returns one result per frame, in the order of the rows.
        Raises ``ClientError``, ``MessageIllegal`` or ``MessageTooLarge`` naming column and row
        before anything is sent; ``SendError`` when a frame failed, with ``args[2]`` the ranges of
        rows [(first, behind last), ...] that are stored.
        """
        core = self._core or self._ready()
        timeout_ms = self._time(timeout)
        with named():  # pyarrow takes 0.15 s to load
            from rmq_ray.client.sending.arrow_sending import ArrowCall, send_rows

        return send_rows(
            core,
            self._steps,
            ArrowCall(topic, data, (body, key, tag, properties), queue, timeout_ms, place),
        )

    def recall_message(
        self, topic: str, recall_handle: str, *, timeout: float | None = None
    ) -> str:
        """Take back a message that waits for its delivery time; see
        ``client.producer.cancel_delayed``. Its message id.
        """
        from rmq_ray.client.producer.cancel_delayed import recall

        return recall(self._core or self._ready(), topic, recall_handle, self._time(timeout))

    def transaction(
        self, checker: Checker | None = None, *, timeout: float | None = None
    ) -> Transaction:
        """Begin a transaction: ``with producer.transaction(checker) as tx: tx.send("orders",
        b"x")``; see ``client.transaction.transaction``.

        ``checker(message)``: what became of a half message, as ``LocalTransactionState``; a broker
        asks any producer of the group that has a checker. None = the producer's own.
        ``timeout``: s for each half and each end.
        """
        checker = self._checker if checker is None else checker
        return transaction.begin(self._core or self._ready(), self._steps, checker, timeout)

    # --- requests ---------------------------------------------------------------------------------

    def request(
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        timeout: float = 3.0,
        **options: Unpack[AskOptions],
    ) -> MessageExt:
        """Send one message and wait for the reply of a consumer to it (``rmq_ray.reply``);
        ``timeout``: s, for both ways, from the call on.

        Raises ``RequestTimeout`` when no reply came, ``SendError`` when the request could not be
        sent.
        """
        core = self._core or self._ready()
        core.callbacks.check_may_wait("a reply")
        return self._ask(core, topic_or_message, body, timeout, options).answer()

    def request_async(
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        timeout: float = 3.0,
        **options: Unpack[AskOptions],
    ) -> Reply:
        """The same without waiting for the reply: a future of it, which ends within ``timeout`` and
        a second. Waits for a route, as every call does.

        Its callbacks run as those of ``send_async``.
        """
        core = self._core or self._ready()
        return self._ask(core, topic_or_message, body, timeout, options).reply

    # --- inside -----------------------------------------------------------------------------------

    def _ask(
        self,
        core: ProducerCore,
        topic_or_message: str | Message,
        body: bytes | None,
        timeout: float,
        options: AskOptions,
    ) -> InFlightRequest:
        from rmq_ray.client.producer.request_reply import ask

        return ask(core, self._steps, topic_or_message, body, timeout_in_ms(timeout), options)

    def _is_plain(self, topic: str) -> bool:
        """Whether messages for the topic may travel in frames; remembered. Raises for topics that
        may not be sent to.
        """
        check_send_topic(topic)
        plain = not is_special(topic, 0, True)
        if plain and len(self._plain_topics) < _PLAIN_TOPICS_MAX:
            self._plain_topics.add(topic)
        return plain

    def _ready(self) -> ProducerCore:
        """The core; made by the first call."""
        with self._lock:
            if self._core is not None:
                return self._core
            if self._state is not ServiceState.CREATE_JUST:
                raise ClientError(
                    f"producer {self.group!r} is {self._state.value}; make a new one", self.group
                )
            return self._start_core()

    def _start_core(self) -> ProducerCore:
        """Under the lock. A group that is taken leaves the state as it was; any other failure is
        final. Closed meanwhile, by a signal handler, it is closed.
        """
        self._state = ServiceState.START_FAILED
        try:
            core = self._make_core()
        except ClientError:
            if self._state is ServiceState.START_FAILED:
                self._state = ServiceState.CREATE_JUST
            raise
        self._watch(core)
        self._core = core
        if self._state is not ServiceState.START_FAILED:
            self.close()
            raise ClientError(
                f"producer {self.group!r} was closed while it started; make a new one", self.group
            )
        self._state = ServiceState.RUNNING
        return core

    def _after_fork(self) -> None:
        """In the child: connections, threads and frame numbers are the parent's. One that was not
        started yet is as good as new.
        """
        self._lock = threading.RLock()
        core, self._core = self._core, None
        if core is not None or self._state is ServiceState.START_FAILED:
            self._state = ServiceState.INHERITED
        if core is not None:
            core.disown()


def _refuse_after_fork() -> None:
    for producer in list(_living):
        producer._after_fork()


os.register_at_fork(after_in_child=_refuse_after_fork)
