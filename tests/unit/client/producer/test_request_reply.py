"""The table of requests that wait for replies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.client.producer import request_reply
from rmq_ray.client.producer.request_reply import PendingRequests, RequestReply
from rmq_ray.clock import ManualClock
from rmq_ray.errors import BrokerBusy, ClientError, RequestTimeout
from rmq_ray.remoting.wire.codes import RequestCode


@pytest.mark.seed("S3-017")
def test_requests_are_looked_at_after_3_s_and_then_every_second() -> None:
    clock = ManualClock()
    core = SimpleNamespace(
        clock=clock, requests={}, closers=[], disowners=[], worker=ClientTimers(clock, "worker")
    )
    requests = RequestReply(cast(Any, core))
    assert RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT in core.requests and len(core.closers) == 1
    first = requests._pending.add("1", "rpc", 100.0, clock.monotonic_ms())
    clock.advance_ms(2_999)
    core.worker.run_due()
    assert not first.reply.done()
    clock.advance_ms(1)
    core.worker.run_due()
    assert isinstance(first.reply.exception(0), RequestTimeout)
    second = requests._pending.add("2", "rpc", 900.0, clock.monotonic_ms())
    clock.advance_ms(1_000)
    core.worker.run_due()
    assert isinstance(second.reply.exception(0), RequestTimeout)


def test_a_request_ends_once_with_whatever_comes_first() -> None:
    table, clock = PendingRequests(clock := ManualClock()), clock
    pending = table.add("1", "rpc", 100.0, clock.monotonic_ms())
    message: Any = object()
    assert (
        table.replied("1", message)
        and not table.replied("1", message)
        and not table.replied("unknown", message)
    )
    table.failed("1", ClientError("late"))
    clock.advance_ms(200)
    table.expire()
    assert pending.reply.result(0) is message and len(table) == 0 and not pending.reply.cancel()


def test_too_many_requests_are_refused_and_closing_ends_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_reply, "PENDING_MAX", 2)
    table = PendingRequests(clock := ManualClock())
    waiting = [table.add(str(n), "rpc", 100.0, clock.monotonic_ms()) for n in range(2)]
    with pytest.raises(BrokerBusy, match="2 requests"):
        table.add("3", "rpc", 100.0, clock.monotonic_ms())
    table.close()
    assert all(isinstance(pending.reply.exception(0), ClientError) for pending in waiting)
