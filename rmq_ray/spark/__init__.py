"""Topics as Spark DataFrames and streams, both ways: ``from rmq_ray import spark as mqs``. The only
part that needs Java, pyspark and raydp.

session = mqs.session(num_executors=1)
df = mqs.read_topic(session, "orders")
mqs.write_topic(df, "copies")
mqs.stop()
"""

from rmq_ray.extras import named

with named("spark"):
    from rmq_ray.spark.batch import GroupBatch, batch
    from rmq_ray.spark.micro_batches import BatchProgress, BatchQuery
    from rmq_ray.spark.read import read_topic
    from rmq_ray.spark.session import session, stop
    from rmq_ray.spark.stream import TopicStream, read_stream, write_stream_topic
    from rmq_ray.spark.write import Once, write_topic

__all__ = [
    "BatchProgress",
    "BatchQuery",
    "GroupBatch",
    "Once",
    "TopicStream",
    "batch",
    "read_stream",
    "read_topic",
    "session",
    "stop",
    "write_stream_topic",
    "write_topic",
]
