"""Ready selectors for ``selector=``: by hash, at random, by machine room (protocol-behaviour 7.3).

    producer.send("orders", b"x", selector=select_by_hash, arg="user-7")
    producer.send("orders", b"x", selector=SelectByMachineRoom({"room-1"}), arg="user-7")

Each takes the topic's writable queues, the message and the call's ``arg``, and returns one of the
queues. A selector of one's own is any function of that form. Decides nothing about retries: a
message that a selector placed is repeated on its queue only.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from rmq_ray.errors import ClientError
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.protocol.routing import queue_selection

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


def select_by_hash(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
    """The queue at ``abs(hash % n)``, with Java's hash of ``arg`` (a string or an integer): Java
    producers agree.
    """
    return queue_selection.select_by_hash(queues, _java_hash_code(arg))


class SelectByRandom:
    """Any queue. ``source``: None = a generator of its own."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source or random.Random()

    def __call__(
        self, queues: Sequence[MessageQueue], message: Message, arg: object
    ) -> MessageQueue:
        """See ``Selector``."""
        return queue_selection.select_by_random(queues, self._source.getrandbits(31))


class SelectByMachineRoom:
    """Only queues of brokers in these rooms (``room@name``), by the hash of ``arg`` among them;
    ``arg`` None = at random.

    Where no broker of the rooms has a queue the call raises ``ClientError``: nothing leaves the
    rooms unnoticed.
    """

    def __init__(self, rooms: Collection[str], source: random.Random | None = None) -> None:
        self._rooms = frozenset(rooms)
        self._source = source or random.Random()

    def __call__(
        self, queues: Sequence[MessageQueue], message: Message, arg: object
    ) -> MessageQueue:
        """See ``Selector``."""
        near = [
            queue
            for queue in queues
            if queue.broker_name.partition("@")[0] in self._rooms and "@" in queue.broker_name
        ]
        if not near:
            raise ClientError(
                f"topic {message.topic!r} has no queue in the rooms "
                f"{', '.join(sorted(self._rooms))}; name brokers room@name, or add the room",
                message.topic,
            )
        return queue_selection.select_by_hash(
            near, self._source.getrandbits(31) if arg is None else _java_hash_code(arg)
        )


def _java_hash_code(value: object) -> int:
    """``hashCode()`` of Java's String, Integer (32 bits) or Long."""
    if isinstance(value, str):
        return java_hash(value)
    if isinstance(value, int):
        if _INT_MIN <= value <= _INT_MAX:
            return value
        folded = (value ^ (value & (1 << 64) - 1) >> 32) & (1 << 32) - 1
        return folded - (1 << 32) if folded > _INT_MAX else folded
    raise ClientError(
        f"the hash of {value!r} differs between processes and languages; give a string or an "
        f"integer as arg"
    )
