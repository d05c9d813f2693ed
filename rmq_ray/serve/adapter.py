"""Ray Serve's ``TaskProcessorAdapter`` on topics: what a handler's deployment and its callers use.

    config = TaskProcessorConfig(
        queue_name="images", adapter=RmqTaskProcessorAdapter, adapter_config={}, max_retries=3
    )
    instantiate_adapter_from_config(config).enqueue_task_sync("resize", args=["a.png"])

Decides what the options of a call mean, and what is there before it returns: a task that
``enqueue_task_sync`` returned for is on the broker as its mode says. How tasks run ``task_worker``
decides, what is kept of them ``result_store``. Any thread may call any method.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ClientError, RmqError, TopicNotFound
from rmq_ray.serve.handlers import TaskHandlers
from rmq_ray.serve.ordered_worker import OrderedWorker
from rmq_ray.serve.result_store import ResultStore
from rmq_ray.serve.revocations import Revocations
from rmq_ray.serve.settings import TaskSettings
from rmq_ray.serve.task_codec import Status, Task, TaskRecord, encode_task, made_ms, new_id, reason
from rmq_ray.serve.task_lag import waiting
from rmq_ray.serve.task_worker import TaskWorker

RETRIES_MAX = (1 << 31) - 1  # of the group: how often a task is tried is decided here
ACK_S = 60.0
SETTLED_S = 1.0
RESULT_HOURS_MAX = 87_600
MS_AN_HOUR = 3_600_000
OPTIONS = "delay, countdown, eta, message_group, properties"


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an adapter is connected with, in one process."""

    admin: Admin
    producer: Producer
    results: ResultStore


@dataclass(frozen=True, slots=True)
class _Workers:
    """Of a replica that takes tasks."""

    consumer: SimpleConsumer
    revocations: Revocations
    tasks: TaskWorker
    ordered: OrderedWorker


class RmqTaskProcessorAdapter(TaskProcessorAdapter):
    """Tasks of Ray Serve as messages: no Redis, no Celery.

    ``config.adapter_config``: an ``RmqAdapterConfig``, or a mapping with its keys. Dead letters of
    ``failed_task_queue_name`` and ``unprocessable_task_queue_name`` (None: the queue's own name)
    are shown by ``rmq-ray dlq show <name>``. TaskHandlers may be coroutine functions. Raises
    ``ConfigError`` or ``ClientError`` for names and settings that cannot be.
    """

    def __init__(self, config: TaskProcessorConfig) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        self._settings = TaskSettings.of(config)
        self._handlers = TaskHandlers(self._settings.adapter.task_timeout_s)
        self._clock = SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._made: set[str] = set()
        self._concurrency = 1
        self._parts: _Parts | None = None
        self._workers: _Workers | None = None

    # --- life -------------------------------------------------------------------------------------

    def initialize(self, consumer_concurrency: int = 1) -> None:
        """Connect, and make the topics that are not there. ``consumer_concurrency``: handlers that
        run at once in this replica (the deployment's ``max_ongoing_requests``).
        """
        self._concurrency = max(1, int(consumer_concurrency))
        settings, parts = self._settings, self._connected()
        hours = -(-round(settings.adapter.result_ttl_s * 1_000) // MS_AN_HOUR)
        kept = min(max(hours, 1), RESULT_HOURS_MAX)
        self._make_topic(parts, settings.queue, settings.adapter.queues)
        self._make_topic(parts, settings.results, settings.adapter.queues, kept)
        self._make_topic(parts, settings.revoked, 1)

    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        """``func`` runs tasks called ``name`` (None: its own name); a function or a coroutine
        function. ``ClientError`` where it cannot.
        """
        self._handlers.register(func, name)

    def start_consumer(self, **_settings: Any) -> None:
        """Take tasks from now on, in threads of this process; returns at once."""
        parts = self._connected()
        with self._lock:
            if self._workers is None:
                self._workers = self._begin(parts)

    def stop_consumer(self, timeout: float = 10.0) -> None:
        """Take no more tasks, end those that run within ``timeout`` s, give back the others."""
        with self._lock:
            workers, self._workers, parts = self._workers, None, self._parts
        if workers is not None and parts is not None:
            ended = workers.tasks.stop(timeout)
            workers.ordered.stop(timeout)
            if not ended:  # some succeeded, and are acknowledged once that is written down
                with suppress(RmqError):
                    parts.producer.flush()
                workers.tasks.stop(SETTLED_S)
            workers.revocations.stop()
            workers.consumer.close()
            self._handlers.close()
        with self._lock:
            parts, self._parts = self._parts, None
        if parts is not None:
            parts.producer.close()
            parts.admin.close()

    # --- calling ----------------------------------------------------------------------------------

    def enqueue_task_sync(
        self, task_name: str, args: Any = None, kwargs: Any = None, **options: Any
    ) -> TaskResult:
        """Returns when the broker has the task. ``delay`` (or Celery's ``countdown``): seconds
        before it may begin; ``eta``: a datetime instead. ``message_group``: tasks of the same one
        run one after the other, in the order of their calls; not beside ``key_limits``.
        ``properties``: of the task's message, name -> text; one may be the key that ``key_limits``
        counts by. ``options={...}`` says the same.

        Raises ``TaskNotEncodable`` for arguments that have no form, ``MessageTooLarge``,
        ``ClientError`` for other options, and what ``Producer.send`` raises; after ``SendUnknown``
        the task may be there.
        """
        settings, now_ms = self._settings, self._clock.now_ms()
        delay_s, group, properties = _options(options, now_ms)
        if group is not None and settings.key_limits is not None:
            raise ClientError(
                "message_group beside key_limits: tasks of one group run one after the other, and "
                "no limit counts them; give one of both",
                group,
            )
        task_id = new_id(now_ms + round(delay_s * 1_000), os.urandom(10))
        call = Task(
            task_id,
            _name(task_name),
            () if args is None else args,
            {} if kwargs is None else kwargs,
            now_ms,
        )
        body, parts = encode_task(call, settings.adapter.pickle), self._connected()
        if group is not None:
            self._make_topic(parts, settings.ordered, settings.adapter.queues)
            parts.producer.send(
                settings.ordered, body, keys=[task_id], properties=properties, message_group=group
            )
        else:
            parts.producer.send(
                settings.queue,
                body,
                keys=[task_id],
                properties=properties,
                delay=timedelta(seconds=delay_s) if delay_s > 0 else None,
            )
        return TaskResult(
            id=task_id, status=Status.PENDING.value, created_at=now_ms / 1_000, result=None
        )

    def get_task_status_sync(self, task_id: str) -> TaskResult:
        """``status``: PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED; ``result``: what the
        handler returned, of a FAILURE or RETRY why. ``ResultExpired`` after ``result_ttl_s``,
        ``ClientError`` for what is no task's id.
        """
        return _result(self._connected().results.find(task_id))

    def cancel_task_sync(self, task_id: str) -> None:
        """A task that has not begun does not begin; a coroutine that runs is cancelled; another
        handler that runs goes on to its end. Nothing happens to a task that has ended.
        """
        due_ms, parts = made_ms(task_id), self._connected()
        if parts.results.find(task_id).status.final:
            return
        parts.producer.send(self._settings.revoked, task_id.encode(), keys=[task_id])
        parts.results.tell((task_id, due_ms), Status.REVOKED, 0)

    def get_metrics_sync(self) -> dict[str, Any]:
        """``waiting``: tasks that nobody has ended (those that run included, those whose time has
        not come not). In a replica also ``running``, ``ready``, ``hung``, ``waiting_for_keys``,
        ``pauses`` (a breaker is open), and since its start ``succeeded``, ``failed``, ``retried``,
        ``revoked``, ``unprocessable``, ``lost``.
        """
        found: dict[str, Any] = {"queue": self._settings.queue, "waiting": self._waiting()}
        workers = self._workers
        if workers is None:
            return found
        pauses = workers.tasks.pauses or workers.ordered.pauses
        return found | workers.tasks.stats() | {"pauses": pauses}

    def health_check_sync(self) -> list[dict[str, Any]]:
        """One row: ``queue``, ``ok``, and ``reason`` where it is not: no broker answers, or as
        many handlers hang as there are threads.
        """
        trouble = "" if self._workers is None else self._workers.tasks.trouble
        if not trouble:
            try:
                self._waiting()
            except RmqError as error:
                trouble = reason(error)
        return [{"queue": self._settings.queue, "ok": not trouble, "reason": trouble}]

    async def enqueue_task_async(
        self, task_name: str, args: Any = None, kwargs: Any = None, **options: Any
    ) -> TaskResult:
        """As ``enqueue_task_sync``, for an event loop."""
        return await asyncio.to_thread(self.enqueue_task_sync, task_name, args, kwargs, **options)

    async def get_task_status_async(self, task_id: str) -> TaskResult:
        """As ``get_task_status_sync``, for an event loop."""
        return await asyncio.to_thread(self.get_task_status_sync, task_id)

    async def cancel_task_async(self, task_id: str) -> None:
        """As ``cancel_task_sync``, for an event loop."""
        await asyncio.to_thread(self.cancel_task_sync, task_id)

    async def get_metrics_async(self) -> dict[str, Any]:
        """As ``get_metrics_sync``, for an event loop."""
        return await asyncio.to_thread(self.get_metrics_sync)

    async def health_check_async(self) -> list[dict[str, Any]]:
        """As ``health_check_sync``, for an event loop."""
        return await asyncio.to_thread(self.health_check_sync)

    # --- inside -----------------------------------------------------------------------------------

    def _connected(self) -> _Parts:
        parts = self._parts
        if parts is not None:
            return parts
        with self._lock:
            if self._parts is None:
                adapter = self._settings.adapter
                admin = Admin(adapter.discovery)
                producer = Producer(
                    discovery=adapter.discovery,
                    send_timeout_ms=round(adapter.send_timeout_s * 1_000),
                    retries=16,
                    idempotent=True,
                )
                producer.start()
                results = ResultStore(self._settings, producer, admin, self._clock)
                self._parts = _Parts(admin, producer, results)
            return self._parts

    def _make_topic(self, parts: _Parts, topic: str, queues: int, hours: int | None = None) -> None:
        if topic in self._made:
            return
        try:
            parts.admin.route(topic)
        except TopicNotFound:
            parts.admin.create_topic(topic, queues, retention_hours=hours)
        self._made.add(topic)

    def _begin(self, parts: _Parts) -> _Workers:
        settings, discovery = self._settings, self._settings.adapter.discovery
        for group in {settings.failed, settings.unprocessable} - {settings.queue}:
            parts.admin.create_group(group)
        consumer = SimpleConsumer(
            settings.queue,
            settings.queue,
            discovery=discovery,
            start_from="first",
            max_reconsume_times=RETRIES_MAX,
            ack_timeout=ACK_S,
        )
        consumer.start()
        gate = threading.Semaphore(self._concurrency)
        revocations = Revocations(discovery, settings.revoked, self._revoked)
        shared = (settings, consumer, parts.results, revocations, self._handlers)
        tasks = TaskWorker(*shared, self._concurrency, self._clock, gate)
        ordered = OrderedWorker(*shared, self._concurrency, gate, self._clock)
        for part in (revocations, tasks, ordered):
            part.start()
        return _Workers(consumer, revocations, tasks, ordered)

    def _revoked(self, task_id: str) -> None:
        workers = self._workers
        if workers is not None:
            workers.tasks.revoke(task_id)
            workers.ordered.revoke(task_id)

    def _waiting(self) -> int:
        return waiting(self._connected().admin, self._settings.queue, self._settings.ordered)


def _options(
    options: Mapping[str, Any], now_ms: int
) -> tuple[float, str | None, Mapping[str, str] | None]:
    """Delay in s, message group, and properties."""
    given = dict(options)
    inner = given.pop("options", None)
    given |= inner if isinstance(inner, Mapping) else {}
    delay, group = given.pop("delay", None), given.pop("message_group", None)
    countdown, eta = given.pop("countdown", None), given.pop("eta", None)
    properties = given.pop("properties", None)
    if given:
        raise ClientError(f"a task has no option {min(given)!r}; there are {OPTIONS}", min(given))
    if sum(one is not None for one in (delay, countdown, eta)) > 1:
        raise ClientError("delay, countdown and eta say the same: give one of them")
    if isinstance(eta, datetime):
        at = eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)
        delay = max(0.0, at.timestamp() - now_ms / 1_000)
    elif eta is not None:
        raise ClientError(f"eta must be a datetime, not {eta!r:.80}")
    delay = countdown if delay is None else delay
    delay = delay.total_seconds() if isinstance(delay, timedelta) else (delay or 0)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not delay >= 0:
        raise ClientError(f"delay must be seconds from 0 on, not {delay!r:.80}")
    if group is not None and (not isinstance(group, str) or not group):
        raise ClientError(f"message_group must be a text, not {group!r:.80}")
    if group is not None and delay:
        raise ClientError(
            "a task with a message_group has its turn, and no delay: give one of both"
        )
    return float(delay), group, properties


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ClientError(f"a task's name must be a text, not {name!r:.80}")
    return name


def _result(record: TaskRecord) -> TaskResult:
    return TaskResult(
        id=record.id,
        status=record.status.value,
        created_at=record.created_ms / 1_000,
        result=record.result,
    )
