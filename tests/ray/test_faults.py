"""Processes die and hang: nothing acknowledged is lost, nothing is stored twice, everything goes
on.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import rmq_ray as rmq
from tests.support.brokers.failing_over import store_of
from tests.support.clients.collecting import Collector
from tests.support.outcomes import judging
from tests.support.stores.small_store import opened
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def mq(mortal: rmq.Cluster) -> rmq.Cluster:
    """These tests kill parts of it."""
    return mortal


def pid_of(mq: rmq.Cluster, actor: str) -> int:
    return int(eventually(lambda: mq.status()[actor].get("pid"), 90))


def wake(pid: int) -> None:
    """Unless its supervisor has ended it."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


class Sender:
    """Sends numbered messages from a thread until told to stop; keeps what was acknowledged."""

    def __init__(self, mq: rmq.Cluster, topic: str) -> None:
        self.acknowledged: list[tuple[int, rmq.SendResult]] = []
        self.times: list[float] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._producer = rmq.Producer(
            f"sender-{uuid.uuid4().hex[:6]}", cluster=mq.name, send_timeout_ms=30_000
        )
        self._thread = threading.Thread(target=self._run, args=(topic,), daemon=True)

    def _run(self, topic: str) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                result = self._producer.send(topic, b"%d" % number)
            except rmq.RmqError as error:
                self.errors.append(error)
                return
            self.acknowledged.append((number, result))
            self.times.append(time.monotonic())
            number += 1
            time.sleep(0.005)

    def __enter__(self) -> Sender:
        self._producer.start()
        self._thread.start()
        eventually(lambda: len(self.acknowledged) > 20)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(40)
        self._producer.close()

    def outage_s(self) -> float:
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False))


def check_nothing_lost(sender: Sender, collector: Collector) -> None:
    """Every acknowledged message came; each number was stored at one place only, the acknowledged
    one.
    """
    assert not sender.errors
    eventually(lambda: len(set(collector.places)) >= len(sender.acknowledged), 60)
    stored = {
        place: int(body) for place, body in zip(collector.places, collector.bodies, strict=True)
    }
    with judging():
        assert all(
            stored.get((r.queue.broker_name, r.queue.queue_id, r.queue_offset)) == number
            for number, r in sender.acknowledged
        )
        assert max(Counter(stored.values()).values()) == 1


@pytest.mark.parametrize("role", ["broker-a/0", "broker-a/hold", "name-server-0", "controller"])
@pytest.mark.seed("S0-018")
def test_after_kill_9_of_a_role_everything_goes_on_without_loss(mq: rmq.Cluster, role: str) -> None:
    topic = f"kill-{role.replace('/', '-')}"
    mq.admin.create_topic(topic, queues=2)
    collector = Collector()
    pid = pid_of(mq, role) if role != "controller" else controller_pid(mq)
    with rmq.PushConsumer(
        f"{topic}-group",
        listener=collector,
        subscriptions={topic: "*"},
        start_from="first",
        cluster=mq.name,
    ):
        with Sender(mq, topic) as sender:
            os.kill(pid, signal.SIGKILL)
            before = len(sender.acknowledged)
            eventually(lambda: len(sender.acknowledged) > before + 50 or sender.errors, 40)
            eventually(
                lambda: (pid_of(mq, role) if role != "controller" else controller_pid(mq)) != pid,
                40,
            )
        check_nothing_lost(sender, collector)


def controller_pid(mq: rmq.Cluster) -> int:
    from rmq_ray.actors import gateway, names

    def ask() -> int | None:
        try:
            return int(gateway.call(gateway.find(names.controller(mq.name)), "pid", timeout_s=5.0))
        except rmq.ClusterError:
            return None

    return int(eventually(ask, 40))


FLOOR_S = 1.0
"""What the promised times assume of a machine: that a process which only loads what a broker's
process loads starts within it.
"""
MEDIAN_S, WORST_S = 1.5, 5.0


def bare_start_s() -> float:
    """What such a process takes here, now, in median."""
    took = []
    for _ in range(3):
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", "import rmq_ray.actors.broker, rmq_ray.server.broker.broker"],
            check=True,
            timeout=60,
        )
        took.append(time.monotonic() - begun)
    return statistics.median(took)


def keep_the_floor() -> None:
    """Times nothing on a machine that is slower, or busier, than the promise assumes."""
    took_s = bare_start_s()
    if took_s > FLOOR_S:
        pytest.skip(f"a bare process takes {took_s:.2f} s to start, the floor is {FLOOR_S} s")


@pytest.mark.alone
def test_a_broker_takes_sends_again_within_one_and_a_half_seconds_of_kill_9(
    mq: rmq.Cluster,
) -> None:
    """The promised limits, as median and worst of several kills. The floor is run first, and again
    where a limit was missed.
    """
    keep_the_floor()
    mq.admin.create_topic("outage", queues=1)
    outages = []
    for _ in range(5):
        with Sender(mq, "outage") as sender:
            os.kill(pid_of(mq, "broker-a/0"), signal.SIGKILL)
            before = len(sender.acknowledged)
            eventually(
                lambda sender=sender, before=before: (
                    len(sender.acknowledged) > before + 20 or sender.errors
                ),
                40,
            )
        assert not sender.errors
        outages.append(sender.outage_s())
    if statistics.median(outages) > MEDIAN_S or max(outages) > WORST_S:
        keep_the_floor()
    assert statistics.median(outages) <= MEDIAN_S and max(outages) <= WORST_S, outages


@pytest.mark.alone
def test_a_parked_pull_is_answered_within_five_milliseconds_of_the_arrival(mq: rmq.Cluster) -> None:
    mq.admin.create_topic("quick", queues=1)
    arrived: list[float] = []

    def listener(messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
        arrived.append(time.perf_counter())

    times = []
    with (
        rmq.PushConsumer(
            "quick-group",
            listener=listener,
            subscriptions={"quick": "*"},
            start_from="first",
            cluster=mq.name,
        ),
        rmq.Producer(cluster=mq.name) as p,
    ):
        for number in range(60):
            time.sleep(0.02)  # long enough for the pull to be parked again
            begin = time.perf_counter()
            p.send("quick", b"x")
            eventually(lambda number=number: len(arrived) > number, every_s=0.0005)
            times.append((arrived[number] - begin) * 1000)
    assert statistics.median(times[10:]) <= 5.0, times


@pytest.mark.alone
def test_with_the_hold_service_stopped_a_pull_is_answered_a_second_after_its_deadline(
    mq: rmq.Cluster,
) -> None:
    """SIGSTOP: the process lives and says nothing. The broker ends held pulls itself, one second
    late.
    """
    mq.admin.create_topic("stopped-hold", queues=1)
    pid = pid_of(mq, "broker-a/hold")
    with rmq.PullConsumer("stopped-hold-group", cluster=mq.name) as pc:
        (queue,) = pc.fetch_message_queues("stopped-hold")

        def held_s() -> float:
            begin = time.monotonic()
            assert pc.pull(queue, offset=0, wait=1.0).status is rmq.PullStatus.NO_NEW_MSG
            return time.monotonic() - begin

        in_time = held_s()
        os.kill(pid, signal.SIGSTOP)
        try:
            late = held_s()
        finally:
            wake(pid)
    assert 0.95 <= in_time <= 1.8 and 1.95 <= late <= 3.0


CROWD = 80
"""Pulls of one queue: more than the broker wakes without asking the hold service."""


@pytest.mark.alone
def test_many_pulls_are_woken_by_the_hold_service_and_without_it_a_second_late(
    mq: rmq.Cluster,
) -> None:
    mq.admin.create_topic("crowd", queues=1)
    pid = pid_of(mq, "broker-a/hold")
    with (
        rmq.PullConsumer("crowd-group", cluster=mq.name) as pc,
        rmq.Producer(cluster=mq.name) as p,
        ThreadPoolExecutor(CROWD) as threads,
    ):
        (queue,) = pc.fetch_message_queues("crowd")

        def answered(offset: int, stop: bool) -> float:
            """Seconds from a send until every pull has its message."""
            pulls = [threads.submit(pc.pull, queue, offset=offset, wait=2.0) for _ in range(CROWD)]
            eventually(lambda: mq.status()["broker-a/hold"]["parked"] >= CROWD)
            if stop:
                os.kill(pid, signal.SIGSTOP)
            try:
                begin = time.monotonic()
                p.send("crowd", b"x")
                assert {len(pull.result(10).messages) for pull in pulls} == {1}
                return time.monotonic() - begin
            finally:
                wake(pid)

        before = mq.status()["broker-a/hold"]["wakes"]
        assert answered(0, stop=False) < 1.0
        assert mq.status()["broker-a/hold"]["wakes"] - before >= CROWD, (
            "the hold service woke them, not the broker"
        )
        assert 1.0 < answered(1, stop=True) <= 4.0


def test_a_broker_that_hangs_is_killed_by_the_controller_and_comes_back(mq: rmq.Cluster) -> None:
    mq.admin.create_topic("hang", queues=1)
    pid = pid_of(mq, "broker-a/0")
    with rmq.Producer(cluster=mq.name, send_timeout_ms=60_000) as p:
        p.send("hang", b"before")
        os.kill(pid, signal.SIGSTOP)
        after = p.send("hang", b"after", timeout=60)
    assert pid_of(mq, "broker-a/0") != pid
    with judging():
        assert after.queue_offset == 1
        assert mq.admin.describe_topic("hang")[0]["max_offset"] == 2


def test_clients_with_a_route_go_on_while_the_name_server_is_dead(mq: rmq.Cluster) -> None:
    mq.admin.create_topic("routed", queues=1)
    collector = Collector()
    with (
        rmq.PushConsumer(
            "routed-group",
            listener=collector,
            subscriptions={"routed": "*"},
            start_from="first",
            cluster=mq.name,
        ),
        rmq.Producer(cluster=mq.name) as p,
    ):
        p.send("routed", b"0")
        collector.wait_for(1)
        pid = pid_of(mq, "name-server-0")
        os.kill(pid, signal.SIGSTOP)
        try:
            for i in range(1, 50):
                p.send("routed", b"%d" % i)
            collector.wait_for(50)
        finally:
            wake(pid)
    assert sorted(map(int, collector.bodies)) == list(range(50))


def test_a_restarted_broker_refuses_another_store_in_the_place_of_its_own(
    mq: rmq.Cluster, tmp_path: Path
) -> None:
    own, foreign, aside = store_of(mq, 0), tmp_path / "other", tmp_path / "aside"
    opened(foreign, create=True).shutdown()
    pid = pid_of(mq, "broker-a/0")
    own.rename(aside)
    foreign.rename(own)
    os.kill(pid, signal.SIGKILL)
    broken = eventually(
        lambda: (found := mq.status()["broker-a/0"]).get("state") == "broken" and found, 90
    )
    assert "StoreForeign" in broken["error"]
    own.rename(foreign)
    aside.rename(own)
    os.kill(int(broken["pid"]), signal.SIGKILL)
    assert eventually(lambda: mq.status()["broker-a/0"].get("state") == "serving", 90)
