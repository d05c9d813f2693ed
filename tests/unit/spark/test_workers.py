"""The daemon that Spark starts: what workers find loaded, and what they do not search."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

from rmq_ray.spark.session import WORKERS, settings
from rmq_ray.spark.workers import SEND_BUFFER_BYTES, close_behind, without_jar

PROBE = """
import gc, json, sys
from pyspark import daemon
daemon.manager = lambda: print(json.dumps({
    "frozen": gc.get_freeze_count(),
    "reader": "rmq_ray.client.scan.scan_plan" in sys.modules,
    "pandas": "pandas" in sys.modules,
    "versions": "distutils.version" in sys.modules,
    "close": daemon.worker.__module__,
    "jar": [path for path in [*sys.path, *sys.path_importer_cache] if "spark-core_" in path],
}))
from rmq_ray.spark import workers
workers.main()
"""


def test_a_session_starts_this_daemon_unless_another_is_asked_for() -> None:
    assert settings({})["spark.python.daemon.module"] == WORKERS == "rmq_ray.spark.workers"
    assert settings({"spark.python.daemon.module": "mine"})["spark.python.daemon.module"] == "mine"


def test_the_jar_of_sparks_core_is_not_searched_and_everything_else_is() -> None:
    jar = "/a/pyspark/jars/spark-core_2.12-3.5.7.jar"
    others = [
        "",
        "/a/python/pyspark.zip",
        "/mine/spark-core_notes",
        "/mine/my-spark-core_2.jar",
        "/a/lib",
    ]
    assert without_jar([others[0], jar, *others[1:], f"{jar}/org"]) == others


def test_workers_find_the_reader_loaded_and_frozen_and_no_jar_on_their_path(tmp_path: Path) -> None:
    jar = tmp_path / "spark-core_2.12-3.5.7.jar"
    with zipfile.ZipFile(jar, "w") as made:
        made.writestr("org/apache/spark/Nothing.class", b"")
    path = os.pathsep.join([str(jar), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (
        '"reader": true' in ran.stdout
        and '"pandas": true' in ran.stdout
        and '"versions": true' in ran.stdout
        and '"jar": []' in ran.stdout
    ), ran.stdout
    assert '"frozen": 0' not in ran.stdout and '"close": "rmq_ray.spark.workers"' in ran.stdout, (
        ran.stdout
    )


def test_little_of_what_a_worker_has_written_waits_for_the_jvm() -> None:
    seen = []

    def serve(connection: socket.socket, authenticated: bool) -> int:
        seen.append((connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), authenticated))
        return 7

    with (
        socket.create_server(("127.0.0.1", 0)) as jvm,
        socket.create_connection(jvm.getsockname()) as connection,
    ):
        assert close_behind(serve)(connection, True) == 7
    assert SEND_BUFFER_BYTES <= seen[0][0] <= 4 * SEND_BUFFER_BYTES and seen[0][1] is True
