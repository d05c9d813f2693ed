"""What hooks are told of a call, and who may be one."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from rmq_ray.client.interceptors.consume_hooks import (
    ConsumeHook,
    ConsumeHookContext,
    ConsumeStatus,
    check_hooks,
    with_hooks,
)
from rmq_ray.client.messages.listener import RECONSUME_LATER, SUCCESS, ConsumeContext, Reject
from rmq_ray.client.push.listener_invoker import LoopListener, is_async
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.model.ids import MessageQueue

CONTEXT = ConsumeContext("g", MessageQueue("t", "b", 0))
COMMIT = Enum("Orderly", "COMMIT ROLLBACK")


class Keeping(ConsumeHook):
    def __init__(self) -> None:
        self.seen: list[ConsumeHookContext] = []

    def after(self, context: ConsumeHookContext) -> None:
        self.seen.append(context)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (None, ConsumeStatus.SUCCESS),
        (SUCCESS, ConsumeStatus.SUCCESS),
        (RECONSUME_LATER, ConsumeStatus.FAILED),
        (Reject, ConsumeStatus.FAILED),
        (True, ConsumeStatus.FAILED),
        (COMMIT.COMMIT, ConsumeStatus.SUCCESS),
        (COMMIT.ROLLBACK, ConsumeStatus.FAILED),
    ],
    ids=str,
)
def test_the_answer_decides_the_status_and_is_passed_on(answer: Any, status: ConsumeStatus) -> None:
    hook = Keeping()
    assert (
        with_hooks(lambda _messages, _ctx: answer, [hook], ManualClock(), 1_000)(["m"], CONTEXT)
        is answer
    )
    (context,) = hook.seen
    assert (context.status, context.messages, context.success) == (
        status,
        ["m"],
        status is ConsumeStatus.SUCCESS,
    )


def test_a_call_that_takes_too_long_is_timed_out_whatever_it_answers() -> None:
    clock, hook = ManualClock(), Keeping()
    with_hooks(lambda _messages, _ctx: clock.advance_ms(1_000), [hook], clock, 1_000)([], CONTEXT)
    assert (hook.seen[0].status, hook.seen[0].duration_ms) == (ConsumeStatus.TIME_OUT, 1_000)


def test_what_the_listener_raises_goes_on_and_is_told() -> None:
    def fail(_messages: Any, _ctx: Any) -> None:
        raise SystemExit(3)

    hook = Keeping()
    with pytest.raises(SystemExit):
        with_hooks(fail, [hook], ManualClock(), 1_000)([], CONTEXT)
    assert hook.seen[0].status is ConsumeStatus.EXCEPTION and isinstance(
        hook.seen[0].error, SystemExit
    )


def test_without_hooks_the_listener_is_called_as_it_is() -> None:
    def handle(_messages: Any, _ctx: Any) -> None: ...

    assert with_hooks(handle, [], ManualClock(), 1_000) is handle


def test_a_hook_has_both_methods_and_is_an_object() -> None:
    hook = Keeping()
    assert check_hooks(hook) == check_hooks([hook]) == (hook,)
    for wrong in (Keeping, "hook", [hook, None]):
        with pytest.raises(ConfigError, match="ConsumeHook"):
            check_hooks(wrong)


def test_coroutine_functions_are_told_from_others_and_refused_once_the_loop_is_closed() -> None:
    async def handle(_messages: Any, _ctx: Any) -> int:
        return 7

    class Handler:
        async def __call__(self, _messages: Any, _ctx: Any) -> None: ...

    assert is_async(handle) and is_async(Handler()) and not is_async(lambda _messages, _ctx: None)
    listener = LoopListener(handle, "loop")
    assert listener([], CONTEXT) == 7 and not listener.owns_current_thread()
    listener.close()
    with pytest.raises(ClientError, match="stopped"):
        listener([], CONTEXT)
    LoopListener(handle, "never used").close()
