"""At which copy of each broker's log a bulk read is planned: the master, and while that is away one
of its slaves.

    the master ──no answer for 5 s──> slaves and master in turn, as the name servers tell them
        by then ──30 s──> the last error
    no master in the route: slaves at once
    the end is a time, or a group's position: the master alone  ──30 s──>  ClusterError

Decides: which copy answers for a broker name, and which answers of a slave count. Does not decide
what is read (``scan_plan``). A slave's log may be shorter than its master's: it counts where it
holds every offset that the read names; a read to "latest" ends where the slave's copy does. Where a
time or a group's position lies nobody can tell by a shorter log: an end of that kind is the
master's to say. Nor is a group unknown because a slave's table has not got it yet. Called by plans,
in their threads; blocking, without an instance's lock. Invariant: one copy of each broker answers
for all topics and all of a plan's later questions, but for groups that a slave does not know.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgpack

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import PATIENCE_MS, PAUSE_MS, TIMEOUT_MS, ask_patiently, refused
from rmq_ray.client.pull.queue_queries import QueueQueries
from rmq_ray.errors import (
    ClientError,
    ClusterError,
    ConnectFailed,
    ConsumeError,
    RemotingError,
    ResponseError,
)
from rmq_ray.model.ids import MASTER_ID, Address, MessageQueue
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

log = logging.getLogger("rmq_ray.scan")
MASTER_ALONE_MS = 5_000
"""A broker that was killed is back in 1 to 5 s; then it is asked, since it may hold rows that no
slave has copied.
"""
BESIDE_TIMEOUT_MS = 5_000  # of a request, where another copy may answer instead

Bounds = dict[MessageQueue, tuple[int, int]]


def planned_at(
    instance: ClientInstance,
    queues: Sequence[MessageQueue],
    needed: Mapping[MessageQueue, int],
    alone_ms: float = MASTER_ALONE_MS,
) -> tuple[dict[str, Address], Bounds]:
    """(the copy of each broker name that answers for these queues, [minimum, maximum) of each that
    it knows).

    ``needed``: offsets that a slave must hold to be asked, by queue. ``alone_ms``: how long nobody
    but a master that is in the route is asked, once for each broker; infinite: slaves never are.
    Raises, where no copy answers for 30 s, the last error, or ``ClusterError`` if there are slaves
    that may not; ``ResponseError`` where one refuses, ``ClientError`` for a broker without address.
    """
    copies: dict[str, Address] = {}
    bounds: Bounds = {}
    for name in sorted({queue.broker_name for queue in queues}):
        own = {queue: needed.get(queue, 0) for queue in queues if queue.broker_name == name}
        copies[name], found = _Asking(instance, name, own, alone_ms).bounds()
        bounds.update((queue, found[queue]) for queue in own if queue in found)
    return copies, bounds


def group_positions(
    instance: ClientInstance,
    group: str,
    copies: Mapping[str, Address],
    queues: Collection[MessageQueue],
) -> dict[MessageQueue, int | None]:
    """What the group has committed, None for queues without a position, as ``copies`` tell it.
    Where they know none at all and one of them is no master, its table may be older than the group:
    the masters are asked for 30 s, and the copies meanwhile. ``ClusterError`` when that is over.
    """
    give_up = instance.clock.monotonic_ms() + PATIENCE_MS
    while True:  # ends: at give_up
        found = _committed(instance, group, copies, queues)
        masters = {name: instance.routes.addresses(name).get(MASTER_ID) for name in copies}
        slaves = sorted(
            str(copies[name]) for name, master in masters.items() if master != copies[name]
        )
        if not slaves or any(offset is not None for offset in found.values()):
            return found
        try:
            there = {name: master for name, master in masters.items() if master is not None}
            if len(there) == len(masters):
                return _committed(instance, group, there, queues)
            reason = "the name servers have no master of it"
        except (RemotingError, ConsumeError) as error:
            reason = str(error)
        if instance.clock.monotonic_ms() >= give_up:
            raise ClusterError(
                f"group {group!r} is not known at {', '.join(slaves)}, which may be because "
                f"it is new there, and who would know does not answer: {reason}; "
                "wait for the master, see `rmq-ray status`, or begin at 'earliest', at a "
                "time or at offsets",
                group,
            )
        instance.clock.sleep_ms(PAUSE_MS)
        instance.routes.refresh_all({queue.topic for queue in queues})


def named_offsets(positions: Collection[object]) -> dict[MessageQueue, int]:
    """The greatest offset that any of the positions names, by queue."""
    found: dict[MessageQueue, int] = {}
    for position in positions:
        if isinstance(position, Mapping):
            for queue, offset in position.items():
                found[queue] = max(found.get(queue, 0), offset)
    return found


class _Asking:
    """The copies of one broker name, one after another. ``needed``: its queues, and the offset that
    each must hold. ``at``: who was asked last.
    """

    def __init__(
        self,
        instance: ClientInstance,
        name: str,
        needed: Mapping[MessageQueue, int],
        alone_ms: float,
    ) -> None:
        self._instance, self._name, self._needed = instance, name, needed
        self._topics = sorted({queue.topic for queue in needed})
        self._alone_until = instance.clock.monotonic_ms() + alone_ms
        self._slaves_never = math.isinf(alone_ms)
        self._known = dict(instance.routes.addresses(name))
        if not self._known:
            raise ClientError(f"no address of broker {name!r} is known to the name servers", name)
        self._others = 0
        self.at = next(iter(self._known.values()))

    def bounds(self) -> tuple[Address, Bounds]:
        """The copy that answered, and [minimum, maximum) by queue."""
        try:
            answer = ask_patiently(self._attempt, self._instance.clock, PATIENCE_MS)
        except RemotingError as error:
            if (
                self._slaves_never
                and self._slaves()
                and (error.retriable or isinstance(error, ResponseError))
            ):
                raise ClusterError(
                    f"the master of {self._name} does not answer ({error}), and only by its "
                    f"log it is known where a time or a group's position lies: "
                    "wait for it, see `rmq-ray status`, or end the read at 'latest' or at "
                    "offsets, for which a slave's copy may do",
                    self._name,
                ) from error
            raise
        if answer.code != ResponseCode.SUCCESS:
            raise refused(f"broker {self.at} refused QUEUE_BOUNDS: {answer.remark}", answer)
        master = self._known.get(MASTER_ID)
        if master is not None and self.at != master:
            log.warning(
                "%s does not answer at %s: the read is planned by its copy at %s, to where "
                "that has got",
                self._name,
                master,
                self.at,
            )
        return self.at, self._told(answer)

    def _attempt(self, turn: int) -> Command:
        self._choose(turn)
        command = Command(RequestCode.QUEUE_BOUNDS, body=msgpack.packb(self._topics), serialize=1)
        answer = self._instance.invoke(
            self.at, command, BESIDE_TIMEOUT_MS if len(self._known) > 1 else TIMEOUT_MS
        )
        lacks = (
            answer.code == ResponseCode.SUCCESS
            and self.at != self._known.get(MASTER_ID)
            and self._lacks(self._told(answer))
        )
        return (
            answer.answer(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                remark=f"the copy of {self._name} at {self.at} lacks planned rows",
            )
            if lacks
            else answer
        )

    def _choose(self, turn: int) -> None:
        """The master while it is asked alone, else the next one."""
        if turn:
            self._instance.routes.refresh_all(
                {self._topics[0]}
            )  # each tells the broker's addresses
            self._known = dict(self._instance.routes.addresses(self._name)) or self._known
        master = self._known.get(MASTER_ID)
        if master is not None and self._instance.clock.monotonic_ms() < self._alone_until:
            self.at = master
            return
        if self._slaves_never:
            raise ConnectFailed(f"the name servers have no master of {self._name}")
        turns = [*self._slaves(), *([master] if master is not None else [])]
        self.at = turns[self._others % len(turns)]
        self._others += 1

    def _slaves(self) -> list[Address]:
        return [address for number, address in sorted(self._known.items()) if number != MASTER_ID]

    def _told(self, answer: Command) -> Bounds:
        found: dict[str, Any] = msgpack.unpackb(answer.body_bytes(), strict_map_key=False)
        return {
            MessageQueue(topic, self._name, int(number)): (int(low), int(high))
            for topic, queues in found.items()
            for number, (low, high) in queues.items()
        }

    def _lacks(self, told: Bounds) -> bool:
        return any(
            queue not in told or told[queue][1] < offset for queue, offset in self._needed.items()
        )


def _committed(
    instance: ClientInstance,
    group: str,
    copies: Mapping[str, Address],
    queues: Collection[MessageQueue],
) -> dict[MessageQueue, int | None]:
    questions = QueueQueries(instance, group, copies)
    return {queue: questions.position(queue) for queue in queues}
