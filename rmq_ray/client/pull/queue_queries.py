"""Questions to brokers about single queues: bounds, offsets by time, committed offsets, and one
pull (protocol-behaviour 10, 18, 24).

    pull(queue, subscription, ...) ──PULL_RECORDS, filter inline──> PullResult

    broker's answer            PullStatus       next_offset
    0 SUCCESS                  FOUND            behind what was looked at; messages by the exact tag
    20 PULL_RETRY_IMMEDIATELY  NO_MATCHED_MSG   behind what was looked at
    19 PULL_NOT_FOUND          NO_NEW_MSG       the same, or the next file's first where the index
                                                has a hole
    21 PULL_OFFSET_MOVED       OFFSET_ILLEGAL   where the queue can be read: smallest or greatest
                                                offset, or 0

Decides which error a refusal is. Keeps nothing. Called by ``client.pull.pull_consumer`` in its
callers' threads: every method waits for a broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmq_ray.client.consumer.puller import STATUS_OF_CODE
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.time_search import first_since
from rmq_ray.client.messages.received import PulledPage, whole_bytes
from rmq_ray.client.pull.pulled_batch import PageSlice, PulledBatch
from rmq_ray.errors import (
    ConsumeError,
    GroupNotFound,
    NotAuthorized,
    ResponseError,
    RmqError,
    SubscriptionInvalid,
    SubscriptionStale,
    TopicNotFound,
)
from rmq_ray.model.groups import Subscription
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.pulling import PullStatus, PullSysFlag
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.headers import (
    OffsetAnswer,
    QueryOffsetHeader,
    QueueHeader,
)
from rmq_ray.remoting.wire.records import Lengths, PullAnswer, PullRecords, pack_pull, unpack_pulled

CALL_TIMEOUT_MS = 5_000
# a held pull is answered when its time is over; a broker that is slower than this by more is given
# up
GRACE_MS = 10_000

_ERRORS: dict[int, type[RmqError]] = {
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionInvalid,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionStale,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionStale,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.NO_PERMISSION: NotAuthorized,
    ResponseCode.NOT_AUTHORIZED: NotAuthorized,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """What one pull found. ``next_offset``: where to pull next, also when the asked offset was
    illegal.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: PulledBatch


@dataclass(frozen=True, slots=True)
class OnePull:
    """What is asked: up to ``count`` records and ``body_bytes`` from ``offset`` on; ``wait_ms``:
    how long the broker may hold it.
    """

    offset: int
    count: int
    body_bytes: int
    wait_ms: int = 0


class QueueQueries:
    """Of one group. ``at``: which copy of a broker is asked, by its name; of the others the one
    that routes tell.
    """

    def __init__(
        self, client: ClientInstance, group: str, at: Mapping[str, Address] | None = None
    ) -> None:
        self._client = client
        self._group = group
        self._at = at or {}

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that can be read. ``TopicNotFound`` when no name server knows the topic."""
        self._client.routes.refresh(topic)
        found = self._client.routes.subscribe(topic)
        if not found:
            raise TopicNotFound(
                f"no name server knows the topic {topic!r}, or it has no queue that can be "
                f"read; create it",
                topic,
            )
        return sorted(found)

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """(smallest offset there is, offset of the next message to come)."""
        return self._offset(queue, RequestCode.GET_MIN_OFFSET), self._offset(
            queue, RequestCode.GET_MAX_OFFSET
        )

    def offset_at(self, queue: MessageQueue, store_ms: int) -> int:
        """The first message stored at or after ``store_ms``; the queue's end when there is none."""
        return self._number(queue, first_since(queue, store_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """Where the broker says that the group's consumers begin: 0, too, for a group that is new
        in a queue that is still whole. None: nowhere yet.
        """
        return self._kept(queue, None)

    def position(self, queue: MessageQueue) -> int | None:
        """What the group has committed; None where it never has."""
        return self._kept(queue, False)

    def _kept(self, queue: MessageQueue, set_zero: bool | None) -> int | None:
        header = QueryOffsetHeader(self._group, queue.topic, queue.queue_id, set_zero)
        answer = self._client.invoke(
            self._address(queue),
            Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=header.to_fields()),
            CALL_TIMEOUT_MS,
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return OffsetAnswer.from_fields(_accepted(answer, queue).fields).offset

    def pull(self, queue: MessageQueue, subscription: Subscription, asked: OnePull) -> PullResult:
        """One pull; see the table above for what it can find. Raises what a refusal means, and
        ``RemotingError`` without an answer.
        """
        flags = (
            PullSysFlag.SUBSCRIPTION
            | PullSysFlag.LITE_PULL
            | (PullSysFlag.SUSPEND if asked.wait_ms else PullSysFlag(0))
        )
        request = PullRecords(
            self._group,
            queue.topic,
            queue.queue_id,
            asked.offset,
            asked.count,
            asked.body_bytes,
            int(flags),
            0,
            asked.wait_ms,
            subscription.version,
            subscription.expression_type,
            subscription.expression,
        )
        command = Command(RequestCode.PULL_RECORDS, body=pack_pull(request), serialize=BINARY)
        answer = self._client.invoke(self._address(queue), command, asked.wait_ms + GRACE_MS)
        status = STATUS_OF_CODE.get(answer.code)
        if status is None:
            raise _refusal(answer, queue)
        return _result(queue, subscription, status, unpack_pulled(answer.body))

    def _offset(self, queue: MessageQueue, code: RequestCode) -> int:
        return self._number(
            queue, Command(code, fields=QueueHeader(queue.topic, queue.queue_id).to_fields())
        )

    def _number(self, queue: MessageQueue, command: Command) -> int:
        answer = self._client.invoke(self._address(queue), command, CALL_TIMEOUT_MS)
        return OffsetAnswer.from_fields(_accepted(answer, queue).fields).offset

    def _address(self, queue: MessageQueue) -> Address:
        if queue.broker_name in self._at:
            return self._at[queue.broker_name]
        routes = self._client.routes
        found = routes.subscribe_address(queue.broker_name)
        if found is None:
            routes.refresh(queue.topic)
            found = routes.subscribe_address(queue.broker_name)
        if found is None:
            raise TopicNotFound(
                f"no name server tells where broker {queue.broker_name!r} of {queue} is; see "
                f"fetch_message_queues({queue.topic!r})",
                queue.topic,
            )
        return found[1]


def _result(
    queue: MessageQueue, subscription: Subscription, status: PullStatus, answer: PullAnswer[Lengths]
) -> PullResult:
    bounds = (answer.min_offset, answer.max_offset)
    if status is not PullStatus.FOUND or not len(answer.sizes):
        return PullResult(
            status, answer.next_offset, *bounds, PulledBatch((), {queue: answer.next_offset})
        )
    raw, start = whole_bytes(answer.records)
    page = PulledPage(queue, raw, answer.sizes, start, bounds)
    indices: Sequence[int] = (
        page.tagged(subscription.tags) if subscription.tags else range(len(page))
    )
    pieces = [PageSlice(page, indices)] if indices else []
    return PullResult(
        PullStatus.FOUND if indices else PullStatus.NO_MATCHED_MSG,
        answer.next_offset,
        *bounds,
        PulledBatch(pieces, {queue: answer.next_offset}),
    )


def _accepted(answer: Command, queue: MessageQueue) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise _refusal(answer, queue)
    return answer


def _refusal(answer: Command, queue: MessageQueue) -> RmqError:
    text = f"the broker refused a request for {queue}: {answer.remark or 'no reason given'}"
    known = _ERRORS.get(answer.code)
    if known is not None:
        return known(text, queue.topic)
    busy = answer.code in (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    )
    return ConsumeError(text, int(answer.code)) if busy else ResponseError(text, int(answer.code))
