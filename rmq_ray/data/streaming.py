"""A topic without an end, table by table: what a training loop reads.

    group ────────┐                                              ┌ asked for the next one:
    shard=(2, 4) ─┴─> queues of this worker ─> table ─> the loop ┤ commit="next"
                                                                 └ model saved: batches.commit()

Decides: which queues a worker reads, when a table counts as done, and where the reading ends. Does
not decide how queues are shared by a group (rebalance does), nor where a model is kept. Called by
users, in any process that Ray or name servers can be reached from. Invariants: what was not handed
out is never committed; rows before ``after`` are never handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from rmq_ray.actors.access_keys import SecretKey, keywords
from rmq_ray.actors.clients.consumers import PullConsumer
from rmq_ray.actors.discovery import account_of, discovery_for, meant_cluster
from rmq_ray.client.scan.bulk_arguments import checked_columns
from rmq_ray.client.scan.shared_queues import queues_to_share
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import Tls
from rmq_ray.errors import ClientError, CommitFailed
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.protocol.scan.scan_positions import normal, offsets_json
from rmq_ray.protocol.validators import check_group, check_topic

POLL_S = 0.5
COMMITS = ("next", "manual")
PLACE = ("broker", "queue_id", "queue_offset")
Offsets = dict[MessageQueue, int]
After = str | Mapping[Any, Any]
log = logging.getLogger("rmq_ray.data")


def iter_batches(  # noqa: PLR0913 - the settings of the outermost call
    topic: str,
    *,
    group: str,
    batch_size: int = 1_024,
    columns: Sequence[str] | None = None,
    tags: Any = "*",
    start_from: str = "first",
    max_wait_s: float = 1.0,
    idle_s: float | None = None,
    commit: str = "next",
    after: After | Sequence[After] | None = None,
    shard: tuple[int, int] | None = None,
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
    **settings: Any,
) -> TopicBatches:
    """``pyarrow.Table`` after table, each of at most ``batch_size`` messages, as they come in.

    ``columns``: see ``rmq_ray.model.arrow``; ``tags``: a tag expression or ``rmq.sql(...)``;
    ``start_from``: where a group that is new begins, "first" unless "last" is asked for. A table
    that is not full is handed out after ``max_wait_s``. Ends when nothing came for ``idle_s``; None
    = never.

    Who reads what: members of ``group`` share the queues, and share them anew when one comes or
    goes (rows that were not committed come again, to the new reader). ``shard`` = (rank, workers)
    gives this worker every ``workers``-th queue for good: nothing moves, and queues that are added
    later are not read.

    When a table is done: ``commit`` "next" = when the next one is asked for (what a loop was
    working on when it died comes again); "manual" = when you call ``.commit()``, as after a model
    was saved. ``.position`` is where each queue goes on, as JSON text: keep it in the same
    checkpoint and give it back as ``after`` (one text, or one of each worker). Rows before it are
    left out; with ``shard`` reading begins exactly there, so that the model has each row once.

    Further settings are those of ``PullConsumer``. Raises ``ClientError`` for wrong values; the
    first table raises ``TopicNotFound``, and ``OffsetOutOfRange`` where retention has overtaken
    ``after``.
    """
    _check_names_and_sizes(topic, group, batch_size, commit)
    chosen = None if columns is None else checked_columns(columns, ClientError)
    # the consumer is opened later, perhaps in another process, which would mean another cluster
    meant = meant_cluster(cluster, name_servers)
    options = keywords(account_of(meant, name_servers, secret, access_key, secret_key))
    options |= {"auto_commit": False, "start_from": start_from, **settings}
    options |= {"cluster": meant, "name_servers": name_servers, "secret": secret, "tls": tls}
    return TopicBatches(
        _Run(
            partial(PullConsumer, group, **options),
            topic,
            batch_size,
            chosen,
            tags,
            max_wait_s,
            idle_s,
            commit == "next",
            furthest(after),
            _checked(shard),
            discovery_for(meant, name_servers, secret, tls, access_key, secret_key),
        )
    )


def _check_names_and_sizes(topic: str, group: str, batch_size: int, commit: str) -> None:
    check_topic(topic)
    check_group(group)
    if batch_size < 1:
        raise ClientError(f"batch_size must be at least 1, not {batch_size}", batch_size)
    if commit not in COMMITS:
        raise ClientError(f"commit must be 'next' or 'manual', not {commit!r}", repr(commit)[:80])


def furthest(positions: After | Sequence[After] | None) -> Offsets:
    """The greatest offset of each queue in one or several positions. ``ClientError`` for what is no
    position.

    >>> furthest(['{"t": {"b": {"0": 5}}}', '{"t": {"b": {"0": 7}}}'])
    {MessageQueue(topic='t', broker_name='b', queue_id=0): 7}
    """
    found: Offsets = {}
    for given in (
        []
        if positions is None
        else [positions]
        if isinstance(positions, str | Mapping)
        else positions
    ):
        offsets = normal(given)
        if not isinstance(offsets, dict) or any(offset < 0 for offset in offsets.values()):
            raise ClientError(
                f"after must be what .position was, or several of them, not {given!r:.80}",
                repr(given)[:80],
            )
        for queue, offset in offsets.items():
            found[queue] = max(offset, found.get(queue, 0))
    return found


class TopicBatches(Iterator[Any]):
    """An iterator of tables, made by ``iter_batches``; a context manager, too: what leaves a loop
    early closes it, or drops it.
    """

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._tables = run.tables()

    @property
    def position(self) -> str:
        """Where each queue goes on behind all tables that were handed out, as JSON: ``{"orders":
        {"broker-a": {"0": 23}}}``; with what ``after`` said.
        """
        after = self._run.after
        return offsets_json(
            {
                **after,
                **{
                    queue: max(offset, after.get(queue, 0))
                    for queue, offset in self._run.behind.items()
                },
            }
        )

    def commit(self) -> None:
        """The group is through with all tables that were handed out. A queue that moved to another
        member meanwhile is left to it.
        """
        self._run.commit()

    def close(self) -> None:
        """Leave the group; what is not committed comes again."""
        self._tables.close()

    def __next__(self) -> Any:
        table = next(self._tables)
        if table is None:
            if self._run.commits:
                self.close()
            raise StopIteration
        return table

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(eq=False)
class _Run:
    """What one loop knows. ``behind``: where each queue goes on behind the tables that were handed
    out. Does not know its ``TopicBatches``: a loop that drops that one closes the consumer.
    """

    open_consumer: Callable[[], PullConsumer]
    topic: str
    batch_size: int
    columns: list[str] | None
    tags: Any
    max_wait_s: float
    idle_s: float | None
    commits: bool
    after: Offsets
    shard: tuple[int, int] | None
    discovery: Discovery
    consumer: PullConsumer | None = None
    behind: Offsets = field(default_factory=dict)
    told: Offsets = field(default_factory=dict)
    heard_ms: float = 0.0

    def tables(self) -> Any:
        """A generator of tables; None where nothing came for ``idle_s``: whoever commits by hand
        may do so then, and may ask for more.
        """
        wait_s = self.max_wait_s if self.idle_s is None else min(self.max_wait_s, self.idle_s)
        with self.open_consumer() as self.consumer:
            self._begin(self.consumer)
            self.heard_ms = SYSTEM_CLOCK.monotonic_ms()
            while True:  # ends: with the loop that asks
                table = self._collect(self.consumer, wait_s)
                over = (
                    self.idle_s is not None
                    and SYSTEM_CLOCK.monotonic_ms() - self.heard_ms >= self.idle_s * 1_000
                )
                if table is not None or over:
                    yield table
                    self.heard_ms = SYSTEM_CLOCK.monotonic_ms()
                if self.commits:
                    self.commit()

    def commit(self) -> None:
        """What moved since the last time."""
        news = {
            queue: offset for queue, offset in self.behind.items() if self.told.get(queue) != offset
        }
        if self.consumer is None or not news:
            return
        try:
            self.consumer.commit(news)
            self.told.update(news)
        except CommitFailed as error:
            # a member that came or went may have taken a queue over; it gets these rows again
            log.warning("a batch may come again, here or to another member of the group: %s", error)

    def _begin(self, consumer: PullConsumer) -> None:
        if self.shard is None:
            # a group would wait for a topic that is not there
            consumer.fetch_message_queues(self.topic)
            consumer.subscribe(self.topic, self.tags)
            return
        rank, workers = self.shard
        queues = queues_to_share(self.discovery, consumer._full_name(self.topic))
        if len(queues) < workers:
            raise ClientError(
                f"{workers} workers cannot share the {len(queues)} queues of {self.topic!r}: "
                f"give it more queues, or take fewer workers",
                workers,
            )
        mine = queues[rank::workers]
        consumer.assign(mine, self.tags)
        for queue in mine:
            if queue in self.after:
                consumer.seek(queue, self.after[queue])
            self.behind[queue] = consumer.position(
                queue
            )  # so that a position names queues, too, of which nothing has come

    def _collect(self, consumer: PullConsumer, wait_s: float) -> Any:
        """A table; None: nothing came."""
        import pyarrow as pa

        tables: list[Any] = []
        seen: Offsets = {}
        rows, deadline_ms = 0, SYSTEM_CLOCK.monotonic_ms() + wait_s * 1_000
        left_s = wait_s
        while rows < self.batch_size and left_s >= 0:  # once at least
            batch = consumer.poll(self.batch_size - rows, timeout=min(POLL_S, left_s))
            seen.update(batch.next_offsets)
            if len(batch):
                if (table := self._table(batch)).num_rows:
                    tables.append(table)
                    rows += table.num_rows
                self.heard_ms = SYSTEM_CLOCK.monotonic_ms()
            left_s = (deadline_ms - SYSTEM_CLOCK.monotonic_ms()) / 1_000
        self.behind.update(
            seen
        )  # not before: after an error in a later poll these rows are handed to nobody
        return pa.concat_tables(tables) if tables else None

    def _table(self, batch: Any) -> Any:
        """The rows of a batch that do not lie before ``after``."""
        if self.shard is not None or not self.after:  # a shard began there
            return batch.to_arrow(self.columns)
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = self.columns
        table = batch.to_arrow(
            None if wanted is None else [*wanted, *(name for name in PLACE if name not in wanted)]
        )
        keep: Any = pa.array([True] * table.num_rows)
        for queue, offset in self.after.items():
            here = pc.and_(
                pc.equal(table["broker"], queue.broker_name),
                pc.equal(table["queue_id"], queue.queue_id),
            )
            keep = pc.and_not(keep, pc.and_(here, pc.less(table["queue_offset"], offset)))
        fresh = table.filter(keep)
        return fresh if wanted is None else fresh.select(wanted)


def _checked(shard: tuple[int, int] | None) -> tuple[int, int] | None:
    """``ClientError`` for what is no (rank, workers)."""
    if shard is None:
        return None
    rank, workers = shard
    if not 0 <= rank < workers:
        raise ClientError(
            f"shard must be (rank, workers) with 0 <= rank < workers, not {shard!r}",
            repr(shard)[:80],
        )
    return int(rank), int(workers)
