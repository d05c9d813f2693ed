"""Dead letters: what lies in the groups' ``%DLQ%`` topics, and the way back (protocol-behaviour
17).

    %DLQ%billing, queue 0:  0 1 2 3 | 4 5 6         position of group rmq-ray-dlq = 4: 0 to 3 were
                                                    resent
                                      └──resend─> the topic that each was sent to at first

A dead letter stays where it lies until retention takes it; a position of ours says which ones were
resent. Decides what a resent message is: a new one, with body, tag, keys, flag and the user's
properties, for all groups of its topic; its tries are forgotten. Called by the command line.

Invariant: the position moves only behind messages whose sends were acknowledged: after a failure
the rest is resent, at worst some of it twice.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from typing import Any

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.resending import SEND_WAIT_S
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.outgoing.send_future import SendFuture
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.errors import AdminError, ClientError, GroupNotFound, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import RETRY_TOPIC, Message
from rmq_ray.model.topics import DLQ_PREFIX, dlq_topic
from rmq_ray.protocol.validators import check_group
from rmq_ray.remoting.wire.bodies_admin import QueueStats

POSITION_GROUP = "rmq-ray-dlq"
"""Whose committed offsets say how far resending came."""
PAGE_MESSAGES = 256
RATE_MAX = 1_000_000
PARTS_A_SECOND = 10


class SendRate:
    """So many messages a second, until ``stop``; ``sent`` counts them. Of one resending."""

    def __init__(self, per_second: float, clock: Clock = SYSTEM_CLOCK) -> None:
        if not 0 < per_second <= RATE_MAX:
            raise ClientError(
                f"the rate must be more than 0 and at most {RATE_MAX} messages a second, not "
                f"{per_second}",
                per_second,
            )
        self._clock = clock
        self._rate = per_second
        self._next_ms = clock.monotonic_ms()
        self._ended = threading.Event()
        self.sent = 0

    @property
    def stopped(self) -> bool:
        """Whether somebody ended it."""
        return self._ended.is_set()

    def stop(self) -> None:
        """Nothing more is sent; from any thread."""
        self._ended.set()

    def parts(self, messages: list[MessageExt]) -> Iterator[list[MessageExt]]:
        """The messages in parts, each when its time has come."""
        size = max(1, int(self._rate / PARTS_A_SECOND))
        for begin in range(0, len(messages), size):
            part = messages[begin : begin + size]
            late_ms = self._clock.monotonic_ms() - self._next_ms
            if self._ended.wait(max(0.0, -late_ms / 1000)):
                return
            self._next_ms += max(late_ms, 0.0) + 1000 * len(part) / self._rate
            yield part
            self.sent += len(part)


def origin_topic(message: MessageExt) -> str | None:
    """The topic that a dead letter was sent to at first, its namespace included; None where nobody
    wrote it down.
    """
    return message.all_properties.get(RETRY_TOPIC)


class DeadLetters(Admin):
    """Administration that knows dead letters. Blocking."""

    def dead_letter_groups(self) -> list[dict[str, Any]]:
        """A row for each group that has dead letters: group, messages, left (not resent), last_ms
        (when the newest died).
        """
        rows = []
        for topic in self.topics(system=True):
            if not topic.startswith(DLQ_PREFIX):
                continue
            stats, begins = self.topic_stats(topic), self._positions(topic)
            messages = sum(s.max_offset - s.min_offset for s in stats.values())
            left = sum(
                s.max_offset - min(max(s.min_offset, begins.get(queue, 0)), s.max_offset)
                for queue, s in stats.items()
            )
            if messages:
                last_ms = max(s.last_update_ms for s in stats.values())
                rows.append(
                    {
                        "group": topic.removeprefix(DLQ_PREFIX),
                        "messages": messages,
                        "left": left,
                        "last_ms": last_ms,
                    }
                )
        return rows

    def dead_letters(self, group: str, *, all_of_them: bool = True) -> Iterator[MessageExt]:
        """Dead letters of a group, queue after queue, oldest first; else only those that were not
        resent. ``GroupNotFound`` where there are none.
        """
        for page, _ in self._pages(group, all_of_them):
            yield from page

    def resend_dead_letters(
        self,
        group: str,
        *,
        message_ids: Collection[str] = (),
        again: bool = False,
        limit: int | None = None,
        execute: bool = False,
        pace: SendRate | None = None,
    ) -> dict[str, int]:
        """Send dead letters to the topics that they were first sent to; returns topic -> how many,
        of what would be sent without ``execute``.

        Those that were not resent yet, at most ``limit``; all of them with ``again``; or exactly
        those with ``message_ids``. ``pace``: how fast, and until when. ``AdminError`` where one
        names no topic, or an id is not there (nothing is sent then). What a send raises ends it;
        what went before counts as resent.
        """
        if message_ids:
            return self._resend_these(group, set(message_ids), execute)
        counts: dict[str, int] = {}
        left = limit if limit is not None else -1
        with Producer(POSITION_GROUP, discovery=self._discovery) as producer:
            begins = self._positions(dlq_topic(group))
            for page, queue in self._pages(group, again):
                chosen = page if left < 0 else page[:left]
                for part in [chosen] if pace is None or not execute else pace.parts(chosen):
                    for message in part:
                        topic = _required_topic(message)
                        counts[topic] = counts.get(topic, 0) + 1
                    if execute:
                        self._send(producer, part, queue, begins.get(queue, 0))
                left -= len(chosen) if left >= 0 else 0
                if left == 0 or (pace is not None and pace.stopped):
                    break
        return counts

    def _resend_these(self, group: str, wanted: set[str], execute: bool) -> dict[str, int]:
        found = {
            message.message_id: message
            for message in self.dead_letters(group)
            if message.message_id in wanted
        }
        if missing := sorted(wanted - found.keys()):
            raise AdminError(
                f"group {group!r} has no dead letter {missing[0]}; see `rmq-ray dlq show {group}`",
                *missing,
            )
        counts: dict[str, int] = {}
        with Producer(POSITION_GROUP, discovery=self._discovery) as producer:
            for message in found.values():
                topic = _required_topic(message)
                counts[topic] = counts.get(topic, 0) + 1
            if execute:
                for sent in [_resent(producer, message) for message in found.values()]:
                    sent.result(SEND_WAIT_S)
        return counts

    def _send(
        self, producer: Producer, page: list[MessageExt], queue: MessageQueue, position: int
    ) -> None:
        """One page; the position moves behind what was acknowledged, in their order, and never
        back.
        """
        done = 0
        try:
            for message, sent in [(message, _resent(producer, message)) for message in page]:
                sent.result(SEND_WAIT_S)
                done = message.queue_offset + 1
        finally:
            if done > position:
                self._commit(POSITION_GROUP, queue, done)

    def _pages(
        self, group: str, from_first: bool
    ) -> Iterator[tuple[list[MessageExt], MessageQueue]]:
        """Messages of one queue at a time, up to the end that it has now."""
        stats, begins = self._stats(group), {} if from_first else self._positions(dlq_topic(group))
        with PullConsumer(POSITION_GROUP, discovery=self._discovery) as reader:
            for queue, there in sorted(stats.items()):
                offset = max(there.min_offset, begins.get(queue, 0))
                while (
                    offset < there.max_offset
                ):  # ends: each pull goes further, or the queue is left
                    found = reader.pull(
                        queue, "*", offset, min(PAGE_MESSAGES, there.max_offset - offset)
                    )
                    if found.messages:
                        yield list(found.messages), queue
                    if found.next_offset <= offset:
                        break
                    offset = found.next_offset

    def _stats(self, group: str) -> dict[MessageQueue, QueueStats]:
        check_group(group)
        try:
            return self.topic_stats(dlq_topic(group))
        except TopicNotFound as error:
            raise GroupNotFound(f"group {group!r} has no dead letters: {error}", group) from None

    def _positions(self, topic: str) -> dict[MessageQueue, int]:
        return {
            queue: progress.consumer_offset
            for queue, progress in self._progress(POSITION_GROUP, topic).items()
        }


def _required_topic(message: MessageExt) -> str:
    topic = origin_topic(message)
    if topic is None:
        raise AdminError(
            f"dead letter {message.message_id} does not say which topic it was sent to; "
            f"export it and send it yourself",
            message.message_id,
        )
    return topic


def _resent(producer: Producer, message: MessageExt) -> SendFuture:
    again = Message(
        _required_topic(message),
        message.body,
        message.tag,
        message.keys,
        message.properties,
        message.flag,
    )
    return producer.send_async(again)
