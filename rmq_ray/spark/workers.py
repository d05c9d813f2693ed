"""What Spark starts in place of its own daemon of Python workers: the same daemon, with less to do for every task.

    executor's JVM ──spark.python.daemon.module──> this module ──fork──> worker ──> tasks, one after another

Decides two things. What is loaded before the fork, and frozen: PySpark has a worker run the garbage collector after every task, which walks through
all that pandas, pyarrow and numpy have defined; frozen objects are left alone, and stay shared between the workers. What is not searched for modules:
Spark puts the jar of its core on the path, and a worker begins each task by forgetting what it knows about the path, so that it reads the list of the
jar's 5,000 classes again. Together they cost 110 ms of CPU a task, whatever it did. Nothing else is changed. Run by Spark as
``python -m rmq_ray.spark.workers``, imported by tests only.
"""

from __future__ import annotations

import gc
import sys
from pathlib import PurePath

JAR = "spark-core_"


def main() -> None:
    """Load, freeze, and be PySpark's daemon until Spark ends it."""
    import pandas  # noqa: F401 - what PySpark's Arrow functions load in every worker
    import pyarrow.compute  # noqa: F401 - the same
    from pyspark import daemon, worker  # noqa: F401 - the worker's module itself, too
    from pyspark.sql.pandas import serializers, types  # noqa: F401 - loaded by the first task else

    from rmq_ray.client import scan_plan  # noqa: F401 - the reader
    from rmq_ray.store import arrow_rows  # noqa: F401 - its columns

    sys.path[:] = without_jar(sys.path)
    for path in [known for known in sys.path_importer_cache if not without_jar([known])]:
        del sys.path_importer_cache[path]
    gc.collect()
    gc.freeze()
    daemon.manager()


def without_jar(paths: list[str]) -> list[str]:
    """All but the jar of Spark's core, and directories in it: it holds no Python."""
    return [path for path in paths if not any(part.startswith(JAR) and part.endswith(".jar") for part in PurePath(path).parts)]


if __name__ == "__main__":
    main()
