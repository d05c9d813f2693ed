"""Messages of many threads in shared frames of records (``client.sending.group_commit`` says who
shares with whom).

    send of a thread ──join──> MessageGroup (one per topic and broker) ──encode──> Job ──> Launcher ──> ... ──> a result for each thread

Called by ``ProducerCore.send`` for ordinary messages to any queue, and by
``client.transaction.half_sending``, whose frames are half messages. Decides what a group becomes on
the wire and what each thread is told. Invariants: a frame is stored whole or not at all; each
thread gets a verdict of its own: of a frame that is refused because of one message, every thread
sends its message again, alone, within the frame's time; nobody loses more than a tenth of a
time-out by joining: a group that has waited longer leaves without him.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_ray.client.instance.identity import ProducerIdentity
from rmq_ray.client.outgoing.batch_bisect import ONE_OF_MANY
from rmq_ray.client.outgoing.send_future import BatchOutcome
from rmq_ray.client.outgoing.send_payload import FrameLoad
from rmq_ray.client.outgoing.send_request import Outgoing
from rmq_ray.client.sending.async_sender import Job, Launcher
from rmq_ray.client.sending.batching import RECORD_OVERHEAD, encode_load
from rmq_ray.client.sending.group_commit import Group, GroupCommit
from rmq_ray.client.sending.sending import LEFT_TO_SHARE, Delivery, Sending
from rmq_ray.clock import left_ms
from rmq_ray.errors import SendTimeout
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult

WAIT_SLACK_MS = 1_000.0  # beyond the time-out, for frames that end at it

Key = tuple[str, str]
"""Topic and broker name: a broker that hangs holds up nobody who sends to another."""
Alone = Callable[[Outgoing, MessageQueue, float], SendResult]
"""Sends a message in a frame of its own, to this queue first, in the time of a send that began then
(monotonic); as ``Sending.send``.
"""


class MessageGroup(Group[Outgoing]):
    """Messages that will be one frame, for ``queue``. ``began_ms``: when its time began to run,
    monotonic: that of who opens it.
    """

    __slots__ = ("began_ms", "outcome", "queue")

    def __init__(self, key: Key, queue: MessageQueue, began_ms: float) -> None:
        super().__init__(key)
        self.queue = queue
        self.began_ms = began_ms
        self.outcome = BatchOutcome(queue)
        self.outcome.on_finish = self.ended

    def ended(self) -> None:
        """See ``Group.ended``."""
        # group and outcome would be garbage that only the collector finds: it ran ten times a
        # second for that
        self.outcome.on_finish = None
        super().ended()


class SendCoalescer(GroupCommit[Outgoing, MessageGroup]):
    """See the module. Thread-safe."""

    def __init__(
        self, sending: Sending, identity: ProducerIdentity, launcher: Launcher, alone: Alone
    ) -> None:
        config = sending.config
        super().__init__(sending.clock, config.batch_messages_max, config.batch_bytes_max)
        self._timeout_ms = float(config.send_timeout_ms)
        self._apart_ms = self._timeout_ms * (1 - LEFT_TO_SHARE)
        self._sending = sending
        self._identity = identity
        self._launcher = launcher
        self._alone = alone

    def enter(
        self, message: Outgoing, queue: MessageQueue, began_ms: float
    ) -> tuple[MessageGroup, int] | None:
        """A place in a group for ``queue``'s broker; None = go alone, to ``queue``, and call
        ``leave`` afterwards whatever happens.

        ``began_ms``: when the message's time began to run, monotonic.
        """
        key = (queue.topic, queue.broker_name)
        found = self._open.get(key)
        if (
            found is not None and found.began_ms < began_ms - self._apart_ms
        ):  # its frame would take that much time from this message
            self.leave_behind(found)
        return self.join(
            key,
            message,
            len(message.body) + len(message.text) + RECORD_OVERHEAD,
            lambda: MessageGroup(key, queue, began_ms),
        )

    def leave(self, queue: MessageQueue) -> None:
        """A frame that was for ``queue``'s broker is answered."""
        self.left((queue.topic, queue.broker_name))

    def wait(self, group: MessageGroup, index: int) -> SendResult:
        """Sleep until the group is answered, or its time is over. Raises a ``SendError``."""
        if not self.sleep(group, index, self._timeout_ms + WAIT_SLACK_MS):
            raise SendTimeout(
                f"no answer within {self._timeout_ms:.0f} ms; the message may be stored",
                group.queue.topic,
            )
        error = group.outcome.error
        if error is None:
            return group.outcome.result(index)
        if isinstance(error, ONE_OF_MANY) and len(group.items) > 1:
            return self._alone(group.items[index], group.queue, group.began_ms)
        raise type(error)(*error.args)

    def _ship(self, group: MessageGroup) -> None:
        job = Job(
            group.outcome,
            lambda wait: self._delivery(group, wait),
            None,
            None,
            group.began_ms + self._timeout_ms,
        )
        self._launcher.admit(job)
        self._launcher.launch(job)

    def _delivery(self, group: MessageGroup, wait: bool) -> Delivery:
        attempts = self._sending.attempts_since(
            group.began_ms, group.queue, False, self._timeout_ms, codes_retried=True
        )
        load = self._load(
            group, left_ms(self._clock, self._timeout_ms, group.began_ms) if wait else 0.0
        )
        group.outcome.message_ids, group.outcome.sizes = load.message_ids, load.sizes
        return Delivery(load, group.queue, attempts, False)

    def _load(self, group: MessageGroup, timeout_ms: float) -> FrameLoad:
        """The group's frame; waits up to ``timeout_ms`` for a frame id."""
        items = group.items
        flags = [item.flag for item in items]
        bodies, texts = [item.body for item in items], [item.text for item in items]
        return encode_load(
            self._identity,
            group.queue,
            bodies,
            texts,
            self._clock.now_ms(),
            timeout_ms,
            flags if any(flags) else None,
        )
