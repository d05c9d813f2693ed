"""The header of PUSH_REPLY_MESSAGE_TO_CLIENT 326: a reply on its way from the broker to who asked
(remoting 4).

SEND_REPLY_MESSAGE 324 and 325 have the headers of 10 and 310 (``headers.SendHeader``). Pure.
"""

from __future__ import annotations

from rmq_ray.remoting.wire.header import Header, Int32, header


@header(
    born_ms="bornTimestamp", store_ms="storeTimestamp", default_topic_queues="defaultTopicQueueNums"
)
class PushReplyHeader(Header):
    """``born_host``, ``store_host``: ``ip:port``. ``properties`` hold CORRELATION_ID."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: Int32
    queue_id: Int32
    sys_flag: Int32
    born_ms: int
    flag: Int32
    born_host: str
    store_host: str
    store_ms: int
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
