"""Ext fields of requests about the members and positions of consumer groups (remoting 4 and 5)."""

from __future__ import annotations

from rmq_ray.remoting.wire.header import Header, wire_names


class ResetOffsetHeader(
    Header, frozen=True, rename=wire_names(force="isForce", timestamp_ms="timestamp")
):
    """INVOKE_BROKER_TO_RESET_OFFSET 222 and RESET_CONSUMER_CLIENT_OFFSET 220. ``timestamp_ms`` -1 =
    the queues' ends.
    """

    topic: str
    group: str
    timestamp_ms: int = -1
    force: bool = False


class ConsumerStatusHeader(Header, frozen=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223 (``client_addr`` empty = every member) and
    GET_CONSUMER_STATUS_FROM_CLIENT 221.
    """

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupHeader(Header, frozen=True):
    """CLONE_GROUP_OFFSET 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class BrokerConsumeStatsHeader(Header, frozen=True):
    """GET_BROKER_CONSUME_STATS 317."""

    is_order: bool = False


class RunningInfoHeader(Header, frozen=True):
    """GET_CONSUMER_RUNNING_INFO 307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyHeader(Header, frozen=True):
    """CONSUME_MESSAGE_DIRECTLY 309. The broker looks the message up by ``msg_id`` and adds it as
    the body.
    """

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class SendWithin(
    Header,
    frozen=True,
    rename=wire_names(untaken_max="rmqUntakenMax", count="rmqUntakenCount"),
):
    """A SEND_RECORDS that is stored only where, with it, at most ``untaken_max`` messages wait that
    nobody of the group of the topic's name has taken (ours): a queue of values with a bound.
    ``count``: messages of the whole batch whose first frame it is. None: it is a send as any.
    """

    untaken_max: int | None = None
    count: int | None = None
