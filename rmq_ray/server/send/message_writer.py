"""The single-message path: one message with all its fields becomes one record
(protocol-behaviour 9, 19; store-format 11).

For foreign clients' sends and for whatever the broker itself writes: copies of failed messages,
delayed messages that are due, events.

Decides: what the stored properties are (CLUSTER added; WAIT and our frame mark stripped), and that
a delayed message goes to the schedule topic first. Does not decide whether a client may send. On
return the record is in the kernel; durable is the caller's wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.config import HOUR_MS
from rmq_ray.errors import StoreNotReady
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import CLUSTER, FRAME, TIMER_OUT_MS, WAIT, SysFlag, encode_properties
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.protocol.delay import DelayLevels, park, requested_level
from rmq_ray.protocol.due_window import SET_BACK_MS
from rmq_ray.protocol.timer import asked_due_ms, is_timed, park_until
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.store.frames.single_message import StoredMessage
from rmq_ray.store.front.message_store import AppendResult

NOT_STORED = (WAIT, FRAME)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a copy keeps of the message that it was made from, or what a client told. ``born_ms``
    None = now.
    """

    born_ms: int | None = None
    born_host: tuple[str, int] | None = None
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    """Of a committed message: the log offset of its half."""


NEW = Origin()


class MessageWriter:
    """Writes single messages of one broker."""

    def __init__(self, runtime: BrokerRuntime, keeper: StoreKeeper, levels: DelayLevels) -> None:
        self._counters = runtime.counters
        self._delay_ms_max = runtime.config.timer_max_delay_hours * HOUR_MS
        self.timer_floor_ms = 0
        """Up to here the timer has delivered: nothing that is written from now on is due before."""
        self._keeper = keeper
        self._identity = runtime.identity
        self._levels = levels
        self._clock = runtime.clock
        self._host = runtime.store_host

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        origin: Origin = NEW,
        frame_id: FrameId | None = None,
    ) -> AppendResult:
        """Store one message. Raises ``MessageIllegal``, ``MessageTooLarge`` and the store's errors.
        ``frame_id``: a repeat is recognised, after a crash too.

        A DELAY property above 0 parks it in the schedule topic, one that asks for a time in the
        timer topic, except for transactional messages.
        """
        level = self._levels.clamp(requested_level(properties))
        kept = {name: value for name, value in properties.items() if name not in NOT_STORED}
        if topic != TIMER_TOPIC and origin.sys_flag & SysFlag.TRANSACTION_MASK in (
            SysFlag.TRANSACTION_NOT,
            SysFlag.TRANSACTION_COMMIT,
        ):
            kept.pop(TIMER_OUT_MS, None)
            if is_timed(kept):
                now_ms = self._clock.now_ms()
                if self.timer_floor_ms > now_ms + SET_BACK_MS:
                    raise StoreNotReady("the clock was set back, the timer follows; send again")
                due_ms = max(
                    asked_due_ms(kept, now_ms, self._delay_ms_max), now_ms, self.timer_floor_ms
                )
                self._counters.delayed(topic, due_ms - now_ms)
                topic, queue_id, kept = park_until(topic, queue_id, due_ms, kept)
            elif level > 0:
                self._counters.delayed(topic, self._levels.delay_ms(level))
                topic, queue_id, kept = park(topic, queue_id, level, kept)
        kept.setdefault(CLUSTER, self._identity.cluster)
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store.append_message(self._message(topic, queue_id, body, kept, origin), frame_id)

    def now_ms(self) -> int:
        """What a message that is written now was born at."""
        return self._clock.now_ms()

    def stored(self, topic: str, body: bytes, text: str, born_ms: int) -> StoredMessage:
        """A message of the broker's own for queue 0, whose property string is complete."""
        return StoredMessage(topic, 0, body, text, 0, 0, born_ms, self._host)

    def put_encoded(
        self, topic: str, queue_id: int, body: bytes, text: str, origin: Origin = NEW
    ) -> AppendResult:
        """Store one message whose property string is complete: what the broker writes very often.
        Raises as ``put``.
        """
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        born_ms = self._clock.now_ms() if origin.born_ms is None else origin.born_ms
        host = origin.born_host or self._host
        return store.append_message(
            StoredMessage(
                topic,
                queue_id,
                body,
                text,
                origin.flag,
                origin.sys_flag,
                born_ms,
                host,
                origin.reconsume_times,
                origin.prepared_offset,
            )
        )

    def put_batch(
        self, topic: str, queue_id: int, body: bytes, properties: dict[str, str], origin: Origin
    ) -> AppendResult:
        """Store RocketMQ's batch body; ``properties`` and CLUSTER are added to each message. Raises
        as ``put`` does.
        """
        kept = {name: value for name, value in properties.items() if name != FRAME}
        kept.setdefault(CLUSTER, self._identity.cluster)
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store.append_batch_body(self._message(topic, queue_id, body, kept, origin))

    def _message(
        self, topic: str, queue_id: int, body: bytes, properties: dict[str, str], origin: Origin
    ) -> StoredMessage:
        return StoredMessage(
            topic,
            queue_id,
            body,
            encode_properties(properties),
            origin.flag,
            origin.sys_flag,
            self._clock.now_ms() if origin.born_ms is None else origin.born_ms,
            origin.born_host or self._host,
            origin.reconsume_times,
            origin.prepared_offset,
        )
