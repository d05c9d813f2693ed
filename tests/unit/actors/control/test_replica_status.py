"""What people see of a broker's copies, made from statuses: roles, ids, lag, who is in sync, and
when there are too few.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from rmq_ray.actors.control import replica_status
from rmq_ray.actors.control.plan import ClusterPlan, StartOptions, make_plan
from rmq_ray.config import BrokerConfig


def plan(**changes: Any) -> list[tuple[str, BrokerConfig]]:
    made: ClusterPlan = make_plan(
        "c",
        StartOptions(
            brokers=1,
            name_servers=1,
            store_path="/s",
            flush="async",
            foreign="closed",
            **changes,
        ),
        host="h",
        ports=(0, 0),
        secret=b"",
    )
    return list(made.all_copies())


def master(slaves: dict[int, bool], **changes: Any) -> dict[str, Any]:
    told = {number: {"in_sync": in_sync, "lag_bytes": 5} for number, in_sync in slaves.items()}
    return {
        "state": "serving",
        "broker_id": 0,
        "address": "h:1",
        "epoch": 4,
        "error": None,
        "replication": {"slaves": told},
    } | changes


def slave(number: int, **replica: Any) -> dict[str, Any]:
    told = {"lag_bytes": 7, "lag_ms": 30, "fault": None} | replica
    return {
        "state": "serving",
        "broker_id": number,
        "address": f"h:{number + 1}",
        "epoch": 4,
        "error": None,
        "replica": told,
    }


def test_a_broker_without_slaves_is_one_row() -> None:
    found = replica_status.rows(plan(), {"broker-a/0": master({})}, {})
    assert found == [
        {
            "broker": "broker-a",
            "replica": 0,
            "id": 0,
            "role": "master",
            "address": "h:1",
            "epoch": 4,
            "in_sync": True,
            "lag_bytes": 0,
            "lag_ms": 0,
            "state": "serving",
            "error": None,
        },
    ]
    assert list(replica_status.too_few(plan(), found)) == []


def test_numbers_stay_and_ids_follow_the_roles() -> None:
    statuses = {
        "broker-a/0": slave(1, fault="LogDiverged: foreign"),
        "broker-a/1": master({1: True, 2: False}),
        "broker-a/2": slave(2, lag_ms=None),
    }
    found = replica_status.rows(
        plan(replicas=2), statuses, {"broker-a": {"master": 1, "sync_state_set": [0, 1]}}
    )
    assert [
        (row["replica"], row["id"], row["role"], row["in_sync"], row["lag_bytes"], row["lag_ms"])
        for row in found
    ] == [
        (0, 1, "slave", True, 7, 30),
        (1, 0, "master", True, 0, 0),
        (2, 2, "slave", False, 7, None),
    ]
    assert found[0]["error"] == "LogDiverged: foreign"


def test_without_a_controllers_word_the_master_says_who_is_in_sync() -> None:
    found = replica_status.rows(
        plan(replicas=2),
        {"broker-a/0": master({1: True, 2: False}), "broker-a/1": slave(1), "broker-a/2": slave(2)},
        {},
    )
    assert [row["in_sync"] for row in found] == [True, True, False]


@pytest.mark.parametrize(
    ("replication", "statuses", "in_set", "said"),
    [
        ("async", [master({}), slave(1)], [0, 1], []),
        (
            "async",
            [master({}), {"state": "missing"}],
            [0, 1],
            ["1 of 2 copies in sync: none to take over"],
        ),
        ("async", [master({}), slave(1)], [0], ["1 of 2 copies in sync: none to take over"]),
        ("async", [{"state": "not answering", "error": "x"}, slave(1)], [0, 1], ["no master"]),
        ("sync", [master({}), slave(1)], [0, 1], []),
        (
            "sync",
            [master({}), slave(1)],
            [0],
            [
                "sends are stored, not acknowledged, not delivered: no slave in sync "
                "(1 of 2 copies, copies_min=2)"
            ],
        ),
        ("sync", [slave(2) | {"broker_id": -1}, slave(1)], [0, 1], ["no master"]),
    ],
)
def test_too_few_copies_are_told(
    replication: str, statuses: list[dict[str, Any]], in_set: list[int], said: list[str]
) -> None:
    brokers = plan(replicas=1, replication=replication)
    found = replica_status.rows(
        brokers,
        {f"broker-a/{number}": status for number, status in enumerate(statuses)},
        {"broker-a": {"sync_state_set": in_set}},
    )
    assert [text for _, text in replica_status.too_few(brokers, found)] == said


def test_a_replica_without_an_id_yet_waits_and_one_that_does_not_answer_has_no_role() -> None:
    statuses = {
        "broker-a/0": master({}, state="starting", broker_id=-1, error="StoreMissing: /s is empty")
    }
    first, second = replica_status.rows(plan(replicas=1), statuses, {})
    assert (first["role"], first["id"], first["error"], first["in_sync"]) == (
        "waiting",
        None,
        "StoreMissing: /s is empty",
        False,
    )
    assert (second["role"], second["id"], second["state"], second["lag_bytes"]) == (
        None,
        None,
        "missing",
        None,
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replication": "async", "replicas": 1}, ""),
        ({"replication": "sync", "replicas": 2}, ""),
        ({"replication": "sync", "replicas": 1}, "one slave and copies_min=2.*With replicas=2 any"),
        (
            {"replication": "sync", "replicas": 2, "broker_settings": {"copies_min": 3}},
            "2 slaves and copies_min=3.*With replicas=3 any",
        ),
    ],
)
def test_a_broker_that_needs_all_of_its_copies_is_told_of_before_it_starts(
    settings: dict[str, Any], said: str
) -> None:
    (first, *_), replicas = plan(**settings), settings["replicas"]
    found = replica_status.cautions([(first[1], replicas)])
    assert len(found) == bool(said)
    assert not said or re.match(f"broker-a has replication='sync', {said}", found[0])
    assert not said or "SendUnconfirmed and nothing is delivered" in found[0]


def test_a_copy_that_left_its_node_says_that_it_comes_back_and_what_brings_it_at_once() -> None:
    told = replica_status.said("broker-a/1", {"state": "away"})
    assert told.startswith("away: it left its node") and "broker start broker-a --replica 1" in told
