"""How far a group has come: offsets in memory, handed to the brokers (protocol-behaviour 18).

    listener done ──update──> memory ──persist_all, every 5 s, one-way (15)──────> master of
                                     ──persist, removal of a queue and stop──────> the broker
                                     ──commit offset of every pull───────────────> name

Decides which value wins (``increase_only``) and whom it is told to. Does not decide what the offset
is: ``protocol.process_queue`` does. A broadcasting consumer keeps its offsets in a file instead
(``client.consumer.local_offset_store``).

Invariants: with ``increase_only`` a value never falls, nor does the broker's by it; what the broker
told is never above what it stores; nothing is written for a queue that was removed.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from math import inf
from typing import ClassVar

from rmq_ray.client.consumer.known_group import KnownGroup
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.errors import RemotingError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.rebalance import NO_STORED_OFFSET, OFFSET_UNKNOWN
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.headers import OffsetAnswer, QueryOffsetHeader, UpdateOffsetHeader

REQUEST_TIMEOUT_MS = 5_000

log = logging.getLogger("rmq_ray.client.offsets")


class ReadOffset(Enum):
    """Where ``read`` looks."""

    MEMORY = "READ_FROM_MEMORY"
    STORE = "READ_FROM_STORE"
    MEMORY_FIRST = "MEMORY_FIRST_THEN_STORE"


class OffsetStore(ABC):
    """The keeper of a consumer's offsets: a table in memory, which each kind hands over to where
    the next owner of a queue finds it. ``at_brokers``: pulls may carry offsets to the broker.
    """

    at_brokers: ClassVar[bool]

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[MessageQueue, int] = {}

    def load(self) -> None:
        """Read what was kept on this machine; nothing to do when the brokers keep it."""
        return

    def update(self, queue: MessageQueue, offset: int, increase_only: bool = True) -> None:
        """Remember ``offset`` as the next one to consume. Any thread."""
        with self._lock:
            if not increase_only or offset > self._offsets.get(queue, -1):
                self._offsets[queue] = offset

    @abstractmethod
    def read(self, queue: MessageQueue, where: ReadOffset) -> int:
        """The offset; -1 = there is none, -2 = it could not be read. What is told from outside of
        the memory is remembered.
        """

    def begin(self, queue: MessageQueue, offset: int) -> None:
        """The group is new in this queue and begins at ``offset``: from here on it has a position
        in it, whether messages come or not.
        """
        with self._lock:
            self._offsets[queue] = offset

    @abstractmethod
    def known_ms(self, queue: MessageQueue) -> int | None:
        """For how long the group has had a position in the queue's topic, as far as the queue's own
        broker does not know it; None where it has none.
        """

    def epoch(self, queue: MessageQueue) -> int:
        """Of the broker's log, in which the offset that was read last holds; 0 = not known. Who
        begins there is told if the log was cut before the first pull.
        """
        return 0

    @abstractmethod
    def persist(self, queue: MessageQueue) -> bool:
        """Hand this queue's offset over and wait until it is taken; False when that failed (or
        there is nothing to hand over): it is logged, and at worst messages come again.
        """

    @abstractmethod
    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Hand the offsets of these queues over without waiting; forget all others."""

    @abstractmethod
    def hand_over(self, table: Mapping[MessageQueue, int], until_ms: float = inf) -> None:
        """Hand these offsets over without waiting for answers, those that can be until then."""

    def remove(self, queue: MessageQueue) -> None:
        """Forget it in memory."""
        with self._lock:
            self._offsets.pop(queue, None)

    def clone(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """A copy of the table, of one topic or of all."""
        with self._lock:
            return {
                queue: offset
                for queue, offset in self._offsets.items()
                if topic is None or queue.topic == topic
            }


class RemoteOffsetStore(OffsetStore):
    """Offsets of a clustering group: the master of each broker name keeps those of its queues.

    ``lock_epoch``: under which lock of a queue its offset was reached, None where it is not
    consumed in order. ``log_epoch``: the log's epoch as the queue's last answer told it, so that
    what was read of a log that was cut since counts for nothing; 0 where it is not known.
    ``may_lower``: a commit may be lower than what is stored although nothing was moved.
    """

    at_brokers: ClassVar[bool] = True
    may_lower: ClassVar[bool] = False

    def __init__(
        self,
        group: str,
        client: ClientInstance,
        lock_epoch: Callable[[MessageQueue], int | None] | None = None,
        log_epoch: Callable[[MessageQueue], int] | None = None,
    ) -> None:
        super().__init__()
        self._group = group
        self._client = client
        self._lock_epoch = lock_epoch
        self._log_epoch = log_epoch
        self._known = KnownGroup(client, group)
        self._epochs: dict[MessageQueue, int] = {}
        self._moved: set[MessageQueue] = set()
        """Of what somebody wanted to be lower, perhaps, than what is stored; until they are given
        away, since a broker that restarts may have forgotten it.
        """

    def begin(self, queue: MessageQueue, offset: int) -> None:
        """See ``OffsetStore``. The broker is told at once: who dies before its first commit began
        here all the same.
        """
        super().begin(queue, offset)
        self.persist(queue)

    def known_ms(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``: what the topic's other brokers say."""
        return self._known.elsewhere_ms(queue.topic, queue.broker_name)

    def update(self, queue: MessageQueue, offset: int, increase_only: bool = True) -> None:
        """See ``OffsetStore``."""
        if not increase_only:
            with self._lock:
                self._moved.add(queue)
        super().update(queue, offset, increase_only)

    def read(self, queue: MessageQueue, where: ReadOffset) -> int:
        """See ``OffsetStore``."""
        known = self._offsets.get(queue)
        if where is ReadOffset.MEMORY:
            return NO_STORED_OFFSET if known is None else known
        if where is ReadOffset.MEMORY_FIRST and known is not None:
            return known
        self._epochs.pop(queue, None)
        try:
            found = self._ask(queue)
        except RemotingError as error:
            log.warning("offset of group %s in %s could not be read: %s", self._group, queue, error)
            return OFFSET_UNKNOWN
        if found >= 0:
            with self._lock:
                self._offsets[queue] = found
        return found

    def persist(self, queue: MessageQueue) -> bool:
        """See ``OffsetStore``. Waits up to 5 s."""
        offset = self._offsets.get(queue)
        address = self._client.routes.broker_address(queue.broker_name)
        if offset is None or address is None:
            return False
        try:
            answer = self._client.link.invoke(
                address, self._update_command(queue, offset), REQUEST_TIMEOUT_MS
            )
        except RemotingError as error:
            log.warning(
                "offset %d of group %s in %s not handed over: %s", offset, self._group, queue, error
            )
            return False
        if answer.code != ResponseCode.SUCCESS:
            log.warning(
                "offset %d of group %s in %s refused: code %d %s",
                offset,
                self._group,
                queue,
                answer.code,
                answer.remark or "",
            )
        return answer.code == ResponseCode.SUCCESS

    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """See ``OffsetStore``. Every queue, changed or not: a restarted broker may have forgotten
        the last seconds.
        """
        kept = frozenset(queues)
        with self._lock:
            for queue in [known for known in self._offsets if known not in kept]:
                del self._offsets[queue]
            self._moved &= kept
            table = dict(self._offsets)
        self.hand_over(table)

    def hand_over(self, table: Mapping[MessageQueue, int], until_ms: float = inf) -> None:
        """See ``OffsetStore``. A broker that fails once is not tried for its other queues: each try
        may take as long as a connection may.
        """
        failed: set[str] = set()
        for queue, offset in sorted(table.items()):
            address = self._client.routes.broker_address(queue.broker_name)
            if address is None or queue.broker_name in failed:
                continue
            if self._client.clock.monotonic_ms() >= until_ms:
                return
            command = self._update_command(queue, offset)
            command.flag |= FLAG_ONEWAY
            try:
                self._client.link.oneway(address, command)
            except RemotingError as error:
                failed.add(queue.broker_name)
                log.info(
                    "offset %d of group %s in %s not sent, next time again: %s",
                    offset,
                    self._group,
                    queue,
                    error,
                )

    def epoch(self, queue: MessageQueue) -> int:
        """See ``OffsetStore``."""
        return self._epochs.get(queue, 0)

    def _ask(self, queue: MessageQueue) -> int:
        # a slave's table is seconds old: messages may come again
        address = self._client.reading_address(queue.broker_name)
        if address is None:
            return OFFSET_UNKNOWN
        header = QueryOffsetHeader(self._group, queue.topic, queue.queue_id, with_epoch=True)
        answer = self._client.invoke(
            address, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=header.to_fields())
        )
        if answer.code == ResponseCode.SUCCESS:
            told = OffsetAnswer.from_fields(answer.fields)
            self._epochs[queue] = told.log_epoch or 0
            return told.offset
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return NO_STORED_OFFSET
        log.warning(
            "offset of group %s in %s refused: code %d %s",
            self._group,
            queue,
            answer.code,
            answer.remark or "",
        )
        return OFFSET_UNKNOWN

    def _update_command(self, queue: MessageQueue, offset: int) -> Command:
        header = UpdateOffsetHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            offset,
            None if self._lock_epoch is None else self._lock_epoch(queue),
            self._client.client_id,
            None if self._log_epoch is None else self._log_epoch(queue) or None,
            None if self.may_lower or queue in self._moved else True,
        )
        return Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=header.to_fields())
