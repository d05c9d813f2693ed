"""A cluster with slaves on Ray whose master is taken away: who is master, how to prevent a restart,
and a sender that remembers what was acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rmq_ray as rmq
from rmq_ray.actors import gateway, names
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually

BROKER = "broker-a"


def election(mq: rmq.Cluster) -> dict[str, Any]:
    """What the controller says of the broker; waits for a controller that restarts."""

    def ask() -> dict[str, Any] | None:
        with contextlib.suppress(rmq.RmqError):
            return dict(
                gateway.call(gateway.find(names.controller(mq.name)), "elections", timeout_s=5.0)[
                    BROKER
                ]
            )
        return None

    return eventually(ask, 40)


def replaced(mq: rmq.Cluster, old: int, timeout_s: float = 40.0) -> dict[str, Any]:
    """The election, once another replica than ``old`` is the serving master."""

    def check() -> dict[str, Any] | None:
        found = election(mq)
        return found if found["serving"] and found["master"] != old else None

    return eventually(check, timeout_s)


def complete(mq: rmq.Cluster) -> dict[str, Any]:
    """The election, once somebody is master and every replica is in the set; others may send."""
    return eventually(lambda: _complete(election(mq)), 60)


def settled(mq: rmq.Cluster) -> dict[str, Any]:
    """The same, and all have the same log: nobody may send meanwhile."""

    def check() -> dict[str, Any] | None:
        found = _complete(election(mq))
        ends = {row.get("end") for row in found["replicas"].values()} if found else ()
        return found if len(ends) == 1 else None

    return eventually(check, 60)


def _complete(found: dict[str, Any]) -> dict[str, Any] | None:
    in_set = len(found["sync_state_set"]) == len(found["replicas"])
    return found if found["serving"] and in_set else None


def pid_of(mq: rmq.Cluster, replica: int) -> int:
    handle = gateway.find(names.broker(mq.name, BROKER, replica))
    return int(eventually(lambda: _status(handle).get("pid"), 40))


def controller_pid(mq: rmq.Cluster) -> int:
    return int(gateway.call(gateway.find(names.controller(mq.name)), "pid"))


def store_of(mq: rmq.Cluster, replica: int) -> Path:
    plan = gateway.call(gateway.find(names.controller(mq.name)), "plan")
    return Path(plan.copies(BROKER)[replica].store.path)


@contextlib.contextmanager
def without_its_disk(mq: rmq.Cluster, replica: int) -> Iterator[None]:
    """Its process is killed (-9) and finds no store when Ray starts it again; at the end the store
    is back, and so is the replica.
    """
    store = store_of(mq, replica)
    away = store.with_name(store.name + ".away")
    pid = pid_of(mq, replica)
    store.rename(away)
    os.kill(pid, signal.SIGKILL)
    try:
        yield
    finally:
        again = eventually(lambda: found if (found := pid_of(mq, replica)) != pid else None, 40)
        with contextlib.suppress(OSError):
            store.rmdir()
        away.rename(store)
        os.kill(again, signal.SIGKILL)


def _status(handle: Any) -> dict[str, Any]:
    try:
        return dict(gateway.call(handle, "status", timeout_s=5.0))
    except rmq.RmqError:
        return {}


class Numbered:
    """Sends numbers from a thread; ``acknowledged``: those whose send returned SEND_OK, with the
    times. What fails is counted and gone past.
    """

    def __init__(self, mq: rmq.Cluster, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.times: list[float] = []
        self.failed: list[BaseException] = []
        self._stop = threading.Event()
        self._producer = rmq.Producer(
            f"numbered-{uuid.uuid4().hex[:6]}",
            cluster=mq.name,
            send_timeout_ms=30_000,
            raise_on_status=False,
        )
        self._thread = threading.Thread(target=self._run, args=(topic,), daemon=True)

    def _run(self, topic: str) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                if self._producer.send(topic, b"%d" % number).status is rmq.SendStatus.SEND_OK:
                    self.acknowledged.append(number)
                    self.times.append(time.monotonic())
            except rmq.RmqError as error:
                self.failed.append(error)
            number += 1
            time.sleep(0.005)

    def __enter__(self) -> Numbered:
        self._producer.start()
        self._thread.start()
        eventually(lambda: len(self.acknowledged) > 20)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(40)
        self._producer.close()

    def goes_on(self, timeout_s: float = 40.0) -> None:
        """Wait until fifty more are acknowledged."""
        before = len(self.acknowledged)
        eventually(lambda: len(self.acknowledged) > before + 50, timeout_s)

    def outage_s(self) -> float:
        """The longest time between two acknowledgements."""
        return max(
            later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)
        )


def check_all_came(sender: Numbered, collector: Collector, repeats_max: int = 200) -> None:
    """Every acknowledged number was consumed; few came twice."""
    wanted = set(sender.acknowledged)
    eventually(lambda: wanted <= {int(body) for body in collector.bodies}, 60)
    repeated = sum(count - 1 for count in Counter(collector.bodies).values())
    assert repeated <= repeats_max, repeated
