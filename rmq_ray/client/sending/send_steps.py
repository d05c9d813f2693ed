"""What happens to a message between the user's call and its batch, when a producer has more to do
than send it.

    name in its namespace ──> checks ──> hooks' before ──> body compressed ──> (placed and sent)
                                                                                  hooks' after <──┘

A producer without namespace, hooks, trace and compression has no steps (``SendSteps.of`` is None),
so that they cost it nothing. Decides the order of the steps. Called by both producers.

Invariants: nothing is sent when a check raises; every hook whose ``before`` ran gets its ``after``,
once, in reverse order. Of a batch whose frames go to one queue, one after the other, an error tells
how much is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from rmq_ray.client.interceptors.send_hooks import (
    ASYNC,
    ONEWAY,
    SYNC,
    SendCheck,
    SendContext,
    SendHook,
)
from rmq_ray.client.outgoing.compressing import Compressor
from rmq_ray.client.outgoing.confirming import beside_stored
from rmq_ray.client.outgoing.send_future import SendFuture
from rmq_ray.client.outgoing.send_payload import FrameParts
from rmq_ray.client.outgoing.send_request import Placement, Selector, SendRequest
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.clock import Clock
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, RmqError, SendError
from rmq_ray.guard import guarded, guarded_in_caller
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult
from rmq_ray.model.namespaces import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from rmq_ray.protocol.validators import check_send_topic, property_text

if TYPE_CHECKING:
    from rmq_ray.client.interceptors.message_trace import SendTrace

log = logging.getLogger("rmq_ray.client")


_BEGAN, _RAN, _DEFERRED = "rmq.began", "rmq.ran", "rmq.deferred"


class SendSteps:
    """Of one producer. Thread-safe as far as the hooks are."""

    def __init__(
        self,
        config: ProducerConfig,
        hooks: Sequence[SendHook],
        checks: Sequence[SendCheck],
        clock: Clock,
    ) -> None:
        self._own = tuple(hooks)
        self.hooks: tuple[SendHook, ...] = self._own
        self._trace = config.trace
        self.trace: SendTrace | None = None
        only_compression = not (hooks or checks or config.namespace or config.trace)
        self.plain_below = config.compress_over_bytes if only_compression else 0
        """Shorter bodies have no steps at all."""
        self._checks = tuple(checks)
        self._group = config.group
        self._namespace = config.namespace
        self._compressor = Compressor.of(config)
        self._clock = clock

    @classmethod
    def of(
        cls,
        config: ProducerConfig,
        hooks: Sequence[SendHook],
        checks: Sequence[SendCheck],
        clock: Clock,
    ) -> SendSteps | None:
        """The steps that the settings ask for; None when there are none."""
        wanted = (
            hooks or checks or config.namespace or config.compression is not None or config.trace
        )
        return cls(config, hooks, checks, clock) if wanted else None

    def watch(self, core: ProducerCore) -> None:
        """The producer's core has started: trace its sends, if that was asked for."""
        if self._trace:
            from rmq_ray.client.interceptors.message_trace import SendTrace

            self.trace = SendTrace(core.instance, core.config)
            core.finishers.append(self.trace.dispatcher.close)
            self.hooks = (*self._own, self.trace)

    def send(
        self,
        core: ProducerCore,
        message: SendRequest,
        placement: Placement | None,
        timeout_ms: float,
    ) -> SendResult:
        """All steps around a send that is waited for."""
        self.name(message)
        with self.around(message, SYNC) as ctx:
            timeout_ms = self._make_ready(core, message, placement, timeout_ms)
            ctx.result = result = core.send(message, timeout_ms)
        return result

    def send_async(
        self,
        core: ProducerCore,
        message: SendRequest,
        placement: Placement | None,
        timeout_ms: float,
    ) -> SendFuture:
        """All steps around one with a future."""
        self.name(message)
        with self.around(message, ASYNC) as ctx:
            timeout_ms = self._make_ready(core, message, placement, timeout_ms)
            future = core.send_async(message, timeout_ms)
            self.deferred(ctx, future)
        return future

    def send_oneway(
        self,
        core: ProducerCore,
        message: SendRequest,
        placement: Placement | None,
        timeout_ms: float,
    ) -> None:
        """All steps around one without an answer."""
        self.name(message)
        with self.around(message, ONEWAY):
            timeout_ms = self._make_ready(core, message, placement, timeout_ms)
            core.send_oneway(message, timeout_ms)

    def name(self, message: SendRequest) -> None:
        """Put the message's topic into the namespace."""
        if self._namespace:
            message.topic = with_namespace(self._namespace, message.topic)
            check_send_topic(message.topic)

    def placement(self, placement: Placement | None) -> Placement | None:
        """The same placement for whole names; a selector sees the names that its user knows."""
        if placement is None or not self._namespace:
            return placement
        queue, selector, arg, group = placement
        within = (
            self._selector(selector) if callable(selector) else selector
        )  # what cannot be called is refused later
        return (
            None if queue is None else queue_with_namespace(self._namespace, queue),
            within,
            arg,
            group,
        )

    @contextmanager
    def around(self, message: SendRequest, mode: str) -> Iterator[SendContext]:
        """Checks and hooks around the block, which puts the outcome into ``result`` or calls
        ``deferred``.
        """
        ctx = self._context(message.topic, mode, [message.body], message.text, message.queue)
        with self._through(ctx):
            if ctx.added:
                message.text = _with(message.text, ctx)
            yield ctx

    @contextmanager
    def around_frame(
        self, topic: str, queue: MessageQueue | None, parts: FrameParts, mode: str = SYNC
    ) -> Iterator[tuple[SendContext, FrameParts]]:
        """The same for one frame of a batch; yields its parts with what hooks added to each
        message, bodies compressed.
        """
        bodies, texts, flags = parts
        ctx = self._context(topic, mode, bodies, texts[0], queue)
        ctx.parts = list(zip(bodies, texts, strict=True)) if self.hooks else ()
        with self._through(ctx):
            if ctx.added:
                texts = [_with(text, ctx) for text in texts]
            yield (
                ctx,
                (bodies, texts, flags)
                if self._compressor is None
                else self._compressor.frame(bodies, texts, flags),
            )

    def pack(self, message: SendRequest) -> None:
        """Compress the body, if that was asked for."""
        if self._compressor is not None:
            self._compressor.apply(message)

    def deferred(self, ctx: SendContext, future: Future[SendResult]) -> None:
        """The block's outcome is the future's."""
        ctx.carried[_DEFERRED] = True
        if self.hooks:
            future.add_done_callback(lambda ended: self._end_of(ctx, ended))

    # --- inside -----------------------------------------------------------------------------------

    def _make_ready(
        self,
        core: ProducerCore,
        message: SendRequest,
        placement: Placement | None,
        timeout_ms: float,
    ) -> float:
        """Give the message its queue, then compress it: selectors see the body that the user gave.
        What is left of the time.
        """
        whole = self.placement(placement)
        if whole is not None:
            timeout_ms = core.place(message, whole, timeout_ms)
        self.pack(message)
        return timeout_ms

    def _context(
        self, topic: str, mode: str, bodies: Sequence[bytes], text: str, queue: MessageQueue | None
    ) -> SendContext:
        return SendContext(
            self._group,
            topic,
            mode,
            bodies[0],
            text,
            queue,
            len(bodies),
            sum(map(len, bodies)),
            self._clock.now_ms(),
        )

    def _begin(self, ctx: SendContext, ran: list[SendHook]) -> None:
        """Checks, then hooks, in the caller's thread; those that ran are put into ``ran``."""
        for check in self._checks:
            try:
                check(ctx)
            except RmqError:
                raise
            except Exception as error:
                raise ClientError(
                    f"a check forbids this send to topic {ctx.topic!r}: {error!r}; nothing "
                    f"was sent",
                    ctx.topic,
                ) from error
        for hook in self.hooks:
            if _call(guarded_in_caller, hook, "before", ctx):
                ran.append(hook)

    @contextmanager
    def _through(self, ctx: SendContext) -> Iterator[None]:
        ran: list[SendHook] = []
        ctx.carried[_RAN], ctx.carried[_BEGAN] = ran, self._clock.monotonic_ms()
        try:
            self._begin(ctx, ran)
            yield
        except BaseException as error:
            ctx.error = error
            self._end(ctx, guarded)  # his own error, or exit, is what the caller gets
            raise
        if not ctx.carried.get(_DEFERRED):
            self._end(ctx, guarded_in_caller)

    def _end_of(self, ctx: SendContext, future: Future[SendResult]) -> None:
        """In the producer's thread."""
        ctx.error = future.exception()
        ctx.result = future.result(0) if ctx.error is None else None
        self._end(ctx, guarded)

    def _end(self, ctx: SendContext, guard: Callable[..., Any]) -> None:
        ctx.cost_ms = self._clock.monotonic_ms() - ctx.carried[_BEGAN]
        ran: list[SendHook] = ctx.carried[_RAN]
        try:
            while ran:  # ends: each is called once
                _call(guard, ran.pop(), "after", ctx)
        finally:
            if ran:  # one has exited
                self._end(ctx, guarded)

    def _selector(self, selector: Selector) -> Selector:
        def select(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
            known = [queue_without_namespace(self._namespace, queue) for queue in queues]
            chosen: object = selector(
                known,
                replace(message, topic=without_namespace(self._namespace, message.topic)),
                arg,
            )
            return (
                queue_with_namespace(self._namespace, chosen)
                if isinstance(chosen, MessageQueue)
                else cast(MessageQueue, chosen)
            )

        return select


def _with(text: str, ctx: SendContext) -> str:
    """The property string with what hooks added in front: a sender's own value of a name comes
    later and counts.
    """
    return property_text(None, (), ctx.added) + text


def _call(guard: Callable[..., Any], hook: SendHook, method: str, ctx: SendContext) -> bool:
    """Whether it ran to its end."""
    kind, call = f"{type(hook).__name__}.{method}", getattr(hook, method)
    failed = object()
    return guard(log, kind, call, ctx, then="the send goes on", otherwise=failed) is not failed


# --- frames of one batch ---


def send_frames(
    core: ProducerCore,
    steps: SendSteps | None,
    topic: str,
    frames: Iterable[FrameParts],
    queue: MessageQueue | None,
    timeout_ms: float,
    told: Callable[[int], object] = int,
    fields: dict[str, str] | None = None,
) -> list[SendResult]:
    """All frames, through the producer's steps if it has some. ``queue``: where they must go.
    ``told``: how an error says how many are stored. ``fields``: of the first frame's request.
    """
    namespace = core.config.namespace
    topic = with_namespace(namespace, topic)
    pinned, started_ms = queue is not None, core.clock.monotonic_ms()
    target = (
        core.choose(topic, queue_with_namespace(namespace, queue), None, timeout_ms)
        if queue is not None
        else core.next_queue(topic, timeout_ms)
    )
    results: list[SendResult] = []
    left_ms = core.left_ms(timeout_ms, started_ms)  # of the first frame's time
    for parts in frames:
        try:
            if steps is None:
                results.append(core.send_frame(target, pinned, *parts, left_ms, fields))
            else:
                with steps.around_frame(topic, target, parts) as (ctx, packed):
                    ctx.result = core.send_frame(target, pinned, *packed, left_ms, fields)
                results.append(ctx.result)
        except SendError as error:
            if not results:
                raise
            raise partly(error, results, topic, told) from error
        target, left_ms = queue_with_namespace(namespace, results[-1].queue), timeout_ms
        fields = None
    return results


def partly(
    error: RmqError, results: list[SendResult], topic: str, told: Callable[[int], object] = int
) -> SendError:
    """The error of a batch of which these frames are stored: ``args[2]`` says how much."""
    stored = sum(result.count for result in results)
    return beside_stored(
        error, f"the first {stored} messages are stored", topic, told(stored), results
    )
