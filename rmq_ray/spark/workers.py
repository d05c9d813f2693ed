"""What Spark starts in place of its own daemon of Python workers: the same daemon, with less to do
for every task.

    executor's JVM ─spark.python.daemon.module─> this module ─fork─> worker
        ─> tasks, one after another

Decides three things. What is loaded before the fork, and frozen: PySpark has a worker run the
garbage collector after every task, which walks through all that pandas, pyarrow and numpy have
defined; frozen objects are left alone, and stay shared between the workers. What is not searched
for modules: Spark puts the jar of its core on the path, and a worker begins each task by forgetting
what it knows about the path, so that it reads the list of the jar's 5,000 classes again. Together
they cost 110 ms of CPU a task, whatever it did. How much of what a worker has written may wait for
the JVM: little, so that it is read while it is still in the processor's cache; the kernel's own
choice, 4 MB, costs a tenth of a query over rows of 1 KB. Nothing else is changed. Run by Spark as
``python -m rmq_ray.spark.workers``, imported by tests only.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable
from pathlib import PurePath

JAR = "spark-core_"
# Linux reserves twice as much. Less than two packets of the loopback (64 KiB each) would wait 40 ms
# for each acknowledgement.
SEND_BUFFER_BYTES = 128 << 10

Serve = Callable[[socket.socket, bool], int]
"""PySpark's ``daemon.worker``: serves one task after another of a connection from the JVM; the exit
code.
"""


def main() -> None:
    """Load, freeze, and be PySpark's daemon until Spark ends it."""
    import pandas  # noqa: F401 - what PySpark's Arrow functions load in every worker
    import pyarrow.compute  # the same
    import pyarrow.pandas_compat  # noqa: F401 - the same
    from pyspark import daemon, worker  # noqa: F401 - the worker's module itself, too

    # loaded by the first task else
    from pyspark.sql.pandas import serializers, types, utils  # noqa: F401

    utils.require_minimum_pandas_version()  # the first task looks, and loads distutils for it
    utils.require_minimum_pyarrow_version()
    sys.path[:] = without_jar(sys.path)
    for path in [known for known in sys.path_importer_cache if not without_jar([known])]:
        del sys.path_importer_cache[path]
    daemon.worker = close_behind(daemon.worker)
    gc.collect()
    gc.freeze()
    daemon.manager()


def close_behind(serve: Serve) -> Serve:
    """The same over a connection that takes no more than ``SEND_BUFFER_BYTES`` ahead of its
    reader.
    """

    def worker(connection: socket.socket, authenticated: bool) -> int:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        return serve(connection, authenticated)

    return worker


def without_jar(paths: list[str]) -> list[str]:
    """All but the jar of Spark's core, and directories in it: it holds no Python."""
    return [
        path
        for path in paths
        if not any(part.startswith(JAR) and part.endswith(".jar") for part in PurePath(path).parts)
    ]


if __name__ == "__main__":
    main()
