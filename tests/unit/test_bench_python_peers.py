"""The table beside what a Python user would pick: whose figure is judged against whose, what a
missing peer leaves, and the process of a client.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.kafka_peer import KAFKA, PROJECT
from benchmarks.python_peers import client, servers
from benchmarks.python_peers.rows import OURS, ROWS, TITLE, Found, Line, Row, lines, table
from benchmarks.python_peers.turns import length
from benchmarks.python_peers.way import LATE_MS, WARM_UP, Arrivals, Way, highest, rate, times
from benchmarks.report import BEGIN, END, Figure, marks, write_report, write_section
from tools.interop import ROOT, ToolMissing

RATE = Row("produce", "produce", 1.0)
LATENCY = Row("one", "send", 1.0, ("p50", "p99"))


def found(system: str, how: str, *rates: float, counts: bool = True) -> Found:
    return Found(system, how, tuple({"rate": each, "cpu_us": 2.0} for each in rates), counts)


def timed(system: str, p50: float, p99: float, counts: bool = True) -> Found:
    measured = {"p50": p50, "p99": p99, "cpu_us": 9.0}
    return Found(system, "send", (measured, measured), counts)


def judged(made: list[Line]) -> dict[str, tuple[float | None, float | None]]:
    return {each.figure.name: (each.figure.against, each.figure.target) for each in made}


def test_the_best_of_ours_is_judged_by_the_best_of_the_peers() -> None:
    made = lines(
        RATE,
        [
            found(OURS, "columns", 9e9, 700.0, 900.0, 800.0),
            found(OURS, "objects", 9e9, 500.0),
            found("Kafka", "defaults", 9e9, 600.0),
            found("Kafka", "tuned", 9e9, 1_000.0),
            found("Redis Streams", "pipelines", 9e9, 90.0),
        ],
    )
    assert judged(made) == {
        "produce: rmq_ray, columns": (1_000.0, 1.0),
        "produce: rmq_ray, objects": (1_000.0, None),
        "produce: Kafka, defaults": (None, None),
        "produce: Kafka, tuned": (None, None),
        "produce: Redis Streams, pipelines": (None, None),
    }
    assert made[0].figure.value == 800.0 and made[0].figure.reached is False


def test_what_does_not_count_is_told_and_neither_judged_nor_judged_against() -> None:
    made = lines(
        RATE,
        [
            found(OURS, "tuned", 1.0, 900.0, counts=False),
            found(OURS, "defaults", 1.0, 300.0),
            found("Kafka", "tuned", 1.0, 800.0, counts=False),
            found("Kafka", "defaults", 1.0, 200.0),
        ],
    )
    assert judged(made) == {
        "produce: rmq_ray, tuned": (200.0, None),
        "produce: rmq_ray, defaults": (200.0, 1.0),
        "produce: Kafka, tuned": (None, None),
        "produce: Kafka, defaults": (None, None),
    }


def test_of_times_the_shortest_is_the_best_each_percentile_by_itself() -> None:
    peers = [timed("Kafka", 0.3, 2.0), timed("NATS JetStream", 0.4, 1.0)]
    made = lines(LATENCY, [timed(OURS, 0.2, 3.0), *peers])
    ours = [each.figure for each in made if each.system == OURS]
    assert [(each.against, each.reached) for each in ours] == [(0.3, True), (1.0, False)]


def test_without_a_peer_there_is_no_goal() -> None:
    assert judged(lines(RATE, [found(OURS, "columns", 1.0, 5.0)])) == {
        "produce: rmq_ray, columns": (None, None)
    }


def test_what_is_missed_stands_first_and_each_rate_has_the_cpu_of_its_client() -> None:
    reached = lines(RATE, [found(OURS, "columns", 0.0, 2e6), found("Kafka", "defaults", 0.0, 1e6)])
    missed = lines(LATENCY, [timed(OURS, 0.2, 0.3), timed("Kafka", 0.1, 0.4)])
    rows = table(reached + missed).splitlines()[2:]
    assert rows == [
        "| send, p50 | rmq_ray | send | 0.2 ms | 9 µs | 2.00 | <= 1.0 | **no** |",
        "| send, p50 | Kafka | send | 0.1 ms | 9 µs |  |  |  |",
        "| produce | rmq_ray | columns | 2,000,000 msg/s | 2 µs | 2.00 | >= 1.0 | yes |",
        "| produce | Kafka | defaults | 1,000,000 msg/s | 2 µs |  |  |  |",
        "| send, p99 | rmq_ray | send | 0.3 ms | 9 µs | 0.75 | <= 1.0 | yes |",
        "| send, p99 | Kafka | send | 0.4 ms | 9 µs |  |  |  |",
    ]


@pytest.mark.parametrize(
    ("full", "multiple", "scale", "messages"),
    [(500_000, 1_000, 1.0, 500_000), (19_200, 64, 0.05, 960), (60_000, 12_288, 0.01, 12_288)],
)
def test_a_round_is_whole_batches_and_one_at_least(
    full: int, multiple: int, scale: float, messages: int
) -> None:
    assert length(full, multiple, scale) == messages


@pytest.mark.parametrize("most", [1, 2, 37, 500])
def test_the_highest_rate_is_found_to_a_tenth_and_from_below(most: int) -> None:
    def offered(ticks: int, each: int) -> list[float]:
        late = 0.005 if each <= most else 0.02
        count = ticks * each
        return [LATE_MS + 1] * int(late * count) + [1.0] * (count - int(late * count))

    found = highest(offered)(400)["rate"] / 1_000
    assert 0.9 * most - 1 <= found <= most


def test_times_that_warm_up_do_not_count_and_messages_that_did_not_come_are_a_failure() -> None:
    arrivals = Arrivals(2)
    came = [arrivals.came(arrivals.stamped()) for _ in range(WARM_UP + 2)]
    assert came == [False] * (WARM_UP + 1) + [True] and len(arrivals.taken()) == 2
    with pytest.raises(RuntimeError, match=f"only 0 of {WARM_UP + 2} messages came"):
        Arrivals(2).taken()
    assert times(lambda _: [1.0, 2.0, 3.0])(3).items() >= {"p50": 2.0, "p99": 3.0}.items()


def test_a_client_says_its_ways_and_measures_those_that_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def connected(where: dict[str, Any]) -> Iterator[list[Way]]:
        yield [Way(("produce",), f"to {where['address']}", 10, rate(lambda n: n * 2.0), multiple=5)]

    system = ModuleType("benchmarks.python_peers.fake")
    system.__dict__.update(connected=connected, versions=lambda: "fake 1.0")
    monkeypatch.setitem(sys.modules, system.__name__, system)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"address": "here"}\n[0, 4]\n'))
    client.serve("fake")
    told = capsys.readouterr().out.splitlines()
    said = [json.loads(line.removeprefix(client.ANSWER)) for line in told]
    way = {"rows": ["produce"], "how": "to here", "messages": 10, "counts": True, "multiple": 5}
    assert said[0] == ["fake 1.0", [way]]
    assert said[1]["rate"] == 8.0 and said[1]["cpu_us"] >= 0


def test_a_server_that_cannot_be_had_is_told_by_the_name_of_its_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def nowhere(_directory: Path) -> Iterator[Any]:
        raise ToolMissing("no registry")
        yield

    for module, reason in (("json", "no registry"), ("never_heard_of", "is not installed")):
        monkeypatch.setitem(servers.SERVERS, "Kafka", (module, nowhere))
        with (
            pytest.raises(servers.Missing, match=f"Kafka: .*{reason}"),
            servers.started("Kafka", tmp_path),
        ):
            pass


def test_each_system_has_a_client_and_each_but_ours_a_server() -> None:
    assert set(client.MODULES) == {OURS, *servers.SERVERS}
    assert len({row.name for row in ROWS}) == len(ROWS) == 10


def test_the_page_the_command_and_the_build_name_the_same_kafka() -> None:
    assert f"<version>{KAFKA}</version>" in (PROJECT / "pom.xml").read_text()
    assert f"Apache Kafka {KAFKA}" in (ROOT / "Makefile").read_text()
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert KAFKA in page and servers.NATS_VERSION[1:] in page
    begin, end = marks(TITLE)
    assert page.count(begin) == page.count(end) == 1 and page.index(begin) < page.index(end)
    assert page.index(end) < page.index(BEGIN)


def test_two_sections_of_a_page_are_written_without_disturbing_each_other(tmp_path: Path) -> None:
    begin, end = marks(TITLE)
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{begin}\n{end}\n\nBetween.\n\n{BEGIN}\n{END}\n")
    write_section(page, "A table.\n", TITLE)
    write_report(page, "A run.", [Figure("floor", 1.0, "us")])
    text = page.read_text()
    assert f"{begin}\n\nA table.\n\n{end}\n\nBetween.\n\n{BEGIN}\n\nA run.\n" in text
    assert text.endswith(f"| floor | 1 us |  |  |  |  |\n\n{END}\n")
