"""A SparkSession whose executors are Ray actors (RayDP). The only module that imports raydp.

Decides the settings that make the pinned versions work together, and tells what is missing before
RayDP would wait for it for ever. Facts behind the settings: Java 17 needs --add-opens for the
driver, the executors and RayDP's app master; the workers' python must be this one; executor actors
ask for no CPU so that Spark starts on a small machine.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from rmq_ray.actors.gateway import node_address, require_driver
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import environment, put_environment
from rmq_ray.errors import SparkError
from rmq_ray.spark.java import ADD_OPENS, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("rmq_ray.spark")
LOG4J = Path(__file__).with_name("log4j2.properties")
RAYDP_LOGS = Path("/tmp/ray/session_latest/logs")  # unless it is told otherwise
EXECUTOR_MEMORY_MIN = 450 << 20  # Spark refuses less
EXECUTOR_CPU = "spark.ray.raydp_spark_executor.actor.resource.cpu"
MASTER_AT = "spark.ray.raydp_spark_master.actor.resource."
MASTER_AT_OLD = "spark.ray.raydp_spark_master.resource."  # RayDP takes it, too
MASTER_CPU = f"{MASTER_AT}CPU"
CPU_LOOKS, CPU_PAUSE_MS = 40, 250
PYSPARK_MAX = [3, 5, 7]
WORKERS = "rmq_ray.spark.workers"  # started by its name in each executor
QUICK_START = "-XX:TieredStopAtLevel=1"  # the first compiler only
# else each Arrow batch from Python is read into 4 MiB that Java has first filled with zeros
UNCLEARED = "-Dio.netty.tryReflectionSetAccessible=true"
_JAVA_OPTIONS = (
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.ray.raydp_app_master.extraJavaOptions",
)
_numbers = itertools.count(1)


def session(
    app_name: str = "rmq-ray",
    *,
    num_executors: int = 1,
    executor_cores: int = 1,
    executor_memory: str | int = "600MB",
    quick_start: bool = False,
    configs: Mapping[str, Any] | None = None,
) -> SparkSession:
    """Start Spark on this Ray cluster and return its session; ``stop`` ends it. ``ray.init`` comes
    first. One session at a time.

    ``executor_memory``: bytes or like "1GB", at least 450 MB. ``quick_start``: the JVMs optimise
    less: start and first queries take half the time (37 -> 21 s on two busy cores), long queries
    more. ``configs``: further Spark settings, they win; Java options are added to ours. Raises
    ``SparkError`` naming what is missing and the remedy, ``ClusterError`` without Ray.
    """
    _require_packages()
    require_driver("Spark on Ray")
    _require_no_session()
    require_sound(num_executors, executor_cores, configs)
    nodes, free = ray.nodes(), ray.available_resources()  # type: ignore[no-untyped-call]
    require_room(num_executors, executor_memory, nodes, free)
    options = (QUICK_START if quick_start else "", where_to_log(logs_of_ray(), RAYDP_LOGS))
    chosen = settings(configs or {}, " ".join(filter(None, options)))
    chosen = beside_driver(chosen, node_address(), nodes) | chosen
    _wait_for_cpus(num_executors, chosen, nodes)
    ensure_java()
    put_environment("PYSPARK_PYTHON", sys.executable)
    put_environment("PYSPARK_DRIVER_PYTHON", sys.executable)
    raydp_init: Any = _raydp().init_spark
    # RayDP refuses a name again right after it stopped
    unique = f"{app_name}-{os.getpid()}-{next(_numbers)}"
    try:
        spark = raydp_init(
            app_name=unique,
            num_executors=num_executors,
            executor_cores=executor_cores,
            executor_memory=executor_memory,
            configs=chosen,
        )
    except Exception as error:
        raise SparkError(
            f"Spark did not start on this Ray cluster: {type(error).__name__}: {error}"
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stop() -> None:
    """End the session that ``session`` started and its executors; nothing where there is none."""
    _raydp().stop_spark()


def logs_of_ray() -> Path:
    """Of the session of Ray that began last below the temporary directory of this process."""
    return Path(environment("RAY_TMPDIR") or tempfile.gettempdir()) / "ray/session_latest/logs"


def where_to_log(*directories: Path) -> str:
    """A Java option for the first of ``directories`` that is there, "" where RayDP takes it anyway.
    RayDP's agent ends its JVM where it has no place for its log, and Ray leaves the link to its
    newest session alone that leads nowhere since somebody has emptied the temporary directory.
    """
    for directory in directories:
        if directory.is_dir():
            return "" if directory == RAYDP_LOGS else f"-Dray.logging.dir={directory}"
    return f"-Dray.logging.dir={tempfile.mkdtemp(prefix='rmq_ray-spark-')}"


def settings(configs: Mapping[str, Any], java_options: str = "") -> dict[str, Any]:
    """Ours with the caller's over them; Java options are put together, since Spark does not start
    without ours.
    """
    ours = {
        EXECUTOR_CPU: "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": WORKERS,
        "spark.log4j.config.file.name": str(LOG4J),
        "spark.ray.log4j.config.file.name": str(LOG4J),
    }
    java = {
        name: " ".join(filter(None, (ADD_OPENS, UNCLEARED, java_options, configs.get(name))))
        for name in _JAVA_OPTIONS
    }
    return {**ours, **configs, **java}


def _require_packages() -> None:
    for package in ("pyspark", "raydp"):
        if util.find_spec(package) is None:
            raise SparkError(
                f"the package {package} is not installed: `pip install 'rmq_ray[spark]'` brings it",
                package,
            )
    require_version(metadata.version("pyspark"))


def require_version(pyspark: str) -> None:
    """Told, not hung: with RayDP 1.6.5 later versions than these never end their first job, and
    Spark 4 does not start.
    """
    found = [int(part) for part in pyspark.split(".")[:3] if part.isdecimal()]
    if found[:2] != [3, 5] or found > PYSPARK_MAX:
        raise SparkError(
            f"pyspark {pyspark} does not work with RayDP 1.6.5: `pip install "
            f"'rmq_ray[spark]'` brings 3.5.7",
            pyspark,
        )


def _raydp() -> Any:
    """The package; ``SparkError`` where it is there and does not fit what else is."""
    try:
        import raydp
    except Exception as error:
        text = (
            f"the package raydp cannot be imported ({type(error).__name__}: {error}): `pip "
            f"install 'rmq_ray[spark]'` brings versions that fit together"
        )
        raise SparkError(text, "raydp") from error
    return raydp


def _require_no_session() -> None:
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise SparkError(
            "a Spark session runs in this process already: use it, or end it first "
            "(rmq_ray.spark.stop() for one of ours)"
        )


def require_sound(num_executors: object, executor_cores: object, configs: object) -> None:
    """``SparkError`` for arguments that no cluster could satisfy."""
    for name, count in (("num_executors", num_executors), ("executor_cores", executor_cores)):
        if type(count) is not int or count < 1:
            raise SparkError(
                f"{name} must be a whole number, at least 1, not {count!r:.80}", repr(count)[:80]
            )
    if configs is not None and not isinstance(configs, Mapping):
        raise SparkError(
            f"configs must map names of Spark settings to values, not {configs!r:.80}",
            repr(configs)[:80],
        )


def require_room(
    num_executors: int,
    executor_memory: str | int,
    nodes: list[dict[str, Any]],
    free: Mapping[str, float],
) -> None:
    """Told, not hung: RayDP waits for ever for executors that no node can hold. ``nodes``,
    ``free``: as Ray tells them, memory in bytes.
    """
    wanted = parse_memory(executor_memory)
    if wanted < EXECUTOR_MEMORY_MIN:
        raise SparkError(
            f"executor_memory must be at least 450 MB, not {executor_memory!r}",
            str(executor_memory),
        )
    of_nodes = [int(node["Resources"].get("memory", 0)) for node in nodes if node.get("Alive")]
    here = int(free.get("memory", 0))
    fit = min(sum(memory // wanted for memory in of_nodes), here // wanted)
    if fit < num_executors:
        sizes = ", ".join(f"{memory >> 20}" for memory in of_nodes)
        raise SparkError(
            f"{num_executors} executors of {wanted >> 20} MB do not fit into this Ray "
            f"cluster: {here >> 20} MB are free, its nodes have {sizes} MB; "
            "ask for fewer or smaller ones",
            num_executors,
        )


def require_cpus(
    num_executors: int,
    configs: Mapping[str, Any],
    nodes: list[dict[str, Any]],
    free: Mapping[str, float],
) -> None:
    """The same for CPUs: RayDP's app master is placed where one is free, and keeps none; executors
    ask for none unless ``configs`` say so.
    """
    each, kept = float(configs.get(EXECUTOR_CPU, 0)), float(configs.get(MASTER_CPU, 0))
    wanted = max(1.0 if MASTER_CPU not in configs else 0.0, kept + each * num_executors)
    largest = max(
        (float(node["Resources"].get("CPU", 0)) for node in nodes if node.get("Alive")), default=0.0
    )
    here = float(free.get("CPU", 0))
    if max(each, kept) > largest or wanted > here:
        raise SparkError(
            f"Spark needs {wanted:g} free CPUs to start {num_executors} executors of "
            f"{each:g}, and {here:g} are free (the largest node has {largest:g}): "
            "wait for other work to end, add nodes, or ask for fewer executors",
            num_executors,
        )


def _wait_for_cpus(
    num_executors: int, configs: Mapping[str, Any], nodes: list[dict[str, Any]]
) -> None:
    """Other tasks may end soon; 10 s."""
    for _ in range(CPU_LOOKS):
        try:
            return require_cpus(num_executors, configs, nodes, ray.available_resources())  # type: ignore[no-untyped-call]
        except SparkError:
            SYSTEM_CLOCK.sleep_ms(CPU_PAUSE_MS)
    return require_cpus(num_executors, configs, nodes, ray.available_resources())  # type: ignore[no-untyped-call]


def beside_driver(
    configs: Mapping[str, Any], address: str, nodes: list[dict[str, Any]]
) -> dict[str, str]:
    """Settings that put RayDP's app master on the driver's node, which keep no CPU. RayDP tells the
    driver the sockets of the app master's node; on another node they may have other names (on one
    that was rebooted they have), and the driver's JVM would end. Nothing where ``configs`` place
    it, or no node has the driver's address.
    """
    place = f"node:{address}"
    asked = {
        name.removeprefix(MASTER_AT).removeprefix(MASTER_AT_OLD)
        for name in configs
        if name.startswith((MASTER_AT, MASTER_AT_OLD))
    }
    placed = asked - {"CPU", "memory"}  # which every node has
    if placed or not any(place in node["Resources"] for node in nodes if node.get("Alive")):
        return {}
    return {f"{MASTER_AT}{place}": "0.001"} | ({} if "CPU" in asked else {MASTER_CPU: "0"})


def parse_memory(text: str | int) -> int:
    """Bytes out of a number or like "600MB", "1g".

    >>> parse_memory("600MB") == 600 << 20, parse_memory("1g") == 1 << 30, parse_memory(7)
    (True, True, 7)
    """
    if isinstance(text, int):
        return text
    number = text.strip().lower().rstrip("b")
    shift = {"k": 10, "m": 20, "g": 30, "t": 40}.get(number[-1:], 0)
    digits = (number[:-1] if shift else number).strip()
    if not digits.replace(".", "", 1).isdigit():
        raise SparkError(f"memory {text!r} is no size: write bytes or like '600MB', '1GB'", text)
    return int(float(digits) * (1 << shift))
