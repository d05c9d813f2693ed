"""One Ray cluster, one Spark session and one message cluster of two brokers for all tests of this
folder: each takes long to start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray

import rmq_ray as rmq
from rmq_ray import spark as mqs
from rmq_ray.spark.java import ensure_java

SERIAL_COLLECTOR = "-XX:+UseSerialGC"
SMALL_QUERIES = {
    "spark.sql.shuffle.partitions": 2,
    # to compile code for a query costs more than its few rows
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # the other one starts a process of the system for each file that it renames
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.pollingDelay": "100ms",
    # two cores have no use for collectors that work beside the program
    "spark.driver.extraJavaOptions": SERIAL_COLLECTOR,
    "spark.executor.extraJavaOptions": SERIAL_COLLECTOR,
    "spark.ray.raydp_app_master.extraJavaOptions": SERIAL_COLLECTOR,
}


@pytest.fixture(scope="session", autouse=True)
def ray_here() -> Iterator[None]:
    """The one of tests/ray, where those ran before in this process."""
    if ray.is_initialized():
        yield
        return
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def session(ray_here: None) -> Iterator[Any]:
    """RayDP, two cores. Without Java the tests are skipped, or fail where RMQ_RAY_JAVA_REQUIRED is
    set.
    """
    try:
        ensure_java()
    except rmq.SparkError as error:
        if os.environ.get("RMQ_RAY_JAVA_REQUIRED"):
            raise
        pytest.skip(str(error))
    yield mqs.session("tests", executor_cores=2, quick_start=True, configs=SMALL_QUERIES)
    mqs.stop()


@pytest.fixture(scope="session")
def mq(ray_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rmq.Cluster]:
    """The default cluster: two brokers with small segments."""
    small = {"segment_bytes": 1 << 22, "consume_queue_entries": 500}
    cluster = rmq.start(
        brokers=2, store_path=str(tmp_path_factory.mktemp("store")), store_settings=small
    )
    yield cluster
    cluster.stop()
