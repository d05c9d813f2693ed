"""A port that polls while it is busy serves as ever and sleeps again."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.remoting.busy_poll import BusyPoll, of_use
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.frame import BINARY, Command
from tests.support.waiting import eventually
from tests.support.wire import CREDENTIALS, ECHO, Echo, Served

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
