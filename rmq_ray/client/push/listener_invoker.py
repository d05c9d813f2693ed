"""How a batch reaches the user's listener: as messages or columns, through hooks, by call or by a
loop.

    batch ── take ──> list of messages, or a RecordBatch
          ──> filters ──> hooks before ──> listener ──> hooks after

    a coroutine function runs on an event loop of the consumer's own, as many at once as
    ``concurrency`` says:
    consuming thread ── call ──> LoopListener ── task ──> loop thread: await listener(messages, ctx)
           ^                                                    │
           └────────────── answer or exception <────────────────┘

Decides the order of these wrappers. Does not decide what an answer means: both kinds of consumption
call what they find here as if it were the listener itself, so that retries, order, hooks, time-outs
and stopping of coroutine functions are those of plain ones. A thread waits for each call that runs;
what waits costs 30 KB, no time.

Invariants: after ``close`` no call runs: tasks that are left are cancelled, and a call that comes
later is answered by ``ClientError``. Nothing but ``close`` ends the loop: ``SystemExit`` and
``KeyboardInterrupt`` of a listener are raised in the consuming thread, as those of a plain one are.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, TimeoutError
from typing import Any

from rmq_ray.client.consumer.assigned_queue import ReadyBatch
from rmq_ray.client.consumer.consumer_options import ConsumerSettings
from rmq_ray.client.interceptors.consume_hooks import with_filters, with_hooks
from rmq_ray.clock import Clock
from rmq_ray.errors import ClientError

WAIT_SLICE_S = 5.0
JOIN_TIMEOUT_S = 5.0

log = logging.getLogger("rmq_ray.client.consume")


class ListenerInvoker:
    """Of one consumer. ``call(payload, ctx)``: the listener; ``take(batch, now_ms, start, stop)``:
    its payload of a part of a batch; ``of_messages``: the listener as one that is given messages,
    whatever it gets.
    """

    call: Callable[[Any, Any], Any]
    take: Callable[[ReadyBatch, int, int, int], Any]
    of_messages: Callable[[Any, Any], Any]

    def __init__(
        self,
        group: str,
        listener: Callable[[Any, Any], Any],
        settings: ConsumerSettings,
        clock: Clock,
    ) -> None:
        self._loop = LoopListener(listener, f"rmq-listener-{group}") if is_async(listener) else None
        hooked = with_hooks(
            self._loop or listener,
            settings.hooks,
            clock,
            settings.config.consume_timeout_minutes * 60_000,
        )
        self.call = with_filters(hooked, settings.filters)
        self.take, self.of_messages = ReadyBatch.part_messages, self.call
        columns = settings.columns
        if columns is not None:
            from rmq_ray.client.messages.message_columns import rows, rows_of

            def take(batch: ReadyBatch, _now_ms: int, start: int, stop: int) -> Any:
                if batch.messages is not None:
                    return rows_of(batch.messages[start:stop], columns)
                return rows(batch.page, batch.indices[start:stop], columns)

            self.take = take
            self.of_messages = lambda messages, ctx: self.call(rows_of(messages, columns), ctx)

    def owns_current_thread(self) -> bool:
        """True in the loop of an async listener, which cannot wait for itself."""
        return self._loop is not None and self._loop.owns_current_thread()

    def close(self) -> None:
        """After consumption has stopped: an async listener's calls that still run are cancelled."""
        if self._loop is not None:
            self._loop.close()


def is_async(listener: object) -> bool:
    """A coroutine function, or an object whose ``__call__`` is one."""
    method = getattr(listener, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(method)


class LoopListener:
    """``listener`` as a plain callable. The loop's thread starts with the first call."""

    def __init__(self, listener: Callable[[Any, Any], Coroutine[Any, Any, Any]], name: str) -> None:
        self._listener = listener
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ending = False

    def __call__(self, messages: Any, ctx: Any) -> Any:
        """Run the coroutine in the loop and wait for what it returns or raises."""
        with self._lock:  # what is handed over here is in the loop's line before ``close`` ends it
            loop = self._started()
            running: Future[Any] = asyncio.run_coroutine_threadsafe(
                self._listener(messages, ctx), loop
            )
        while True:
            try:
                return running.result(WAIT_SLICE_S)
            except TimeoutError as error:
                if running.done():  # the listener's own, or it ended a moment after the slice
                    return running.result(0)
                if self._closed:
                    raise ClientError("the consumer was stopped while its listener ran") from error

    def owns_current_thread(self) -> bool:
        """True in the loop's thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Cancel what still runs, end the loop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            was_closed, self._closed = self._closed, True
            if not was_closed and loop is not None:
                with contextlib.suppress(RuntimeError):  # a loop that broke is closed
                    loop.call_soon_threadsafe(self._end, loop)
        if thread is not None:
            thread.join(JOIN_TIMEOUT_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        """The loop; under the lock."""
        if self._closed:
            raise ClientError("the consumer was stopped")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop,), name=self._name, daemon=True
            )
            self._thread.start()
        return self._loop

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ending = True
        loop.stop()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not self._ending:
                # asyncio raises them here, too; the task of the call has them
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()
            # calls that ended in the last turn tell it in the next one
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_until_complete(asyncio.sleep(0))
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                log.warning("%s: %d calls of the listener were cancelled", self._name, len(left))
                ends = asyncio.gather(*left, return_exceptions=True)
                _, stubborn = loop.run_until_complete(asyncio.wait([ends], timeout=JOIN_TIMEOUT_S))
                if stubborn:
                    log.warning("%s: a listener does not let itself be cancelled", self._name)
        finally:
            loop.close()
