"""Callbacks of futures are called once each, also of those that end while the producer closes."""

from __future__ import annotations

import pytest

from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.sending.async_sender import AsyncSend, AsyncSender, InFlightWindow
from rmq_ray.client.sending.send_engine import InFlightSend
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import SendError
from rmq_ray.model.ids import MessageQueue


def refused(_wait: bool) -> InFlightSend:
    raise SendError("no room")


@pytest.mark.parametrize("closed_first", [False, True])
def test_a_callback_of_a_send_that_ends_beside_the_close_is_called_once(closed_first: bool) -> None:
    worker = ClientTimers(SYSTEM_CLOCK, "worker")
    sender = AsyncSender(SYSTEM_CLOCK, InFlightWindow(4, 1 << 20), worker, lambda _frame_id: None)
    outcome = BatchOutcome(MessageQueue("orders", "broker-a", 0))
    called: list[object] = []
    SendFuture(outcome, 0).add_done_callback(lambda future: called.append(future.exception()))
    send = AsyncSend(outcome, refused, None, None, SYSTEM_CLOCK.monotonic_ms() + 1_000)
    sender.admit(send)
    if closed_first:
        worker.close()
    sender.launch(send)
    worker.close()  # forgets what it has not begun
    sender.abandon("the producer was closed")
    assert [str(error) for error in called] == ["no room"]
