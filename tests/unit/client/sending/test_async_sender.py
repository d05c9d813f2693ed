"""Callbacks of futures are called once each, also of those that end while the producer closes."""

from __future__ import annotations

import threading

import pytest

from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.sending.async_sender import (
    BUSY_PAUSE_MS,
    AsyncSend,
    AsyncSender,
    InFlightWindow,
)
from rmq_ray.client.sending.send_engine import InFlightSend
from rmq_ray.clock import SYSTEM_CLOCK, ManualClock
from rmq_ray.errors import BrokerBusy, SendError, SendUnknown
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


def test_what_is_given_up_while_its_worker_runs_is_not_sent_any_more() -> None:
    clock = ManualClock()
    worker = ClientTimers(clock, "worker")
    sender = AsyncSender(clock, InFlightWindow(4, 1 << 20), worker, lambda _frame_id: None)
    outcome, tries = BatchOutcome(MessageQueue("orders", "broker-a", 0)), list[bool]()

    def busy(wait: bool) -> InFlightSend:
        tries.append(wait)
        raise BrokerBusy("no frame id is free")

    send = AsyncSend(outcome, busy, None, None, clock.monotonic_ms() + 1_000)
    sender.admit(send)
    worker.after(0, lambda: sender.launch(send))
    worker._thread = threading.current_thread()
    worker.run_due()
    assert (tries, sender.waiting, sender.admitted) == ([False], 1, 1)
    assert sender.until_ms == send.until_ms
    sender.abandon("the program ended")
    clock.advance_ms(BUSY_PAUSE_MS)
    worker.run_due()
    assert len(tries) == 1 and isinstance(outcome.error, SendUnknown)
