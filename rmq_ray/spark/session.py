"""A SparkSession whose executors are Ray actors (RayDP). The only module that imports raydp.

Facts behind the settings: Java 17 needs --add-opens for the driver, the executors and RayDP's app master; the workers'
python must be this one; executor actors ask for no CPU so that Spark starts on a small machine; the wrong resources are
told, not waited for.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from rmq_ray.actors.gateway import require_ray
from rmq_ray.config import put_environment
from rmq_ray.errors import SparkError
from rmq_ray.spark.java import ADD_OPENS, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("rmq_ray.spark")
LOG4J = Path(__file__).with_name("log4j2.properties")
EXECUTOR_MEMORY_MIN = 450 << 20  # Spark refuses less
_numbers = itertools.count(1)


def session(
    app_name: str = "rmq-ray",
    *,
    num_executors: int = 1,
    executor_cores: int = 1,
    executor_memory: str | int = "600MB",
    configs: dict[str, Any] | None = None,
) -> SparkSession:
    """Start Spark on this Ray cluster and return its session; ``stop`` ends it. ``ray.init`` comes first.

    ``executor_memory``: bytes or like "1GB", at least 450 MB. ``configs``: further Spark settings, they win.
    Raises ``SparkError`` naming what is missing and the remedy.
    """
    _require_packages()
    require_ray()
    ensure_java()
    _require_room(num_executors, executor_memory)
    put_environment("PYSPARK_PYTHON", sys.executable)
    put_environment("PYSPARK_DRIVER_PYTHON", sys.executable)
    import raydp

    raydp_init: Any = raydp.init_spark
    unique = f"{app_name}-{os.getpid()}-{next(_numbers)}"  # RayDP refuses a name again right after it stopped
    try:
        spark = raydp_init(
            app_name=unique,
            num_executors=num_executors,
            executor_cores=executor_cores,
            executor_memory=executor_memory,
            configs={**_settings(), **(configs or {})},
        )
    except Exception as error:  # noqa: BLE001 - RayDP raises whatever py4j, Ray or Java gave it; all of it means: no session
        raise SparkError(f"Spark did not start on this Ray cluster: {type(error).__name__}: {error}") from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark  # type: ignore[no-any-return]


def stop() -> None:
    """End the session that ``session`` started and its executors."""
    import raydp

    raydp_stop: Any = raydp.stop_spark
    raydp_stop()


def _settings() -> dict[str, Any]:
    quiet = {"spark.log4j.config.file.name": str(LOG4J), "spark.ray.log4j.config.file.name": str(LOG4J)}
    return {
        "spark.driver.extraJavaOptions": ADD_OPENS,
        "spark.executor.extraJavaOptions": ADD_OPENS,
        "spark.ray.raydp_app_master.extraJavaOptions": ADD_OPENS,
        "spark.ray.raydp_spark_executor.actor.resource.cpu": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        **quiet,
    }


def _require_packages() -> None:
    for package in ("pyspark", "raydp"):
        if util.find_spec(package) is None:
            raise SparkError(f"the package {package} is not installed: `pip install 'rmq_ray[spark]'` brings it", package)


def _require_room(num_executors: int, executor_memory: str | int) -> None:
    """Told, not hung: RayDP waits for ever for executors that no node can hold."""
    if num_executors < 1:
        raise SparkError(f"num_executors must be at least 1, not {num_executors}", num_executors)
    wanted = parse_memory(executor_memory)
    if wanted < EXECUTOR_MEMORY_MIN:
        raise SparkError(f"executor_memory must be at least 450 MB, not {executor_memory!r}", str(executor_memory))
    free = ray.available_resources().get("memory", 0.0)
    if wanted * num_executors > free:
        raise SparkError(
            f"{num_executors} executors of {wanted >> 20} MB do not fit into the {int(free) >> 20} MB free in this Ray cluster: ask for fewer or smaller ones",
            num_executors,
        )


def parse_memory(text: str | int) -> int:
    """Bytes out of a number or like "600MB", "1g".

    >>> parse_memory("600MB") == 600 << 20, parse_memory("1g") == 1 << 30, parse_memory(7)
    (True, True, 7)
    """
    if isinstance(text, int):
        return text
    number = text.strip().lower().rstrip("b")
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    shift = units.get(number[-1:], 0)
    digits = number[:-1] if shift else number
    if not digits.replace(".", "", 1).isdigit():
        raise SparkError(f"memory {text!r} is no size: write bytes or like '600MB', '1GB'", text)
    return int(float(digits) * (1 << shift))
