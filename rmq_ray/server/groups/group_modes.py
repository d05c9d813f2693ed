"""A group is consumed in one way at a time: by push and pull consumers, which own queues, or by
simple ones, which pop from all.

Both at once would each move the group's offsets past what the other has in hand. Decides who is
refused: whoever comes second. Called by heartbeats and pulls; pops ask ``pop_handlers``.
"""

from __future__ import annotations

from rmq_ray.model.groups import ConsumerData, ConsumeType
from rmq_ray.protocol.consumer_group import Connection, ConsumerGroup

POP = ConsumeType.CONSUME_POP


def divides_queues(data: ConsumerData) -> bool:
    """Whether the members divide the queues among them, so that each must hear of every other."""
    return data.consume_type is not POP


def refusal_to_join(
    found: ConsumerGroup | None, data: ConsumerData, connection: Connection
) -> str | None:
    """Why ``data`` cannot join ``found`` over this connection; None when it can."""
    if found is None or (found.consume_type is POP) == (data.consume_type is POP):
        return None
    others = list(
        dict.fromkeys(
            client.client_id for peer, client in found.channels.items() if peer is not connection
        )
    )
    if not others:
        return None
    used, wanted = (
        ("simple", "push or pull") if found.consume_type is POP else ("push or pull", "simple")
    )
    return (
        f"group {data.group} is used by {used} consumers ({', '.join(others[:3])}); {wanted} "
        f"consumers need another group, or stop those first"
    )


def refusal_to_pull(found: ConsumerGroup | None) -> str | None:
    """Why a member's pull is not served; None when it is."""
    if found is None or found.consume_type is not POP:
        return None
    return (
        f"group {found.name} is used by simple consumers ({', '.join(found.client_ids[:3])}); "
        f"pull as another group, or stop them"
    )
