"""JSON bodies of requests about the members and positions of consumer groups (remoting 4 and 5):
220 to 223, 307, 309, 328.

Pure. Bodies that are no such JSON raise ``BodyInvalid`` (``body_json.shaped``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rmq_ray.model.groups import Subscription
from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire.bodies import decode_queue, encode_queue, encode_subscription
from rmq_ray.remoting.wire.body_json import BodyInvalid, parse, shaped, write
from rmq_ray.remoting.wire.frame import Buffer

Offsets = Mapping[MessageQueue, int]


def encode_offsets(offsets: Offsets, member: str = "offsetTable") -> bytes:
    """``{"offsetTable":{MQ:5}}``: 220, the answer to 222, and what our administration adds to
    222.
    """
    return write({member: _table(offsets)})


@shaped
def decode_offsets(body: Buffer, member: str = "offsetTable") -> dict[MessageQueue, int]:
    """The same back; empty for an empty body. A list of objects with an ``offset`` (the form for
    C++ clients) is read, too.
    """
    if not len(body):
        return {}
    table = parse(body).get(member) or {}
    if isinstance(table, list):
        return {decode_queue(entry): int(entry["offset"]) for entry in table}
    if not isinstance(table, dict):
        raise BodyInvalid(f"{member} is no object")
    return {decode_queue(key): int(offset) for key, offset in table.items()}


def encode_status(members: Mapping[str, Offsets]) -> bytes:
    """Answer to 223: client id -> positions as the member has them."""
    return write(
        {
            "consumerTable": {client: _table(offsets) for client, offsets in members.items()},
            "messageQueueTable": {},
        }
    )


@shaped
def decode_status(body: Buffer) -> dict[str, dict[MessageQueue, int]]:
    """The same back."""
    table = parse(body).get("consumerTable") or {}
    return {
        str(client): {decode_queue(key): int(offset) for key, offset in offsets.items()}
        for client, offsets in table.items()
    }


def encode_client_status(offsets: Offsets) -> bytes:
    """Answer to 221: one member's positions."""
    return write({"consumerTable": {}, "messageQueueTable": _table(offsets)})


def encode_running_info(
    properties: Mapping[str, str],
    queues: Mapping[MessageQueue, Mapping[str, Any]],
    topics: Mapping[str, Mapping[str, Any]],
    subscriptions: Iterable[Subscription] = (),
    stacks: str | None = None,
) -> bytes:
    """Answer to 307: what the member is, its queues, its rates by topic, and where its threads
    stand, where that was asked for.
    """
    return write(
        {
            "jstack": stacks,
            "mqTable": {
                tuple(sorted(encode_queue(queue).items())): dict(info)
                for queue, info in queues.items()
            },
            "properties": dict(properties),
            "statusTable": {topic: dict(rates) for topic, rates in topics.items()},
            "subscriptionSet": [encode_subscription(one) for one in subscriptions],
        }
    )


def encode_direct_result(
    outcome: str, spent_ms: int, remark: str | None, *, order: bool, auto_commit: bool = True
) -> bytes:
    """Answer to 309: ``outcome`` is CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, and of ordered
    consumption CR_COMMIT and CR_ROLLBACK.
    """
    return write(
        {
            "autoCommit": auto_commit,
            "consumeResult": outcome,
            "order": order,
            "remark": remark,
            "spentTimeMills": spent_ms,
        }
    )


def encode_producers(groups: Mapping[str, Iterable[Mapping[str, Any]]]) -> bytes:
    """Answer to 328: producer group -> its clients."""
    return write(
        {"data": {group: [dict(client) for client in clients] for group, clients in groups.items()}}
    )


def _table(offsets: Offsets) -> dict[Any, int]:
    return {
        tuple(sorted(encode_queue(queue).items())): int(offset) for queue, offset in offsets.items()
    }


def queue_key(queue: MessageQueue) -> tuple[tuple[str, Any], ...]:
    """A queue as the key of an object: RocketMQ has objects there."""
    return tuple(sorted(encode_queue(queue).items()))
