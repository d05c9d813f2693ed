"""Sends are refused when the disk cannot keep up, instead of being queued (protocol-behaviour
9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import FlushMode
from rmq_ray.errors import BrokerBusy
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.server.send.send_path import FastFailure
from tests.support.brokers.broker_bench import Bench


class Loop:
    """Turns of a loop, one at a time."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def made(stale_ms: int = 200) -> tuple[FastFailure, ManualClock, Loop]:
    clock, loop = ManualClock(), Loop()
    return FastFailure(clock, lambda call: loop.calls.append(call), stale_ms, 1_000), clock, loop


def append(fast: FastFailure, clock: ManualClock, took_ms: float) -> None:
    began = fast.now()
    clock.advance_ms(took_ms)
    fast.ended(began)


@pytest.mark.seed("S0-015")
def test_what_gathered_during_slow_writes_is_refused_until_the_loop_has_been_through() -> None:
    fast, clock, loop = made()
    fast.check_disk()
    append(fast, clock, 150.0)
    fast.check_disk()
    append(fast, clock, 60.0)
    for _ in range(2):
        with pytest.raises(BrokerBusy, match=r"\[TIMEOUT_CLEAN_QUEUE\].*210ms"):
            fast.check_disk()
        loop.turn()
    fast.check_disk()
    assert not loop.calls, "nothing runs while the disk is well"


def test_fast_writes_are_not_added_up_and_zero_switches_off() -> None:
    fast, clock, loop = made()
    for _ in range(1_000):
        append(fast, clock, 10.0)
    fast.check_disk()
    assert not loop.calls
    fast, clock, loop = made(stale_ms=0)
    append(fast, clock, 9_000.0)
    fast.check_disk()


def test_flushes_that_hang_refuse_new_sends() -> None:
    fast, _, _ = made()
    fast.check_disk(1_000.0)
    with pytest.raises(BrokerBusy, match="PCBUSY_CLEAN_QUEUE"):
        fast.check_disk(1_001.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def slow(bench: Bench, took_ms: float, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every append takes that long; counts them."""
    store = bench.core.keeper.store
    assert store is not None
    kind, done = type(store), []
    for name in ("append_frame", "append_message", "append_batch_body"):
        real: Any = getattr(kind, name)

        def late(*arguments: Any, real: Any = real, **named: Any) -> Any:
            bench.clock.advance_ms(took_ms)
            done.append(1)
            return real(*arguments, **named)

        monkeypatch.setattr(kind, name, late)
    return done


def send_single(bench: Bench, code: int = RequestCode.SEND_MESSAGE_V2) -> Any:
    header = SendHeader(
        producer_group="g", topic="orders", queue_id=0, sys_flag=0, born_ms=1, flag=0
    )
    return bench.ask(code, header.to_v2(), b"body")


def test_a_broker_answers_busy_to_sends_behind_a_slow_write_and_takes_them_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_single(bench)
    bench.offload.drain()
    done = slow(bench, 300.0, monkeypatch)
    first, refused = send_single(bench), send_single(bench)
    assert (first.code, refused.code, len(done)) == (0, ResponseCode.SYSTEM_BUSY, 1)
    assert (
        "TIMEOUT_CLEAN_QUEUE" in (refused.remark or "") and bench.core.status()["refused_busy"] == 1
    )
    for _ in range(3):
        bench.offload.drain()
    assert send_single(bench).code == 0


def test_with_sync_flush_sends_are_refused_while_the_oldest_waits_for_more_than_a_second(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH).open()
    try:
        acks = bench.core.acks
        acks.wait(1 << 40, 0, 10, bench.clock.monotonic_ms(), lambda _code: None)
        bench.clock.advance_ms(1_001)
        assert acks.oldest_wait_ms(bench.clock.monotonic_ms()) == 1_001
        assert send_single(bench).code == ResponseCode.SYSTEM_BUSY
        acks.fail_all()
        assert acks.oldest_wait_ms(bench.clock.monotonic_ms()) == 0
    finally:
        bench.close()
