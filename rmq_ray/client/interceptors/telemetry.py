"""OpenTelemetry spans of sends and of listeners' calls, joined by the message itself. Needs ``pip
install rmq_ray[telemetry]``.

    Producer(hooks=[SendSpans()])               span "orders send", kind PRODUCER; its context
                                                travels in the property traceparent
    PushConsumer(..., hooks=[ConsumeSpans()])   span "orders process", kind CONSUMER; of one message
                                                the send's child, of several linked to each send

Decides names and attributes (OpenTelemetry's semantic conventions for messaging, RocketMQ's among
them): those of before the conventions renamed ``messaging.system`` and ``messaging.rocketmq.*``,
unless ``OTEL_SEMCONV_STABILITY_OPT_IN`` names ``messaging`` (the new ones) or ``messaging/dup``
(both), as the conventions ask for. Sampling, exporting and the propagator are the application's:
what it set up globally, or the ``tracer_provider`` given. Without hooks nothing of this is loaded.

Invariants: every span that was started ends; a listener's own spans are children of its call's
span; hooks are pickled without a provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmq_ray.client.interceptors.consume_hooks import ConsumeHook, ConsumeHookContext
from rmq_ray.client.interceptors.send_hooks import SendContext
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.config import environment
from rmq_ray.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_SPAN, _TOKEN = "rmq.span", "rmq.token"
_INSTRUMENTATION = "rmq_ray"


def today(name: str) -> str:
    """What an attribute is called today; "" for the producer's group, which has no name any more.

    >>> today("messaging.rocketmq.message.tag"), today("messaging.system")
    ('rocketmq.message.tag', 'messaging.system.name')
    """
    if name == "messaging.rocketmq.client_group":
        return ""
    if name == "messaging.system":
        return "messaging.system.name"
    return name.replace("messaging.rocketmq.", "rocketmq.")


class SendSpans:
    """A producer's hook. ``tracer_provider``: None = the global one."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._api = _Api(tracer_provider)

    def __reduce__(self) -> tuple[Any, ...]:
        return SendSpans, ()

    def before(self, ctx: SendContext) -> None:
        """Start the span and put its context into the message."""
        attributes: dict[str, Any] = {
            "messaging.system": "rocketmq",
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": ctx.topic,
            "messaging.rocketmq.client_group": ctx.group,
            "messaging.message.body.size": ctx.body_bytes,
        }
        if ctx.count > 1:
            attributes["messaging.batch.message_count"] = ctx.count
        elif ctx.tag:
            attributes["messaging.rocketmq.message.tag"] = ctx.tag
        if ctx.keys and ctx.count == 1:
            attributes["messaging.rocketmq.message.keys"] = ctx.keys.split()
        span = self._api.tracer.start_span(
            f"{ctx.topic} send",
            kind=self._api.trace.SpanKind.PRODUCER,
            attributes=self._api.named(attributes),
        )
        ctx.carried[_SPAN] = span
        carrier: dict[str, str] = {}
        self._api.propagate.inject(carrier, context=self._api.trace.set_span_in_context(span))
        for name, value in carrier.items():
            if value:
                ctx.add_property(name, value)

    def after(self, ctx: SendContext) -> None:
        """Say where it went, or why it failed, and end the span."""
        span = ctx.carried.pop(_SPAN)
        if ctx.result is not None:
            queue = ctx.result.queue
            attributes = {
                "messaging.message.id": ctx.result.message_id,
                "messaging.destination.partition.id": f"{queue.broker_name}/{queue.queue_id}",
                "messaging.rocketmq.send_status": ctx.result.status.name,
            }
            span.set_attributes(self._api.named(attributes))
        self._api.end(span, ctx.error)


class ConsumeSpans(ConsumeHook):
    """A consumer's hook. ``tracer_provider``: None = the global one."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._api = _Api(tracer_provider)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConsumeSpans, ()

    def before(self, context: ConsumeHookContext) -> None:
        """Start the span as the send's child, and make it the current one of the listener's
        thread.
        """
        api = self._api
        messages = (
            [message for message in context.messages if isinstance(message, MessageExt)]
            if isinstance(context.messages, list)
            else []
        )
        sent = [api.propagate.extract(_carrier(message.properties)) for message in messages]
        queue = context.queue
        attributes: dict[str, Any] = {
            "messaging.system": "rocketmq",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": queue.topic,
            "messaging.consumer.group.name": context.group,
            "messaging.destination.partition.id": f"{queue.broker_name}/{queue.queue_id}",
            "messaging.batch.message_count": len(context.messages),
        }
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].message_id
        spans = [api.trace.get_current_span(found).get_span_context() for found in sent]
        links = [api.trace.Link(found) for found in spans if found.is_valid]
        parent = sent[0] if len(sent) == 1 else None
        kind = api.trace.SpanKind.CONSUMER
        span = api.tracer.start_span(
            f"{queue.topic} process",
            context=parent,
            kind=kind,
            links=links,
            attributes=api.named(attributes),
        )
        context.props[_SPAN] = span
        context.props[_TOKEN] = api.context.attach(api.trace.set_span_in_context(span))

    def after(self, context: ConsumeHookContext) -> None:
        """End it as the listener ended."""
        self._api.context.detach(context.props.pop(_TOKEN))
        span = context.props.pop(_SPAN)
        if context.status is not None:
            told = {"messaging.rocketmq.consume_status": context.status.value}
            span.set_attributes(self._api.named(told))
        self._api.end(span, context.error, failed=not context.success)


class _Api:
    """What is used of OpenTelemetry, loaded when a hook is made."""

    def __init__(self, provider: TracerProvider | None) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as error:
            raise ConfigError(
                "opentelemetry-api is not installed; pip install rmq_ray[telemetry], or "
                "leave the hook out",
                "opentelemetry",
            ) from error
        self.context: Any = context
        self.propagate: Any = propagate
        self.trace: Any = trace
        self.tracer: Any = trace.get_tracer(_INSTRUMENTATION, tracer_provider=provider)
        wanted = {part.strip() for part in (environment(OPT_IN) or "").split(",")}
        self._both = "messaging/dup" in wanted
        self._new = self._both or "messaging" in wanted

    def named(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes by the names that are wanted."""
        if not self._new:
            return dict(attributes)
        new = {today(name): value for name, value in attributes.items() if today(name)}
        return {**attributes, **new} if self._both else new

    def end(self, span: Any, error: BaseException | None, failed: bool = False) -> None:
        """End a span, as failed when there is an error."""
        if error is not None:
            span.record_exception(error)
            if self._new:
                span.set_attribute("error.type", type(error).__qualname__)
        if error is not None or failed:
            span.set_status(self.trace.StatusCode.ERROR, str(error or "the messages come again"))
        span.end()


def _carrier(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties under the names that propagators look for."""
    return {name.lower(): value for name, value in properties.items()}
