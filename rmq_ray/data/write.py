"""A Ray Data dataset into a topic: each write task sends its blocks by columns over connections of
its own.

    block ─to Arrow─> Producer.send_arrow ─frames─> brokers  ``once``: frame ids follow from the
                                                             write's name, the task and the frame's
                                                             number

Decides: what a task does when it is run again (it sends again: at least once; with ``once`` the
brokers recognise what they have). Does not decide how rows become messages
(``client.sending.arrow_columns``) or what a worker does (``client.scan.partition_sink``). Workers
need no name of a cluster: name servers and the secret travel with the task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.data import Datasink
from ray.data.block import BlockAccessor

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.actors.gateway import require_driver
from rmq_ray.client.scan.bulk_arguments import frame_timeout_ms
from rmq_ray.client.scan.partition_sink import WriteTarget, send_partition, write_queues
from rmq_ray.client.sending.arrow_columns import Columns
from rmq_ray.config import Tls
from rmq_ray.errors import ClientError
from rmq_ray.protocol.validators import check_bulk_topic

GROUP = "rmq-ray-data"


def write_topic(  # noqa: PLR0913 - the settings of the outermost call
    dataset: ray.data.Dataset,
    topic: str,
    *,
    body: str = "body",
    key: str | None = None,
    tag: str | None = None,
    properties: str | Sequence[str] = (),
    once: str | None = None,
    timeout: float = 30.0,
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> int:
    """Send every row of a dataset as a message and wait; returns how many were stored.

    ``body``, ``key``, ``tag``, ``properties``: names of columns, as for ``Producer.send_arrow``.
    ``timeout``: s, for each frame of up to 1 MiB. ``concurrency``, ``ray_remote_args``: of the
    write tasks.

    At least once: a task that Ray runs again sends its rows again. ``once``: a name for this write,
    the same when it is repeated and used for nothing else (such as "totals/17", job and day): the
    brokers recognise the frames of a repeat within 10 minutes and store nothing twice. The topic
    must exist and keep its queues. A task that Ray runs again has the same rows, if what made them
    gives the same rows again. For a call that is repeated the blocks must be the same, too: those
    of ``read_topic`` between offsets, of files, of ``repartition`` are; the dataset's
    ``preserve_order`` is set while it runs. Other rows under the same name are
    ``DuplicateMismatch``, as far as a frame differs.

    Raises ``ClientError`` for wrong names at once, ``TopicNotFound`` with ``once``,
    ``ClusterError`` where there is no cluster, and what a task raised.
    """
    require_driver("Ray Data")
    if not isinstance(dataset, ray.data.Dataset):
        raise ClientError(
            f"write_topic takes a ray.data.Dataset, not a {type(dataset).__name__}; "
            f"ray.data.from_pandas and its like make one"
        )
    check_bulk_topic(topic)
    check_name(once)
    timeout_ms = frame_timeout_ms(timeout, ClientError)
    columns = Columns.kept(body, key, tag, properties)
    discovery = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
    target = WriteTarget(topic, columns, discovery.lookup(), timeout_ms, group=GROUP)
    if once is not None:
        queues = write_queues(discovery, topic, discovery.broker_names())
        target = replace(target, write=once, queues=tuple(queues))
    sink = TopicDatasink(target)
    with _order_of_blocks(dataset, once is not None):
        dataset.write_datasink(sink, concurrency=concurrency, ray_remote_args=ray_remote_args)
    return sink.stored


@contextlib.contextmanager
def _order_of_blocks(dataset: ray.data.Dataset, kept: bool) -> Iterator[None]:
    """``kept``: the numbers of tasks follow the blocks' order while this lasts; else, as the
    dataset has it, perhaps which block was there first.
    """
    options = dataset.context.execution_options
    before = options.preserve_order
    options.preserve_order = before or kept
    try:
        yield
    finally:
        options.preserve_order = before


def check_name(once: object) -> None:
    """``ClientError`` for what cannot name a write."""
    if once is not None and (not isinstance(once, str) or not once):
        raise ClientError(
            f"once must be a name for this write, like 'totals/17', not {once!r:.80}",
            repr(once)[:80],
        )


class TopicDatasink(Datasink[int]):
    """What Ray Data asks of a sink; ``write`` returns how many rows it sent."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self.stored = 0
        """After the write has completed: rows of all tasks."""

    def get_name(self) -> str:
        """Shown in Ray Data's progress."""
        return f"Topic({self._target.topic})"

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """One write task."""
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        return send_partition(self._target, ctx.task_idx, tables, lambda _rows: None)

    def on_write_complete(self, write_result: Any) -> None:
        """All tasks are through."""
        self.stored = int(sum(write_result.write_returns))  # numpy's, out of a block
