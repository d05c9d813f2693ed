"""What happens around a send: names, checks, hooks, compression, in this order."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from rmq_ray.client.interceptors.send_hooks import SendContext
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.sending.send_steps import SendSteps
from rmq_ray.clock import ManualClock
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import BrokerBusy, ClientError, MessageIllegal, RmqError
from rmq_ray.model.ids import MessageQueue, QueueOffset
from rmq_ray.model.message import Message, SendResult, SendStatus

QUEUE = MessageQueue("orders", "broker-a", 0)
RESULT = SendResult(SendStatus.SEND_OK, "id", QUEUE, QueueOffset(1))


class Witness:
    """A hook that writes down what it saw."""

    def __init__(self, name: str, log: list[tuple[str, str]], fail: str = "") -> None:
        self.name, self.log, self.fail = name, log, fail
        self.seen: list[SendContext] = []

    def before(self, ctx: SendContext) -> None:
        self.log.append((self.name, "before"))
        self.seen.append(ctx)
        if self.fail == "before":
            raise RuntimeError("a hook's own fault")

    def after(self, ctx: SendContext) -> None:
        self.log.append((self.name, "after"))
        if self.fail == "after":
            raise RuntimeError("a hook's own fault")


def steps(
    hooks: Any = (), checks: Any = (), clock: ManualClock | None = None, **settings: Any
) -> SendSteps:
    made = SendSteps.of(
        ProducerConfig(group="web", **settings), hooks, checks, clock or ManualClock()
    )
    assert made is not None
    return made


def test_a_producer_without_any_of_them_has_no_steps() -> None:
    assert SendSteps.of(ProducerConfig(), (), (), ManualClock()) is None


def test_hooks_run_around_the_send_and_in_reverse_order_after_it() -> None:
    log: list[tuple[str, str]] = []
    clock = ManualClock()
    first, second = Witness("1", log), Witness("2", log)
    message = SendRequest("orders", b"body", "KEYS\x01a b\x02TAGS\x01t\x02")
    with steps([first, second], clock=clock).around(message, "sync") as ctx:
        clock.advance_ms(7)
        log.append(("send", ""))
        ctx.result = RESULT
    assert log == [("1", "before"), ("2", "before"), ("send", ""), ("2", "after"), ("1", "after")]
    seen = first.seen[0]
    assert (
        seen.group,
        seen.topic,
        seen.mode,
        seen.tag,
        seen.keys,
        seen.body_bytes,
        seen.cost_ms,
        seen.result,
    ) == (
        "web",
        "orders",
        "sync",
        "t",
        "a b",
        4,
        7.0,
        RESULT,
    )


@pytest.mark.parametrize("fail", ["before", "after"])
def test_a_hook_that_raises_changes_nothing_and_one_that_never_began_does_not_end(
    fail: str,
) -> None:
    log: list[tuple[str, str]] = []
    with steps([Witness("1", log, fail), Witness("2", log)]).around(
        SendRequest("orders", b"x", ""), "sync"
    ) as ctx:
        ctx.result = RESULT
    assert (("1", "after") in log) is (fail == "after") and ("2", "after") in log


def test_a_failed_send_tells_its_hooks_why() -> None:
    witness = Witness("1", [])
    with (
        pytest.raises(BrokerBusy),
        steps([witness]).around(SendRequest("orders", b"x", ""), "sync"),
    ):
        raise BrokerBusy("full")
    assert isinstance(witness.seen[0].error, BrokerBusy) and witness.log == [
        ("1", "before"),
        ("1", "after"),
    ]


def test_an_asynchronous_send_ends_with_its_future() -> None:
    witness, future = Witness("1", []), Future[SendResult]()
    made = steps([witness])
    with made.around(SendRequest("orders", b"x", ""), "async") as ctx:
        made.deferred(ctx, future)
    assert witness.log == [("1", "before")]
    future.set_result(RESULT)
    assert witness.log == [("1", "before"), ("1", "after")] and witness.seen[0].result == RESULT
    failed = Future[SendResult]()
    with made.around(SendRequest("orders", b"x", ""), "async") as ctx:
        made.deferred(ctx, failed)
    failed.set_exception(BrokerBusy("full"))
    assert isinstance(witness.seen[1].error, BrokerBusy)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ClientError("not on Sundays"), "not on Sundays"),
        (ValueError("no"), "forbids this send.*nothing was sent"),
    ],
)
def test_a_check_that_raises_forbids_the_send_before_any_hook(
    raised: Exception, expected: str
) -> None:
    def check(ctx: SendContext) -> None:
        raise raised

    witness = Witness("1", [])
    with (
        pytest.raises(RmqError, match=expected),
        steps([witness], [check]).around(SendRequest("orders", b"x", ""), "sync"),
    ):
        raise AssertionError("the block ran")
    assert witness.log == []


def test_a_hook_may_add_properties_and_the_senders_own_stay() -> None:
    class Adding(Witness):
        def before(self, ctx: SendContext) -> None:
            ctx.add_property("traceparent", "00-1")
            assert ctx.properties == {"a": "1", "traceparent": "00-1"}

    message = SendRequest("orders", b"x", "a\x011\x02")
    with steps([Adding("1", [])]).around(message, "sync"):
        assert message.text == "traceparent\x0100-1\x02a\x011\x02"

    class Bad(Witness):
        def before(self, ctx: SendContext) -> None:
            ctx.add_property("KEYS", "mine")

    with (
        pytest.raises(MessageIllegal),
        steps([Bad("1", [])]).around(SendRequest("orders", b"x", ""), "sync"),
    ):
        raise AssertionError("the block ran")


def test_a_frame_of_a_batch_is_one_context_and_each_message_gets_what_hooks_add() -> None:
    class Adding(Witness):
        def before(self, ctx: SendContext) -> None:
            self.seen.append(ctx)
            ctx.add_property("p", "1")

    hook = Adding("1", [])
    long = b"long " * 2_000
    with steps([hook], compression="zlib").around_frame(
        "orders", QUEUE, ([b"a", long], ["", "k\x01v\x02"], None)
    ) as (ctx, (bodies, texts, words)):
        ctx.result = RESULT
    assert (hook.seen[0].count, hook.seen[0].body_bytes, hook.seen[0].queue) == (
        2,
        1 + len(long),
        QUEUE,
    )
    assert (
        texts == ["p\x011\x02", "p\x011\x02k\x01v\x02"]
        and len(bodies[1]) < 1_000
        and words is not None
        and words[0] == 0
    )


def test_names_get_their_namespace_and_selectors_see_those_that_the_user_knows() -> None:
    made = steps(namespace="ns")
    message = SendRequest("orders", b"x", "")
    made.name(message)
    assert message.topic == "ns%orders"
    whole = [MessageQueue("ns%orders", "b", number) for number in range(3)]
    assert made.placement((MessageQueue("orders", "b", 1), None, None, None)) == (
        whole[1],
        None,
        None,
        None,
    )
    seen: list[Any] = []

    def selector(queues: Any, message: Message, arg: object) -> Any:
        seen.extend((queues[0], message.topic))
        return queues[2] if arg is None else arg

    placement = made.placement((None, selector, None, None))
    assert placement is not None and placement[1] is not None
    assert placement[1](whole, Message("ns%orders", b"x"), None) == whole[2] and seen == [
        MessageQueue("orders", "b", 0),
        "orders",
    ]
    assert placement[1](whole, Message("ns%orders", b"x"), "nothing") == "nothing"  # type: ignore[comparison-overlap]
    assert made.placement(None) is None and steps(trace=True).placement(
        (whole[0], None, None, None)
    ) == (whole[0], None, None, None)
    with pytest.raises(ClientError):
        made.name(SendRequest("o" * 126, b"x", ""))


def test_bodies_too_short_to_compress_have_no_steps_unless_something_else_wants_them() -> None:
    assert (
        steps(compression="zlib").plain_below == 4_096
        and steps(compression="zlib", compress_over_bytes=10).plain_below == 10
    )
    wanted: list[dict[str, Any]] = [
        {"namespace": "ns"},
        {"trace": True},
        {"hooks": [Witness("1", [])]},
        {"checks": [print]},
    ]
    assert all(steps(compression="zlib", **each).plain_below == 0 for each in wanted)
