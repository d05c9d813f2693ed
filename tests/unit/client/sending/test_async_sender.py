"""Callbacks of futures are called once each, also of those that end while the producer closes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.client.instance.timers import Timers
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.sending.async_sender import Job, Launcher, Slots
from rmq_ray.client.sending.sending import Delivery
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import SendError
from rmq_ray.model.ids import MessageQueue


def refused(_wait: bool) -> Delivery:
    raise SendError("no room")


@pytest.mark.parametrize("closed_first", [False, True])
def test_a_callback_of_a_send_that_ends_beside_the_close_is_called_once(closed_first: bool) -> None:
    worker = Timers(SYSTEM_CLOCK, "worker")
    sending: Any = SimpleNamespace(clock=SYSTEM_CLOCK)
    launcher = Launcher(sending, Slots(4, 1 << 20), worker, lambda _delivery: None)
    outcome = BatchOutcome(MessageQueue("orders", "broker-a", 0))
    called: list[object] = []
    SendFuture(outcome, 0).add_done_callback(lambda future: called.append(future.exception()))
    job = Job(outcome, refused, None, None, SYSTEM_CLOCK.monotonic_ms() + 1_000)
    launcher.admit(job)
    if closed_first:
        worker.close()
    launcher.launch(job)
    worker.close()  # forgets what it has not begun
    launcher.abandon("the producer was closed")
    assert [str(error) for error in called] == ["no room"]
