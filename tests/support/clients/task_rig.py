"""A replica's workers of tasks on a clock that stands still, without brokers and threads: what they
take lies in ``waiting``, what they tell is in ``told``. The test's own thread does their work.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ray.serve.schema import TaskProcessorConfig

from rmq_ray.client.messages.listener import OrderlyContext
from rmq_ray.client.pop.receipts import ClientLease, SettleTask
from rmq_ray.clock import ManualClock
from rmq_ray.errors import RmqError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.serve.handlers import TaskHandlers
from rmq_ray.serve.ordered_worker import OrderedWorker
from rmq_ray.serve.result_store import ResultStore
from rmq_ray.serve.settings import TaskSettings
from rmq_ray.serve.task_codec import Status, Task, TaskRecord, encode_task
from rmq_ray.serve.task_worker import Held, TaskWorker

BREAKER = {"window": 4, "pause": 5.0}
PAUSE_MS = 5_000
CALLS_AT_ONCE = 4
_numbers = itertools.count()


@dataclass
class TaskMessage:
    """One task as it was received. ``settled``: what was said of it. ``away``: what its broker
    raises instead of taking it back.
    """

    name: str
    number: int = 0
    reconsume_times: int = 0
    born_ms: int = 0
    queue_id: int = 0
    all_properties: dict[str, str] = field(default_factory=dict)
    message_id: str = field(default_factory=lambda: f"message {next(_numbers)}")
    settled: list[str] = field(default_factory=list)
    away: Exception | None = None
    _i: int = 0

    @property
    def keys(self) -> list[str]:
        return [f"{self.name}-{self.number}"]

    @property
    def body(self) -> bytes:
        return encode_task(Task(self.keys[0], self.name, (), {}, self.born_ms), False)

    @property
    def _lease(self) -> ClientLease:
        return ClientLease("b", "t", self.queue_id, self.number, 1, 0, cast(Any, self))

    def settle(self, tasks: Sequence[SettleTask]) -> None:
        """All that are given back at once, by the first one's lease."""
        if self.away is not None:
            raise self.away
        for task in tasks:
            cast(TaskMessage, task.lease.settler).settled.append("given back")

    def nack(self, delay: float = 0.0) -> None:
        self.settled.append(f"again in {delay:g} s")

    def ack(self, wait: bool = True) -> None:
        self.settled.append("done")


@dataclass(frozen=True)
class ToldRecord(TaskRecord):
    """What was told, and of which message."""

    message_id: str | None


class TaskRig:
    """Of one queue of tasks. Tasks called ``calls`` need the downstream, ``poison`` always fails.
    ``stepped``: ids of tasks in the order in which they were run. ``during``: what happens inside
    of a call; inside of that call it is nothing. Time goes on while a thread waits for tasks.
    """

    def __init__(self, max_retries: int = 0, **adapter: Any) -> None:
        config = TaskProcessorConfig(
            queue_name="images",
            adapter_config={"name_servers": ["127.0.0.1:9876"], "breaker": BREAKER, **adapter},
            max_retries=max_retries,
        )
        self.settings = TaskSettings.of(config)
        self.clock = ManualClock()
        self.waiting: deque[TaskMessage] = deque()
        self.asked: list[tuple[int, float]] = []
        self.told: list[ToldRecord] = []
        self.dead: list[tuple[str, str]] = []
        self.gone = True
        self.runs = 0
        self.stepped: list[str] = []
        self.during: Callable[[], object] = lambda: None
        self.revoked: set[str] = set()
        self.away: RmqError | None = None
        """Why no record can be written."""
        handlers = TaskHandlers(60.0)
        handlers.register(self._calls, "calls")
        handlers.register(self._poison, "poison")
        rig = cast(Any, self)
        shared = (self.settings, rig, rig, rig, handlers)
        gate = threading.Semaphore(CALLS_AT_ONCE)
        self.tasks = TaskWorker(*shared, 1, self.clock, gate)
        self.ordered = OrderedWorker(*shared, 1, gate, self.clock)

    def _calls(self) -> None:
        self.runs += 1
        during, self.during = self.during, lambda: None
        during()
        if self.gone:
            raise ConnectionError("the database is gone")

    def _poison(self) -> None:
        self.runs += 1
        raise ValueError("for its own sake")

    def put(self, name: str, count: int = 1, **properties: str) -> list[TaskMessage]:
        """So many tasks wait at the broker."""
        made = [TaskMessage(name, number, all_properties=properties) for number in range(count)]
        self.waiting.extend(made)
        return made

    def step(self) -> Held:
        """One thread takes a task, and does with it what it does."""
        held = self.tasks._next()
        assert held is not None
        self.stepped.append(held.key[0])
        assert self.tasks._run(held)
        return held

    def hand_out(self, message: TaskMessage) -> tuple[Any, OrderlyContext]:
        """A task of the ordered ones; what is answered."""
        ctx = OrderlyContext("g", MessageQueue("t", "b", message.queue_id))
        return self.ordered._listen(cast(Any, [message]), ctx), ctx

    def statuses(self, message: TaskMessage) -> list[Status]:
        """What was told of a task, the oldest first."""
        return [record.status for record in self.told if record.id == message.keys[0]]

    def tries(self, message: TaskMessage) -> int:
        """As they were told last."""
        return [record.tries for record in self.told if record.id == message.keys[0]][-1]

    # --- as a SimpleConsumer, a ResultStore, Revocations ------------------------------------------

    def receive(self, count: int, *, invisible: float, wait: float) -> list[TaskMessage]:
        self.asked.append((count, wait))
        if not self.waiting:
            self.clock.advance_ms(wait * 1_000)
        return [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]

    def dead_letter(self, message: TaskMessage, why: str, group: str) -> None:
        self.dead.append((message.keys[0], why))

    def write(
        self,
        key: tuple[str, int],
        status: Status,
        tries: int,
        result: Any = None,
        told: Callable[[None], None] | None = None,
        message_id: str | None = None,
    ) -> None:
        if self.away is not None:
            raise self.away
        self.told.append(ToldRecord(key[0], status, tries, result, key[1], 0, message_id))
        if told is not None:
            told(None)

    tell: Any = ResultStore.tell

    def records(self, task_id: str, message_id: str | None = None) -> list[ToldRecord]:
        kept = self.told if self.settings.adapter.result_ttl_s else []
        return [
            record
            for record in reversed(kept)
            if record.id == task_id and message_id in (None, record.message_id)
        ]

    def __contains__(self, task_id: str) -> bool:
        return task_id in self.revoked
