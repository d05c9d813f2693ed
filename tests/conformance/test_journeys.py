"""What docs/data-flow.md lists of the journeys is what runs, and it stays short."""

from __future__ import annotations

import ast
import threading
import time
from pathlib import Path

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push import consume_concurrently
from rmq_ray.client.push.push_consumer import PushConsumer
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.journeys import FilesRun
from tests.support.source_rules import PACKAGE, ROOT, imported
from tools.shape import journeys_of

LISTED = journeys_of(ROOT / "docs" / "data-flow.md")
SEND, PULL, READ, START, UNDERFOOT = LISTED
EVER, ANYWAY = "ever", "anyway"
LINES_MAX = {SEND: 9_900, PULL: 7_360, READ: 2_300, START: 6_480}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Journey -> files that ran, of a send and of a parked pull that a message wakes."""
    came = threading.Event()
    directory = tmp_path_factory.mktemp("journeys")
    with (
        pytest.MonkeyPatch.context() as patch,
        FilesRun() as files,
        LiveCluster(directory) as cluster,
        Producer("web", discovery=cluster) as producer,
    ):
        # who looks for slow calls is a timer that a message starts: a slow step always meets it
        patch.setattr(consume_concurrently, "LOOK_MS", 60_000.0)

        def send() -> None:
            producer.send("orders", b"x", tag="paid")

        for _ in range(10):
            send()
        sent = files.always(send)
        anyway = set(files.during(lambda: time.sleep(1)))  # timers, which a slow step always meets
        with PushConsumer(
            "billing",
            listener=lambda _messages, _ctx: came.set(),
            subscriptions={"orders": "*"},
            discovery=cluster,
        ) as consumer:

            def woken() -> None:
                came.clear()
                send()
                assert came.wait(10)
                consumer.persist_offsets()  # sent without an answer
                time.sleep(0.015)  # the next pull is parked by then, and few timers ran

            for _ in range(5):
                woken()
            pulled = files.always(woken)
            anyway |= set(files.during(lambda: time.sleep(1)))
    return {SEND: set(sent), PULL: set(pulled) - set(sent), EVER: files.ever, ANYWAY: anyway}


@pytest.mark.parametrize("journey", [SEND, PULL])
def test_the_files_that_run_are_those_that_the_page_lists(
    journey: str, run: dict[str, set[str]]
) -> None:
    listed, ran = set(LISTED[journey]), run[journey] - set(LISTED[UNDERFOOT])
    assert ran - listed - run[ANYWAY] == set(), "ran, and not listed"
    assert listed - run[EVER] == set(), "listed, and did not run"


@pytest.mark.parametrize("journey", [READ, START])
def test_each_file_of_a_journey_is_imported_by_another_one(journey: str) -> None:
    files = LISTED[journey]
    names = {file: "rmq_ray." + file.removesuffix(".py").replace("/", ".") for file in files}
    seen = {file: _imports(PACKAGE / file) for file in files}
    lonely = [
        file
        for file in files[1:]
        if not any(names[file] in seen[other] for other in files if other != file)
    ]
    assert lonely == []


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    found = {name for _node, name in imported(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("journey", LINES_MAX)
def test_a_journey_stays_short(journey: str) -> None:
    """By the lines of its files: two ideas are no shorter for being in one file."""
    lines = [(PACKAGE / file).read_text("utf-8").count("\n") for file in LISTED[journey]]
    assert sum(lines) <= LINES_MAX[journey]
