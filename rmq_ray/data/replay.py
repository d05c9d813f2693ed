"""A durable buffer between those who make experience and those who learn from it.

    rollout actors ─put(arrays, version)─> a bounded topic ─take / sample─> the trainer ─ack─┐
          ^                                                                                  │
          └── wait while ``slots`` entries are not acknowledged  <───────────────────────────┘

One ``put`` is one entry: a message whose body are the arrays. Nothing is dropped to make room: the
topic is bounded, and senders wait.

Decides: which entries are handed out, and what is too old. Does not decide when there is room
(the broker, ``server/send/slot_gate.py``). Invariants: an entry that was not acknowledged comes
again, whoever was killed; entries that are left out as stale are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from rmq_ray.actors.access_keys import SecretKey, keywords
from rmq_ray.actors.clients.consumers import PullConsumer
from rmq_ray.actors.clients.producers import Producer
from rmq_ray.actors.discovery import (
    RayDiscovery,
    StaticDiscovery,
    account_of,
    discovery_for,
    meant_cluster,
)
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.instance.outage import passes
from rmq_ray.client.scan.batch_planner import state_of
from rmq_ray.client.scan.topic_state import TopicState
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import Tls
from rmq_ray.data.tensors import arrays, decoded, encoded, joined, torch_tensors
from rmq_ray.errors import BodyUnreadable, ClientError, ConsumeError, RemotingError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_positions import normal, offsets_json
from rmq_ray.protocol.scan.stream_offsets import limited
from rmq_ray.protocol.validators import check_group, check_topic

VERSION = "version"
STALE = ("drop", "keep")
COLUMNS = ["broker", "queue_id", "queue_offset", "properties", "body"]
POLL_S = 0.5
PATIENCE_MS = 60_000
AWAY_PAUSE_MS = 200
T = TypeVar("T")
log = logging.getLogger("rmq_ray.data")
Offsets = dict[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class ReplayEntry:
    """One ``put``. ``stale``: more versions behind than the buffer allows."""

    queue: MessageQueue
    offset: int
    version: int
    batch: pa.RecordBatch
    stale: bool = False

    def numpy(self) -> dict[str, Any]:
        """The arrays, read-only, in the message's own memory."""
        return arrays(self.batch)

    def torch(self) -> dict[str, Any]:
        """The same as torch tensors."""
        return torch_tensors(self.numpy())


class ReplayBatch(Sequence[ReplayEntry]):
    """Entries that were handed out together; false when there are none. ``dropped``: how many were
    left out since they were stale. ``position``: where the buffer goes on behind them, as JSON
    text, for the checkpoint of the model.
    """

    def __init__(
        self, entries: Sequence[ReplayEntry], dropped: int, position: str, owner: ReplayBuffer
    ) -> None:
        self._entries, self.dropped, self.position = list(entries), dropped, position
        self._owner = owner

    @property
    def versions(self) -> list[int]:
        """Of each entry."""
        return [entry.version for entry in self._entries]

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The rows of all entries, name -> array; one copy for each entry, not for each row.
        ``ClientError`` where they do not go together.
        """
        return joined([entry.numpy() for entry in self._entries])

    def torch(self) -> dict[str, Any]:
        """``columns`` as torch tensors."""
        return torch_tensors(self.columns)

    def ack(self) -> None:
        """What was handed out up to here, and dropped, is done with: it does not come again, and
        senders have its room. For a batch of ``take``.
        """
        self._owner._ack(self.position)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: Any) -> Any:
        return self._entries[index]


class ReplayBuffer:
    """A replay buffer by its name; pickles as its settings and connects anew elsewhere. An object
    is for one thread.

    ``slots``: entries that may wait; more make ``put`` wait. They are shared out among the brokers
    of the cluster. ``slot_bytes``: the same of the bytes of their records, 0 = any number.
    ``max_versions_behind``: entries of a version that lies further behind the reader's are stale:
    ``stale`` "drop" leaves them out and counts them, "keep" marks them. ``group``: whose
    acknowledgements count; one reader takes at a time. ``seed``: of ``sample``.

    Made once with ``slots`` by whoever owns it, which creates the topic or changes its bounds;
    elsewhere pickled, or by ``ReplayBuffer(name)`` without ``slots``. Raises ``ClientError`` for
    wrong values, ``ClusterError``.
    """

    def __init__(  # noqa: PLR0913 - the settings of the outermost call
        self,
        name: str,
        *,
        slots: int | None = None,
        slot_bytes: int = 0,
        max_versions_behind: int | None = None,
        stale: str = "drop",
        group: str = "trainer",
        seed: int = 0,
        cluster: str | None = None,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        tls: Tls | None = None,
        access_key: str = "",
        secret_key: SecretKey = "",
    ) -> None:
        check_topic(name)
        check_group(group)
        if stale not in STALE:
            raise ClientError(f"stale must be 'drop' or 'keep', not {stale!r:.80}", repr(stale))
        for what, value, least in (
            ("slots", slots, 1),
            ("slot_bytes", slot_bytes, 0),
            ("max_versions_behind", max_versions_behind, 0),
            ("seed", seed, 0),
        ):
            if value is not None and (type(value) is not int or value < least):
                raise ClientError(
                    f"{what} must be an integer of {least} or more, not {value!r:.80}",
                    repr(value)[:80],
                )
        meant = meant_cluster(cluster, name_servers)
        where = keywords(account_of(meant, name_servers, secret, access_key, secret_key))
        where |= {"cluster": meant, "name_servers": name_servers, "secret": secret, "tls": tls}
        self._settings = (name, max_versions_behind, stale, group, seed, where)
        self._connect_later(*self._settings)
        if slots is not None:
            self._create(slots, slot_bytes)

    def _connect_later(
        self,
        name: str,
        behind_max: int | None,
        stale: str,
        group: str,
        seed: int,
        where: Mapping[str, Any],
    ) -> None:
        self.name, self._group, self._where = name, group, dict(where)
        self._behind_max, self._stale = behind_max, stale
        self._chance = np.random.default_rng(seed)
        self._producer: Producer | None = None
        self._reader: PullConsumer | None = None
        self._queues: list[MessageQueue] = []
        self._next: Offsets = {}
        self._acked: Offsets = {}
        self.newest = 0
        """The newest version that this object has put, seen, or was told."""
        self.dropped = 0
        """Stale entries that this object has left out."""
        self.lost = 0
        """Entries that retention removed before they were acknowledged, as this object saw."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _connected_elsewhere, self._settings

    # --- those who make experience ----------------------------------------------------------------

    def put(self, columns: Any, version: int = 0, timeout: float = 60.0) -> int:
        """One entry: a mapping of names to numpy arrays, torch tensors or Arrow arrays of as many
        rows, or an Arrow batch or table. ``version``: of the model that made it. Returns its
        offset; on return the broker has it.

        Waits up to ``timeout`` s for room, then ``TopicFull``. Raises ``ClientError`` for what
        cannot be tensors, ``MessageTooLarge``, ``SendUnknown``: it may be there.
        """
        _check_version(version)
        body, _ = encoded(columns)
        if self._producer is None:
            self._producer = Producer(f"replay-{self._group}", idempotent=True, **self._where)
            self._producer.start()
        self.newest = max(self.newest, version)
        result = self._producer.send(
            self.name, body, properties={VERSION: str(version)}, timeout=timeout
        )
        return int(result.queue_offset)

    # --- those who learn --------------------------------------------------------------------------

    def take(self, n: int, *, version: int | None = None, timeout: float = 5.0) -> ReplayBatch:
        """Up to ``n`` entries, oldest first (of each broker); fewer, or none, when no more came
        within ``timeout`` s. What is taken and not acknowledged comes again after a restart.

        ``version``: the reader's own, from which staleness is counted; default the newest seen.
        """
        _check_count(n)
        self._told(version)
        reader = self._opened()
        deadline_ms = SYSTEM_CLOCK.monotonic_ms() + timeout * 1_000
        entries: list[ReplayEntry] = []
        dropped, left_s = 0, timeout
        while len(entries) < n and left_s >= 0:  # ends: at the deadline
            polled = reader.poll(n - len(entries), timeout=min(POLL_S, left_s))
            fresh, old = self._sorted_out(self._entries(polled.to_arrow(COLUMNS)))
            passed = {q: at - self._next.get(q, at) for q, at in polled.next_offsets.items()}
            self._count_lost(sum(passed.values()) - len(polled))
            self._next.update(polled.next_offsets)
            entries += fresh
            dropped += old
            left_s = (deadline_ms - SYSTEM_CLOCK.monotonic_ms()) / 1_000
        return ReplayBatch(entries, dropped, offsets_json(self._next), self)

    def sample(self, n: int, *, version: int | None = None) -> ReplayBatch:
        """``n`` entries drawn uniformly, without repetition, from those that are not acknowledged;
        all of them where there are fewer. Nothing is taken out: ``evict`` does that.
        """
        _check_count(n)
        self._told(version)
        reader = self._opened()
        places = [
            (queue, offset)
            for queue, (low, high) in sorted(self._waiting().items())
            for offset in range(low, high)
        ]
        drawn = self._chance.permutation(len(places))
        entries: list[ReplayEntry] = []
        dropped = 0
        for number in drawn:
            queue, offset = places[int(number)]
            found = _patiently(partial(reader.pull, queue, "*", offset, 1))
            fresh, old = self._sorted_out(self._entries(found.messages.to_arrow(COLUMNS)))
            entries += fresh
            dropped += old
            if len(entries) == n:
                break
        return ReplayBatch(entries, dropped, offsets_json(self._acked), self)

    def evict(self, n: int) -> int:
        """Acknowledge the ``n`` oldest entries (of each broker in proportion), so that there is
        room for new ones; returns how many.
        """
        _check_count(n)
        self._opened()
        waiting = self._waiting()
        starts = {queue: low for queue, (low, _) in waiting.items()}
        ends = limited(starts, {queue: high for queue, (_, high) in waiting.items()}, n)
        self._ack_offsets(ends)
        return sum(ends.values()) - sum(starts.values())

    def __len__(self) -> int:
        """Entries that are not acknowledged."""
        self._opened()
        return sum(high - low for low, high in self._waiting().values())

    def restore(self, position: str) -> None:
        """Go on exactly at a position that was kept with a model, be it behind or before what was
        acknowledged since: the log still has those entries. ``ClientError`` for the position of
        another buffer, ``OffsetOutOfRange`` where retention was faster.
        """
        reader = self._opened()
        offsets = normal(position)
        if not isinstance(offsets, dict) or offsets.keys() - set(self._queues):
            raise ClientError(
                f"{position!r:.120} is no position of {self.name!r}: give what "
                f"ReplayBatch.position was",
                position[:120],
            )
        for queue, offset in offsets.items():
            reader.seek(queue, offset)
            self._next[queue] = offset
        self._acked.update(_patiently(partial(reader.commit, offsets)))

    def close(self) -> None:
        """Close the connections; taken entries that were not acknowledged come again."""
        for client in (self._producer, self._reader):
            if client is not None:
                client.close()
        self._producer = self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- inside -----------------------------------------------------------------------------------

    def _discovery(self) -> RayDiscovery | StaticDiscovery:
        where = dict(self._where)
        return discovery_for(where.pop("cluster"), **where)

    def _create(self, slots: int, slot_bytes: int) -> None:
        admin = Admin(self._discovery())
        brokers = max(1, len(admin.masters()))
        if slots < brokers:
            raise ClientError(
                f"slots must be at least the number of brokers, {brokers}, not {slots}", slots
            )
        admin.create_topic(
            self.name,
            queues=1,
            slots=slots // brokers,
            slot_bytes=slot_bytes // brokers,
            slots_group=self._group,
        )

    def _opened(self) -> PullConsumer:
        if self._reader is None:
            reader = PullConsumer(self._group, auto_commit=False, start_from="first", **self._where)
            reader.start()
            try:
                _patiently(lambda: self._begin(reader))
            except BaseException:
                reader.close()
                raise
            self._reader = reader
        return self._reader

    def _begin(self, reader: PullConsumer) -> None:
        """Read on where the group is, as the brokers say."""
        discovery = self._discovery()
        with TopicState(discovery, self.name) as asked:
            bounds = state_of(asked, discovery).bounds
        queues = sorted(bounds)
        reader.assign(queues)
        at = {}
        for queue in queues:
            (low, _), told = bounds[queue], reader.committed(queue)
            at[queue] = low if told is None else max(low, told)
            self._count_lost(0 if told is None else low - told)
            reader.seek(queue, at[queue])
        self._queues, self._next, self._acked = queues, at, dict(at)

    def _count_lost(self, entries: int) -> None:
        if entries > 0:
            self.lost += entries
            log.warning(
                "retention removed %d entries of %s before group %s acknowledged them",
                entries,
                self.name,
                self._group,
            )

    def _waiting(self) -> dict[MessageQueue, tuple[int, int]]:
        """[first that is not acknowledged, next offset) of each queue."""
        reader = self._opened()
        found = {}
        for queue in self._queues:
            low, high = _patiently(partial(reader.watermark_offsets, queue))
            first = max(low, self._acked.get(queue, low))
            found[queue] = (min(first, high), high)
        return found

    def _entries(self, table: Any) -> list[ReplayEntry]:
        names = (table[name].to_pylist() for name in COLUMNS[:3])
        bodies = table["body"].combine_chunks()
        found = []
        for number, (broker, queue_id, offset) in enumerate(zip(*names, strict=True)):
            body = bodies[number].as_buffer()
            queue = MessageQueue(self.name, broker, queue_id)
            text = dict(table["properties"][number].as_py() or {}).get(VERSION, "")
            if body is None or not text.isdecimal():
                raise BodyUnreadable(
                    f"offset {offset} of {queue} is no entry of a replay buffer: it has no version"
                )
            found.append(ReplayEntry(queue, offset, int(text), decoded(body)))
        return found

    def _sorted_out(self, entries: list[ReplayEntry]) -> tuple[list[ReplayEntry], int]:
        """(what is handed out, how many are left out)."""
        self.newest = max([self.newest, *(entry.version for entry in entries)])
        if self._behind_max is None:
            return entries, 0
        oldest = self.newest - self._behind_max
        marked = [
            ReplayEntry(e.queue, e.offset, e.version, e.batch, e.version < oldest) for e in entries
        ]
        kept = [entry for entry in marked if self._stale == "keep" or not entry.stale]
        self.dropped += len(entries) - len(kept)
        return kept, len(entries) - len(kept)

    def _told(self, version: int | None) -> None:
        if version is not None:
            _check_version(version)
            self.newest = max(self.newest, version)

    def _ack(self, position: str) -> None:
        offsets = normal(position)
        assert isinstance(offsets, dict)  # it is a batch's own
        self._ack_offsets(offsets)

    def _ack_offsets(self, offsets: Offsets) -> None:
        news = {q: offset for q, offset in offsets.items() if offset > self._acked.get(q, 0)}
        if news:
            self._acked.update(_patiently(partial(self._opened().commit, news)))


def _connected_elsewhere(*settings: Any) -> ReplayBuffer:
    made = ReplayBuffer.__new__(ReplayBuffer)
    made._settings = settings
    made._connect_later(*settings)
    return made


def _patiently(ask: Callable[[], T]) -> T:
    """Ask again while a broker is away, a minute."""
    give_up = SYSTEM_CLOCK.monotonic_ms() + PATIENCE_MS
    while True:  # ends: at give_up
        try:
            return ask()
        except (RemotingError, ConsumeError) as error:
            if not passes(error) or SYSTEM_CLOCK.monotonic_ms() >= give_up:
                raise
        SYSTEM_CLOCK.sleep_ms(AWAY_PAUSE_MS)


def _check_version(version: object) -> None:
    if type(version) is not int or version < 0:
        raise ClientError(
            f"version must be an integer of 0 or more, that of the model, not {version!r:.80}",
            repr(version)[:80],
        )


def _check_count(n: object) -> None:
    if type(n) is not int or n < 1:
        raise ClientError(f"n must be an integer of 1 or more, not {n!r:.80}", repr(n)[:80])
