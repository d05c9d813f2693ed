"""Filter hooks of a consumer: messages that its own code does not want, taken out before the
listener (protocol-behaviour 25: FilterMessageHook).

    PushConsumer(..., filters=[lambda message: message.properties.get("region") == "eu"])

What a filter says False to counts as consumed. Tags and SQL filters are cheaper: they work at the
broker; this is for what only code can tell. Runs in the consuming threads. Decides what the
listener sees. A filter that raises is logged and keeps its message: nothing is lost by a fault of
it.

Invariant: a partial success (``ack_index``) of the listener's messages covers the taken out ones
that lie before the first unfinished one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from rmq_ray.client.messages.listener import ACK_ALL
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.errors import ConfigError

Filter = Callable[[MessageExt], bool]
Call = Callable[[Any, Any], Any]

log = logging.getLogger("rmq_ray.client.consume")


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


def with_filters(listener: Call, filters: Sequence[Filter]) -> Call:
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
        acknowledged = getattr(ctx, "ack_index", ACK_ALL)
        if -1 <= acknowledged < len(kept) - 1:
            ctx.ack_index = kept[acknowledged + 1] - 1
        return answer

    return call


def _keeps(each: Filter, message: MessageExt) -> bool:
    try:
        return bool(each(message))
    except Exception:  # noqa: BLE001 - a fault of a filter must not lose a message
        log.exception("a filter failed on message %s; the listener gets it", message.message_id)
        return True
