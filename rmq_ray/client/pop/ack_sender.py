"""Tells brokers what became of received messages: at once and answered, or gathered and soon
(protocol-behaviour 26).

    settle ──> one request for each broker ── no answer: 20, 40, .. 200 ms, again
                   └─> answered, or the time is over
    settle_later ──> gathered ── 5 ms ──> the same, in the broker's lane

A broker's lane is a thread that tells it one thing after the other. Who settles messages of one
broker tells it himself; of several ones, all lanes do it at the same time.

Decides when a request is repeated (always safe: brokers answer a repeat as the first time) and
which errors users see. Does not decide what is stale: the broker does.

Invariants: nothing gathered is dropped but for being stale, refused, or unanswered until its time
was over (both counted and logged); a broker that is away holds up nothing of another one's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import PASSING
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.pop.receipts import ClientLease, SettleTask
from rmq_ray.errors import (
    ClientError,
    ConnectFailed,
    ConsumeError,
    HandshakeFailed,
    MalformedFrame,
    ReceiptStale,
    RemotingError,
    RmqError,
    TooManyRequests,
)
from rmq_ray.guard import attempt
from rmq_ray.protocol.pop import bits, mask_bytes, mask_of
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.headers import FailedTry
from rmq_ray.remoting.wire.pops import (
    SETTLEMENTS_MAX,
    Settle,
    Settlement,
    pack_settle,
    unpack_stale,
)

GATHER_MS = 5.0
REQUEST_MS = 3_000
FIRST_WAIT_MS, WAIT_MS_MAX = 20.0, 200.0
EXTEND_MS_MIN = 500.0
LATE_S = 60.0  # opening a connection has a time-out of its own

log = logging.getLogger("rmq_ray.client.simple")
Answer = TypeVar("Answer")


def not_sent(error: BaseException) -> bool:
    """Whether nothing of a request got to a broker."""
    return isinstance(error, ConnectFailed | HandshakeFailed | TooManyRequests)


def _by_broker(tasks: Sequence[SettleTask]) -> dict[str, list[SettleTask]]:
    found: dict[str, list[SettleTask]] = {}
    for task in tasks:
        found.setdefault(task.lease.broker_name, []).append(task)
    return found


def _kept(tasks: Sequence[SettleTask]) -> Sequence[SettleTask]:
    """Without extensions of what was settled while they waited for their lane: they would take the
    place of a ``nack``'s delay.
    """
    if not _extends(tasks[0]):
        return tasks
    left = [
        replace(task, mask=task.mask & ~(task.lease.done | task.lease.returned)) for task in tasks
    ]
    return [task for task in left if task.mask]


def _extends(task: SettleTask) -> bool:
    return task.action is Settle.CHANGE and task.failed is None and task.delay_ms > 0


def _not_asked(broker_name: str) -> ConnectFailed:
    return ConnectFailed(
        f"broker {broker_name} did not answer in time to what it was told before; nothing was sent"
    )


@dataclass(slots=True)
class SettleCounters:
    """Messages."""

    acknowledged: int = 0
    returned: int = 0
    stale: int = 0
    unanswered: int = 0


class AckSender:
    """Of one consumer. ``timeout_ms``: how long a broker is asked again."""

    def __init__(self, client: ClientInstance, group: str, timeout_ms: int) -> None:
        self._client = client
        self._clock = client.clock
        self._group = group
        self._timeout_ms = timeout_ms
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._gathered: dict[str, dict[ClientLease, int]] = {}
        """By broker."""
        self._leaving: set[str] = set()
        """Brokers whose lanes are to tell what is gathered."""
        self._lanes: dict[str, DelayedCalls] = {}
        self._stop = threading.Event()
        self.counters = SettleCounters()

    def settle(self, tasks: Sequence[SettleTask]) -> None:
        """See ``receipts.Settler``."""
        self._check_process()
        timeout_ms, span_ms = float(self._timeout_ms), tasks[0].delay_ms
        if _extends(tasks[0]):
            # who extends has others to extend
            timeout_ms = min(timeout_ms, max(span_ms / 3, EXTEND_MS_MIN))
        stale = self._settle(tasks, self._clock.monotonic_ms() + timeout_ms)
        if stale:
            what = "the message's time was" if stale == 1 else f"the time of {stale} messages was"
            raise ReceiptStale(
                f"{what} over: somebody else gets it; ask for more time at receive(), or "
                f"extend() it while you work",
                stale,
            )

    def settle_later(self, tasks: Sequence[SettleTask]) -> None:
        """See ``receipts.Settler``; acknowledgements only. After ``close`` at once."""
        self._check_process()
        with self._lock:
            for task in tasks:
                gathered = self._gathered.setdefault(task.lease.broker_name, {})
                gathered[task.lease] = gathered.get(task.lease, 0) | task.mask
            new = self._gathered.keys() - self._leaving
            self._leaving |= new
        try:
            for name in new:
                self._in_lane(name, partial(self._leave_for, name), GATHER_MS)
        except BaseException:  # Ctrl-C; the next call tells them
            with self._lock:
                self._leaving -= new
            raise

    def give_back_later(self, tasks: Sequence[SettleTask]) -> None:
        """See ``receipts.Settler``."""
        if os.getpid() != self._process or self._stop.is_set():  # or they are the parent's
            return
        until_ms = self._until()
        for name, some in _by_broker(tasks).items():
            self._in_lane(name, partial(self._give_back, some, until_ms))

    def flush(self) -> None:
        """What was gathered, and what lanes have in their hands, answered on return or counted as
        unanswered. Never raises for it.
        """
        with self._lock:
            gathered, self._gathered = self._gathered, {}
            self._leaving.clear()
            names = gathered.keys() | self._lanes.keys()
        until_ms = self._until()
        told = [
            self._told(name, partial(self._tell, gathered.get(name, {}), until_ms))
            for name in names
        ]
        # all end by then, but for those of a lane that another thread closes
        wait(told, (self._timeout_ms + REQUEST_MS) / 1000)

    def close(self) -> None:
        """What waits for a broker gives up within its current request."""
        self.flush()
        self._stop.set()
        with self._lock:
            lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.close()
        self.flush()  # what came meanwhile

    def _until(self) -> float:
        return self._clock.monotonic_ms() + self._timeout_ms

    def _in_lane(self, name: str, call: Callable[[], None], after_ms: float = 0) -> None:
        """In the broker's lane; here after ``close``, and where no thread can be started."""
        lane = self._lane(name)
        if lane is None:
            call()
        else:
            lane.after(after_ms, call)

    def _told(self, name: str, call: Callable[[], Answer]) -> Future[Answer]:
        """The same, and how it went."""
        told = Future[Answer]()

        def run() -> None:
            if told.set_running_or_notify_cancel():
                found, fault = attempt(call)
                if fault is None:
                    told.set_result(found)
                else:
                    told.set_exception(fault)

        self._in_lane(name, run)
        return told

    def _lane(self, name: str) -> DelayedCalls | None:
        found = self._lanes.get(name)
        if found is None and not self._stop.is_set():
            made = DelayedCalls(self._clock, f"rmq-acks-{self._group}-{name}")
            try:
                made.start()  # without the lock: signal handlers run in it
            except RuntimeError:  # this process may have no more threads
                return None
            with self._lock:
                found = None if self._stop.is_set() else self._lanes.setdefault(name, made)
            if found is not made:
                made.close()
        return found

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClientError(
                f"the message was received before a fork: the consumer of {self._group!r} belongs "
                f"to the parent process, which settles it; receive with one of your own here",
                self._group,
            )

    def _give_back(self, tasks: Sequence[SettleTask], until_ms: float) -> None:
        try:
            self._settle(tasks, until_ms)
        except RmqError as error:
            log.info(
                "messages of group %s come again when their time is over: %s", self._group, error
            )

    def _leave_for(self, name: str) -> None:
        with self._lock:
            gathered = self._gathered.pop(name, {})
            self._leaving.discard(name)
        self._tell(gathered, self._until())

    def _tell(self, gathered: Mapping[ClientLease, int], until_ms: float) -> None:
        """All of one broker; what is answered of them counts, whatever the others meet."""
        tasks = [SettleTask(lease, Settle.ACK, mask) for lease, mask in gathered.items()]
        stale = 0
        for start in range(0, len(tasks), SETTLEMENTS_MAX):
            some = tasks[start : start + SETTLEMENTS_MAX]
            try:
                stale += self._settle(some, until_ms)
            except RmqError as error:
                count = sum(task.mask.bit_count() for task in some)
                self.counters.unanswered += count
                log.warning(
                    "%d acknowledgements of group %s got no answer, the messages may come again: "
                    "%s",
                    count,
                    self._group,
                    error,
                )
        if stale:
            log.warning(
                "%d acknowledgements of group %s came too late: the messages come again",
                stale,
                self._group,
            )

    def _settle(self, tasks: Sequence[SettleTask], until_ms: float) -> int:
        """How many receipts were stale. Raises what a broker raised that failed, after all were
        told.
        """
        brokers = _by_broker(tasks)
        if len(brokers) == 1:
            return self._settle_with(*brokers.popitem(), until_ms)
        told = {
            name: self._told(name, partial(self._settle_with, name, some, until_ms))
            for name, some in brokers.items()
        }
        wait(told.values(), max(0.0, until_ms - self._clock.monotonic_ms()) / 1000)
        stale, failed = 0, list[RmqError]()
        for name, one in told.items():
            if one.cancel():  # its lane has not come to it
                failed.append(_not_asked(name))
                continue
            try:
                stale += one.result(LATE_S)
            except (RemotingError, ConsumeError) as error:
                failed.append(error)
        if failed:
            raise min(failed, key=lambda error: isinstance(error, ConsumeError) or not_sent(error))
        return stale

    def _settle_with(self, name: str, tasks: Sequence[SettleTask], deadline_ms: float) -> int:
        tasks = _kept(tasks)
        return sum(
            self._settle_at(name, tasks[start : start + SETTLEMENTS_MAX], deadline_ms)
            for start in range(0, len(tasks), SETTLEMENTS_MAX)
        )

    def _settle_at(self, broker_name: str, tasks: Sequence[SettleTask], deadline_ms: float) -> int:
        rows = [
            Settlement(
                task.lease.topic,
                task.lease.queue_id,
                task.lease.id,
                int(task.action),
                mask_bytes(task.mask),
                task.delay_ms,
            )
            for task in tasks
        ]
        command = Command(
            RequestCode.SETTLE_POPPED,
            fields=FailedTry(tasks[0].failed).to_fields(),
            body=pack_settle(self._group, rows),
            serialize=BINARY,
        )
        stale = [
            mask_of(mask)
            for mask in self._until_answered(
                broker_name, rows[0].topic, command, len(rows), deadline_ms
            )
        ]
        total = sum(mask.bit_count() for mask in stale)
        settled = sum(task.mask.bit_count() for task in tasks) - total
        self.counters.stale += total
        if tasks[0].action is Settle.ACK:
            self.counters.acknowledged += settled
        else:
            self.counters.returned += settled
        for task, mask in zip(tasks, stale, strict=True):
            if task.action is Settle.ACK:  # also where another broker fails
                task.lease.done |= task.mask & ~mask
            elif task.action is Settle.CHANGE:
                task.lease.own_deadlines.update(
                    dict.fromkeys(bits(task.mask & ~mask), self._clock.now_ms() + task.delay_ms)
                )
        return total

    def _until_answered(
        self, broker_name: str, topic: str, command: Command, count: int, deadline_ms: float
    ) -> list[bytes]:
        wait_ms, last = FIRST_WAIT_MS, None
        while (left_ms := deadline_ms - self._clock.monotonic_ms()) > 0:  # ends: at the deadline
            try:
                return self._ask(broker_name, command, count, min(REQUEST_MS, left_ms))
            except RemotingError as error:
                if isinstance(error, MalformedFrame):
                    raise
                if last is None or not_sent(last):  # what may be done is what is told
                    last = error
            except ConsumeError:
                if last is not None and not not_sent(last):
                    raise last from None
                raise
            self._client.watch_route(topic)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= wait_ms or self._stop.wait(wait_ms / 1000):
                break
            wait_ms = min(2 * wait_ms, WAIT_MS_MAX)
        raise last or _not_asked(broker_name)

    def _ask(
        self, broker_name: str, command: Command, count: int, timeout_ms: float
    ) -> list[bytes]:
        """The stale masks. ``RemotingError``: ask again; ``ConsumeError``: refused."""
        address = self._client.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no address of broker {broker_name} is known; nothing was sent")
        answer = self._client.invoke(address, command, timeout_ms)
        if answer.code == ResponseCode.SUCCESS:
            return unpack_stale(answer.body, count)
        if answer.code in PASSING:
            raise ConnectFailed(
                f"broker {broker_name} is not ready: {answer.remark or answer.code}; nothing "
                f"was done"
            )
        raise ConsumeError(
            f"broker {broker_name} refused to settle messages of group {self._group}: code "
            f"{answer.code} {answer.remark or ''}",
            answer.code,
        )
