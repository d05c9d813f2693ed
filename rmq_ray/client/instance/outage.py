"""Asking a broker again while it is away: the one rule of bulk reads and writes, for plans, scan
streams, and drivers between batches.

Decides: which failures pass by themselves (``retriable`` errors; answers of a broker that is busy
or still recovers) and for how long they are waited for; that brokers which belong to the cluster
are waited for, too, and when a route has the queues of all of them. Does not decide what is asked
or where. Every other error and answer comes out at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

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
from rmq_ray.model.ids import MASTER_ID, Address, MessageQueue
from rmq_ray.remoting.wire.bodies import decode_cluster_info
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

log = logging.getLogger("rmq_ray.client")
Queues = Mapping[str, Sequence[MessageQueue]]
"""Of each topic."""

PAUSE_MS = 100
TIMEOUT_MS = 10_000  # of each request
PATIENCE_MS = 30_000  # a broker that was killed is back in 1 to 5 s
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


def ask_name_server(instance: ClientInstance, command: Command) -> Command:
    """The same of the name servers."""
    return ask_patiently(
        lambda _: instance.name_server_invoke(command), instance.clock, PATIENCE_MS
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


def while_registered(
    instance: ClientInstance,
    expected: Collection[str],
    why: str,
    look: Callable[[], Queues],
    *,
    writing: bool = False,
) -> Queues:
    """What ``look()`` finds in routes, each topic's queues, while the name servers have the queues
    of all ``expected`` brokers; of none expected at once. ``writing``: queues that can be written,
    which those of a broker without a master cannot.

    A broker that dies takes its queues out of every route, between a look at who is there and a
    look at a route, too. So that look counts which follows one at who is there, and lacks nothing
    that the one before had. A broker that was stopped on purpose is waited for, too, since it may
    be an upgrade; the log tells. ``ClusterError``, which says ``why`` they are needed, after
    ``PATIENCE_MS``.
    """
    if not expected:
        return look()
    give_up = instance.clock.monotonic_ms() + PATIENCE_MS
    _await_registered(instance, expected, why, writing, give_up)
    found = _looked(instance, look, give_up)
    while True:  # ends: nothing lacks, or at give_up
        _await_registered(instance, expected, why, writing, give_up)
        before, found = found, _looked(instance, look, give_up)
        if all(set(queues) <= set(found.get(topic, ())) for topic, queues in before.items()):
            return found
        if instance.clock.monotonic_ms() >= give_up:
            raise ClusterError(
                f"brokers came and went for {PATIENCE_MS // 1000} s while their queues were looked "
                f"up: {why}; see `rmq-ray status`"
            )
        instance.clock.sleep_ms(PAUSE_MS)


def _looked(instance: ClientInstance, look: Callable[[], Queues], give_up: float) -> Queues:
    while True:  # ends: at give_up
        try:
            return look()
        except RemotingError as error:
            if not error.retriable or instance.clock.monotonic_ms() >= give_up:
                raise
        instance.clock.sleep_ms(PAUSE_MS)


def _await_registered(
    instance: ClientInstance, expected: Collection[str], why: str, writing: bool, give_up: float
) -> None:
    told = ""
    while missing := _missing(instance, expected, writing):  # ends: all there, or at give_up
        stopped = "; ".join(filter(None, (instance.stopped.why([name]) for name in missing)))
        if stopped and not told:
            log.warning("%s; waited for up to %d s: %s", stopped, PATIENCE_MS // 1000, why)
        told = told or stopped
        if instance.clock.monotonic_ms() >= give_up:
            raise ClusterError(
                f"{', '.join(missing)} did not come back within {PATIENCE_MS // 1000} s: {why}; "
                f"{told or 'see `rmq-ray status`'}"
            )
        instance.clock.sleep_ms(PAUSE_MS)


def _missing(instance: ClientInstance, expected: Collection[str], writing: bool) -> list[str]:
    """Whose queues the name servers do not have. A master brings them, and they stay while a slave
    stands; a slave that comes first brings none.
    """
    answer = ask_name_server(instance, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    known = {data.broker_name: data.addresses for data in decode_cluster_info(answer.body_bytes())}
    without = [name for name in sorted(expected) if MASTER_ID not in known.get(name, ())]
    if writing:
        return without
    return [name for name in without if name not in known or not _has_queues(instance, name)]


def _has_queues(instance: ClientInstance, broker_name: str) -> bool:
    """Each broker has a topic of its own name. One that may not be asked for counts as there."""
    command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": broker_name})
    return ask_name_server(instance, command).code != ResponseCode.TOPIC_NOT_EXIST
