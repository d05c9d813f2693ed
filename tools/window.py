"""Runs a smoke of the suite with other Pythons and other Rays, and reads tables in other Sparks:
the tested window.

    python -m tools.window                        every environment of WINDOW and SPARKS
    python -m tools.window 3.11/2.50.0 [...]      these only; spark/4.0.1 is one, of a Spark

Each environment of a Ray has this project's wheel with the extra ``data``, that Ray, and what the
tests need; one of a Spark has pyspark alone, and the test runs here. They lie in ``build/window``
and are made anew when the needs have changed. What ran and how it ended stands in
``interop/window.json``, and from there in docs/compatibility.md (``tools.compatibility``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tools import leftovers

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "window"
RESULTS = ROOT / "interop" / "window.json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
WINDOW = (
    "3.11/2.50.0",
    "3.11/2.55.1",
    "3.11/2.60.0",
    "3.13/2.55.1",
    "3.13/2.60.0",
    "3.14/2.60.0",
)
"""Python / Ray: the oldest, one between, the newest."""
TESTS_NEED = ("pytest==9.2.0", "pytest-timeout==2.4.0", "hypothesis==6.170.15", "psutil")
SPARKS = ("spark/4.0.1",)
"""Newer ones than that of the extra ``spark``, which the suite runs."""
SPARK_TESTS = "tests/spark/test_tables_in_spark.py"
SMOKE_S = 1_500
ABSENT = "no such Python here"
SMOKE = {
    "test_cluster": (
        "test_what_a_producer_sends_a_listener_gets",
        "test_starting_twice_attaches",
        "test_reading_right_behind_kill_9_waits_for_the_broker_and_lacks_nothing",
        "test_a_topic_can_be_read_as_soon_as_its_first_send_was_acknowledged",
        "test_a_topic_is_created_by_the_first_send_with_four_queues",
        "test_a_pickled_producer_works_in_a_task",
        "test_producer_and_consumer_actors_do_the_work_of_a_script",
        "test_lag_counts_down_to_zero",
        "test_a_store_in_use_is_refused_and_nothing_is_left_running",
        "test_wrong_settings_are_refused_before_anything_starts",
        "test_connecting_to_a_cluster_that_does_not_run_says_what_to_do",
    ),
    "test_data": (
        "test_a_topic_is_a_dataset_of_every_message",
        "test_tags_keys_patterns_and_several_topics_choose_what_is_read",
        "test_an_empty_topic_is_an_empty_dataset_with_its_columns",
        "test_a_dataset_becomes_messages",
        "test_batches_without_an_end_go_on_where_the_loop_was",
        "test_a_read_task_that_dies_is_run_again_and_gives_each_row_once",
        "test_workers_of_one_group_share_the_queues_and_miss_nothing",
    ),
    "test_durable_queue": (
        "test_items_come_once_in_their_order_and_of_their_types",
        "test_a_full_queue_refuses_or_waits_for_room",
        "test_tasks_and_event_loops_share_it_by_handle_or_by_name",
        "test_what_was_put_is_there_after_the_broker_was_killed",
    ),
    "test_deploy": (
        "test_a_decorated_function_becomes_a_group_that_shares_the_queues_and_scales",
        "test_a_class_keeps_its_state_in_its_worker_and_answers_questions",
        "test_a_worker_that_dies_is_replaced_and_its_messages_come_again",
    ),
    "test_cli": (
        "test_topics_are_created_listed_described_and_deleted",
        "test_what_is_produced_is_consumed_once_and_found_again",
        "test_status_and_health_name_every_part",
        "test_a_broker_is_drained_taken_back_and_cleaned",
    ),
    "test_failover": (
        "test_after_kill_9_the_same_replica_is_master_in_another_epoch_and_nothing_is_lost",
        "test_a_cluster_that_was_stopped_starts_with_the_same_master_and_all_messages",
    ),
    "test_forked": (
        "test_a_forked_child_makes_producers_and_consumers_of_its_own",
        "test_what_a_forked_child_cannot_do_is_refused_at_once_and_says_why",
    ),
    "test_guide": ("test_the_guide_runs_from_top_to_bottom_and_prints_what_its_comments_say",),
    "test_two_nodes": ("test_two_nodes_and_a_token_serve_what_was_sent_on_either",),
}
"""By file of tests/ray."""


def node_ids() -> list[str]:
    """Of the smoke, as pytest names them."""
    return [f"tests/ray/{file}.py::{test}" for file in SMOKE for test in SMOKE[file]]


def python_of(version: str) -> str | None:
    """The interpreter of a version: on PATH, or among what pyenv has; None where it is not here."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    name = f"python{version}"
    for path in (shutil.which(name), *sorted(pyenv.glob(f"versions/*/bin/{name}"))):
        # a version manager's command may name one that is not chosen
        if path and not subprocess.run([path, "-V"], capture_output=True, check=False).returncode:
            return str(path)
    return None


def newest_python() -> str:
    """Of ``PYTHONS``; this one where none of them is found."""
    found = [path for path in map(python_of, reversed(PYTHONS)) if path is not None]
    return found[0] if found else sys.executable


def wheel(directory: Path) -> Path:
    """Builds the project's."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)])
    return next(directory.glob("rmq_ray-*.whl"))


def pip(python: Path | str) -> list[str]:
    """Ours, for the environment of another interpreter."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]


def environment(version: str, ray: str) -> Path | None:
    """The interpreter of one that has the wheel, this Ray and what tests need; None where this
    Python is not here.
    """
    base = python_of(version)
    if base is None:
        return None
    needs = (ROOT / "pyproject.toml").read_bytes() + "".join(TESTS_NEED).encode()
    directory = ENVIRONMENTS / f"{version}-{ray}"
    return _made(
        base,
        directory,
        needs,
        lambda: [f"{wheel(directory)}[data]", f"ray=={ray}", *TESTS_NEED],
    )


def _made(base: str, directory: Path, needs: bytes, wanted: Callable[[], list[str]]) -> Path:
    """The interpreter of an environment with what is ``wanted``, as it was made for these needs."""
    stamp = hashlib.sha256(needs).hexdigest()
    python, stamped = directory / "bin" / "python", directory / "needs.sha256"
    if not (stamped.exists() and stamped.read_text() == stamp):
        shutil.rmtree(directory, ignore_errors=True)
        _run([base, "-m", "venv", "--without-pip", str(directory)])
        _run([*pip(python), "install", "--quiet", "--no-compile", *wanted()])
        stamped.write_text(stamp)
    return python


def tables_in_spark(version: str) -> dict[str, object]:
    """How the tests that read tables without our code ended with this pyspark."""
    need = f"pyspark=={version}"
    directory = ENVIRONMENTS / f"spark-{version}"
    python = _made(sys.executable, directory, need.encode(), lambda: [need])
    told = run_tests(
        sys.executable,
        f"spark-{version}",
        [SPARK_TESTS],
        RMQ_RAY_SPARK_PYTHON=str(python),
        RMQ_RAY_JAVA_REQUIRED="1",
    )
    return told | {"with": _iceberg()}


def smoke(version: str, ray: str) -> dict[str, object]:
    """How the tests ended there: ``passed``, ``failed`` (names) and ``with`` (what it ran with)."""
    python = environment(version, ray)
    if python is None:
        return {"passed": 0, "failed": [ABSENT], "with": ""}
    return run_tests(python, f"{version}-{ray}", node_ids()) | {"with": _versions(python)}


def run_tests(
    python: Path | str, name: str, tests: Sequence[str], **environment: str
) -> dict[str, object]:
    """``passed`` and ``failed`` of ``smoke``; ``environment``: what the tests have besides ours."""
    told = ENVIRONMENTS / f"{name}.jsonl"
    told.unlink(missing_ok=True)
    # a warning of another Ray is no fault of ours
    command = [str(python), "-m", "pytest", "-q", "-W", "default", "-p", "tests.support.outcomes"]
    command += [*leftovers.basetemp(f"window-{name}"), *tests]
    subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment | {"RMQ_RAY_OUTCOMES": str(told)},
        check=False,
        timeout=SMOKE_S,
    )
    lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    ended = Counter(line["outcome"] for line in lines)
    failed = [line["test"].partition("::")[2] for line in lines if line["outcome"] == "failed"]
    return {
        "passed": ended["passed"],
        "failed": failed if lines else ["nothing ran"],
    }


def _versions(python: Path) -> str:
    asked = "import numpy, platform, pyarrow; print(f'Python {platform.python_version()}, "
    asked += "pyarrow {pyarrow.__version__}, numpy {numpy.__version__}')"
    return _run([str(python), "-c", asked]).strip()


def _iceberg() -> str:
    """The package of Iceberg for Spark that the job of these tests names."""
    from examples.nightly_spark import PACKAGES

    return f"iceberg-spark-runtime {PACKAGES.split(',')[0].rpartition(':')[2]}"


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def table(head: str = "Python / Ray", names: Sequence[str] = WINDOW) -> str:
    """Of docs/compatibility.md."""
    ended = json.loads(RESULTS.read_text("utf-8"))
    lines = [f"| {head} | tests that passed | with |", "| --- | --- | --- |"]
    for name in names:
        found = ended.get(name, {"passed": 0, "failed": ["not run"], "with": ""})
        failed = f"; {', '.join(found['failed'])}" if found["failed"] else ""
        lines.append(f"| {name} | {found['passed']}{failed} | {found['with']} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Command line; 1 where something failed."""
    parser = argparse.ArgumentParser(description="other Pythons, other Rays")
    parser.add_argument("environments", nargs="*", metavar="PYTHON/RAY", help="default: all")
    chosen = parser.parse_args(arguments).environments or [*WINDOW, *SPARKS]
    ended = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    with leftovers.own_directory() as here:
        for name in chosen:
            first, _, second = name.partition("/")
            ended[name] = tables_in_spark(second) if first == "spark" else smoke(first, second)
            print(f"{name}: {json.dumps(ended[name])}", flush=True)
        here.green = not any(ended[name]["failed"] for name in chosen)
    text = json.dumps(dict(sorted(ended.items())), indent=1)
    RESULTS.write_text(text + "\n", "utf-8")
    return 0 if here.green else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
