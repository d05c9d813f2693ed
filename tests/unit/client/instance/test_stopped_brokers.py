"""What is known of brokers that were stopped on purpose, and when it is asked."""

from __future__ import annotations

import threading

import pytest

from rmq_ray.client.instance import stopped_brokers
from rmq_ray.client.instance.stopped_brokers import StoppedBrokers
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClusterError
from rmq_ray.ports import ClusterAddress
from tests.support.waiting import eventually

HELPS = "broker-a stopped: start it with `rmq-ray broker start broker-a`"


class ControlPlane:
    """Tells which brokers are stopped, once ``answers`` is set."""

    def __init__(self, **stopped: bool) -> None:
        self.stopped = {f"broker-{name}": is_stopped for name, is_stopped in stopped.items()}
        self.asked = 0
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()

    def lookup(self) -> ClusterAddress:
        return ClusterAddress("c", ("127.0.0.1:1",))

    def stopped_brokers(self) -> dict[str, bool]:
        self.asked += 1
        self.answers.wait(20)
        if self.fails:
            raise ClusterError("it does not run")
        return self.stopped


class NoControlPlane:
    """Addresses are known, and nothing else."""

    def lookup(self) -> ClusterAddress:
        return ClusterAddress("c", ("127.0.0.1:1",))


def test_nobody_waits_for_the_answer_and_it_counts_for_a_second() -> None:
    clock, there = ManualClock(), ControlPlane(a=True, b=False)
    there.answers.clear()
    stopped = StoppedBrokers(there, clock, "t")
    assert [stopped.why(["broker-a"]) for _ in range(3)] == [None] * 3, "asked once, not waited for"
    there.answers.set()
    eventually(lambda: stopped.why(["broker-a"]) == HELPS)
    assert stopped.why(["broker-b"]) is stopped.why(["broker-a", "broker-b"]) is None
    assert stopped.why([]) is stopped.why(["broker-c"]) is None
    assert there.asked == 1
    there.stopped = {"broker-a": False, "broker-b": False}
    clock.advance_ms(1_500)
    assert stopped.why(["broker-a"]) is None, "it may have been started meanwhile"
    eventually(lambda: there.asked == 2)


def test_who_may_wait_is_told_of_any_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopped_brokers, "COUNTS_MS", 60_000.0)
    assert StoppedBrokers(ControlPlane(a=True, b=False), ManualClock(), "t").why_some(60_000) == (
        HELPS
    )
    assert StoppedBrokers(ControlPlane(a=False), ManualClock(), "t").why_some(60_000) is None


@pytest.mark.parametrize("kind", ["none", "fails", "hangs"])
def test_without_a_control_plane_that_answers_nobody_knows(kind: str) -> None:
    there = ControlPlane(a=True)
    there.fails = kind == "fails"
    if kind == "hangs":
        there.answers.clear()
    discovery = NoControlPlane() if kind == "none" else there
    stopped = StoppedBrokers(discovery, ManualClock(), "t")
    assert stopped.why_some(20) is stopped.why(["broker-a"]) is None
    there.answers.set()
