"""The store's index by key: index files in ``index/``, the newest of which takes the items
(docs/file-format.md#index).

Decides: when a file is full and the next begins, how files are named, which files a query walks
(newest to oldest), what is left after a crash. Does not decide which keys a record has
(dispatcher).

Invariants: one thread puts; flushes (a flush thread) and queries (any thread) run beside it. Files
are named by their creation time and sort in that order. What is in our checkpoint (``state``) is
durable.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np

from rmq_ray.arrays import MANY
from rmq_ray.clock import Clock
from rmq_ray.codec.record_batch import KeyHashes
from rmq_ray.codec.text_hashes import hash_texts_at, powers, shifts
from rmq_ray.errors import StoreCorrupt, StoreError
from rmq_ray.files import FileSystem
from rmq_ray.model.hashing import java_hash
from rmq_ray.store.queue.index_file import Array, Durable, IndexFile, IndexHeader

logger = logging.getLogger("rmq_ray.store")

UNIQUE_KEY_CHARS = 32
PENDING_MAX = 64  # items of single records that wait for one another, in memory
SLOTS_BEHIND_MAX = (
    1 << 20
)  # items that the slots on disk may not know yet; relinking them takes 50 ms
_UNSETTLED_MAX = 2  # full files whose slots still wait in memory (20 MB each) for a flush
_NAME_CHARS = 17
_MASK = 0xFFFFFFFF
_SHIFT = pow(31, UNIQUE_KEY_CHARS, 1 << 32)
_LEAST_INT = -(1 << 31)


def hash_key(topic: str, key: str) -> int:
    """Java's hash of ``topic#key``, made positive; the one value that has no positive is 0.

    >>> hash_key("TopicTest", "KEY1"), hash_key("order", "10001")
    (1656969516, 192478781)
    """
    value = java_hash(f"{topic}#{key}")
    return abs(value) if value != _LEAST_INT else 0


def hash_unique_keys(topic: str, keys: Array) -> Array:
    """``hash_key`` of many keys of 32 ASCII characters: uint8[n, 32] -> int32[n]."""
    return _positive(
        keys.astype(np.uint32) @ powers(UNIQUE_KEY_CHARS)
        + np.uint32(_head_hash(topic) * _SHIFT & _MASK)
    )


def hash_keys(topic: str, keys: Sequence[str]) -> Array:
    """``hash_key`` of many keys: int32[n]."""
    return hash_texts([f"{topic}#{key}" for key in keys])


def hash_hashed_keys(topic: str, keys: KeyHashes) -> Array:
    """``hash_key`` of keys whose own hash is known: int32[n]."""
    return _positive(shifts(keys.lengths) * np.uint32(_head_hash(topic)) + keys.hashes)


def hash_texts(texts: Sequence[str]) -> Array:
    """Positive hashes of ``topic#key`` texts: int32[n]. Texts of one length are hashed together."""
    joined = "".join(texts)
    if len(texts) < MANY or not joined.isascii():
        return np.array([hash_key(*text.split("#", 1)) for text in texts], np.int32)
    data = np.frombuffer(joined.encode(), np.uint8)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    if (lengths == lengths[0]).all():
        length = int(lengths[0])
        return _positive(data.reshape(-1, length).astype(np.uint32) @ powers(length))
    begins = np.cumsum(lengths) - lengths
    return _positive(hash_texts_at(data, begins, begins + lengths))


def _positive(raw: Array) -> Array:
    hashes = np.abs(raw.view(np.int32))
    hashes[hashes < 0] = 0  # the absolute value of the least int is itself
    return hashes


@lru_cache(maxsize=4096)
def _head_hash(topic: str) -> int:
    return java_hash(f"{topic}#") & _MASK


def file_name(now_ms: int) -> str:
    """``yyyyMMddHHmmssSSS`` in the local time zone."""
    local = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone()
    return f"{local:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


class IndexService:
    """All index files of a store. ``slots`` and ``items``: the geometry of every file."""

    def __init__(
        self, directory: str, slots: int, items: int, files: FileSystem, clock: Clock
    ) -> None:
        self._directory = directory
        self._slots = slots
        self._items = items
        self._files = files
        self._clock = clock
        self._list: list[IndexFile] = []
        self._unsettled: list[IndexFile] = []
        self._current: IndexFile | None = None
        self._new_names = False
        self._state: dict[str, Any] = {}
        self._flushing = threading.Lock()  # taken after _putting, never before it
        self._putting = threading.RLock()
        self._pending: deque[tuple[str, str, int, int]] = deque()
        self._end_offset = 0
        self.index_ms = 0
        """Store time up to which slots and headers are on disk: RocketMQ's ``indexMsgTimestamp``.
        After an unclean stop Apache RocketMQ keeps the files that end before it.
        """

    @property
    def last_update_ms(self) -> int:
        """Store time of the last indexed record; 0 = none."""
        return self._list[-1].header.end_ms if self._list else 0

    @property
    def end_offset(self) -> int:
        """Log offset of the last indexed record; records before it are indexed already."""
        return self._end_offset

    def load(self, limit_ms: int | None = None) -> int:
        """Find the files. ``limit_ms`` (after an unclean stop without our checkpoint): files that
        end later are removed, as RocketMQ does. Files of another size are removed too: an index can
        be done without. Returns how many were removed.
        """
        removed = 0
        for name in self._files.list_dir(self._directory):
            path = f"{self._directory}/{name}"
            if len(name) != _NAME_CHARS or not name.isdigit():
                raise StoreCorrupt(f"{path} is no index file; move it away", path, 0)
            try:
                file = IndexFile.load(path, self._slots, self._items, self._files)
            except StoreCorrupt as error:
                logger.warning("index file removed: %s", error)
                self._files.unlink(path)
                removed += 1
                continue
            if limit_ms is not None and file.header.end_ms > limit_ms:
                file.remove()
                removed += 1
            else:
                self._list.append(file)
        if self._list:
            self._state = self._state_of(self._list[-1])
            self._end_offset = self._list[-1].header.end_offset
            self.index_ms = self._list[-1].header.end_ms
        return removed

    def put(self, topic: str, keys: Sequence[str], log_offset: int, store_ms: int) -> None:
        """Index one record under some keys. Queries find it on return; it is hashed and written
        together with others.
        """
        pending = self._pending
        for key in keys:
            pending.append((topic, key, log_offset, store_ms))
        self._end_offset = log_offset
        if len(pending) >= PENDING_MAX:
            self._write_pending()

    def put_many(self, hashes: Array, log_offsets: Array, store_ms: int | Array) -> None:
        """Index many items; see ``IndexFile.put_many``. Queries find them on return."""
        if len(hashes):
            with self._putting:
                self._write_pending()
                self._put_arrays(hashes, log_offsets, store_ms)
            self._end_offset = int(log_offsets[-1])

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets of records that may have this key and may be stored in [begin, end], newest
        first, each once.

        Other keys with the same hash are among them, and times to the second: the caller compares,
        and asks for no more than it wants.
        """
        key_hash = hash_key(topic, key)
        self._write_pending()
        told: set[int] = set()  # a record whose indexing was repeated after a crash counts once
        for file in reversed(list(self._list)):
            if file.is_time_matched(begin_ms, end_ms):
                for log_offset in file.query(key_hash, begin_ms, end_ms):
                    if log_offset not in told:
                        told.add(log_offset)
                        yield log_offset
            if file.header.begin_ms < begin_ms:
                break

    def flush(self) -> None:
        """On return every item put before the call is durable and ``state`` says so. Slots are
        written back only when they are a million items behind, and for files that became full.
        """
        self._write_pending()
        self._flush_files()

    def _flush_files(self) -> None:
        with self._flushing:
            while self._unsettled:  # ends: one less each round
                full = self._unsettled[0]
                full.settle()
                self.index_ms = full.header.end_ms
                self._unsettled.pop(0)
            current = self._current
            if current is None:
                return
            if self._new_names:
                self._new_names = False
                self._files.sync_dir(self._directory)
            if current.header.next_item - current.durable.slots_count > SLOTS_BEHIND_MAX:
                self._flush_whole(current)
            else:
                current.flush_items()
            self._state = self._state_of(current)

    def flush_slots(self) -> None:
        """``flush``, and the slots of the newest file are written back too (up to 20 MB)."""
        self.flush()
        with self._flushing:
            if self._current is not None:
                self._flush_whole(self._current)
                self._state = self._state_of(self._current)

    def state(self) -> dict[str, Any]:
        """What the last flush made durable, for our checkpoint; {} without a file."""
        return self._state

    def restore(self, state: Mapping[str, Any]) -> bool:
        """After ``load``: go back to exactly what a checkpoint called durable; records after it are
        put again by the caller.

        False when the files are not those of the checkpoint; then the caller goes RocketMQ's way
        (``load`` with a limit).
        """
        name = state.get("name")
        names = [file.path.rpartition("/")[2] for file in self._list]
        if name is not None:
            if name not in names:
                return False
            durable = Durable(
                IndexHeader(*state["header"]), state["slots_count"], state.get("last_item", b"")
            )
            if not self._list[names.index(name)].cut(durable):
                return False
        keep = 0 if name is None else names.index(name) + 1
        for file in self._list[keep:]:
            file.remove()
        del self._list[keep:]
        self.index_ms = state.get("index_ms", 0)
        if self._list and not self._list[-1].is_full:
            self._current = self._list[-1]
        elif self._list:
            self._unsettled.append(self._list[-1])
        self._state = dict(state)
        self._end_offset = self._list[-1].header.end_offset if self._list else 0
        return True

    def cut_from(self, log_offset: int) -> None:
        """The log was cut there: items of records at or behind it are forgotten. ``flush_slots``
        makes that durable.
        """
        with self._putting:
            self._write_pending()
            self._flush_files()
            while self._list and (
                self._list[-1].header.next_item <= 1
                or self._list[-1].header.begin_offset >= log_offset
            ):  # ends: one less
                self._list.pop().remove()
            self._unsettled = [file for file in self._unsettled if file in self._list]
            self._current = None
            if self._list:
                newest = self._list[-1]
                newest.cut_from(log_offset)
                if not newest.is_full:
                    newest.flush()
                    newest.open_slots()
                    self._current = newest
                    self._unsettled = [file for file in self._unsettled if file is not newest]
            self._end_offset = self._list[-1].header.end_offset if self._list else 0
            self._state = self._state_of(self._list[-1]) if self._list else {}

    def delete_before(self, log_offset: int) -> int:
        """Remove files whose every record lies before ``log_offset`` (the log begins there now);
        returns how many.
        """
        deleted = 0
        while (
            len(self._list) > 1
            and self._list[0].header.end_offset < log_offset
            and self._list[0] not in self._unsettled
        ):  # ends: one less
            self._list.pop(0).remove()
            deleted += 1
        return deleted

    def close(self) -> None:
        """Everything is durable on return; the service is not used afterwards."""
        self.flush()
        for file in self._list:
            file.close()
        self._list, self._current = [], None

    def _write_pending(self) -> None:
        """Hash and write what ``put`` left; on return it is written, whichever thread did it. The
        order of puts is kept.
        """
        with self._putting:
            taken = [self._pending.popleft() for _ in range(len(self._pending))]
            if not taken:
                return
            topics, keys, log_offsets, times = zip(*taken, strict=True)
            hashes = hash_texts([f"{topic}#{key}" for topic, key in zip(topics, keys, strict=True)])
            try:
                self._put_arrays(hashes, np.array(log_offsets, np.int64), np.array(times, np.int64))
            except StoreError:
                self._pending.extendleft(reversed(taken))
                raise

    def _put_arrays(self, hashes: Array, log_offsets: Array, store_ms: int | Array) -> None:
        done = 0
        while done < len(hashes):  # ends: a writable file takes one item at least
            times = store_ms if isinstance(store_ms, int) else store_ms[done:]
            done += self._writable().put_many(hashes[done:], log_offsets[done:], times)

    def _writable(self) -> IndexFile:
        current = self._current
        if current is not None and not current.is_full:
            return current
        return self._next_file()

    def _next_file(self) -> IndexFile:
        """The newest file on disk if it has room (first put after a load), else a new one."""
        if self._current is None and self._list and not self._list[-1].is_full:
            self._current = self._list[-1]
            self._current.open_slots()
            return self._current
        if self._current is not None:
            self._unsettled.append(self._current)
            if len(self._unsettled) > _UNSETTLED_MAX:
                self._flush_files()
        self._files.make_dirs_unsynced(self._directory)
        path = f"{self._directory}/{self._free_name()}"
        made = IndexFile.create(
            path,
            self._slots,
            self._items,
            self._files,
            self._list[-1].header if self._list else None,
        )
        self._new_names = True
        self._current = made
        self._list.append(made)
        return made

    def _flush_whole(self, file: IndexFile) -> None:
        file.flush()
        self.index_ms = max(self.index_ms, file.durable.header.end_ms)

    def _state_of(self, file: IndexFile) -> dict[str, Any]:
        durable, name = file.durable, file.path.rpartition("/")[2]
        return {
            "name": name,
            "header": list(durable.header),
            "slots_count": durable.slots_count,
            "last_item": durable.last_item,
            "index_ms": self.index_ms,
        }

    def _free_name(self) -> str:
        """The time now; later by as many ms as it takes to come behind every other file."""
        newest = self._list[-1].path.rpartition("/")[2] if self._list else ""
        now_ms = self._clock.now_ms()
        name = file_name(now_ms)
        if name > newest:
            return name
        return f"{int(newest) + 1:017d}"
