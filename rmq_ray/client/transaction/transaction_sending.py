"""Half messages and their ends on the wire: threads that begin, or finish, transactions at once
share frames (protocol-behaviour 20).

    half ──alone, or in a group──> HalfPayload ──SEND_HALVES─────────> the queue's broker
    end  ──alone, or in a group──> End, End, ... ──END_TRANSACTIONS──> the halves' broker

Decides the forms, what travels together, and that a half is repeated on its own broker only. Does
not decide what the sender remembers of a half, or how often an end is repeated
(``transaction_engine``), nor who shares with whom (``client.sending.group_commit``). Halves with an
immunity, a given queue or long properties of their own go alone; whoever ends gets its own answer,
or the error that the request met. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.outgoing.send_payload import FLAG_MAX, frame_stored_at, split_words
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.sending.group_commit import Group, GroupCommit, MessageGroup, SendCoalescer
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.codec.frame_encoder import encode_frame, encode_single
from rmq_ray.errors import ConnectFailed, RemotingError, RequestTimeout
from rmq_ray.model.ids import Address, FrameId, MessageQueue
from rmq_ray.model.message import SendResult
from rmq_ray.model.topics import HALF_TOPIC
from rmq_ray.protocol.transaction import half_prefix
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import BINARY, Buffer, Command
from rmq_ray.remoting.wire.halves import ENDS_MAX, End, HalvesHeader, pack_ends, unpack_end_answers
from rmq_ray.remoting.wire.records import pack_send, pack_send_one

END_BYTES = 32
REQUEST_TIMEOUT_MS = 3_000.0
Answer = tuple[int, str | None]
"""Response code and remark."""
# characters of properties: a longer half goes alone, so that a refusal of it is nobody else's
SHARED_TEXT_MAX = 7_000
_KEY_CHARS = 32  # of UNIQ_KEY, which ends each text


class HalfPayload:
    """See ``FramePayload``: half messages of one topic, for whichever queue they go to. Texts
    end with UNIQ_KEY.
    """

    def __init__(
        self,
        group: str,
        items: Sequence[SendRequest],
        born_ms: int,
        frame_id: FrameId,
        immunity_s: int | None = None,
    ) -> None:
        self.topic = items[0].topic
        self.frame_id = frame_id
        self.message_ids: Sequence[str] = [item.text[-_KEY_CHARS:] for item in items]
        self.sizes: list[int] = []
        self._items = items
        self._group = group
        self._born_ms = born_ms
        self._immunity_s = immunity_s
        self._queue: MessageQueue | None = None
        self._fields: dict[str, str] = {}
        self._body: tuple[Buffer, ...] = ()

    def command(self, queue: MessageQueue) -> Command:
        """See ``FramePayload``. The real queue is part of each record."""
        if queue != self._queue:
            self._encode(queue)
        return Command(
            RequestCode.SEND_HALVES, fields=self._fields, body=self._body, serialize=BINARY
        )

    def stored_at(self, answer: Command) -> tuple[int, int]:
        """See ``FramePayload``: places of the halves."""
        return frame_stored_at(answer)

    def _encode(self, queue: MessageQueue) -> None:
        header = HalvesHeader(queue.topic, queue.queue_id, self._group, self._immunity_s)
        self._queue, self._fields = queue, header.to_fields()
        prefix, items = half_prefix(*header), self._items
        flags = [item.flag for item in items]
        if len(items) == 1 and flags[0] <= FLAG_MAX:
            record = encode_single(
                HALF_TOPIC,
                0,
                items[0].body,
                prefix + items[0].text,
                self._born_ms,
                self.frame_id,
                flags[0],
            )
            self._body, self.sizes[:] = pack_send_one(record), [len(record)]
            return
        users, sys_flags = split_words(flags if any(flags) else None)
        bodies, texts = [item.body for item in items], [prefix + item.text for item in items]
        records, sizes = encode_frame(
            HALF_TOPIC, 0, bodies, texts, self._born_ms, self.frame_id, sys_flags, users
        )
        self._body, self.sizes[:] = pack_send(records, sizes), sizes.tolist()


def mark(message: SendRequest, key: str) -> None:
    """Give it its unique key."""
    message.text = f"{message.text}UNIQ_KEY\x01{key}"


class HalfCoalescer(SendCoalescer):
    """Half messages of threads of one producer group."""

    alone_max = 1  # as for ends
    crowd_min = 2
    idle_max = 1

    def _payload(self, group: MessageGroup, timeout_ms: float) -> HalfPayload:
        group.outcome.transactional = True
        return HalfPayload(
            self._engine.config.group,
            group.items,
            self._clock.now_ms(),
            self._identity.take(timeout_ms),
        )


class HalfSending:
    """Of one producer. Thread-safe. ``engine``: the producer's, but to one broker only once it may
    have the half.
    """

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self._timeout_ms = float(core.config.send_timeout_ms)
        self.engine = core.engine.of_halves()
        self._coalescer = HalfCoalescer(self.engine, core.identity, core.async_sender, self._again)

    def send(
        self, message: SendRequest, key: str, timeout_ms: float, immunity_s: int | None
    ) -> SendResult:
        """Store one half with this unique key; blocks. The result's offsets are the half's, its
        queue is the real one. Raises ``SendError``.
        """
        mark(message, key)
        started_ms = self._core.clock.monotonic_ms()
        pinned = message.queue is not None
        queue = message.queue or self._core.next_queue(message.topic, timeout_ms)
        if (
            pinned
            or self._core.has_waited(timeout_ms, started_ms)
            or immunity_s is not None
            or timeout_ms != self._timeout_ms
            or len(message.text) > SHARED_TEXT_MAX
        ):
            return self._alone(message, queue, pinned, timeout_ms, started_ms, immunity_s)
        place = self._coalescer.enter(message, queue, started_ms)
        if place is not None:
            return self._coalescer.wait(*place)
        try:
            return self._alone(message, queue, False, timeout_ms, started_ms, None)
        finally:
            self._coalescer.lone_ended_to(queue)

    def payload(
        self, messages: Sequence[SendRequest], wait_ms: float, immunity_s: int | None
    ) -> HalfPayload:
        """Marked messages of one topic; waits up to ``wait_ms`` for a frame id, which is to be
        released.
        """
        core = self._core
        return HalfPayload(
            core.group, messages, core.clock.now_ms(), core.identity.take(wait_ms), immunity_s
        )

    def _again(self, message: SendRequest, queue: MessageQueue, began_ms: float) -> SendResult:
        return self._alone(message, queue, False, self._timeout_ms, began_ms, None)

    def _alone(
        self,
        message: SendRequest,
        queue: MessageQueue,
        pinned: bool,
        timeout_ms: float,
        started_ms: float,
        immunity_s: int | None,
    ) -> SendResult:
        payload = self.payload((message,), self._core.left_ms(timeout_ms, started_ms), immunity_s)
        try:
            return self.engine.send(payload, queue, pinned, timeout_ms, started_ms)
        finally:
            self._core.identity.release(payload.frame_id)


# --- ends ---


class EndGroup(Group[End]):
    """Ends for one broker, whose name is the key. ``outcome``: what each was answered, or what the
    request met.
    """

    __slots__ = ("outcome",)

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.outcome: list[Answer] | RemotingError | None = None


class EndSender(GroupCommit[End, EndGroup]):
    """Of one producer. One request to a broker at a time: threads with transactions wait twice
    each, so there are fewer of them to share.
    """

    alone_max = 1
    crowd_min = 2
    idle_max = 1

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__(instance.clock, ENDS_MAX, ENDS_MAX * END_BYTES)
        self._instance = instance
        self._group = group

    def end(self, broker_name: str, end: End, timeout_ms: float) -> Answer:
        """Tell a broker and wait, alone or with others. Raises ``RemotingError``: it may have
        happened.
        """
        place = self.join(broker_name, end, END_BYTES, lambda: EndGroup(broker_name))
        if place is None:
            try:
                return answers_of(
                    self._instance.invoke(
                        self._address(broker_name), ends_command(self._group, [end]), timeout_ms
                    ),
                    1,
                )[0]
            finally:
                self.lone_ended(broker_name)
        group, index = place
        self.sleep(group, index, timeout_ms)
        outcome = group.outcome
        if outcome is None:
            raise RequestTimeout(
                f"{broker_name} did not answer within {timeout_ms:.0f} ms", broker_name
            )
        if isinstance(outcome, RemotingError):
            raise type(outcome)(*outcome.args)
        return outcome[index]

    def _ship(self, group: EndGroup) -> None:
        def answered(
            outcome: Command | RemotingError,
        ) -> None:  # in a reader's thread: no sending here
            try:
                group.outcome = (
                    answers_of(outcome, len(group.items))
                    if isinstance(outcome, Command)
                    else outcome
                )
            except RemotingError as error:
                group.outcome = error
            group.ended()

        try:
            self._instance.link.invoke_async(
                self._address(group.key),
                ends_command(self._group, group.items),
                REQUEST_TIMEOUT_MS,
                answered,
            )
        except RemotingError as error:
            answered(error)

    def _address(self, broker_name: str) -> Address:
        address = self._instance.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no address of broker {broker_name!r} is known")
        return address


def ends_command(group: str, ends: list[End]) -> Command:
    """The request that tells a broker all of them."""
    return Command(RequestCode.END_TRANSACTIONS, body=pack_ends(group, ends), serialize=BINARY)


def answers_of(answer: Command, count: int) -> list[Answer]:
    """What a broker said of each of ``count`` ends. ``MalformedFrame`` for what it cannot have
    said.
    """
    if answer.code != 0:  # nothing of it was looked at, or nobody knows
        return [(answer.code, answer.remark)] * count
    return unpack_end_answers(answer.body_bytes(), count)
