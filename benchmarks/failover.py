"""The kill table: who dies in which mode, how long sends and reads stand still, what is lost, what
comes twice (docs/reliability.md).

A cluster with slaves, a thread that sends one message after the other, a consumer of what it sends,
and a second consumer in the middle of a backlog. Then a process is killed with -9, or stopped; the
run ends when every copy is in the sync state set again and everything acknowledged was consumed.

    outage of sends  the longest time between two acknowledgements
    outage of reads  the same between two messages of the backlog
    lost             acknowledged and never consumed
    repeated         consumed more than once, of both topics
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import rmq_ray as rmq
from benchmarks.report import Figure, percentiles
from benchmarks.scene import Scene
from rmq_ray.actors import gateway, names
from rmq_ray.config import ConsumerConfig

BROKER = "broker-a"
BACKLOG = 6_000
BACKLOG_PAUSE_S = 0.001
RUNS = 20
FEW_RUNS = 5
PATIENCE_S = 90.0
AHEAD = 100  # acknowledgements, and messages of the backlog, before the deed
MODES = (("ASYNC_MASTER, one slave", 1, "async"), ("SYNC_MASTER, two slaves", 2, "sync"))


@dataclass(frozen=True)
class Deed:
    """What is done to whom: ``do(cluster)`` returns when it is done."""

    who: str
    how: str
    do: Callable[[rmq.Cluster], None]
    runs: int = FEW_RUNS


@dataclass
class Run:
    """What one run showed; times in seconds."""

    sends_s: float
    reads_s: float
    lost: int
    repeated: int
    replaced: bool


@dataclass
class Rows:
    """All runs of one deed in one mode."""

    mode: str
    deed: Deed
    runs: list[Run] = field(default_factory=list)

    def line(self) -> str:
        """Of the table."""
        sends, reads = [run.sends_s for run in self.runs], [run.reads_s for run in self.runs]
        worst, seen = percentiles(sends, 99)[0], percentiles(reads, 99)[0]
        return (
            f"| {self.mode} | {self.deed.who} | {self.deed.how} | {len(self.runs)} | "
            f"{sum(run.lost for run in self.runs)} | "
            f"{max(run.repeated for run in self.runs)} | {statistics.median(sends):.2f} / "
            f"{worst:.2f} s | {statistics.median(reads):.2f} / {seen:.2f} s | "
            f"{sum(run.replaced for run in self.runs)} |"
        )


def run(scene: Scene) -> None:
    """Every deed in both modes; 20 times for kill -9 of the master at full scale."""
    print(
        "| mode | dies | how | runs | lost | repeated, most | sends stand still, median / "
        "p99 | reads stand still, median / p99 | another master |",
        flush=True,
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for mode, replicas, replication in MODES:
        with scene.cluster(replicas=replicas, replication=replication) as mq:
            for deed in DEEDS:
                rows = Rows(mode, deed)
                for number in range(max(1, round(deed.runs * scene.scale))):
                    rows.runs.append(
                        one_run(
                            mq,
                            f"{deed.who}-{deed.how}-{number}".replace(" ", "_").replace(",", ""),
                            deed,
                        )
                    )
                print(rows.line(), flush=True)
                if deed is DEEDS[0]:
                    told(scene, rows)


def told(scene: Scene, rows: Rows) -> None:
    """The figures that were promised."""
    reads, sends = (
        percentiles([value(run) for run in rows.runs], 99)[0]
        for value in (lambda run: run.reads_s, lambda run: run.sends_s)
    )
    scene.report.add(
        Figure(
            f"{rows.mode}: kill -9 of the master, reads, p99",
            reads,
            "s",
            "a second",
            1.0,
            1.0,
            less_is_better=True,
        )
    )
    scene.report.add(
        Figure(
            f"{rows.mode}: kill -9 of the master, sends, p99",
            sends,
            "s",
            "five seconds",
            5.0,
            1.0,
            less_is_better=True,
        )
    )


def one_run(mq: rmq.Cluster, name: str, deed: Deed) -> Run:
    """Do it once, under load."""
    before = settled(mq)["master"]
    live, stored = f"live-{name}", f"stored-{name}"
    for topic in (live, stored):
        mq.admin.create_topic(topic, queues=2)
    arrived: Counter[bytes] = Counter()
    read: list[tuple[float, bytes]] = []

    def listen(messages: Any, _ctx: Any) -> None:
        arrived.update(bytes(message.body) for message in messages)

    def listen_slowly(messages: Any, _ctx: Any) -> None:
        read.extend((time.monotonic(), bytes(message.body)) for message in messages)
        time.sleep(BACKLOG_PAUSE_S)

    with rmq.Producer(f"fill-{name}", cluster=mq.name, send_timeout_ms=30_000) as producer:
        for future in [producer.send_async(stored, b"%d" % number) for number in range(BACKLOG)]:
            future.result(60)
    slowly = ConsumerConfig(f"stored-{name}", threshold_messages=50, pull_records=10, concurrency=1)
    with (
        rmq.PushConsumer(
            f"live-{name}",
            listener=listen,
            subscriptions={live: "*"},
            cluster=mq.name,
            start_from="first",
        ),
        rmq.PushConsumer(
            slowly.group,
            listener=listen_slowly,
            subscriptions={stored: "*"},
            cluster=mq.name,
            start_from="first",
            config=slowly,
        ),
        Sender(mq, live) as sender,
    ):
        until(
            lambda: (
                len(read) > AHEAD and len(sender.times) > AHEAD and sum(arrived.values()) > AHEAD
            )
        )
        begin = time.monotonic()
        deed.do(mq)
        until(lambda: sender.since(begin + 0.5) > AHEAD)
        after = settled(mq)["master"]
        sender.stop()
        wanted = {b"%d" % number for number in sender.acknowledged}
        with contextlib.suppress(TimeoutError):
            until(lambda: wanted <= arrived.keys() and len({body for _, body in read}) == BACKLOG)
    lost = len(wanted - arrived.keys()) + BACKLOG - len({body for _, body in read})
    repeated = sum(arrived.values()) - len(arrived) + len(read) - len({body for _, body in read})
    for topic in (live, stored):
        mq.admin.delete_topic(topic)
    return Run(
        longest(sender.times, begin),
        longest([at for at, _ in read], begin),
        lost,
        repeated,
        after != before,
    )


class Sender:
    """Sends numbers from a thread of its own, each waited for."""

    def __init__(self, mq: rmq.Cluster, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.times: list[float] = []
        self._topic = topic
        self._stopped = threading.Event()
        self._producer = rmq.Producer(f"send-{topic}", cluster=mq.name, send_timeout_ms=30_000)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            with contextlib.suppress(rmq.RmqError):  # not acknowledged: nothing was promised
                if (
                    self._producer.send(self._topic, b"%d" % number).status
                    is rmq.SendStatus.SEND_OK
                ):
                    self.acknowledged.append(number)
                    self.times.append(time.monotonic())
            number += 1
            time.sleep(0.002)

    def since(self, begin: float) -> int:
        """Acknowledged after that."""
        return sum(at > begin for at in self.times[-10 * AHEAD :])

    def stop(self) -> None:
        """Returns when the last send was answered."""
        self._stopped.set()
        self._thread.join(PATIENCE_S)

    def __enter__(self) -> Sender:
        self._producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._producer.close()


# --- deeds ----------------------------------------------------------------------------------------


def kill_master(mq: rmq.Cluster) -> None:
    """Ray starts it again on its disk."""
    os.kill(pid(names.broker(mq.name, BROKER, settled(mq)["master"])), signal.SIGKILL)


def stop_master(mq: rmq.Cluster) -> None:
    """It hangs for ten seconds, then wakes as a zombie, if nobody has killed it until then."""
    stopped = pid(names.broker(mq.name, BROKER, settled(mq)["master"]))
    os.kill(stopped, signal.SIGSTOP)

    def wake() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)

    threading.Timer(10.0, wake).start()


def kill_slave(mq: rmq.Cluster) -> None:
    """The first that does not reign."""
    found = settled(mq)
    slave = next(replica for replica in found["sync_state_set"] if replica != found["master"])
    os.kill(pid(names.broker(mq.name, BROKER, slave)), signal.SIGKILL)


def kill_controller(mq: rmq.Cluster) -> None:
    """Between elections."""
    os.kill(int(gateway.call(gateway.find(names.controller(mq.name)), "pid")), signal.SIGKILL)


def kill_master_and_controller(mq: rmq.Cluster) -> None:
    """The controller dies in the middle of the election."""
    controller = int(gateway.call(gateway.find(names.controller(mq.name)), "pid"))
    kill_master(mq)
    time.sleep(1.0)
    os.kill(controller, signal.SIGKILL)


def kill_hold_service(mq: rmq.Cluster) -> None:
    """The one beside the master."""
    os.kill(
        pid(names.hold_service(mq.name, names.replica_key(BROKER, settled(mq)["master"]))),
        signal.SIGKILL,
    )


def kill_name_server(mq: rmq.Cluster) -> None:
    """The only one."""
    os.kill(pid(names.name_server(mq.name, 0)), signal.SIGKILL)


def hand_over(mq: rmq.Cluster) -> None:
    """As `rmq-ray broker promote` does."""
    gateway.call(
        gateway.find(names.controller(mq.name)),
        "promote",
        BROKER,
        None,
        False,
        timeout_s=PATIENCE_S,
    )


def stop_in_order(mq: rmq.Cluster) -> None:
    """As `rmq-ray broker stop` does, which hands over first, and `broker start`."""
    old = settled(mq)["master"]
    mq.stop_broker(BROKER, old)
    mq.start_broker(BROKER, old)


def take_out(mq: rmq.Cluster) -> None:
    """Step by step: `rmq-ray broker drain`, `promote`, `stop` of the old one; then it is started
    again.
    """
    old = settled(mq)["master"]
    mq.admin.drain_broker(BROKER)
    hand_over(mq)
    mq.stop_broker(BROKER, old)
    mq.start_broker(BROKER, old)


DEEDS = (
    Deed("master", "kill -9", kill_master, RUNS),
    Deed("master", "hangs 10 s", stop_master),
    Deed("master", "promotion by hand", hand_over),
    Deed("master", "stopped in order, and started", stop_in_order),
    Deed("master", "drained, promoted, stopped, started", take_out),
    Deed("master, then controller", "kill -9", kill_master_and_controller),
    Deed("slave", "kill -9", kill_slave),
    Deed("controller", "kill -9", kill_controller),
    Deed("hold service", "kill -9", kill_hold_service),
    Deed("name server", "kill -9", kill_name_server),
)


# --- asking ---------------------------------------------------------------------------------------


def settled(mq: rmq.Cluster) -> dict[str, Any]:
    """What the controller says once somebody is master and every copy is in the set."""
    found: dict[str, Any] = {}

    def check() -> bool:
        with contextlib.suppress(rmq.RmqError):
            found.update(
                gateway.call(gateway.find(names.controller(mq.name)), "elections", timeout_s=5.0)[
                    BROKER
                ]
            )
            return bool(found["serving"]) and len(found["sync_state_set"]) == len(found["replicas"])
        return False

    try:
        until(check)
    except TimeoutError:
        raise TimeoutError(f"the broker does not come to rest: {found}") from None
    return found


def pid(actor: str) -> int:
    """Of the process behind a name."""
    return int(gateway.call(gateway.find(actor), "status")["pid"])


def longest(times: list[float], begin: float) -> float:
    """The longest pause that ends after ``begin``."""
    return max(
        (later - earlier for earlier, later in pairwise(times) if later > begin), default=PATIENCE_S
    )


def until(check: Callable[[], bool]) -> None:
    """Wait for it; ``TimeoutError`` after ``PATIENCE_S``."""
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError("not within the patience of this benchmark")
        time.sleep(0.02)
