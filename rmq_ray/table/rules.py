"""The rules of a table: what it is made of, what a commit says, which rows come next, when, and
what a commit became whose answer nobody heard.

    topic ──[committed, visible)──> files of one queue and day ──> commit {queue: next offset}

    a commit's answer   what is found when the table is read again      what follows
    committed           -                                               go on behind it
    refused, unknown    its id among the table's commits                COMMITTED: go on behind it
    refused, unknown    its id is not there, the offsets stand still    AGAIN: the same files once
                                                                        more; one of both can land
    refused, unknown    its id is not there, the offsets moved          LOST: another committer has
                                                                        these rows; its files stand

Decides that and no more: pure, no clock, no disk. Invariants: a row is in the table when a commit
that covers its offset is, and then once; offsets of a table never go back, but for a log that was
cut below them, which is recorded as a gap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from rmq_ray.errors import ConfigError, TableError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_positions import nested, normal
from rmq_ray.protocol.scan.stream_offsets import limited
from rmq_ray.protocol.validators import check_topic

MAX_LAG_S_MIN, MAX_LAG_S_MAX = 10.0, 86_400.0
FILE_BYTES = 192 << 20
FILE_BYTES_MIN, FILE_BYTES_MAX = 1 << 20, 1 << 30
HOLD_BYTES = 64 << 30
CYCLE_BYTES = 1 << 30  # of bodies: what one commit adds at most, about
ROWS_MIN = 1_000
BODY_BYTES_GUESS = 1_024  # until rows were seen
COMMITS_KEPT = 16
GAPS_KEPT = 1_000
DECODES = ("", "json", "msgpack", "arrow")
SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "viewfs")

CATALOGS_WITHOUT_URI = ("glue", "dynamodb")
_FILE_NAME = re.compile(r"(.+)-(\d{4,})-(\d{20})-e(\d+)-g.+\.parquet")
_GENERATION = re.compile(r"-g(\d{6})-[^/]+$")

Offsets = dict[MessageQueue, int]
Ranges = dict[MessageQueue, tuple[int, int]]
WIDENED = frozenset({("int", "long"), ("float", "double")})


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What was asked for when the table was created; plain values, kept by the name servers.

    ``location``: a URI or an absolute path. ``max_lag_s``: how old a message gets before it is
    committed. ``file_bytes``: Parquet files are closed at about this size. ``hold_bytes``: how much
    of each broker's log retention keeps back for a table that lags. ``catalog``: properties of
    pyiceberg's catalog, its ``name`` among them; empty = plain Parquet. ``decode``, ``columns``:
    how bodies are decoded, and to which columns, name -> type.
    """

    topic: str
    location: str
    max_lag_s: float = 60.0
    file_bytes: int = FILE_BYTES
    hold_bytes: int = HOLD_BYTES
    catalog: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"
    decode: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False

    def checked(self) -> TableSpec:
        """Itself; ``ConfigError`` for a value that cannot be, with what may be."""
        check_topic(self.topic)
        scheme, colon, _ = self.location.partition("://")
        if not (self.location.startswith("/") or (colon and scheme in SCHEMES)):
            raise ConfigError(
                f"location {self.location!r} must be an absolute path, or a URI that begins with "
                f"{', '.join(f'{one}://' for one in SCHEMES)}",
                self.location,
            )
        for name, low, high in (
            ("max_lag_s", MAX_LAG_S_MIN, MAX_LAG_S_MAX),
            ("file_bytes", FILE_BYTES_MIN, FILE_BYTES_MAX),
            ("hold_bytes", 0, 1 << 60),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"{name} must be {low:g} to {high:g}, not {getattr(self, name)!r}", name
                )
        if self.decode not in DECODES:
            raise ConfigError(
                f"decode must be one of {', '.join(DECODES[1:])}, not {self.decode!r}", self.decode
            )
        if bool(self.decode) != bool(self.columns):
            raise ConfigError(
                "decode and a schema belong together: give both, like decode='json' and "
                "columns={'user': 'string', 'amount': 'double'}",
                self.decode,
            )
        return self

    @property
    def stays(self) -> bool:
        """Whether its archivist must not go to another host: files at a path, a catalog in one, or
        one that only its host's own settings describe, are this host's as far as anybody knows.
        """
        if self.location.startswith(("/", "file://")):
            return True
        catalog = self.catalog
        described = "uri" in catalog or catalog.get("type") in CATALOGS_WITHOUT_URI
        return bool(catalog) and (not described or catalog.get("uri", "").startswith("sqlite"))

    def to_json(self) -> str:
        """For the name servers' table."""
        return json.dumps({**asdict(self), "catalog": dict(self.catalog)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TableSpec:
        """The way back; fields that a later version added are left out."""
        found = json.loads(text)
        return cls(**{name: found[name] for name in cls.__slots__ if name in found})


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file: rows of one queue and one UTC day of storing. ``path``: below the table's
    location. ``first``, ``next``: the queue offsets [first, next) that it covers; ``bytes``: its
    size. ``rejected``: rows that did not fit the schema, with their reasons.
    """

    path: str
    day: str
    broker: str
    queue_id: int
    first: int
    next: int
    rows: int
    bytes: int
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that the table never got, or got from a log that was cut behind it: queue offsets
    [first, next). ``reason``: "retention" or "cut".
    """

    queue: MessageQueue
    first: int
    next: int
    reason: str
    at_ms: int

    def plain(self) -> dict[str, Any]:
        """For manifests and status."""
        return {
            "broker": self.queue.broker_name,
            "queue": self.queue.queue_id,
            "first": self.first,
            "next": self.next,
            "reason": self.reason,
            "at_ms": self.at_ms,
        }

    @classmethod
    def of(cls, topic: str, found: Mapping[str, Any]) -> Gap:
        """The way back."""
        queue = MessageQueue(topic, found["broker"], int(found["queue"]))
        return cls(queue, found["first"], found["next"], found["reason"], found["at_ms"])


@dataclass(frozen=True, slots=True)
class TableState:
    """What is committed. ``version``: names this state, changes with every commit, also with a
    foreign one. ``commits``: ids of the latest commits of ours, the last one at the end.
    ``replayed``: which rejected rows were taken into the table last. ``rejected_offsets``,
    ``rejected_commits``: of rejected rows where they have commits of their own, which are further
    than the table's when a committer died between both.
    """

    version: str
    offsets: Offsets = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    commits: tuple[str, ...] = ()
    replayed: str = ""
    rows: int = 0
    rejected_rows: int = 0
    rejected_offsets: Offsets = field(default_factory=dict)
    rejected_commits: tuple[str, ...] = ()

    def behind(self, change: Change) -> TableState:
        """The state behind a commit, but for its version."""
        added = {False: 0, True: 0}
        for sign, files in ((1, change.added), (-1, change.removed)):
            for one in files:
                added[one.rejected] += sign * one.rows
        return replace(
            self,
            offsets={**self.offsets, **change.offsets},
            epochs={**self.epochs, **change.epochs},
            gaps=(*self.gaps, *change.gaps)[-GAPS_KEPT:],
            commits=(*self.commits, change.id)[-COMMITS_KEPT:],
            replayed=change.replayed or self.replayed,
            rows=self.rows + added[False],
            rejected_rows=self.rejected_rows + added[True],
        )

    def summary(self) -> dict[str, str]:
        """As texts: what a snapshot's summary and a table's properties say."""
        return {
            "rmq.offsets": json.dumps(nested(self.offsets), separators=(",", ":")),
            "rmq.epochs": json.dumps(dict(self.epochs), sort_keys=True),
            "rmq.gaps": json.dumps([gap.plain() for gap in self.gaps]),
            "rmq.commits": json.dumps(self.commits),
            "rmq.replayed": json.dumps(self.replayed),
        }

    @classmethod
    def of_summary(cls, topic: str, version: str, found: Mapping[str, str]) -> TableState:
        """The way back; nothing is committed where nothing is said."""
        offsets = normal(json.loads(found.get("rmq.offsets", "{}")))
        assert isinstance(offsets, dict)
        return cls(
            version,
            offsets,
            json.loads(found.get("rmq.epochs", "{}")),
            tuple(Gap.of(topic, gap) for gap in json.loads(found.get("rmq.gaps", "[]"))),
            tuple(json.loads(found.get("rmq.commits", "[]"))),
            json.loads(found.get("rmq.replayed", '""')),
        )


@dataclass(frozen=True, slots=True)
class Change:
    """A commit. ``id``: nobody else's. ``offsets``: the next one of each queue that moved;
    ``removed``: files that ``added`` stands for (a compaction), or that were asked to go.
    ``replayed``: names the rejected rows that ``added`` has in their place.
    """

    id: str
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    offsets: Offsets = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    replayed: str = ""


class Settled(Enum):
    """What became of a commit that was refused, or whose outcome nobody knows."""

    COMMITTED = "committed"
    AGAIN = "again"
    LOST = "lost"


def settle(expected: TableState, change: Change, found: TableState) -> Settled:
    """See the module. ``expected``: what the commit was built on; ``found``: the table now."""
    apart = bool(change.replayed and change.removed and found.rejected_commits)
    if change.id in (found.rejected_commits if apart else found.commits):
        return Settled.COMMITTED
    stands = found.offsets == expected.offsets
    if change.id not in found.rejected_commits:
        stands &= found.rejected_offsets == expected.rejected_offsets
    return Settled.AGAIN if stands else Settled.LOST


@dataclass(frozen=True, slots=True)
class Work:
    """What one cycle reads: ``ranges`` of queue offsets, ``gaps`` in front of them."""

    ranges: Ranges
    gaps: tuple[Gap, ...]

    def __bool__(self) -> bool:
        return bool(self.ranges or self.gaps)


def next_work(
    committed: Mapping[MessageQueue, int],
    bounds: Mapping[MessageQueue, tuple[int, int]],
    cut_to: Mapping[MessageQueue, int],
    rows_max: int,
    now_ms: int,
) -> Work:
    """From the committed offsets to what is visible, ``rows_max`` rows at most, shared by what each
    queue has.

    ``bounds``: [smallest, next visible) of each queue; ``cut_to``: where to go on in queues whose
    log was cut behind the table's back. A queue that the table does not know begins at its smallest
    offset. ``TableError`` where one ends before what the table has, without a cut.

    >>> q = MessageQueue("t", "b", 0)
    >>> next_work({q: 3}, {q: (5, 9)}, {}, 100, 0).ranges
    {MessageQueue(topic='t', broker_name='b', queue_id=0): (5, 9)}
    """
    starts: Offsets = {}
    gaps = []
    for queue, (low, high) in bounds.items():
        at = committed.get(queue, low)
        cut = min(cut_to.get(queue, at), max(at, low))
        if cut < at:
            gaps.append(Gap(queue, cut, at, "cut", now_ms))
            at = cut
        if at < low:
            gaps.append(Gap(queue, at, low, "retention", now_ms))
            at = low
        if high < at:
            raise TableError(
                f"{queue} ends at {high}, but the table has it up to {at}: a copy of the log has "
                "not caught up yet, or the topic was deleted and made anew. Then drop the table "
                "and create it at another location",
                str(queue),
            )
        starts[queue] = at
    ends = limited(starts, {queue: high for queue, (_, high) in bounds.items()}, rows_max)
    ranges = {queue: (start, ends[queue]) for queue, start in starts.items() if start < ends[queue]}
    return Work(ranges, tuple(gaps))


def rows_of_cycle(rows_seen: int, body_bytes_seen: int) -> int:
    """How many rows one commit takes, by the bodies seen so far."""
    each = body_bytes_seen / rows_seen if rows_seen else BODY_BYTES_GUESS
    return max(ROWS_MIN, int(CYCLE_BYTES / max(1.0, each)))


def is_due(lag_rows: int, rows_max: int, waiting_ms: float, max_lag_ms: float) -> bool:
    """Whether to commit now: a cycle's worth waits, or the oldest row has waited for as long as it
    may. What is written in the meantime costs a fifth of the time that it may take.

    >>> is_due(5, 1000, 47_000, 60_000), is_due(5, 1000, 48_000, 60_000), is_due(0, 1, 1e9, 1)
    (False, True, False)
    """
    return lag_rows > 0 and (lag_rows >= rows_max or waiting_ms >= 0.8 * max_lag_ms)


def file_name(queue: MessageQueue, first: int, epoch: int, writer: str) -> str:
    """Of the file that begins with this row. ``writer``: of this start of the committer: two never
    write the same file.

    >>> file_name(MessageQueue("t", "broker-a", 3), 70, 2, "000004-ab12")
    'broker-a-0003-00000000000000000070-e2-g000004-ab12.parquet'
    """
    return f"{queue.broker_name}-{queue.queue_id:04}-{first:020}-e{epoch}-g{writer}.parquet"


def parse_file_name(name: str) -> tuple[str, int, int, int] | None:
    """(broker, queue id, first offset, epoch) of a file of ours; None for any other.

    >>> parse_file_name("broker-a-0003-00000000000000000070-e2-g000004-ab12.parquet")
    ('broker-a', 3, 70, 2)
    """
    found = _FILE_NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]), int(found[3]), int(found[4]))


def generation_of(path: str) -> int:
    """Of the committer that wrote a file of ours; 0 where its name tells none.

    >>> generation_of("day=x/broker-a-0003-00000000000000000070-e2-g000004-ab12.parquet")
    4
    """
    found = _GENERATION.search(path)
    return int(found[1]) if found else 0


def check_evolution(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """``TableError`` for what a table's columns cannot become: they may be added and widened."""
    for name, kind in old.items():
        wanted = new.get(name)
        if wanted is None:
            raise TableError(
                f"column {name!r} cannot be dropped: older files have it; leave it in the schema",
                name,
            )
        if wanted != kind and (kind, wanted) not in WIDENED:
            legal = ", ".join(f"{a} to {b}" for a, b in sorted(WIDENED))
            raise TableError(
                f"column {name!r} is {kind} and cannot become {wanted}; columns may be added, and "
                f"widened: {legal}",
                name,
            )


def compactable(files: Sequence[DataFile], file_bytes: int) -> list[list[DataFile]]:
    """Runs of neighbours of one queue and day that together make one larger file, in order. Files
    of others have rows of several queues and stay as they are.
    """
    found: list[list[DataFile]] = []
    group: list[DataFile] = []
    ours = (one for one in files if one.queue_id >= 0)
    for one in sorted(ours, key=lambda f: (f.rejected, f.day, f.broker, f.queue_id, f.first)):
        same = group and _kin(group[-1]) == _kin(one)
        if not same or sum(f.bytes for f in group) + one.bytes > file_bytes:
            found.append(group)
            group = []
        group.append(one)
    return [run for run in [*found, group] if len(run) > 1]


def _kin(one: DataFile) -> tuple[bool, str, str, int]:
    return one.rejected, one.day, one.broker, one.queue_id
