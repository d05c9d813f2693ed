"""Spans of sends and of listeners' calls, with OpenTelemetry's own SDK."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rmq_ray.client.interceptors.consume_hooks import ConsumeHookContext, ConsumeStatus
from rmq_ray.client.interceptors.send_hooks import SendContext
from rmq_ray.client.interceptors.telemetry import ConsumeSpans, SendSpans
from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.sending.send_steps import SendSteps
from rmq_ray.clock import ManualClock
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import BrokerBusy, ConfigError
from rmq_ray.model.ids import MessageQueue, QueueOffset
from rmq_ray.model.message import SendResult, SendStatus
from tests.support.clients.scripted_client import record

QUEUE = MessageQueue("orders", "broker-a", 3)


class Exported:
    """A provider whose spans are kept."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))

    def take(self) -> list[Any]:
        found = list(self._kept.get_finished_spans())
        self._kept.clear()
        return found


@pytest.fixture
def exported() -> Exported:
    return Exported()


def sent(exported: Exported, error: Exception | None = None) -> SendRequest:
    steps = SendSteps.of(
        ProducerConfig(group="web"), [SendSpans(exported.provider)], (), ManualClock()
    )
    assert steps is not None
    message = SendRequest("orders", b"body", "KEYS\x01a b\x02TAGS\x01paid\x02")
    with steps.around(message, "sync") as ctx:
        if error is not None:
            raise error
        ctx.result = SendResult(SendStatus.SEND_OK, "ID", QUEUE, QueueOffset(0))
    return message


def received(*messages: SendRequest) -> list[MessageExt]:
    raw = [
        record(QUEUE, n, message.body, message.text + "UNIQ_KEY\x01" + "A" * 32)
        for n, message in enumerate(messages)
    ]
    return PulledPage(QUEUE, b"".join(raw), np.array([len(one) for one in raw])).messages()


def consumed(
    exported: Exported,
    messages: list[MessageExt],
    status: ConsumeStatus = ConsumeStatus.SUCCESS,
    error: Exception | None = None,
) -> None:
    hook = ConsumeSpans(exported.provider)
    context = ConsumeHookContext("billing", QUEUE, messages)
    hook.before(context)
    with exported.provider.get_tracer("user").start_as_current_span("charge"):
        pass
    context.status, context.error = status, error
    hook.after(context)
    assert not trace.get_current_span().get_span_context().is_valid, (
        "the thread's context is as it was"
    )


def test_a_send_is_a_span_whose_context_travels_in_the_message(exported: Exported) -> None:
    message = sent(exported)
    (span,) = exported.take()
    assert (span.name, span.kind) == ("orders send", trace.SpanKind.PRODUCER) and span.status.is_ok
    assert (
        span.attributes["messaging.system"] == "rocketmq"
        and span.attributes["messaging.message.id"] == "ID"
    )
    assert span.attributes["messaging.rocketmq.message.tag"] == "paid" and span.attributes[
        "messaging.rocketmq.message.keys"
    ] == ("a", "b")
    assert span.attributes["messaging.destination.partition.id"] == "broker-a/3"
    assert message.text.startswith(
        f"traceparent\x0100-{span.context.trace_id:032x}-{span.context.span_id:016x}-"
    )


def test_a_batch_is_one_span_without_the_labels_of_one_of_its_messages(exported: Exported) -> None:
    ctx = SendContext(
        "web", "orders", "sync", b"1", "KEYS\x01a\x02TAGS\x01paid\x02", count=2, body_bytes=3
    )
    hook = SendSpans(exported.provider)
    hook.before(ctx)
    hook.after(ctx)
    (span,) = exported.take()
    assert (
        span.attributes["messaging.batch.message_count"],
        span.attributes["messaging.message.body.size"],
    ) == (2, 3)
    assert not [name for name in span.attributes if name.startswith("messaging.rocketmq.message")]


def test_a_failed_send_ends_its_span_with_the_error(exported: Exported) -> None:
    with pytest.raises(BrokerBusy):
        sent(exported, BrokerBusy("full"))
    (span,) = exported.take()
    assert (
        span.status.status_code is trace.StatusCode.ERROR
        and span.events[0].attributes["exception.message"] == "full"
    )


def test_a_listeners_call_is_the_sends_child_and_its_own_spans_are_below_it(
    exported: Exported,
) -> None:
    messages = received(sent(exported))
    (send,) = exported.take()
    consumed(exported, messages)
    user, process = exported.take()
    assert (process.name, process.kind) == ("orders process", trace.SpanKind.CONSUMER)
    assert (
        process.parent.span_id == send.context.span_id
        and process.context.trace_id == send.context.trace_id
    )
    assert user.parent.span_id == process.context.span_id
    assert (
        process.attributes["messaging.consumer.group.name"] == "billing"
        and process.attributes["messaging.rocketmq.consume_status"] == "SUCCESS"
    )


def test_several_messages_are_linked_and_a_failure_is_the_spans_status(exported: Exported) -> None:
    messages = received(sent(exported), sent(exported), SendRequest("orders", b"untraced", ""))
    sends = exported.take()
    consumed(exported, messages, ConsumeStatus.EXCEPTION, ValueError("bad order"))
    _, process = exported.take()
    assert process.parent is None and [link.context.span_id for link in process.links] == [
        span.context.span_id for span in sends
    ]
    assert (
        process.status.status_code is trace.StatusCode.ERROR
        and process.attributes["messaging.batch.message_count"] == 3
    )
    consumed(exported, messages, ConsumeStatus.FAILED)
    assert exported.take()[1].status.description == "the messages come again"


def test_hooks_pickle_and_without_opentelemetry_they_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(pickle.loads(pickle.dumps(SendSpans())), SendSpans) and isinstance(
        pickle.loads(pickle.dumps(ConsumeSpans())), ConsumeSpans
    )
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for hook in (SendSpans, ConsumeSpans):
        with pytest.raises(ConfigError, match=r"rmq_ray\[telemetry\]"):
            hook()


@pytest.mark.parametrize(
    ("wanted", "old", "new"),
    [("", True, False), ("http,messaging", False, True), ("messaging/dup, messaging", True, True)],
)
def test_attributes_have_the_names_that_were_opted_for(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, wanted: str, old: bool, new: bool
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", wanted)
    with pytest.raises(BrokerBusy):
        sent(exported, BrokerBusy("full"))
    consumed(exported, received(sent(exported)))
    failed, stored, _user, processed = exported.take()
    for span in (failed, stored, processed):
        names = set(span.attributes)
        assert ("messaging.system" in names, "messaging.system.name" in names) == (old, new)
        assert any(name.startswith("messaging.rocketmq.") for name in names) is old
        assert any(name.startswith("rocketmq.") for name in names) is new
        assert span.attributes["messaging.destination.name"] == "orders", "what was not renamed"
    assert stored.attributes.get("rocketmq.message.tag") == ("paid" if new else None)
    assert failed.attributes.get("error.type") == ("BrokerBusy" if new else None)
