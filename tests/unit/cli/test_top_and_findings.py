"""Rates of ``top`` out of two looks; what ``doctor`` finds in a cluster that runs."""

from __future__ import annotations

from typing import Any

from rmq_ray.cli.doctor import FAIL, WARN, cluster_findings
from rmq_ray.cli.shell.top import group_rows, look_of, topic_rows
from rmq_ray.remoting.wire.overview import GROUP, LAG, TOPIC


def row(columns: tuple[str, ...], **values: Any) -> tuple[Any, ...]:
    return tuple(values.get(name) for name in columns)


def overview(stored: int, lag: int, *, members: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "topics": (
            row(
                TOPIC,
                topic="orders",
                system=False,
                stored_messages=stored,
                stored_bytes=10 * stored,
            ),
            row(TOPIC, topic="TBW102", system=True, stored_messages=0, stored_bytes=0),
        ),
        "messages": {"orders": stored},
        "groups": (row(GROUP, group="billing", members=members),),
        "lags": (row(LAG, group="billing", topic="orders", lag=lag, age_ms=2_500),),
        **more,
    }


def test_rates_are_those_between_two_looks_of_all_brokers() -> None:
    before = look_of([overview(100, 50), overview(100, 50)], 1_000)
    now = look_of([overview(200, 60), overview(100, 40)], 3_000)
    (topic,) = topic_rows(before, now)
    assert (topic["stored_per_s"], topic["bytes_per_s"], topic["messages"]) == (50.0, 500, 300)
    (group,) = group_rows(before, now)
    assert (group["lag"], group["settled_per_s"], group["oldest_s"]) == (100, 50.0, 2.5)


def test_what_is_not_known_from_both_looks_has_no_rate() -> None:
    empty, now = look_of([{}], 0), look_of([overview(100, 50)], 1_000)
    assert topic_rows(empty, now)[0]["stored_per_s"] is None
    assert group_rows(empty, now)[0]["settled_per_s"] is None
    restarted = look_of([overview(5, 50)], 2_000)
    assert topic_rows(now, restarted)[0]["stored_per_s"] is None, "its counters began anew"


def replica(broker: str, number: int = 0, state: str = "serving") -> dict[str, Any]:
    return {"broker": broker, "replica": number, "state": state, "error": None}


def test_a_sound_cluster_has_no_findings() -> None:
    status = {"replicas": [replica("broker-a"), replica("broker-a", 1)]}
    assert cluster_findings(status, {}, {"broker-a": overview(10, 0, members=0)}) == []


def test_findings_come_with_their_remedies() -> None:
    told = {
        "store": {"disk_full": False, "disk_used_ratio": 0.87},
        "disk_watermark": 85,
        "draining": True,
        "dead_letters": 3,
        "expired_messages": 7,
        "falling_behind": [
            {
                "group": "slow",
                "topic": "orders",
                "messages": 5,
                "oldest_age_ms": 60 * 3_600_000,
                "kept_ms": 72 * 3_600_000,
            }
        ],
    }
    status = {"replicas": [replica("broker-a"), replica("broker-b", state="stopped")]}
    overviews = {"broker-a": overview(10, 9, members=0, status=told)}
    found = cluster_findings(status, {"broker-c": "no master"}, overviews)
    what = {name: (state, said, remedy) for name, state, said, remedy in found}
    assert what["broker broker-b"][0] == FAIL and "broker start" in what["broker broker-b"][2]
    assert what["copies of broker-c"][:2] == (FAIL, "no master")
    assert "broker-a, broker-b" in what["copies"][1]
    assert what["disk of broker-a"][:2] == (WARN, "87% used")
    assert "undrain" in what["broker broker-a"][2]
    assert "60 of 72 hours" in what["group slow"][1]
    assert "7 messages" in what["retention of broker-a"][1]
    assert "dlq list" in what["dead letters of broker-a"][2]
    assert what["group billing"][1] == "9 messages and no consumer"
