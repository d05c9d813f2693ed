"""How a batch reaches the user's listener: as messages or columns, through hooks, by call or by a
loop.

    batch ── take ──> list of messages, or a RecordBatch ──> filters ──> hooks before ──> listener (in the consumer's loop when it is async) ──> hooks after

Decides the order of these wrappers. Does not decide what an answer means. Called by
``client.push.consumer_engine``; both kinds of consumption call what they find here as if it were
the listener itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq_ray.client.consumer.assigned_queue import ReadyBatch
from rmq_ray.client.consumer.consumer_options import PushSettings
from rmq_ray.client.interceptors.consume_hooks import with_hooks
from rmq_ray.client.interceptors.filter_hooks import with_filters
from rmq_ray.client.push.async_listener import LoopListener, is_async
from rmq_ray.clock import Clock


class Delivery:
    """Of one consumer. ``call(payload, ctx)``: the listener; ``take(batch, now_ms)``: its payload
    of a batch; ``of_messages``: the listener as one that is given messages, whatever it gets.
    """

    call: Callable[[Any, Any], Any]
    take: Callable[[ReadyBatch, int], Any]
    of_messages: Callable[[Any, Any], Any]

    def __init__(
        self, group: str, listener: Callable[[Any, Any], Any], settings: PushSettings, clock: Clock
    ) -> None:
        self._loop = LoopListener(listener, f"rmq-listener-{group}") if is_async(listener) else None
        hooked = with_hooks(
            self._loop or listener,
            settings.hooks,
            clock,
            settings.config.consume_timeout_minutes * 60_000,
        )
        self.call = with_filters(hooked, settings.filters)
        self.take, self.of_messages = ReadyBatch.take, self.call
        columns = settings.columns
        if columns is not None:
            from rmq_ray.client.pull import columnar

            self.take = lambda batch, _now_ms: columnar.take(batch, columns)
            self.of_messages = columnar.as_columns(self.call, columns)

    def owns_current_thread(self) -> bool:
        """True in the loop of an async listener, which cannot wait for itself."""
        return self._loop is not None and self._loop.owns_current_thread()

    def close(self) -> None:
        """After consumption has stopped: an async listener's calls that still run are cancelled."""
        if self._loop is not None:
            self._loop.close()
