"""Apache RocketMQ's unmodified Java client does to our name server and broker what it does to its
own, and gets the same answers.

``ClientCheck`` creates a topic, sends in every way, looks messages up, consumes with a tag filter
and with an SQL92 filter, waits for a delayed message, sees a failed message again. It runs against
both sides at once; what it tells must be equal, but for ids, ports and times.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.open_cluster import opened
from tests.support.outcomes import judging
from tools import interop

ROOT = Path(__file__).resolve().parents[2]
LIVE_S = 600
CHECK_TIMEOUT_S = 240
VOLATILE = {"id", "offset_id", "after_ms", "diff"}

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lines, Lines]:
    """(ours, theirs): what the client told of each side; both run beside one another."""
    directory = tmp_path_factory.mktemp("clients")
    with (
        ours(directory / "ours") as our_name_server,
        interop.started(
            "PeerServer", directory / "theirs", "ASYNC_FLUSH", flags=interop.SMALL_STORE
        ) as server,
    ):
        assert server.stdout is not None
        their_name_server = server.stdout.readline().strip()
        with _client(our_name_server) as first, _client(their_name_server) as second:
            try:
                mine, other = _told(first), _told(second)
            finally:
                second.kill()
    return mine, other


@contextmanager
def ours(directory: Path, masters: int = 1, **settings: object) -> Iterator[str]:
    """Our name server and brokers in a process of their own, open to foreign clients; yields the
    name server's address. ``settings``: of the brokers.
    """
    with opened(directory, LIVE_S, masters, **settings) as (address, _):
        yield address


def _client(name_server: str) -> subprocess.Popen[str]:
    assert name_server, "the side did not start"
    return subprocess.Popen(
        interop.command("ClientCheck", name_server),
        cwd=interop.TARGET,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _told(process: subprocess.Popen[str]) -> Lines:
    try:
        out, complaints = process.communicate(timeout=CHECK_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, f"{complaints[-3000:]}\n{out[-1000:]}"
    return [json.loads(line) for line in out.splitlines()]


def steady(lines: Lines) -> Lines:
    """Without ids and times, and without what a client takes at random: the first queue of each of
    its threads.
    """
    first = next(line["queue"] for line in lines if line.get("how") == "sync")
    result = []
    for line in lines:
        kept = {name: value for name, value in line.items() if name not in VOLATILE}
        if line["check"] == "progress":
            del kept["queues"]  # the retry topic's progress may be saved or not by then
        if line["check"] == "send":
            del kept["offset"]
            kept["queue"] = (
                line["queue"]
                if line["how"] in {"queue", "selector"}
                else (line["queue"] - first) % 3
            )
            if line["how"] == "async":
                del kept["queue"]
        result.append(kept)
    return result


def one(lines: Lines, check: str) -> dict[str, Any]:
    return next(line for line in lines if line["check"] == check)


def test_the_java_client_gets_the_same_answers_from_both_sides(told: tuple[Lines, Lines]) -> None:
    mine, other = told
    assert steady(mine) == steady(other)


@pytest.mark.seed("S0-004", "S0-005")
def test_every_way_of_sending_is_acknowledged_at_dense_offsets(told: tuple[Lines, Lines]) -> None:
    sends = [line for line in told[0] if line["check"] == "send"]
    assert {line["status"] for line in sends} == {"SEND_OK"}
    assert [line["how"] for line in sends] == ["sync"] * 6 + [
        "queue",
        "selector",
        "async",
        "batch",
        "compressed",
    ]
    for queue in range(3):
        offsets = [line["offset"] for line in sends if line["queue"] == queue]
        with judging():
            assert offsets == sorted(set(offsets))
    assert all(len(line["offset_id"].split(",")[0]) == 32 for line in sends)


def test_what_was_sent_is_pulled_found_by_key_and_by_id(told: tuple[Lines, Lines]) -> None:
    pulled = one(told[0], "pull")
    with judging():
        assert pulled["total"] == 16
    assert pulled["bodies"].split(",")[:2] == ["async", "batch-0"]
    assert one(told[0], "query") == {"check": "query", "count": 1, "body": "sync-3"}
    assert one(told[0], "view") == {
        "check": "view",
        "body": "sync-3",
        "tag": "odd",
        "property": "grün",
    }


def test_a_push_consumer_gets_its_tag_only_and_each_message_once(told: tuple[Lines, Lines]) -> None:
    consumed = one(told[0], "consume")
    assert consumed["bodies"].split(",") == [
        *(f"batch-{n}" for n in range(5)),
        "large:200000",
        "queue",
        "selector",
        "sync-0",
        "sync-2",
        "sync-4",
    ]


@pytest.mark.seed("S4-187")
def test_delay_level_one_is_one_second_and_never_early(told: tuple[Lines, Lines]) -> None:
    delayed = one(told[0], "delay")
    assert delayed["came"] == 1
    assert 1_000 <= delayed["after_ms"] < 6_000


@pytest.mark.seed("S4-008", "S4-081", "S4-231")
def test_an_sql_filter_lets_through_what_it_should_and_a_malformed_one_is_refused_at_the_start(
    told: tuple[Lines, Lines],
) -> None:
    assert one(told[0], "filter")["bodies"].split(",") == sorted(f"f-{n}" for n in range(12, 40, 2))
    assert set(one(told[0], "filter-pull")["statuses"].split(",")) == {"NO_MATCHED_MSG end"}
    assert one(told[0], "filter-wrong")["code"] == 23


@pytest.mark.seed("S4-185", "S3-083")
def test_a_failed_message_comes_back_with_its_count(told: tuple[Lines, Lines]) -> None:
    assert one(told[0], "retry") == {"check": "retry", "came": 1, "times": [0, 1, 2]}
