"""Tasks that were enqueued with a ``message_group``: one after the other where they share it.

    rmq_ordered_<queue> ──PushConsumer, orderly──> one task of a queue of the topic at a time

Decides how often a task is tried before its successors go on: tries are counted by what was told
of its message as STARTED, so that they outlive the process, and a dead letter that is sent again
has all its tries before it. A message whose end was told is not begun again: only its offset was
lost. A PENDING behind a STARTED says that the try does not count, since a breaker is open.
Meanwhile the queues take turns, and no thread waits: one of them tries its first task, the others
look again when the next try is due. Groups share the topic's queues: one that is retried holds up
those of its queue. Invariant: the next task of a group begins after the one before is done, or a
dead letter.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from rmq_ray.client.messages.listener import (
    ROLLBACK,
    SUCCESS,
    SUSPEND_CURRENT_QUEUE_A_MOMENT,
    OrderlyContext,
)
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.push.listener_breaker import ListenerBreaker
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.clock import Clock
from rmq_ray.errors import RmqError, TaskTimedOut
from rmq_ray.guard import attempt
from rmq_ray.model.ids import MessageQueue
from rmq_ray.serve.handlers import Cancel, TaskHandlers
from rmq_ray.serve.result_store import ResultStore
from rmq_ray.serve.revocations import Revocations
from rmq_ray.serve.settings import TaskSettings
from rmq_ray.serve.task_codec import Status, Task, begun, decode_task
from rmq_ray.serve.verdicts import TaskOutcome, TaskVerdict, judge, lost, unreadable

LOOK_S = 1.0
TRIES_MAX = (1 << 31) - 1  # ours, not the consumer's
SUSPEND_MS = 10, 30_000
TURN_MS, LOOK_MS = 10.0, 1_000.0
"""While a breaker is open a queue comes so long behind the turn of the next try, and looks so often
whether the breaker has closed.
"""

log = logging.getLogger("rmq_ray.serve")


class OrderedWorker:
    """Of one replica. It begins once the topic is there: the first ordered task makes it."""

    def __init__(
        self,
        settings: TaskSettings,
        consumer: SimpleConsumer,
        results: ResultStore,
        revocations: Revocations,
        handlers: TaskHandlers,
        concurrency: int,
        gate: threading.Semaphore,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._results = results
        self._revocations = revocations
        self._handlers = handlers
        self._concurrency = concurrency
        self._gate = gate
        given = settings.breaker
        self._breaker = None if given is None else ListenerBreaker(given, settings.ordered, clock)
        self._systemic = None if self._breaker is None else self._breaker.failed
        self._pause_ms = 0.0 if given is None else given.pause * 1_000
        self._untried: dict[MessageQueue, tuple[str, int]] = {}
        """The first task of a queue, and the number of its try that did not count: what was told of
        that may not be found yet.
        """
        self._stop = threading.Event()
        self._push: PushConsumer | None = None
        self._thread = threading.Thread(target=self._begin, name="rmq-ordered", daemon=True)
        self._cancels: dict[str, Cancel] = {}

    def start(self) -> None:
        """Look for the topic from now on."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the running tasks; what was not begun goes to other replicas."""
        self._stop.set()
        self._thread.join(timeout_s)
        if self._push is not None:
            self._push.stop(max(1, int(timeout_s * 1_000)))

    @property
    def pauses(self) -> bool:
        """Whether tasks wait, since most have failed."""
        return self._breaker is not None and self._breaker.open

    def revoke(self, task_id: str) -> None:
        """A coroutine that runs is cancelled."""
        cancel = self._cancels.get(task_id)
        if cancel is not None:
            cancel()

    def _begin(self) -> None:
        settings = self._settings
        while not self._stop.wait(LOOK_S):  # ends: with the topic, or ``stop``
            try:
                if not self._revocations.ready.is_set() or not self._consumer.knows(
                    settings.ordered
                ):
                    continue
                push = PushConsumer(
                    settings.ordered,
                    listener=self._listen,
                    subscriptions={settings.ordered: "*"},
                    discovery=settings.adapter.discovery,
                    orderly=True,
                    concurrency=self._concurrency,
                    batch_size=1,
                    start_from="first",
                    max_reconsume_times=TRIES_MAX,
                )
                push.start()
                self._push = push
                return
            except RmqError as error:
                log.warning("ordered tasks of %s cannot be taken: %s", settings.queue, error)

    def _listen(self, messages: list[MessageExt], ctx: OrderlyContext) -> Any:
        (message,) = messages
        settings = self._settings
        task, fault = attempt(lambda: decode_task(message.body, settings.adapter.pickle))
        if fault is not None:
            keys = message.keys
            key = (keys[0] if keys else message.message_id), message.born_ms
            self._bury(message, key, 1, unreadable(fault))
            return SUCCESS
        key = task.id, task.created_ms
        if task.id in self._revocations:
            self._told(message, key, Status.REVOKED, 0)
            return SUCCESS
        if self._breaker is not None and (wait_ms := self._breaker.wait_ms()):
            return _later(ctx, min(wait_ms + TURN_MS, LOOK_MS))
        known, _ = untried = self._untried.get(ctx.queue, ("", 0))
        tries = self._next_try(message, task, untried)
        if tries is None:
            return SUCCESS
        if tries > settings.retries_max + 1:
            self._bury(message, key, tries, lost(tries - 1))
            return SUCCESS
        self._told(message, key, Status.STARTED, tries)
        verdict = self._run(task, tries, again=known == task.id and not self.pauses)
        self._untried.pop(ctx.queue, None)
        if verdict.action is TaskOutcome.UNTRIED:
            self._untried[ctx.queue] = task.id, tries
            self._told(message, key, Status.PENDING, tries)
            return _later(ctx, self._pause_ms + 2 * min(self._pause_ms, LOOK_MS))
        if verdict.action is TaskOutcome.DONE:
            try:
                self._told(message, key, Status.SUCCESS, tries, verdict.result)
                return SUCCESS
            except RmqError as error:
                if error.retriable:
                    raise
                verdict = judge(error, tries, 0)
        if verdict.action is TaskOutcome.AGAIN:
            self._told(message, key, Status.RETRY, tries, verdict.why)
            _pause(ctx, settings.backoff_s(tries) * 1_000)
            return SUSPEND_CURRENT_QUEUE_A_MOMENT
        if verdict.action is TaskOutcome.REVOKED:
            self._told(message, key, Status.REVOKED, tries)
        else:
            self._bury(message, key, tries, verdict)
        return SUCCESS

    def _next_try(self, message: MessageExt, task: Task, untried: tuple[str, int]) -> int | None:
        """Its number, from 1 on; None where the end of the message was told."""
        records = self._results.records(task.id, message.message_id)
        if any(record.status.final for record in records):
            return None
        told, (known, tries) = begun(records), untried
        if known == task.id and told <= tries:  # the last record may be missing
            return tries
        return 1 + max(message.reconsume_times, told)

    def _run(self, task: Task, tries: int, again: bool) -> TaskVerdict:
        """In a thread of its own: one that hangs is left behind."""
        ended, outcome = threading.Event(), list[TaskVerdict | BaseException]()
        retries_max = self._settings.retries_max

        def run() -> None:
            try:
                result = self._handlers.run(
                    task, lambda cancel: self._cancels.__setitem__(task.id, cancel)
                )
                outcome.append(TaskVerdict(TaskOutcome.DONE, result))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the handler's
                revoked = task.id in self._revocations
                outcome.append(TaskVerdict(TaskOutcome.REVOKED) if revoked else error)
            finally:
                self._cancels.pop(task.id, None)
                ended.set()

        timeout_s = self._settings.adapter.task_timeout_s
        with self._gate:
            if task.id in self._revocations:  # while it waited
                return TaskVerdict(TaskOutcome.REVOKED)
            threading.Thread(target=run, name="rmq-ordered-task", daemon=True).start()
            in_time = ended.wait(min(timeout_s, threading.TIMEOUT_MAX))
        if in_time:
            found = outcome[0]
        else:  # whatever it comes to, the breaker hears nothing of that
            self.revoke(task.id)
            self._handlers.check_loop()
            found = TaskTimedOut(f"the handler ran for {timeout_s:.1f} s", task.id)
        if isinstance(found, BaseException):
            return judge(found, tries, retries_max, self._systemic, again)
        if self._breaker is not None and found.action is TaskOutcome.DONE:
            self._breaker.succeeded()
        return found

    def _bury(
        self, message: MessageExt, key: tuple[str, int], tries: int, verdict: TaskVerdict
    ) -> None:
        failed = verdict.action is TaskOutcome.FAILED
        group = self._settings.failed if failed else self._settings.unprocessable
        log.warning("task %s is a dead letter of %s: %s", key[0], group, verdict.why)
        self._consumer.dead_letter(message, verdict.why, group)
        self._told(message, key, Status.FAILURE, tries, verdict.why)

    def _told(
        self,
        message: MessageExt,
        key: tuple[str, int],
        status: Status,
        tries: int,
        result: Any = None,
    ) -> None:
        """The record is durable on return. Raises ``RmqError``: the task is handed out again."""
        self._results.tell(key, status, tries, result, message.message_id)


def _later(ctx: OrderlyContext, pause_ms: float) -> Any:
    """The task is handed out again after a pause, and nobody counts that."""
    ctx.auto_commit = False
    _pause(ctx, pause_ms)
    return ROLLBACK


def _pause(ctx: OrderlyContext, pause_ms: float) -> None:
    low, high = SUSPEND_MS
    ctx.suspend_ms = min(high, max(low, round(pause_ms)))
