"""What a pull brought: one page of raw records, and messages that decode a field when it is asked
for.

A page keeps the answer's bytes and, per record, where it begins and where its body lies; all of
that is computed for the whole page at once. A message is a page and a number: making one costs 0.1
us, its body 0.2 us, its properties 1.5 us.

    |-- head (88 bytes, hosts of 4 bytes) --|-- body --|len|topic|len|-- properties --|  next ...
    at[i]                                   body_at[i] body_end[i]                    at[i + 1]

Decides how a stored record looks to a listener: the topic of a retried message is the original one,
frame marks are hidden, compressed bodies are inflated. Does not filter and does not know offsets
other than those in the records.

Invariants: a page whose sizes, magics or lengths contradict one another raises ``ConsumeError`` at
birth, so that accessors cannot run outside their record. A pickled message is one record's bytes
and plain values; it becomes a page of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby, repeat
from operator import attrgetter
from threading import Lock
from typing import Any

import rmq_ray.arrays as np
from rmq_ray.arrays import MANY
from rmq_ray.codec.compression import decompress
from rmq_ray.codec.record import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    host_lengths,
    offset_message_id,
    unpack_host,
)
from rmq_ray.codec.record_layout import RecordLayout
from rmq_ray.errors import ConsumeError
from rmq_ray.model.ids import Address, LogOffset, MessageQueue, QueueOffset
from rmq_ray.model.message import (
    CONSUME_START_TIME,
    FAILED_ON,
    FAILED_WITH,
    FRAME,
    KEYS,
    MAX_OFFSET,
    MIN_OFFSET,
    RESERVED_PROPERTIES,
    RETRY_TOPIC,
    UNIQUE_KEY,
    SysFlag,
    decode_properties,
)
from rmq_ray.model.namespaces import without_namespace
from rmq_ray.model.topics import RETRY_PREFIX
from rmq_ray.remoting.wire.records import Lengths

INFLATED_BYTES_MAX = 64 << 20
"""A compressed body may not become longer than this: 4 MiB of zeros from a hostile producer would
become 4 GiB.
"""

_COMPRESSED = int(SysFlag.COMPRESSED)
_LONG_HOSTS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_UNIQUE_MARK = b"UNIQ_KEY\x01"
_TAGS_MARK = b"TAGS\x01"


class PulledPage:
    """``count`` records of one queue, back to back in ``raw`` from byte ``start``; ``sizes`` are
    their lengths in bytes.

    ``bounds``: the queue's smallest and greatest offset when it was pulled. Raises ``ConsumeError``
    for bytes that are no records of that many and that long.
    """

    __slots__ = (
        "arrow",
        "arrow_lock",
        "at",
        "body_at",
        "body_bytes",
        "body_end",
        "bounds",
        "compressed",
        "lengths",
        "namespace",
        "offsets",
        "queue",
        "raw",
        "retry",
    )

    def __init__(
        self,
        queue: MessageQueue,
        raw: bytes,
        sizes: Lengths,
        start: int = 0,
        bounds: tuple[int, int] = (0, 0),
    ) -> None:
        self.queue = queue
        self.raw = raw
        self.lengths = sizes
        self.bounds = (str(bounds[0]), str(bounds[1]))
        self.retry = queue.topic.startswith(RETRY_PREFIX)
        self.compressed = False
        self.arrow_lock = Lock()
        """Held while ``arrow`` is made."""
        self.arrow: tuple[Sequence[str] | None, Any] | None = None
        """The whole page as Arrow columns, of which names (None = all), once somebody wanted
        them.
        """
        self.namespace = ""
        """What its consumer takes off topics before users see them."""
        self.at: list[int]  # plain ints: indexing a numpy array costs 10 times as much
        self.body_at: list[int]
        self.body_end: list[int]
        self.offsets: Sequence[int]
        self.body_bytes: Any
        """Length of each body as stored: a list when there are few records, an array when there are
        many.
        """
        if isinstance(sizes, tuple):
            self._look_at_few(sizes, start)
        elif len(sizes) < MANY:
            self._look_at_few(sizes.tolist(), start)
        else:
            self._look_at_many(sizes, start)

    def __len__(self) -> int:
        return len(self.body_at)

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        """Bytes of each record."""
        return np.asarray(self.lengths)

    def messages(
        self, indices: Sequence[int] | None = None, started_ms: int = 0
    ) -> list[MessageExt]:
        """Messages of these records (None = all). ``started_ms``: when the listener gets them."""
        return list(
            map(
                MessageExt,
                repeat(self),
                range(len(self)) if indices is None else indices,
                repeat(started_ms),
            )
        )

    def tagged(self, tags: frozenset[str]) -> list[int]:
        """Indices of the records whose tag is one of ``tags``, compared as strings: codes may
        collide.
        """
        wanted = {tag.encode() for tag in tags}
        return [i for i in range(len(self)) if self.tag_bytes(i) in wanted]

    def properties_at(self, i: int) -> tuple[int, int]:
        """First byte and end of record ``i``'s property string."""
        topic_at = self.body_end[i]
        return topic_at + self.raw[topic_at] + 3, self.at[i + 1]

    def tag_bytes(self, i: int) -> bytes | None:
        """The TAGS property, found without decoding the others."""
        begin, end = self.properties_at(i)
        raw = self.raw
        found = raw.find(_TAGS_MARK, begin, end)
        while found > begin and raw[found - 1] != 2:
            found = raw.find(_TAGS_MARK, found + 1, end)
        if found < 0:
            return None
        stop = raw.find(b"\x02", found, end)
        return raw[found + len(_TAGS_MARK) : end if stop < 0 else stop] or None

    def _look_at_few(self, sizes: Sequence[int], start: int) -> None:
        """Find and check the records one by one."""
        raw, at = self.raw, start
        if not sizes or min(sizes) < OVERHEAD_BYTES or start + sum(sizes) != len(raw):
            raise self._bad_sizes(len(sizes), start)
        starts, begins, ends, lengths, offsets = [], [], [], [], []
        for size in sizes:
            total, magic, _, _, _, queue_offset, _, sys_flag, _, _, _, _, _, _, length = (
                HEADER.unpack_from(raw, at)
            )
            begin = at + HEADER_BYTES
            if sys_flag & _LONG_HOSTS:
                begin, length = self._long_host(at, sys_flag)
            if total != size or magic != MAGIC or length < 0 or begin + length + 3 > at + size:
                raise self._bad_records()
            if sys_flag & _COMPRESSED:
                self.compressed = True
            starts.append(at)
            begins.append(begin)
            ends.append(begin + length)
            lengths.append(length)
            offsets.append(queue_offset)
            at += size
        starts.append(at)
        self.at, self.body_at, self.body_end, self.body_bytes, self.offsets = (
            starts,
            begins,
            ends,
            lengths,
            offsets,
        )

    def _look_at_many(self, sizes: np.ndarray[Any, Any], start: int) -> None:
        """The same for all records at once."""
        raw = self.raw
        layout = RecordLayout(memoryview(raw)[start:], sizes.astype(np.int64))
        if int(sizes.min()) < OVERHEAD_BYTES or start + int(layout.ends[-1]) != len(raw):
            raise self._bad_sizes(len(sizes), start)
        head, lengths = layout.heads, layout.body_lengths
        sound = (head["total"] == sizes) & (head["magic"] == MAGIC)
        sound &= (lengths >= 0) & (layout.body_begins + lengths + 3 <= layout.ends)
        if not sound.all():
            raise self._bad_records()
        self.compressed = bool((head["sys_flag"] & _COMPRESSED).any())
        self.at, self.body_at, self.body_end = (
            [*(layout.starts + start).tolist(), len(raw)],
            (layout.body_begins + start).tolist(),
            (layout.body_begins + lengths + start).tolist(),
        )
        self.body_bytes = lengths
        self.offsets = _offsets(head["queue_offset"])

    def _long_host(self, start: int, flag: int) -> tuple[int, int]:
        """(where the body begins, how long it is) of a record that may have hosts of 16 bytes;
        never of records that we write.
        """
        at = start + HEADER_BYTES + sum(host_lengths(flag)) - 16
        if at > len(self.raw):
            raise ConsumeError(
                f"a page of {self.queue} ends inside a record; the broker is broken",
                str(self.queue),
            )
        return at, int(_I32.unpack_from(self.raw, at - 4)[0])

    def _bad_sizes(self, count: int, start: int) -> ConsumeError:
        what = f"{count} sizes that do not fit its {len(self.raw) - start} bytes"
        return ConsumeError(
            f"a page of {self.queue} has {what}; the broker is broken", str(self.queue)
        )

    def _bad_records(self) -> ConsumeError:
        return ConsumeError(
            f"a page of {self.queue} holds bytes that are no records; the broker is broken",
            str(self.queue),
        )


class MessageExt:
    """One received message. Everything is read from the page when asked for; only the properties
    are kept.

    It stays usable as long as it is referenced (it holds its page: up to 1 MiB); pickling copies
    one record.
    """

    __slots__ = ("_i", "_page", "_properties", "_retries", "_started_ms")

    def __init__(self, page: PulledPage, i: int, started_ms: int = 0) -> None:
        self._page = page
        self._i = i
        self._started_ms = started_ms

    # --- what the sender gave ---------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes from the group's retry topic."""
        page = self._page
        topic = (
            self.all_properties.get(RETRY_TOPIC, page.queue.topic)
            if page.retry
            else page.queue.topic
        )
        return without_namespace(page.namespace, topic) if page.namespace else topic

    @property
    def body(self) -> bytes:
        """The body as it was sent. ``BodyUnreadable`` when it is marked as compressed and cannot be
        restored.
        """
        page, i = self._page, self._i
        body = page.raw[page.body_at[i] : page.body_end[i]]
        if page.compressed:
            flags = self.sys_flag
            if flags & SysFlag.COMPRESSED:
                return decompress(body, flags, INFLATED_BYTES_MAX)
        return body

    @property
    def tag(self) -> str | None:
        """The tag, None without one."""
        found = self._page.tag_bytes(self._i)
        return None if found is None else found.decode("utf-8", "replace")

    @property
    def keys(self) -> list[str]:
        """Business keys."""
        return self.all_properties.get(KEYS, "").split()

    @property
    def properties(self) -> dict[str, str]:
        """The user's properties; RocketMQ's own are in ``all_properties``."""
        return {
            name: value
            for name, value in self.all_properties.items()
            if name not in RESERVED_PROPERTIES
        }

    @property
    def all_properties(self) -> dict[str, str]:
        """Every property, RocketMQ's included, with the queue's bounds at the time of the pull
        (MIN_OFFSET, MAX_OFFSET).
        """
        try:
            return self._properties
        except AttributeError:
            pass
        page = self._page
        begin, end = page.properties_at(self._i)
        found = decode_properties(page.raw[begin:end].decode("utf-8", "replace"))
        found.pop(FRAME, None)
        found[MIN_OFFSET], found[MAX_OFFSET] = page.bounds
        if self._started_ms:
            found[CONSUME_START_TIME] = str(self._started_ms)
        self._properties: dict[str, str] = found
        return found

    @property
    def failed_with(self) -> str | None:
        """Why its listener failed last, of a retry or a dead letter: exception type and text, at
        most 512 characters. None where the consumer did not say.
        """
        return self.all_properties.get(FAILED_WITH)

    @property
    def failed_on(self) -> str | None:
        """Id of the client whose listener that was: host, process."""
        return self.all_properties.get(FAILED_ON)

    @property
    def message_id(self) -> str:
        """The unique key that the sender's client made; for others' messages without one,
        ``offset_message_id``.
        """
        page = self._page
        end = page.at[self._i + 1]
        raw = page.raw
        if raw[end - 41 : end - 32] == _UNIQUE_MARK:
            return raw[end - 32 : end].decode("ascii", "replace")
        return self.all_properties.get(UNIQUE_KEY) or self.offset_message_id

    @property
    def flag(self) -> int:
        """The sender's number, opaque to the queue."""
        return int(_I32.unpack_from(self._page.raw, self._page.at[self._i] + 16)[0])

    @property
    def born_ms(self) -> int:
        """When the sender made it, ms since 1970."""
        return int(_I64.unpack_from(self._page.raw, self._page.at[self._i] + 40)[0])

    @property
    def born_ts(self) -> datetime:
        """When the sender made it, UTC."""
        return datetime.fromtimestamp(self.born_ms / 1000, UTC)

    @property
    def born_host(self) -> Address:
        """The sender, as the broker saw it."""
        at = self._page.at[self._i]
        return Address(
            *unpack_host(self._page.raw[at + 48 : at + 48 + host_lengths(self.sys_flag)[0]])
        )

    # --- where it lies ----------------------------------------------------------------------------

    @property
    def queue(self) -> MessageQueue:
        """The queue it was pulled from; for a retried message a queue of the group's retry
        topic.
        """
        return self._page.queue

    @property
    def queue_offset(self) -> QueueOffset:
        """Its number in ``queue``."""
        return QueueOffset(self._page.offsets[self._i])

    @property
    def log_offset(self) -> LogOffset:
        """Its byte position in the broker's commit log."""
        return LogOffset(_I64.unpack_from(self._page.raw, self._page.at[self._i] + 28)[0])

    @property
    def offset_message_id(self) -> str:
        """Store host and log offset, as RocketMQ's tools take it."""
        host = self.store_host
        return offset_message_id(host.host, host.port, self.log_offset)

    @property
    def store_ms(self) -> int:
        """When the broker stored it, ms since 1970."""
        at = self._page.at[self._i]
        return int(_I64.unpack_from(self._page.raw, at + 48 + host_lengths(self.sys_flag)[0])[0])

    @property
    def store_ts(self) -> datetime:
        """When the broker stored it, UTC."""
        return datetime.fromtimestamp(self.store_ms / 1000, UTC)

    @property
    def store_host(self) -> Address:
        """The broker."""
        born, stored = host_lengths(self.sys_flag)
        at = self._page.at[self._i] + 48 + born + 8
        return Address(*unpack_host(self._page.raw[at : at + stored]))

    @property
    def reconsume_times(self) -> int:
        """How often it has failed in this group already."""
        try:
            return self._retries
        except AttributeError:
            return int(_I32.unpack_from(self._page.raw, self._page.body_at[self._i] - 16)[0])

    @property
    def prepared_offset(self) -> LogOffset:
        """Log offset of the half message of a transaction, else 0."""
        return LogOffset(_I64.unpack_from(self._page.raw, self._page.body_at[self._i] - 12)[0])

    @property
    def sys_flag(self) -> int:
        """Bits of ``model.message.SysFlag``."""
        return int(_I32.unpack_from(self._page.raw, self._page.at[self._i] + 36)[0])

    @property
    def consume_start_ms(self) -> int:
        """When the listener got it, 0 before."""
        return self._started_ms

    def failed_here(self, started_ms: int) -> None:
        """The client keeps the message and tries it again itself: one more reconsumption, counted
        here only.
        """
        self._retries: int = self.reconsume_times + 1
        self._started_ms = started_ms

    @property
    def place(self) -> tuple[PulledPage, int]:
        """The page that it is part of, and its number there."""
        return self._page, self._i

    @property
    def stored_body(self) -> bytes:
        """The body as it lies in the log, compressed or not."""
        page = self._page
        return page.raw[page.body_at[self._i] : page.body_end[self._i]]

    def __reduce__(self) -> tuple[Any, ...]:
        page, i = self._page, self._i
        record = page.raw[page.at[i] : page.at[i + 1]]
        queue = (page.queue.topic, page.queue.broker_name, page.queue.queue_id)
        return restored, (
            record,
            queue,
            (int(page.bounds[0]), int(page.bounds[1])),
            self._started_ms,
            self.reconsume_times,
            page.namespace,
        )

    def __repr__(self) -> str:
        place = f"queue_id={self.queue.queue_id}, queue_offset={self.queue_offset}"
        return (
            f"MessageExt(topic={self.topic!r}, {place}, message_id={self.message_id!r}, "
            f"tag={self.tag!r})"
        )


def _offsets(found: np.ndarray[Any, Any]) -> Sequence[int]:
    """Queue offsets of a page: rising by one each unless the broker filtered, so mostly a
    ``range``.
    """
    first, last = int(found[0]), int(found[-1])
    return range(first, last + 1) if last - first + 1 == len(found) else found.tolist()


def untagged_bodies(messages: Sequence[MessageExt]) -> list[bytes] | None:
    """The bodies of messages without tag and compression, a third of the price of each one's
    ``tag`` and ``body``. None where a message may have one of these: each is to be asked.
    """
    found: list[bytes] = []
    for page, some in groupby(messages, attrgetter("_page")):
        raw, begins, ends, stops = page.raw, page.body_at, page.body_end, page.at
        indices = list(map(attrgetter("_i"), some))
        texts = b"".join([raw[ends[i] : stops[i + 1]] for i in indices])
        if page.compressed or _TAGS_MARK in texts:
            return None
        found += [raw[begins[i] : ends[i]] for i in indices]
    return found


def whole_bytes(records: memoryview) -> tuple[bytes, int]:
    """(bytes, where the records begin in them) for records at the end of a frame: the frame itself
    if it is ``bytes``, else a copy.
    """
    frame = records.obj
    return (frame, len(frame) - len(records)) if isinstance(frame, bytes) else (bytes(records), 0)


def restored(
    record: bytes,
    queue: tuple[str, str, int],
    bounds: tuple[int, int],
    started_ms: int,
    reconsume_times: int,
    namespace: str = "",
) -> MessageExt:
    """A pickled message comes back as the only one of a page. ``ConsumeError`` when ``record`` is
    no record.
    """
    page = PulledPage(MessageQueue(*queue), record, (len(record),), 0, bounds)
    page.namespace = namespace
    message = MessageExt(page, 0, started_ms)
    if reconsume_times != message.reconsume_times:
        message._retries = reconsume_times
    return message
