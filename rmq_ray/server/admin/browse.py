"""BROWSE_MESSAGES: messages of a topic for people to look at, of all its queues in one answer; and
NOTE_CHANGE, by which a console says what it is about to do.

    newest    the greatest log offsets of all queues     entries are read, records only of these
    from      the first behind a time or an offset       oldest first
    waiting   halves without an end, messages of levels and times that are not due, the first due

Decides which messages are told and how much an answer holds. Does not decide how they are shown.
The loop copies what it changes; the store is read beside it. Nothing is consumed by looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from typing import Any, NamedTuple, cast

import msgpack

from rmq_ray.errors import MalformedFrame
from rmq_ray.model.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.protocol.timer import WAITING as QUEUE_OF_TIMERS
from rmq_ray.remoting.wire.browse import COUNT_MAX, FROM, NEWEST, PICKS, WAITING, BrowseHeader
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.admin.timers import Timers
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.record_lookup import shown

ANSWER_BYTES_MAX = 4 << 20
"""Of records in one answer."""
Scan = Callable[[MessageStore], tuple[list["_Place"], bool]]


class _Place(NamedTuple):
    """A message: what it is sorted by, where it is, when it is due."""

    order: int
    queue_id: int
    offset: int
    log_offset: int
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """The question, and what the loop knows."""

    header: BrowseHeader
    queues: range
    committed: dict[int, int]
    count: int


class BrowseHandlers:
    """See the module."""

    def __init__(self, storage: BrokerStorage, timers: Timers, responder: Responder) -> None:
        self._keeper, self._tables = storage.keeper, storage.tables
        self._transactions, self._delays, self._timed = (
            timers.transactions,
            timers.delays,
            timers.timed,
        )
        self._later = responder.answer_from

    def browse(self, command: Command, peer: Peer) -> None:
        """See the module; code 17 for a topic that is not here."""
        header = BrowseHeader.from_fields(command.fields)
        if header.pick not in PICKS:
            raise MalformedFrame(f"pick of BROWSE_MESSAGES must be one of {', '.join(PICKS)}")
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        asked = self._copied(header)
        scan = self._waiting(header.topic, asked.count) if header.pick == WAITING else None
        self._later(
            command,
            peer,
            lambda: _read(store, asked, scan),
            lambda found: command.answer(body=cast(bytes, msgpack.packb(found))),
        )

    def note_change(self, command: Command, _peer: Peer) -> Command:
        """Nothing but its line in the audit log, which dispatch writes for every such request."""
        return command.answer()

    def _copied(self, header: BrowseHeader) -> _Asked:
        config = self._tables.topics.get(header.topic)
        if config is None and header.pick != WAITING:  # where halves wait is made by the first one
            raise Refused(
                f"topic {header.topic!r} is not on this broker", ResponseCode.TOPIC_NOT_EXIST
            )
        count = 0 if config is None else max(config.read_queues, config.write_queues)
        queues = range(count)
        if header.queue_id >= 0:
            queues = range(header.queue_id, min(count, header.queue_id + 1))
        group = header.committed_of
        offsets = self._tables.offsets.of_group(group).get(header.topic, {}) if group else {}
        return _Asked(header, queues, dict(offsets), max(0, min(header.count, COUNT_MAX)))

    def _waiting(self, topic: str, count: int) -> Scan:
        """In the loop; what is returned runs beside it."""
        if topic == HALF_TOPIC:
            pending = self._transactions.pending_offsets(count + 1)
            return lambda store: (_halves(store, pending), len(pending) > count)
        if topic == SCHEDULE_TOPIC:
            begins = self._delays.offsets()
            return lambda store: (_levels(store, begins, count + 1), False)
        if topic == TIMER_TOPIC:
            find = self._timed.finder(count)
            return lambda store: _timers(*find(store))
        raise MalformedFrame(f"nothing waits in topic {topic!r}")


def _read(store: MessageStore, asked: _Asked, scan: Scan | None) -> dict[str, Any]:
    """Beside the loop."""
    header, count = asked.header, asked.count
    rows = [_row(store, asked, queue_id) for queue_id in asked.queues]
    if scan is not None:
        places, more = scan(store)
    else:
        places, more = _picked(store, header, rows, count), False
    more = more or len(places) > count
    places = places[:count]
    logs = [place.log_offset for place in places]
    found = store.records_at(logs, ANSWER_BYTES_MAX) if logs else []
    records = [shown(store.lives, record) for record in found]
    return {
        "queues": rows,
        "messages": [
            [place.queue_id, place.offset, place.due_ms, record]
            for place, record in zip(places, records, strict=False)
        ],
        "more": more or len(records) < len(places),
    }


def _row(store: MessageStore, asked: _Asked, queue_id: int) -> list[Any]:
    """QUEUE: where the question begins in it, within its bounds."""
    header = asked.header
    low, high = store.bounds(header.topic, queue_id)
    at = low
    if header.offset >= 0:
        at = header.offset
    elif header.time_ms >= 0:
        at = store.first_since(header.topic, queue_id, header.time_ms)
    return [queue_id, low, high, min(max(low, at), high), asked.committed.get(queue_id)]


def _picked(
    store: MessageStore, header: BrowseHeader, rows: Iterable[list[Any]], count: int
) -> list[_Place]:
    """One more than asked for, where there is one. The log's order is that of the store times."""
    if not count:
        return []
    newest = header.pick == NEWEST
    found: list[_Place] = []
    for queue_id, low, high, at, _ in rows:
        begin = max(low, high - count - 1) if newest else at
        found += _entries(store, header.topic, queue_id, begin, min(high - begin, count + 1))
    assert header.pick in (NEWEST, FROM)
    return (nlargest if newest else nsmallest)(count + 1, found)


def _entries(
    store: MessageStore, topic: str, queue_id: int, begin: int, count: int, by_code: bool = False
) -> list[_Place]:
    if count <= 0:
        return []
    entries = store.entries(topic, queue_id, begin, count)
    logs, codes = entries["log_offset"].tolist(), entries["code"].tolist()
    return [
        _Place(code if by_code else log, queue_id, begin + i, log, code if by_code else None)
        for i, (log, code) in enumerate(zip(logs, codes, strict=True))
    ]


def _timers(rows: Iterable[tuple[int, int, int]], more: bool) -> tuple[list[_Place], bool]:
    return sorted(_Place(due, QUEUE_OF_TIMERS, at, log, due) for due, at, log in rows), more


def _halves(store: MessageStore, pending: Iterable[int]) -> list[_Place]:
    found = [(at, store.log_offset_of(HALF_TOPIC, 0, at)) for at in pending]
    return [_Place(at, 0, at, log) for at, log in found if log >= 0]


def _levels(store: MessageStore, begins: dict[int, int], count: int) -> list[_Place]:
    """The first due of all levels: within a level that is their order."""
    found: list[_Place] = []
    for topic, queue_id in store.queues():
        if topic == SCHEDULE_TOPIC:
            low, high = store.bounds(topic, queue_id)
            begin = max(low, begins.get(queue_id + 1, 0))
            wanted = min(high - begin, count)
            found += _entries(store, topic, queue_id, begin, wanted, by_code=True)
    return nsmallest(count, found)
