"""Asking a broker again while it is away: the one rule of bulk reads and writes, for plans, scan
streams, and drivers between batches.

Decides: which failures pass by themselves (``retriable`` errors; answers of a broker that is busy
or still recovers) and for how long they are waited for; that brokers which belong to the cluster
are waited for, too, and when a route has the queues of all of them. Does not decide what is asked
or where. Every other error and answer comes out
at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import msgpack

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.clock import Clock
from rmq_ray.errors import (
    ClusterError,
    ConsumeError,
    NotAuthorized,
    RemotingError,
    ResponseError,
    RmqError,
)
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.bodies import decode_cluster_info
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

log = logging.getLogger("rmq_ray.client")
Found = TypeVar("Found")

PAUSE_MS = 100
TIMEOUT_MS = 10_000  # of each request
PATIENCE_MS = 30_000  # a broker that was killed is back in 1 to 5 s
LOOKS_MAX = 10
PASSING = frozenset(
    (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.STILL_RECOVERING)
)
"""What a broker answers that cannot serve now, and has done nothing."""


def passes(error: RmqError) -> bool:
    """Whether the same question may be answered in a moment: a retriable error, or one that stands
    for an answer of a broker that is busy or still recovers.
    """
    told = isinstance(error, ConsumeError | ResponseError) and len(error.args) > 1
    return error.retriable or (told and error.args[1] in PASSING)


def ask_patiently(attempt: Callable[[int], Command], clock: Clock, patience_ms: float) -> Command:
    """The first answer that is not "later", whatever its code. ``attempt(turn)`` asks once; turns
    count from 0.

    Raises the last error when ``patience_ms`` is over (a turn that began before may end after it),
    others at once.
    """
    give_up = clock.monotonic_ms() + patience_ms
    turn = 0
    while True:  # ends: at give_up
        try:
            answer = attempt(turn)
            if answer.code not in PASSING:
                return answer
            error: RemotingError = ResponseError(
                answer.remark or "the broker cannot answer now", answer.code
            )
        except RemotingError as lost:
            if not lost.retriable:
                raise
            error = lost
        if clock.monotonic_ms() >= give_up:
            raise error
        turn += 1
        clock.sleep_ms(PAUSE_MS)


def ask_broker(instance: ClientInstance, address: Address, command: Command) -> Command:
    """A broker's answer, whatever its code; it is waited for ``PATIENCE_MS``."""
    return ask_patiently(
        lambda _: instance.invoke(address, command, TIMEOUT_MS), instance.clock, PATIENCE_MS
    )


def ask_name_server(instance: ClientInstance, code: RequestCode) -> Command:
    """The same of the name servers, for a request without fields."""
    return ask_patiently(
        lambda _: instance.name_server_invoke(Command(code)), instance.clock, PATIENCE_MS
    )


def refused(what: str, answer: Command) -> RmqError:
    """The error that stands for a refusal."""
    kind = NotAuthorized if answer.code == ResponseCode.NOT_AUTHORIZED else ResponseError
    return kind(what, int(answer.code))


def ask_for_map(
    instance: ClientInstance,
    address: Address,
    code: RequestCode,
    body: list[Any],
    once_ms: float | None = None,
) -> dict[Any, Any]:
    """What a broker answers to one of our msgpack requests. ``once_ms``: it is asked once, and
    waited for so long; None = as ``ask_broker`` does. ``ResponseError`` where it refuses,
    ``NotAuthorized`` the account.
    """
    command = Command(code, body=msgpack.packb(body), serialize=1)
    answer = (
        ask_broker(instance, address, command)
        if once_ms is None
        else instance.invoke(address, command, once_ms)
    )
    if answer.code != ResponseCode.SUCCESS:
        raise refused(f"broker {address} refused {code.name}: {answer.remark}", answer)
    found = msgpack.unpackb(answer.body_bytes(), strict_map_key=False)
    assert isinstance(found, dict)
    return found


def wait_for_brokers(instance: ClientInstance, expected: Collection[str], why: str) -> None:
    """Until the name servers know all of them, since a name server forgets the queues of a broker
    that is down. ``ClusterError`` after ``PATIENCE_MS``, which says ``why`` they are needed. One
    that was stopped on purpose is waited for, too, since it may be an upgrade; the log tells.
    """
    give_up = instance.clock.monotonic_ms() + PATIENCE_MS
    told = ""
    while expected:  # ends: all there, or at give_up
        answer = ask_name_server(instance, RequestCode.GET_BROKER_CLUSTER_INFO)
        missing = set(expected) - {
            data.broker_name for data in decode_cluster_info(answer.body_bytes())
        }
        if not missing:
            return
        stopped = "; ".join(
            filter(None, (instance.stopped.why([name]) for name in sorted(missing)))
        )
        if stopped and not told:
            log.warning("%s; waited for up to %d s: %s", stopped, PATIENCE_MS // 1000, why)
        told = told or stopped
        if instance.clock.monotonic_ms() >= give_up:
            raise ClusterError(
                f"{', '.join(sorted(missing))} did not come back within "
                f"{PATIENCE_MS // 1000} s: {why}; {told or 'see `rmq-ray status`'}"
            )
        instance.clock.sleep_ms(PAUSE_MS)


def while_registered(
    instance: ClientInstance, expected: Collection[str], why: str, fetch: Callable[[], Found]
) -> Found:
    """What ``fetch()`` finds in routes, right before and right after the name servers knew all of
    ``expected``; of none expected at once.

    A broker that dies takes its queues out of every route: between a look at who is registered and
    a look at a route, too. ``ClusterError`` as of ``wait_for_brokers``, and where no two looks are
    the same.
    """
    if not expected:
        return fetch()
    wait_for_brokers(instance, expected, why)
    found = fetch()
    for _ in range(LOOKS_MAX):
        wait_for_brokers(instance, expected, why)
        before, found = found, fetch()
        if found == before:
            return found
    raise ClusterError(
        f"routes changed {LOOKS_MAX} times while they were looked up, so brokers come and go: "
        f"{why}; see `rmq-ray status`"
    )
