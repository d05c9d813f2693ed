"""A topic without an end, batch by batch: what a training loop reads.

Decides: when a batch counts as done (when the next one is asked for). Does not decide how queues are shared: the members of a group
share them, so each worker of a training job calls this with the same group and sees its own part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from rmq_ray.actors.clients import PullConsumer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import DEFAULT_CLUSTER
from rmq_ray.errors import ClientError, CommitFailed

POLL_S = 0.5
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
    cluster: str = DEFAULT_CLUSTER,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    **settings: Any,
) -> Iterator[Any]:
    """``pyarrow.Table`` after table, each of at most ``batch_size`` messages, as they come in.

    A batch is committed for ``group`` when the next one is asked for: what a loop was working on when it died comes again (at least
    once), and to another member what it was working on when a queue moved there. A batch that is not full is handed out after ``max_wait_s``. Ends when
    nothing came for ``idle_s``; None = never. ``columns``: see ``rmq_ray.model.arrow``; ``tags``: a tag expression or ``rmq.sql(...)``;
    ``start_from``: where a group that is new begins. Further settings are those of ``PullConsumer``. Raises ``ClientError`` for wrong values, at the
    first batch.
    """
    if batch_size < 1:
        raise ClientError(f"batch_size must be at least 1, not {batch_size}", batch_size)
    with PullConsumer(
        group, cluster=cluster, name_servers=name_servers, secret=secret, start_from=start_from, **{"auto_commit": False, **settings}
    ) as consumer:
        consumer.subscribe(topic, tags)
        heard_ms = SYSTEM_CLOCK.monotonic_ms()
        while idle_s is None or SYSTEM_CLOCK.monotonic_ms() - heard_ms < idle_s * 1_000:
            tables, offsets = _collect(consumer, batch_size, columns, max_wait_s if idle_s is None else min(max_wait_s, idle_s))
            if tables is not None:
                yield tables
                _commit(consumer, offsets)
                heard_ms = SYSTEM_CLOCK.monotonic_ms()


def _commit(consumer: PullConsumer, offsets: dict[Any, int]) -> None:
    """A member that came or went may have taken a queue over meanwhile; it gets these rows again, which is no reason to end the loop."""
    try:
        consumer.commit(offsets)
    except CommitFailed as error:
        log.warning("a batch may come again, here or to another member of the group: %s", error)


def _collect(consumer: PullConsumer, batch_size: int, columns: Sequence[str] | None, wait_s: float) -> tuple[Any, dict[Any, int]]:
    """A table (None: nothing came) and where each queue goes on behind it."""
    import pyarrow as pa

    tables: list[Any] = []
    offsets: dict[Any, int] = {}
    rows, deadline_ms = 0, SYSTEM_CLOCK.monotonic_ms() + wait_s * 1_000
    while rows < batch_size and (left_s := (deadline_ms - SYSTEM_CLOCK.monotonic_ms()) / 1_000) > 0:
        batch = consumer.poll(batch_size - rows, timeout=min(POLL_S, left_s))
        offsets.update(batch.next_offsets)
        if len(batch):
            tables.append(batch.to_arrow(columns))
            rows += len(batch)
    return (pa.concat_tables(tables) if tables else None), offsets
