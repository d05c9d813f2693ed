"""What a changed topology file makes of a cluster that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.actors.control.changes import (
    How,
    PlannedChange,
    changes_of,
    to_lead,
    to_restart,
    to_set,
)
from rmq_ray.actors.control.plan import plan_of
from rmq_ray.topology.reader import read_topology
from rmq_ray.topology.rules import Topology

FILE = """\
cluster = "t"
[defaults.store]
reserved_hours = 48
[failover]
failover_after_ms = 2500
[[brokers]]
name = "broker-a"
store = { path = "a" }
[[brokers]]
name = "broker-b"
store = { path = "b" }
"""
MORE = '[[brokers]]\nname = "broker-c"\nstore = { path = "c" }\n'


def read(folder: Path, text: str) -> Topology:
    (folder / "rmq.toml").write_text(text)
    return read_topology(folder / "rmq.toml")


def changes(
    folder: Path, new: str, old: str = FILE
) -> tuple[list[PlannedChange], list[tuple[str, int]], list[str]]:
    """What changes, which copies are restarted, which brokers get their first slave."""
    running = plan_of(read(folder, old), b"secret", one_node=True)
    topology = read(folder, new)
    found, wanted = changes_of(topology, running), plan_of(topology, b"secret", one_node=True)
    return found, to_restart(found, wanted, running), to_lead(wanted, running)


def test_the_same_file_changes_nothing(tmp_path: Path) -> None:
    assert changes(tmp_path, FILE)[0] == []


def test_a_broker_more_is_created_and_nobody_is_restarted(tmp_path: Path) -> None:
    (change,), restarted, led = changes(tmp_path, FILE + MORE)
    assert (change.part, change.how) == ("broker-c", How.CREATE)
    assert restarted == led == []


def test_what_changes_at_run_time_is_set_and_nobody_is_restarted(tmp_path: Path) -> None:
    text = FILE.replace("= 48", '= 24\ndelete_when = "05"\ndisk_full_ratio = 0.95')
    found, restarted, _ = changes(tmp_path, text)
    assert {change.how for change in found} == {How.SET} and restarted == []
    assert "reserved_hours 48 -> 24" in {change.what for change in found}
    wanted = {
        "store.reserved_hours": "24",
        "store.delete_when": "05",
        "store.disk_full_ratio": "0.95",
    }
    assert to_set(found) == {"broker-a": wanted, "broker-b": wanted}
    found, _, _ = changes(tmp_path, FILE.replace("= 48", "= 48\n[defaults]\nslave_reads = true"))
    assert to_set(found)["broker-a"] == {"slave_reads": "true"}


def test_other_settings_restart_who_has_them_once(tmp_path: Path) -> None:
    text = FILE.replace("= 48", '= 24\nflush = "sync"\nflush_interval_ms = 100')
    found, restarted, _ = changes(tmp_path, text)
    assert [change.how for change in found] == 2 * [How.SET] + 4 * [How.RESTART]
    assert restarted == [("broker-a", 0), ("broker-b", 0)]
    one = FILE.replace('name = "broker-b"', 'name = "broker-b"\nparked_pulls_max = 1000')
    assert changes(tmp_path, one)[1] == [("broker-b", 0)]


def test_a_first_slave_has_its_broker_led_by_the_controller_and_a_second_one_restarts_nobody(
    tmp_path: Path,
) -> None:
    found, restarted, led = changes(tmp_path, FILE + SLAVE)
    assert [(change.part, change.how) for change in found] == [
        ("controller", How.TAKE),
        ("broker-b/1", How.CREATE),
        ("broker-b", How.RESTART),
    ]
    assert led == ["broker-b"] and restarted == [], "it is restarted once, as one of two"
    second = '[[brokers.replicas]]\nstore = { path = "b2" }\n'
    found, restarted, led = changes(tmp_path, FILE + SLAVE + second, FILE + SLAVE)
    assert [(change.part, change.how) for change in found] == [("broker-b/2", How.CREATE)]
    assert restarted == led == []
    text = (FILE + SLAVE).replace("= 48", '= 48\nflush = "sync"')
    assert changes(tmp_path, text, FILE + SLAVE)[1] == [
        ("broker-a", 0),
        ("broker-b", 1),
        ("broker-b", 0),
    ], "slaves first"


def test_the_controller_takes_failover_without_a_restart(tmp_path: Path) -> None:
    (change,), _, _ = changes(tmp_path, FILE.replace("2500", "3000"))
    assert (change.part, change.how) == ("controller", How.TAKE)


SLAVE = 'allow_same_node = true\n[[brokers.replicas]]\nstore = { path = "b1" }\n'


@pytest.mark.parametrize(
    ("new", "part", "why"),
    [
        (FILE + '[controller]\nresource = "x"\nstore = "/data/c"\n', "controller", "rmq-ray down"),
        (FILE.replace('path = "a"', 'path = "z"'), "broker-a", "a store stays where it is"),
        (FILE[: FILE.rindex("[[brokers]]")], "broker-b", "rmq-ray broker drain"),
        (
            FILE.replace("[failover]", "segment_bytes = 8192\n[failover]"),
            "broker-a",
            "files of a store have one size",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    tmp_path: Path, new: str, part: str, why: str
) -> None:
    found, _, _ = changes(tmp_path, new)
    refused = {change.part: change.why for change in found if change.how is How.REFUSE}
    assert why in refused[part]
    assert found[0].how is How.REFUSE, "told first"


def test_a_slave_is_not_taken_away(tmp_path: Path) -> None:
    found, _, _ = changes(tmp_path, FILE, FILE + SLAVE)
    refused = {change.part: change.why for change in found if change.how is How.REFUSE}
    assert "slaves are removed while nobody leads" in refused["broker-b/1"]
