"""Tells brokers what became of received messages: at once and answered, or gathered and soon
(protocol-behaviour 26).

    settle ──> one request for each broker ── no answer: 20, 40, .. 200 ms, again
                   └─> answered, or ``timeout_ms`` is over
    settle_later ──> gathered ── 5 ms, or 1,000 leases
                   └─> the same, in the broker's own thread, or the caller's

Decides when a request is repeated (always safe: brokers answer a repeat as the first time) and
which errors users see. Does not decide what is stale: the broker does.

Invariants: nothing gathered is dropped but for being stale, refused, or unanswered until its time
was over (both counted and logged); a broker that is away holds up nothing of the others but for one
request.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

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
GATHERED_MAX = 1_000  # leases; then they leave at once
REQUEST_MS = 3_000
FIRST_WAIT_MS, WAIT_MS_MAX = 20.0, 200.0

log = logging.getLogger("rmq_ray.client.simple")


def not_sent(error: BaseException) -> bool:
    """Whether nothing of a request got to a broker."""
    return isinstance(error, ConnectFailed | HandshakeFailed | TooManyRequests)


def _by_broker(tasks: Sequence[SettleTask]) -> dict[str, list[SettleTask]]:
    found: dict[str, list[SettleTask]] = {}
    for task in tasks:
        found.setdefault(task.lease.broker_name, []).append(task)
    return found


@dataclass(slots=True)
class SettleCounters:
    """Messages."""

    acknowledged: int = 0
    returned: int = 0
    stale: int = 0
    unanswered: int = 0


class AckSender:
    """Of one consumer. ``timeout_ms``: how long ``settle`` tries."""

    def __init__(
        self, client: ClientInstance, group: str, timeout_ms: int, later: DelayedCalls
    ) -> None:
        self._client = client
        self._clock = client.clock
        self._group = group
        self._timeout_ms = timeout_ms
        self._later = later
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._gathered: dict[str, dict[ClientLease, int]] = {}
        """By broker."""
        self._leaving: set[str] = set()
        self._threads: dict[str, DelayedCalls] = {}
        self._planned = False
        self._stop = threading.Event()
        self.counters = SettleCounters()

    def settle(self, tasks: Sequence[SettleTask]) -> None:
        """See ``receipts.Settler``."""
        self._check_process()
        timeout_ms, span_ms = float(self._timeout_ms), tasks[0].delay_ms
        if tasks[0].action is Settle.CHANGE and tasks[0].failed is None and span_ms:
            timeout_ms = min(timeout_ms, span_ms / 3)  # who extends has others to extend
        stale = self._settle(tasks, timeout_ms)
        if stale:
            what = "the message's time was" if stale == 1 else f"the time of {stale} messages was"
            raise ReceiptStale(
                f"{what} over: somebody else gets it; ask for more time at receive(), or "
                f"extend() it while you work",
                stale,
            )

    def settle_later(self, tasks: Sequence[SettleTask]) -> None:
        """See ``receipts.Settler``; acknowledgements only."""
        self._check_process()
        with self._lock:
            for task in tasks:
                gathered = self._gathered.setdefault(task.lease.broker_name, {})
                gathered[task.lease] = gathered.get(task.lease, 0) | task.mask
            planned, self._planned = self._planned, True
            full = sum(map(len, self._gathered.values())) >= GATHERED_MAX
        if full:
            self.flush()
        elif not planned:
            self._later.after(GATHER_MS, self._leave)

    def give_back_later(self, tasks: Sequence[SettleTask]) -> None:
        """See ``receipts.Settler``."""
        if os.getpid() != self._process:  # they are the parent's
            return
        for name, some in _by_broker(tasks).items():
            self._thread_of(name).after(0, partial(self._give_back, some))

    def _leave(self) -> None:
        with self._lock:
            names = [name for name in self._gathered if name not in self._leaving]
            self._leaving.update(names)
            self._planned = False
        try:
            for name in names:
                self._thread_of(name).after(0, partial(self._leave_for, name))
        except BaseException:  # no thread could be started
            with self._lock:
                self._leaving.difference_update(names)
            raise

    def _leave_for(self, name: str) -> None:
        with self._lock:
            gathered = self._gathered.pop(name, {})
            self._leaving.discard(name)
        self._tell(gathered)

    def _thread_of(self, name: str) -> DelayedCalls:
        with self._lock:
            if self._stop.is_set():
                return self._later
            found = self._threads.get(name)
            if found is None:
                found = DelayedCalls(self._clock, f"rmq-acks-{self._group}-{name}")
                found.start()
                self._threads[name] = found
            return found

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClientError(
                f"the message was received before a fork: the consumer of {self._group!r} belongs "
                f"to the parent process, which settles it; receive with one of your own here",
                self._group,
            )

    def _give_back(self, tasks: Sequence[SettleTask]) -> None:
        try:
            self._settle(tasks, self._timeout_ms)
        except RmqError as error:
            log.info(
                "messages of group %s come again when their time is over: %s", self._group, error
            )

    def flush(self) -> None:
        """What was gathered, answered on return. Never raises for it."""
        with self._lock:
            gathered, self._gathered = self._gathered, {}
        self._tell({lease: mask for one in gathered.values() for lease, mask in one.items()})

    def _tell(self, gathered: Mapping[ClientLease, int]) -> None:
        if not gathered:
            return
        tasks = [SettleTask(lease, Settle.ACK, mask) for lease, mask in gathered.items()]
        try:
            stale = self._settle(tasks, self._timeout_ms)
        except RmqError as error:
            count = sum(task.mask.bit_count() for task in tasks)
            self.counters.unanswered += count
            log.warning(
                "%d acknowledgements of group %s got no answer, the messages may come again: %s",
                count,
                self._group,
                error,
            )
            return
        if stale:
            log.warning(
                "%d acknowledgements of group %s came too late: the messages come again",
                stale,
                self._group,
            )

    def close(self) -> None:
        """What waits for a broker gives up within its current request."""
        self.flush()
        self._stop.set()
        with self._lock:
            threads, self._threads = self._threads, {}
        for one in threads.values():
            one.close()

    def _settle(self, tasks: Sequence[SettleTask], timeout_ms: float) -> int:
        """How many receipts were stale. Raises what a broker raised that failed, after all were
        told: those that answer at once first.
        """
        stale, failed = 0, list[RmqError]()
        away = list[tuple[str, list[SettleTask], RemotingError]]()
        brokers, until_ms = _by_broker(tasks), self._clock.monotonic_ms() + timeout_ms
        for name, some in brokers.items():
            try:
                stale += self._settle_with(name, some, until_ms if len(brokers) == 1 else 0.0)
            except (RemotingError, ConsumeError) as error:
                if len(brokers) > 1 and isinstance(error, RemotingError):
                    away.append((name, some, error))
                else:
                    failed.append(error)
        for name, some, before in away:
            try:
                stale += self._settle_with(name, some, until_ms)
            except (RemotingError, ConsumeError) as error:
                failed.append(error if not_sent(before) else before)
        if failed:
            raise min(failed, key=lambda error: isinstance(error, ConsumeError) or not_sent(error))
        return stale

    def _settle_with(self, name: str, tasks: Sequence[SettleTask], deadline_ms: float) -> int:
        """One broker; a deadline that is over: each request once."""
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
        while True:  # ends: at the deadline
            left_ms = deadline_ms - self._clock.monotonic_ms()
            limit_ms = min(REQUEST_MS, left_ms if left_ms > 0 else self._timeout_ms)
            try:
                return self._ask(broker_name, command, count, limit_ms)
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
                raise last
            wait_ms = min(2 * wait_ms, WAIT_MS_MAX)

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
