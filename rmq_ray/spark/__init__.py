"""Topics as Spark DataFrames: ``from rmq_ray import spark as mqs``. The only part that needs Java, pyspark and raydp.

session = mqs.session(num_executors=1)
df = mqs.read_topic(session, "orders")
mqs.stop()
"""

from rmq_ray.spark.read import read_topic
from rmq_ray.spark.session import session, stop

__all__ = ["read_topic", "session", "stop"]
