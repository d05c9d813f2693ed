"""Values of TransferQueue on a topic: put, read at their places, cleared.

    put    values ──frames──> <topic>: places     then keys and places ──> <topic>_ledger
    get    a read at each place, in the broker's files where they are on this machine, else a pull,
           after what was cleared meanwhile was read from the ledger
    clear  a tombstone in the ledger; the space comes back by the topic's retention

Decides what is true on return: of ``put``, that the brokers have all values and the ledger names
them, as safely as the mode of the cluster says; of ``clear``, that no ``get`` anywhere returns them
any more. Invariants: nothing is sent before every value has a form; a put that failed left nothing
in the ledger, or what ``live_keys`` shows; a broker that is away is waited for, each request for
``timeout_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import passes
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.pull.queue_queries import PullResult
from rmq_ray.client.scan.blocks import Blocks
from rmq_ray.client.scan.point_reader import PointReader, StoredRecord
from rmq_ray.client.scan.shared_queues import first_queue
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import (
    ClientError,
    ConsumeError,
    RemotingError,
    ValueNotFound,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import KEYS, SendResult
from rmq_ray.ports import Discovery
from rmq_ray.transfer_queue.ledger import BACK, CLEAR, PUT, TOMBSTONES, back_to, keyed
from rmq_ray.transfer_queue.places import Part, parts_of, place_text
from rmq_ray.transfer_queue.settings import BackendSettings
from rmq_ray.transfer_queue.tail import LedgerTail
from rmq_ray.transfer_queue.values import Parcel, Room, decode, encode, parcels

FORM = "form"
RECORD_KEYS = 4_096
"""Keys of a record of the ledger."""
PULLED_MAX = 4_096
PULL_BYTES = 15 << 20  # as much as the broker's pull_bytes_max lets it
FRAME_BYTES = 8 << 20
VISIBLE_S = 5.0
"""What was acknowledged is waited for at its place; it is there within milliseconds."""
AWAY_PAUSE_MS = 100
THREADS = 4
T = TypeVar("T")
Found = dict[tuple[str, int], dict[int, StoredRecord]]
"""Of each (broker, queue id) the records by their offsets."""


class ValueStore:
    """Of one topic, in one process; connects at once, and makes the topics that are not there. Any
    thread may call it.
    """

    def __init__(self, settings: BackendSettings) -> None:
        self._settings = settings
        self.topic = settings.topic
        discovery: Discovery = settings.discovery
        admin = Admin(discovery)
        try:
            self._make_topic(admin, settings.topic, settings.queues)
            self._ledger = self._make_topic(admin, settings.ledger, 1)
        finally:
            admin.close()
        self._producer = Producer(
            discovery=discovery,
            send_timeout_ms=round(settings.timeout_s * 1_000),
            retries=16,
            idempotent=True,
            batch_bytes_max=FRAME_BYTES,
            buffer_bytes_max=4 * FRAME_BYTES,
        )
        self._reader = PullConsumer(
            f"{settings.topic}_readers",
            discovery=discovery,
            auto_commit=False,
            config=ConsumerConfig(group=f"{settings.topic}_readers", pull_bytes=PULL_BYTES),
        )
        self._pool = ThreadPoolExecutor(THREADS, "rmq-ray-values")
        self._memory = Blocks()
        try:
            self._producer.start()
            self._reader.start()
            instance = ClientInstance.get_or_create(discovery, self._reader.client_id)
            self._files = PointReader(instance, self._memory)
        except BaseException:
            self.close()
            raise
        self._patience_ms = settings.timeout_s * 1_000
        self._tombstones = LedgerTail(self._pull_ledger, TOMBSTONES, self._patience_ms)
        self._everything = LedgerTail(self._pull_ledger, "*", self._patience_ms)

    def put(self, keys: Sequence[str], values: Sequence[Any]) -> list[str]:
        """The place of each value. Raises ``ClientError`` for a value that has no form (nothing is
        sent then), and what ``Producer.send_arrow`` and ``send`` raise: values may be stored then,
        and putting them again is safe.
        """
        encoded = [encode(value, self._settings.pickle) for value in values]
        ready = list(parcels(encoded))
        parts: list[list[Part]] = [[] for _ in keys]
        for parcel, results in zip(ready, self._sent(ready, keys), strict=True):
            offsets = (
                Part(result.queue.broker_name, result.queue.queue_id, result.queue_offset + row)
                for result in results
                for row in range(result.count)
            )
            for number, part in zip(parcel.numbers, offsets, strict=True):
                parts[number].append(part)
        places = [place_text(each) for each in parts]
        self._note(PUT, keys, places)
        return places

    def get(self, keys: Sequence[str], places: Sequence[str | None]) -> list[Any]:
        """The values; of a key whose place is None the newest. ``ValueNotFound`` for one that was
        cleared, never put, or taken by retention; ``BodyUnreadable``, ``RemotingError``.
        """
        book, _ = self._tombstones.catch_up()
        index: dict[str, str] | None = None
        known = []
        for key, place in zip(keys, places, strict=True):
            if place is None or book.is_cleared(place):
                index = self._index() if index is None else index
                newest = index.get(key)
                if newest is None or place not in (None, newest):
                    raise _missing(key, "was cleared" if place else "was never put, or was cleared")
                place = newest
            known.append(parts_of(place))
        found = self._read(known)
        bodies = [_bodies(key, parts, found) for key, parts in zip(keys, known, strict=True)]
        room = Room(sum(len(piece) for _, pieces in bodies for piece in pieces), len(bodies))
        return [decode(form, pieces, self._settings.pickle, room) for form, pieces in bodies]

    def clear(self, keys: Sequence[str], places: Sequence[str | None]) -> None:
        """Nobody gets these values any more; of a key whose place is None its newest one. Keys that
        there are not are left out.
        """
        if None in places:
            index = self._index()
            places = [
                index.get(key) if place is None else place
                for key, place in zip(keys, places, strict=True)
            ]
        there = [(key, place) for key, place in zip(keys, places, strict=True) if place]
        for _, place in there:
            parts_of(place)
        self._note(CLEAR, [key for key, _ in there], [place for _, place in there])

    def live_keys(self) -> list[str]:
        """Of all values that are there, as the ledger says, whoever put them."""
        return list(self._index())

    def position(self) -> int:
        """How far the ledger goes; ``back`` makes everything void that is noted from there on."""
        return self._everything.catch_up()[1]

    def back(self, position: int) -> None:
        """The keys and values of then: what was cleared since is there again, as far as retention
        has it; what was put since is no key's any more.
        """
        self._producer.send(self._settings.ledger, back_to(position), tag=BACK, queue=self._ledger)

    def close(self) -> None:
        """End the connections; calls raise ``ClientError`` from now on."""
        self._pool.shutdown(wait=False)
        self._producer.close()
        self._reader.close()
        self._memory.clear()

    # --- inside -----------------------------------------------------------------------------------

    def _make_topic(self, admin: Admin, topic: str, queues: int) -> MessageQueue:
        """Its first queue, which is the same for every process."""
        hours = self._settings.retention_hours
        create = partial(admin.create_topic, topic, queues, retention_hours=hours)
        return first_queue(self._settings.discovery, topic, create)

    def _sent(self, ready: list[Parcel], keys: Sequence[str]) -> list[list[SendResult]]:
        return self._on_threads(partial(self._send, keys), ready)

    def _send(self, keys: Sequence[str], parcel: Parcel) -> list[SendResult]:
        return self._producer.send_arrow(
            self._settings.topic, parcel.table(keys), key="key", properties=[FORM]
        )

    def _note(self, tag: str, keys: Sequence[str], places: Sequence[str]) -> None:
        for first in range(0, len(keys), RECORD_KEYS):
            body = keyed(keys[first : first + RECORD_KEYS], places[first : first + RECORD_KEYS])
            self._producer.send(self._settings.ledger, body, tag=tag, queue=self._ledger)

    def _index(self) -> dict[str, str]:
        return self._everything.catch_up()[0].index

    def _pull_ledger(
        self, expression: str, offset: int, count: int, patience_ms: float
    ) -> PullResult:
        pull = partial(self._reader.pull, self._ledger, expression, offset, count)
        return self._patiently(pull, patience_ms)

    def _read(self, known: Sequence[Sequence[Part]]) -> Found:
        wanted: dict[tuple[str, int], set[int]] = {}
        for parts in known:
            for part in parts:
                offsets = range(part.first, part.first + part.size)
                wanted.setdefault(part[:2], set()).update(offsets)
        brokers = list(dict.fromkeys(broker for broker, _ in wanted))
        stores = dict(zip(brokers, self._on_threads(self._files.store, brokers), strict=True))
        there = [stores[broker] for broker, _ in wanted]
        read = self._on_threads(self._read_queue, wanted, wanted.values(), there)
        return dict(zip(wanted, read, strict=True))

    def _read_queue(
        self, where: tuple[str, int], wanted: set[int], store: Mapping[str, Any] | None
    ) -> dict[int, StoredRecord]:
        queue, found = MessageQueue(self._settings.topic, *where), dict[int, StoredRecord]()
        if store is not None:
            found.update(self._files.read(queue, runs(sorted(wanted)), store))
        for first, end in runs(sorted(wanted - found.keys())):
            at, before = first, -1
            while before < at < end:  # ends: a pull that does not lead on is the last one
                before = at
                pull = partial(self._reader.pull, queue, "*", at, wait=VISIBLE_S)
                count = min(end - at, PULLED_MAX)
                pulled = self._patiently(partial(pull, max_messages=count), self._patience_ms)
                for message in pulled.messages:
                    record = StoredRecord(message.all_properties, _body(message))
                    found[message.queue_offset] = record
                at = pulled.next_offset  # behind what is damaged, or was taken by retention
        return found

    def _on_threads(self, work: Callable[..., T], *given: Collection[Any]) -> list[T]:
        """One alone in this thread."""
        if len(given[0]) < 2:
            return list(map(work, *given))
        try:
            begun = self._pool.map(work, *given)
        except RuntimeError as error:  # it was shut down
            raise ClientError(f"this store of {self.topic} is closed: make a new one") from error
        return list(begun)

    def _patiently(self, ask: Callable[[], T], patience_ms: float) -> T:
        """Ask again while a broker is away, for that long."""
        give_up = SYSTEM_CLOCK.monotonic_ms() + patience_ms
        while True:  # ends: at give_up
            try:
                return ask()
            except (RemotingError, ConsumeError) as error:
                if not passes(error) or SYSTEM_CLOCK.monotonic_ms() >= give_up:
                    raise
            SYSTEM_CLOCK.sleep_ms(AWAY_PAUSE_MS)


def runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Sorted offsets as [first, end).

    >>> list(runs([3, 4, 5, 9]))
    [(3, 6), (9, 10)]
    """
    first = end = None
    for offset in offsets:
        if end != offset:
            if first is not None and end is not None:
                yield first, end
            first = offset
        end = offset + 1
    if first is not None and end is not None:
        yield first, end


def _bodies(key: str, parts: Sequence[Part], found: Found) -> tuple[str, list[Any]]:
    """Form and pieces of a value. ``ValueNotFound`` where they are not all there."""
    pieces, form = [], ""
    for part in parts:
        records = found[part[:2]]
        for offset in range(part.first, part.first + part.size):
            if offset not in records:
                raise _missing(key, "was taken by retention, or its log was lost")
            properties, body = records[offset]
            there = properties.get(KEYS, "")
            if there != key:
                raise _missing(key, f"is not at its place, {there.split()} is there")
            pieces.append(body)
            form = properties.get(FORM, "")
            # who asks for it twice gets a copy
            records[offset] = StoredRecord(properties, memoryview(body).toreadonly())
    return form, pieces


def _body(message: MessageExt) -> Any:
    """Without a copy where it lies as it is."""
    page, at = message.place
    return (
        message.body
        if page.compressed
        else memoryview(page.raw)[page.body_at[at] : page.body_end[at]]
    )


def _missing(key: str, why: str) -> ValueNotFound:
    return ValueNotFound(f"the value of {key!r:.80} {why}", key[:200])
