"""Topics as Ray Data datasets, without Java: ``from rmq_ray import data as mqd``.

ds = mqd.read_topic("orders")                            # a ray.data.Dataset, read in parallel
                                                         # beside the log
mqd.write_topic(ds.map_batches(fn), "totals")
for batch in mqd.iter_batches("orders", group="train"):  # without an end, for training
    ...
for batch in mqd.stream("orders", checkpoint="/c/orders", trigger="10 s"):  # bounded datasets
    batch.write("/out/orders", lambda dataset, path: dataset.write_parquet(path))
"""

from typing import TYPE_CHECKING, Any

from rmq_ray.extras import named

if TYPE_CHECKING:
    from rmq_ray.data.job_checkpoint import (
        OffsetCheckpointManager,
        OffsetFilter,
        offset_checkpoint,
        unwritten,
    )

with named("data"):
    from rmq_ray.data.read import read_topic
    from rmq_ray.data.replay import ReplayBatch, ReplayBuffer, ReplayEntry
    from rmq_ray.data.streaming import TopicBatches, iter_batches
    from rmq_ray.data.topic_stream import StreamBatch, TopicStream, stream
    from rmq_ray.data.train import TrainSource, train_source
    from rmq_ray.data.write import write_topic

__all__ = [
    "OffsetCheckpointManager",
    "OffsetFilter",
    "ReplayBatch",
    "ReplayBuffer",
    "ReplayEntry",
    "StreamBatch",
    "TopicBatches",
    "TopicStream",
    "TrainSource",
    "iter_batches",
    "offset_checkpoint",
    "read_topic",
    "stream",
    "train_source",
    "unwritten",
    "write_topic",
]

_OF_JOBS = ("OffsetCheckpointManager", "OffsetFilter", "offset_checkpoint", "unwritten")


def __getattr__(name: str) -> Any:
    """What newer Rays alone can do; ``ClusterError`` in an older one."""
    if name not in _OF_JOBS:
        raise AttributeError(f"module 'rmq_ray.data' has no attribute {name!r}")
    from rmq_ray.actors import ray_versions

    ray_versions.require(ray_versions.JOB_CHECKPOINTS)
    from rmq_ray.data import job_checkpoint

    return getattr(job_checkpoint, name)
