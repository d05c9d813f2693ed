"""A port that polls while it is busy serves as ever and sleeps again; the reader of a connection
follows a crowd to its core and has its own mask between.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.remoting.busy_poll import BusyPoll, of_use
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.home_core import HomeCore, Sleeper
from rmq_ray.remoting.wire.frame import BINARY, Command
from tests.support.wire import CREDENTIALS, ECHO, Echo, Served, eventually

pytestmark = pytest.mark.timeout(60)


class Busy(Echo):
    """Each request takes a millisecond."""

    def handle(self, command: Command, peer: Any) -> Command | None:
        time.sleep(0.001)
        return super().handle(command, peer)


def connect(served: Served) -> Connection:
    return Connection(served.address, CREDENTIALS, RemotingLimits(), SYSTEM_CLOCK)


def echo(connection: Connection, body: bytes) -> bytes:
    return connection.request(Command(ECHO, body=body, serialize=BINARY), 5_000).body_bytes()


@pytest.mark.skipif(not of_use(), reason="one core, or no way to give way")
def test_a_busy_port_polls_answers_as_ever_and_sleeps_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []
    look = BusyPoll._look

    def counted(poll: BusyPoll) -> None:
        looks.append(poll.now_ms())
        look(poll)

    monkeypatch.setattr(BusyPoll, "_look", counted)
    with Served(Busy(), busy_poll_us=1_000) as served:
        connection = connect(served)
        polled = 0
        for n in range(200):
            assert echo(connection, b"%d" % n) == b"%d" % n
            polled = max(polled, len(looks))
        assert polled > 0
        assert served.call(lambda: "the loop serves other events") == "the loop serves other events"
        poll = served.listener.busy_poll
        assert poll is not None and eventually(lambda: not poll._polling)
        before = len(looks)
        time.sleep(0.05)
        assert len(looks) == before
        connection.close()


def test_a_port_that_was_not_asked_to_never_polls() -> None:
    with Served(Busy()) as served:
        connection = connect(served)
        assert echo(connection, b"x") == b"x"
        assert served.listener.busy_poll is None
        connection.close()


@pytest.mark.skipif(
    HomeCore().of_crowd(0.0) is None, reason="one core, or threads cannot be placed"
)
def test_the_reader_sleeps_on_the_crowds_core_and_answers_with_its_own_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everywhere = os.sched_getaffinity(0)
    home = HomeCore()
    monkeypatch.setattr("rmq_ray.remoting.connection.HOME", home)
    monkeypatch.setattr(Sleeper, "narrows", lambda sleeper, core: True)
    masks: list[set[int]] = []
    with Served(Echo()) as served:
        connection = connect(served)
        reader = next(
            thread
            for thread in threading.enumerate()
            if thread.name == f"rmq-reader-{served.address}"
        )
        assert reader.native_id is not None
        core = home.of_crowd(SYSTEM_CLOCK.monotonic_ms())
        done = threading.Event()

        def answered(outcome: object) -> None:
            masks.append(os.sched_getaffinity(0))  # the user's callbacks run here
            done.set()

        for _ in range(3):
            home.of_crowd(SYSTEM_CLOCK.monotonic_ms())
            done.clear()
            connection.request_async(Command(ECHO, body=b"x", serialize=BINARY), 5_000, answered)
            assert done.wait(5)
        assert eventually(lambda: os.sched_getaffinity(reader.native_id or 0) == {core})  # asleep
        time.sleep(0.15)  # the crowd is gone
        assert echo(connection, b"y") == b"y"
        assert eventually(lambda: os.sched_getaffinity(reader.native_id or 0) == everywhere)
        connection.close()
    assert masks == [everywhere] * 3
