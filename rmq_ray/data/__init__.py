"""Topics as Ray Data datasets, without Java: ``from rmq_ray import data as mqd``.

ds = mqd.read_topic("orders")                            # a ray.data.Dataset, read in parallel
                                                         # beside the log
mqd.write_topic(ds.map_batches(fn), "totals")
for batch in mqd.iter_batches("orders", group="train"):  # without an end, for training
    ...
"""

from rmq_ray.data.read import read_topic
from rmq_ray.data.streaming import TopicBatches, iter_batches
from rmq_ray.data.write import write_topic

__all__ = ["TopicBatches", "iter_batches", "read_topic", "write_topic"]
