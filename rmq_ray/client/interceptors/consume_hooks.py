"""What runs around a consumer's listener: hooks that see each call before and after, and filters
that take out messages which its own code does not want (protocol-behaviour 15, 25).

    class Timing(ConsumeHook):
        def before(self, context): context.props["began"] = ...
        def after(self, context): ...    # context.status, context.error, context.answer

    PushConsumer(..., filters=[lambda message: message.properties.get("region") == "eu"])

Decides which status a call had, and what the listener sees. Hooks see and measure; they change
nothing: what one raises, an exit too, is logged, and consumption goes on (``guard``). They run in
the consuming thread, around the listener, in the order given; ``after`` in the same order. What a
filter says False to counts as consumed; one that raises is logged and keeps its message: nothing is
lost by a fault of it. Tags and SQL filters are cheaper: they work at the broker; this is for what
only code can tell.

Invariants: ``after`` of every hook runs once for each ``before``, whatever listener and hooks
raise; a partial success (``ack_index``) of the listener's messages covers the taken out ones that
lie before the first unfinished one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rmq_ray.client.messages.received import MessageExt
from rmq_ray.clock import Clock
from rmq_ray.errors import ConfigError
from rmq_ray.guard import guarded
from rmq_ray.model.ids import MessageQueue

DONE = ("SUCCESS", "COMMIT")  # names of answers; None says the same

Filter = Callable[[MessageExt], bool]
"""Whether the listener gets the message."""

log = logging.getLogger("rmq_ray.client.consume")


class ConsumeStatus(Enum):
    """How a call of the listener ended, as RocketMQ's hooks name it."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    """It took longer than ``consume_timeout_minutes``, whatever it answered."""
    EXCEPTION = "EXCEPTION"
    FAILED = "FAILED"
    """Its messages come again, or are dead letters."""


@dataclass(slots=True)
class ConsumeHookContext:
    """One call. ``messages``: what the listener gets (a list, or a ``pyarrow.RecordBatch``).
    ``status`` and the rest: set for ``after``.
    """

    group: str
    queue: MessageQueue
    messages: Any
    props: dict[str, Any] = field(default_factory=dict)
    """The hooks' own notes, from ``before`` to ``after``."""
    status: ConsumeStatus | None = None
    answer: Any = None
    error: BaseException | None = None
    duration_ms: float = 0.0

    @property
    def success(self) -> bool:
        """The listener said that it is done, in time."""
        return self.status is ConsumeStatus.SUCCESS


class ConsumeHook:
    """Derive from it and override what is wanted."""

    def before(self, context: ConsumeHookContext) -> None:
        """The listener is about to get ``context.messages``."""

    def after(self, context: ConsumeHookContext) -> None:
        """It has answered, or raised ``context.error``."""


def check_hooks(hooks: object) -> tuple[ConsumeHook, ...]:
    """A sequence of objects with ``before`` and ``after``. ``ConfigError`` for anything else."""
    found = tuple(hooks) if isinstance(hooks, list | tuple) else (hooks,)
    for hook in found:
        if isinstance(hook, type) or not (
            callable(getattr(hook, "before", None)) and callable(getattr(hook, "after", None))
        ):
            raise ConfigError(
                f"hook {hook!r:.80} has no before(context) and after(context); derive a "
                f"class from ConsumeHook and give an object of it",
                repr(hook)[:80],
            )
    return found


def with_hooks(
    listener: Callable[[Any, Any], Any],
    hooks: Sequence[ConsumeHook],
    clock: Clock,
    timeout_ms: float,
) -> Callable[[Any, Any], Any]:
    """A listener that runs the hooks around ``listener``; the same one when there are none."""
    if not hooks:
        return listener

    def call(messages: Any, ctx: Any) -> Any:
        context = ConsumeHookContext(ctx.group, ctx.queue, messages)
        for hook in hooks:
            _run(hook.before, context)
        began_ms = clock.monotonic_ms()
        try:
            context.answer = listener(messages, ctx)
        except BaseException as error:
            context.error = error
            raise
        finally:
            context.duration_ms = clock.monotonic_ms() - began_ms
            context.status = _status(context, timeout_ms)
            for hook in hooks:
                _run(hook.after, context)
        return context.answer

    return call


def _status(context: ConsumeHookContext, timeout_ms: float) -> ConsumeStatus:
    if context.error is not None:
        return ConsumeStatus.EXCEPTION
    if context.duration_ms >= timeout_ms:
        return ConsumeStatus.TIME_OUT
    done = context.answer is None or (
        isinstance(context.answer, Enum) and context.answer.name in DONE
    )
    return ConsumeStatus.SUCCESS if done else ConsumeStatus.FAILED


def _run(hook: Callable[[ConsumeHookContext], None], context: ConsumeHookContext) -> None:
    kind = f"a consume hook of group {context.group}"
    guarded(log, kind, hook, context, then="consumption goes on")


def check_filters(filters: object, columns: object) -> tuple[Filter, ...]:
    """A sequence of callables. ``ConfigError`` for anything else, and for a listener of columns."""
    found = tuple(filters) if isinstance(filters, list | tuple) else (filters,)
    for each in found:
        if not callable(each):
            raise ConfigError(
                f"filter {each!r:.80} is not callable; give a function of a message that "
                f"returns True to keep it",
                repr(each)[:80],
            )
    if found and columns is not None:
        raise ConfigError(
            "filters look at messages, and this listener gets columns; filter the columns in "
            "the listener, or use tags or sql()"
        )
    return found


def with_filters(
    listener: Callable[[Any, Any], Any], filters: Sequence[Filter]
) -> Callable[[Any, Any], Any]:
    """A listener that gets only what all filters keep; the same one when there are none."""
    if not filters:
        return listener

    def call(messages: list[MessageExt], ctx: Any) -> Any:
        kept = [
            at
            for at, message in enumerate(messages)
            if all(_keeps(each, message) for each in filters)
        ]
        if len(kept) == len(messages):
            return listener(messages, ctx)
        if not kept:
            return None
        answer = listener([messages[at] for at in kept], ctx)
        acknowledged = getattr(ctx, "ack_index", len(kept))
        if -1 <= acknowledged < len(kept) - 1:
            ctx.ack_index = kept[acknowledged + 1] - 1
        return answer

    return call


def _keeps(each: Filter, message: MessageExt) -> bool:
    then = "the listener gets the message"
    kept: bool = guarded(
        log, "a filter", _says, each, message, then=then, otherwise=True, about=message
    )
    return kept


def _says(each: Filter, message: MessageExt) -> bool:
    return bool(each(message))
