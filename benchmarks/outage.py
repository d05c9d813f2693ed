"""What the loss of a downstream costs while messages keep coming: a listener, or handler of tasks,
all of whose calls fail for ``--seconds``, with the breaker as it comes.

    all is well, 5 s ──> gone, --seconds ──> back: until a second's worth of messages is done

Nobody does anything by hand, and it comes back in the middle of a breaker's pause. A message is
tried three times, so that without a breaker nearly all that came meanwhile would be dead letters.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

from ray.serve.schema import TaskProcessorConfig

import rmq_ray as rmq
from benchmarks.failover import until
from benchmarks.report import Figure
from benchmarks.scene import PATIENCE_S, Scene
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.admin.dead_letters import DeadLetters
from rmq_ray.protocol.breaker import Breaker
from rmq_ray.serve import RmqAdapterConfig, RmqTaskProcessorAdapter
from rmq_ray.serve.task_codec import Task, encode_task, new_id

RATE, TICK_S = 1_000, 0.02
CALM_S, SECONDS_MIN = 5.0, 5.0
TRIES, CONCURRENCY = 3, 20
DEAD_MAX, BACK_S = 50, 10.0


class Downstream:
    """What each call needs. ``calls``: how often it was asked while it was gone."""

    def __init__(self) -> None:
        self.gone = False
        self.calls = 0
        self.done: set[int] = set()
        self.repeated = 0
        self._lock = threading.Lock()

    def need(self, number: int) -> None:
        """For one message."""
        with self._lock:
            if self.gone:
                self.calls += 1
                raise ConnectionError("the database is gone")
            self.repeated += number in self.done
            self.done.add(number)


@dataclass(frozen=True)
class Plane:
    """Where messages go. ``dead``: the group of their dead letters; ``waits``: whether all are
    waited for in the end.
    """

    topic: str
    dead: str
    body: Callable[[int], bytes]
    waits: bool


@contextmanager
def consumer(mq: rmq.Cluster, downstream: Downstream) -> Iterator[Plane]:
    """A push consumer in this process."""
    plane = Plane("outage-messages", "outage-consumers", lambda number: b"%d" % number, True)
    mq.admin.create_topic(plane.topic, queues=4)

    def listen(messages: list[rmq.MessageExt], _ctx: object) -> None:
        for message in messages:
            downstream.need(int(message.body))

    with rmq.PushConsumer(
        plane.dead,
        listener=listen,
        subscriptions={plane.topic: "*"},
        cluster=mq.name,
        start_from="first",
        max_reconsume_times=TRIES - 1,
        breaker=True,
    ):
        yield plane


@contextmanager
def tasks(mq: rmq.Cluster, downstream: Downstream) -> Iterator[Plane]:
    """A replica of Serve's tasks, without Serve."""

    def body(number: int) -> bytes:
        now_ms = time.time_ns() // 1_000_000
        task = Task(new_id(now_ms, os.urandom(10)), "need", [number], {}, now_ms)
        return encode_task(task, False)

    plane = Plane("outage-tasks", "outage-tasks", body, False)
    worker = RmqTaskProcessorAdapter(
        TaskProcessorConfig(
            queue_name=plane.topic,
            adapter=RmqTaskProcessorAdapter,
            adapter_config=RmqAdapterConfig(cluster=mq.name, result_ttl_s=0, breaker=True),
            max_retries=TRIES - 1,
        )
    )
    worker.initialize(CONCURRENCY)
    worker.register_task_handle(downstream.need, "need")
    worker.start_consumer()
    try:
        yield plane
    finally:
        worker.stop_consumer()


PLANES: dict[str, Callable[[rmq.Cluster, Downstream], AbstractContextManager[Plane]]] = {
    "push consumer": consumer,
    "tasks of Serve": tasks,
}


def run(scene: Scene) -> None:
    """Dead letters, and how long after it is back calls succeed again; one after the other."""
    seconds = max(SECONDS_MIN, scene.seconds * scene.scale)
    for name, plane in PLANES.items():
        with scene.cluster() as mq:
            _outage(scene, mq, f"{name}, {seconds:.0f} s without a downstream", plane, seconds)


def _outage(
    scene: Scene,
    mq: rmq.Cluster,
    what: str,
    plane: Callable[[rmq.Cluster, Downstream], AbstractContextManager[Plane]],
    seconds: float,
) -> None:
    downstream = Downstream()
    with plane(mq, downstream) as used, Feeder(mq, used) as feeder:
        until(lambda: bool(downstream.done))
        time.sleep(CALM_S)
        downstream.gone = True
        time.sleep(seconds + Breaker().pause / 2)
        before, began = len(downstream.done), time.monotonic()
        downstream.gone = False
        until(lambda: len(downstream.done) >= before + RATE)
        back_s = time.monotonic() - began
        sent = feeder.stop()
        dead = _dead(mq, used.dead)
        if used.waits:
            until(lambda: len(downstream.done) + dead >= sent)
            scene.report.tell(f"{what}: all {sent} done", time.monotonic() - began, "s")
            dead = _dead(mq, used.dead)
    scene.report.tell(f"{what}: calls meanwhile", downstream.calls, "calls")
    scene.report.tell(f"{what}: done twice", downstream.repeated, "messages")
    scene.report.tell(f"{what}: dead letters", dead, "messages")
    alive, least = f"{what}: no dead letters", round(1 - DEAD_MAX / sent, 6)
    scene.report.add(Figure(alive, sent - dead, "messages", "sent", sent, least))
    back = f"{what}: until it goes on"
    scene.report.add(Figure(back, back_s, "s", "ten seconds", BACK_S, 1.0, less_is_better=True))


class Feeder:
    """Sends ``RATE`` messages a second from a thread of its own."""

    def __init__(self, mq: rmq.Cluster, plane: Plane) -> None:
        self._plane = plane
        self._sent = 0
        self._stopped = threading.Event()
        self._producer = rmq.Producer(f"feed-{plane.topic}", cluster=mq.name)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._errors: list[BaseException] = []

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._stopped.wait(TICK_S):
                due = round((time.monotonic() - began) * RATE)
                for number in range(self._sent, due):
                    self._producer.send_async(self._plane.topic, self._plane.body(number))
                self._sent = due
            self._producer.flush(PATIENCE_S)
        except BaseException as error:  # noqa: BLE001 - stop raises it
            self._errors.append(error)

    def stop(self) -> int:
        """How many were sent; all are stored on return."""
        self._stopped.set()
        self._thread.join(PATIENCE_S)
        if self._errors:
            raise self._errors[0]
        return self._sent

    def __enter__(self) -> Feeder:
        self._producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_S)
        self._producer.close()


def _dead(mq: rmq.Cluster, group: str) -> int:
    with closing(DeadLetters(discovery_for(mq.name, None, b""))) as found:
        rows = {row["group"]: row["messages"] for row in found.dead_letter_groups()}
    return rows.get(group, 0)
