"""A batch of what is new for a group: its position moves when the block around it succeeded, and
not otherwise.

    with batch(session, "orders", group="daily") as new:  group's position ──[start, now)──> new.df
        new.df.write.parquet(...)
                                                          no exception ──commit, queue by queue──>
                                                          the group goes on behind it

Decides: what is new (from the group's position, the beginning for a new group, to the end when the
block is entered) and when it counts as done. At least once: a driver that dies behind the block's
last line and before the commit sees the same rows again. Called by users, in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.scan.batch_planner import state_of
from rmq_ray.client.scan.topic_state import TopicState
from rmq_ray.config import Tls
from rmq_ray.errors import GroupInUse
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.stream_offsets import StreamPosition
from rmq_ray.protocol.validators import check_group
from rmq_ray.spark.batches import Batches, Reading, topics_of
from rmq_ray.spark.read import require_session, wanted_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class GroupBatch:
    """``df``: the rows. ``ranges``: [start, end) of every queue that has some; ``rows`` of them
    (before filters).
    """

    df: DataFrame
    ranges: dict[MessageQueue, tuple[int, int]]

    @property
    def rows(self) -> int:
        """Messages between the group's position and the end."""
        return sum(end - start for start, end in self.ranges.values())


@contextmanager
def batch(  # noqa: PLR0913 - the settings of the outermost call
    session: SparkSession,
    topic: str | Sequence[str],
    *,
    group: str,
    columns: Sequence[str] | None = None,
    tags: Any = None,
    key: str | None = None,
    kafka_compat: bool = False,
    fail_on_data_loss: bool = True,
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
    splits: int | None = None,
) -> Iterator[GroupBatch]:
    """What is new for ``group`` as ``.df``; its position moves to the end of it when the block ends
    without an exception.

    The other settings are those of ``read_topic``. Raises ``GroupInUse`` while consumers of the
    group run (they have positions of their own), ``OffsetOutOfRange`` where retention has overtaken
    the group (unless ``fail_on_data_loss`` is False), ``CommitFailed`` behind the block where a
    broker refuses the new position, and what ``read_topic`` raises.
    """
    check_group(group)
    require_session(session)
    rows = wanted_rows(columns, tags, key, kafka_compat)
    discovery = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
    reading = Reading(
        topics_of(topic), rows, group, "earliest", kafka_compat, fail_on_data_loss, None, splits
    )
    batches = Batches(session, discovery, reading)
    try:
        with TopicState(discovery, reading.topics) as asked:
            state = state_of(asked, discovery)
            require_alone(asked, group)
            before = StreamPosition(asked.positions(group, state))
            end = batches.next(before, state.ends())
            yield GroupBatch(batches.frame(before, end), end.ranges(before))
            require_alone(asked, group)
            # Those that did not move as well: a broker without a position of the group tells no
            # lag.
            asked.commit(group, end.offsets)
    finally:
        batches.close()


def require_alone(asked: TopicState, group: str) -> None:
    """``GroupInUse`` while consumers of the group run."""
    if members := asked.members(group):
        raise GroupInUse(
            f"{len(members)} consumers of group {group!r} run ({', '.join(members[:5])}): "
            f"stop them, or use a group of its own",
            group,
        )
