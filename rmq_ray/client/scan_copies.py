"""At which copy of each broker's log a bulk read is planned: the master, and while that is away one of its slaves.

    the master  ──no answer for 5 s──>  slaves and master in turn, as the name servers tell them by then  ──30 s──>  the last error
    no master in the route: slaves at once

Decides: which copy answers for a broker name, and which answers of a slave count. Does not decide what is read (``scan_plan``). A slave's log may be shorter
than its master's: it counts where it holds every offset that the read names; a read to "latest" ends where the slave's copy does. Called by plans, in
their threads; blocking, without an instance's lock. Invariant: all of a plan's later questions about a broker name go to the copy that was chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgpack

from rmq_ray.client.client_instance import ClientInstance
from rmq_ray.client.outage import PATIENCE_MS, TIMEOUT_MS, ask_patiently
from rmq_ray.errors import ClientError, ResponseError, TopicNotFound
from rmq_ray.model.ids import MASTER_ID, Address, MessageQueue
from rmq_ray.remoting.codes import RequestCode, ResponseCode
from rmq_ray.remoting.frame import Command

log = logging.getLogger("rmq_ray.scan")
MASTER_ALONE_MS = 5_000
"""A broker that was killed is back in 1 to 5 s; then it is asked, since it may hold rows that no slave has copied."""
BESIDE_TIMEOUT_MS = 5_000  # of a request, where another copy may answer instead

Bounds = dict[MessageQueue, tuple[int, int]]


def planned_at(instance: ClientInstance, topic: str, needed: Mapping[MessageQueue, int], alone_ms: float) -> tuple[dict[str, Address], Bounds]:
    """(the copy of each broker name that answers for this topic, [minimum, maximum) of each queue that may be read).

    ``needed``: offsets that a slave must hold to be asked, by queue. ``alone_ms``: how long nobody but a master that is in the route is asked.
    Raises ``TopicNotFound``; where no copy answers for 30 s the last error, ``ResponseError`` where one refuses, ``ClientError`` for a broker without address.
    """
    queues = instance.routes.find_subscribe(topic)
    if not queues:
        raise TopicNotFound(f"topic {topic!r} does not exist in this cluster, or nobody may read it: create it or send to it first", topic)
    copies: dict[str, Address] = {}
    bounds: Bounds = {}
    for name in sorted({queue.broker_name for queue in queues}):
        own = {queue.queue_id: queue for queue in queues if queue.broker_name == name}
        copies[name], found = _Asking(instance, topic, name, alone_ms).bounds({number: needed.get(queue, 0) for number, queue in own.items()})
        bounds.update((own[number], (low, high)) for number, (low, high) in found.items() if number in own)
    return copies, bounds


class _Asking:
    """The copies of one broker name, one after another. ``at``: who was asked last."""

    def __init__(self, instance: ClientInstance, topic: str, name: str, alone_ms: float) -> None:
        self._instance, self._topic, self._name = instance, topic, name
        self._alone_until = instance.clock.monotonic_ms() + alone_ms
        self._known = dict(instance.routes.addresses(name))
        if not self._known:
            raise ClientError(f"no address of broker {name!r} is known to the name servers", name)
        self._others = 0
        self.at = next(iter(self._known.values()))

    def bounds(self, needed: Mapping[int, int]) -> tuple[Address, dict[int, tuple[int, int]]]:
        """The copy that answered, and [minimum, maximum) by queue id."""
        command = Command(RequestCode.QUEUE_BOUNDS, body=msgpack.packb([self._topic]), serialize=1)

        def attempt(turn: int) -> Command:
            self._choose(turn)
            answer = self._instance.invoke(self.at, command, BESIDE_TIMEOUT_MS if len(self._known) > 1 else TIMEOUT_MS)
            lags = answer.code == ResponseCode.SUCCESS and self.at != self._known.get(MASTER_ID) and _lags(self._told(answer), needed)
            return answer.answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"the copy of {self._name} at {self.at} lacks planned rows") if lags else answer

        answer = ask_patiently(attempt, self._instance.clock, PATIENCE_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError(f"broker {self.at} refused QUEUE_BOUNDS: {answer.remark}", answer.code)
        master = self._known.get(MASTER_ID)
        if master is not None and self.at != master:
            self._instance.routes.avoid(master)
            log.warning("%s does not answer at %s: the read is planned by its copy at %s, to where that has got", self._name, master, self.at)
        return self.at, self._told(answer)

    def _choose(self, turn: int) -> None:
        """The master while it is asked alone, else the next one."""
        if turn:
            self._instance.routes.refresh_all({self._topic})
            self._known = dict(self._instance.routes.addresses(self._name)) or self._known
        master = self._known.get(MASTER_ID)
        if master is not None and self._instance.clock.monotonic_ms() < self._alone_until:
            self.at = master
            return
        slaves = [address for number, address in sorted(self._known.items()) if number != MASTER_ID]
        turns = [*slaves, *([master] if master is not None else [])]
        self.at = turns[self._others % len(turns)]
        self._others += 1

    def _told(self, answer: Command) -> dict[int, tuple[int, int]]:
        found: dict[str, Any] = msgpack.unpackb(answer.body_bytes(), strict_map_key=False)
        return {int(number): (int(low), int(high)) for number, (low, high) in found.get(self._topic, {}).items()}


def _lags(told: Mapping[int, tuple[int, int]], needed: Mapping[int, int]) -> bool:
    return any(number not in told or told[number][1] < offset for number, offset in needed.items())


def named_offsets(positions: Collection[object]) -> dict[MessageQueue, int]:
    """The greatest offset that any of the positions names, by queue."""
    found: dict[MessageQueue, int] = {}
    for position in positions:
        if isinstance(position, Mapping):
            for queue, offset in position.items():
                found[queue] = max(found.get(queue, 0), offset)
    return found
