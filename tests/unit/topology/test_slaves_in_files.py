"""Slaves, fail-over and the controller in topology files: what is said, and everything that is
refused with its line.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rmq_ray.actors.control.plan import plan_of
from rmq_ray.config import FailoverConfig, FlushMode, ReplicationMode
from rmq_ray.errors import ConfigError
from rmq_ray.topology.reader import parse_topology

FILE = """\
cluster = "prod"
[failover]
automatic = false
failover_after_ms = 9000
[controller]
store = "/data/controller"
resource = "store_head"
[defaults]
replication = "sync"
copies_min = 2
[defaults.store]
flush = "sync"

[[brokers]]
name = "broker-a"
resource = "store_a"
port = 20911
slave_reads = true
store = { path = "/data/rmq", segment_bytes = 1048576 }
[[brokers.replicas]]
resource = "store_b"
port = 20912
advertise = "203.0.113.7"
store = { path = "/data/rmq" }
[[brokers.replicas]]
resource = "store_c"
store = { path = "/data/rmq", reserved_hours = 24 }

[[brokers]]
name = "broker-b"
resource = "store_b"
replication = "async"
store = { path = "/data/rmq-b" }
"""
ONE_HOST = (
    '[[brokers]]\nname = "broker-a"\nstore = { path = "a" }\n[[brokers.replicas]]\nstore = { '
    'path = "a-1" }\n'
)


def test_slaves_have_their_own_place_and_everything_else_from_their_broker() -> None:
    found = parse_topology(FILE)
    assert [spec.actor for spec in found.copies] == [
        "broker-a",
        "broker-a/1",
        "broker-a/2",
        "broker-b",
    ]
    first, second, third, _ = (spec.config for spec in found.copies)
    assert [(c.port, c.advertise, c.broker_id) for c in (first, second, third)] == [
        (20_911, None, 0),
        (20_912, "203.0.113.7", 1),
        (0, None, 2),
    ]
    assert {
        (c.broker_name, c.slave_reads, c.replication, c.store.flush, c.store.segment_bytes)
        for c in (first, second, third)
    } == {("broker-a", True, ReplicationMode.SYNC_MASTER, FlushMode.SYNC_FLUSH, 1 << 20)}
    assert (second.store.reserved_hours, third.store.reserved_hours) == (72, 24)
    places = {
        "broker-a": "store_a",
        "broker-a/1": "store_b",
        "broker-a/2": "store_c",
        "broker-b": "store_b",
        "name-server-0": "store_a",
    }
    assert found.resources == places | {"controller": "store_head"}
    assert found.failover == FailoverConfig(automatic=False, failover_after_ms=9_000)


def test_the_plan_of_a_file_has_its_slaves_and_its_ledger() -> None:
    made = plan_of(parse_topology(FILE), b"", one_node=False, identities={"broker-a/1": "5f"})
    assert [config.broker_id for config in made.copies("broker-a")] == [0, 1, 2] and list(
        made.replicas
    ) == ["broker-a"]
    assert (made.ledger, made.failover.automatic, made.identities) == (
        "/data/controller",
        False,
        {"broker-a/1": "5f"},
    )
    first, *slaves = (config.hold_link for config in made.copies("broker-a"))
    assert first is not None and slaves == [None, None]


def test_without_slaves_there_is_no_ledger_and_else_it_lies_beside_the_file(tmp_path: Path) -> None:
    alone = parse_topology(ONE_HOST.split("[[brokers.replicas]]")[0], str(tmp_path / "rmq.toml"))
    assert plan_of(alone, b"", one_node=True).ledger is None
    both = parse_topology(
        ONE_HOST.replace("[[brokers.replicas]]", "allow_same_node = true\n[[brokers.replicas]]"),
        str(tmp_path / "rmq.toml"),
    )
    assert plan_of(both, b"", one_node=True).ledger == str(tmp_path / "rmq.controller")
    assert [spec.config.store.path for spec in both.copies] == [
        str(tmp_path / "a"),
        str(tmp_path / "a-1"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "automatic = false",
            "automatically = false",
            3,
            "unknown key 'automatically'; known here are automatic, failover_after_ms",
        ),
        ("automatic = false", 'automatic = "no"', 3, "automatic must be true or false"),
        (
            "failover_after_ms = 9000",
            "failover_after_ms = 9",
            4,
            "failover_after_ms must be 100 to 3600000, not 9",
        ),
        (
            'store = "/data/controller"',
            'path = "/data/controller"',
            6,
            "unknown key 'path'; known here are resource, store",
        ),
        (
            'store = "/data/controller"',
            'store = "controller"',
            6,
            "'controller' lies on another node: give an absolute path",
        ),
        ('store = "/data/controller"', 'store = ""', 6, "the controller keeps there who is master"),
        (
            'store = "/data/controller"\nresource = "store_head"',
            'store = "/data/rmq/c"\nresource = "store_a"',
            6,
            "shared with the broker on line 19",
        ),
        (
            'replication = "sync"',
            'replication = "both"',
            9,
            "replication must be one of 'async', 'sync'",
        ),
        ("copies_min = 2", "copies_min = 0", 10, "copies_min must be 1 to 16"),
        (
            "copies_min = 2",
            "copies_min = 4",
            10,
            "broker-a has 3 copies, replication = 'sync' wants 4 (copies_min)",
        ),
        (
            'replication = "async"',
            "port = 0",
            10,
            "broker-b has 1 copy, replication = 'sync' wants 2 (copies_min)",
        ),
        ('replication = "async"', "copies_min = 3", 32, "broker-b has 1 copy"),
        (
            'resource = "store_b"\nport = 20912',
            'resouce = "store_b"\nport = 20912',
            21,
            "unknown key 'resouce'; known here are advertise, host, port",
        ),
        (
            '"store_b"\nport = 20912\nadvertise = "203.0.113.7"\nstore = { path = "/data/rmq"',
            '"store_a"\nstore = { path = "/data/other"',
            21,
            "on the same node as that of line 16, and would die with it",
        ),
        ("port = 20912", "slave_reads = false", 22, "unknown key 'slave_reads'"),
        ("port = 20912", "port = 70000", 22, "port must be 0 (any free one, kept) to 65535"),
        (
            'store = { path = "/data/rmq" }\n[[',
            'store = { path = "data" }\n[[',
            24,
            "give an absolute path",
        ),
        ('store = { path = "/data/rmq" }\n[[', "[[", 20, "a slave needs a store of its own"),
        (
            'store = { path = "/data/rmq" }\n[[',
            'store = { path = "/data/rmq", segment_bytes = 4096 }\n[[',
            24,
            "segment_bytes 4096 differs from the 1048576 of",
        ),
        (
            'store = { path = "/data/rmq-b" }',
            'store = { path = "/data/rmq" }',
            33,
            "store /data/rmq is shared with the broker on line 24",
        ),
        (
            'name = "broker-b"',
            'name = "broker-a"',
            30,
            "two masters of the name 'broker-a', the first on line 15: each needs a name of "
            "its own, slaves are [[brokers.rep",
        ),
        (
            'replication = "async"',
            "port = 20912",
            32,
            "port 20912 is that of line 22, on the same node",
        ),
        ("slave_reads = true", "allow_same_node = 1", 18, "allow_same_node must be true or false"),
    ],
)
def test_a_wrong_file_with_slaves_is_refused_with_line_and_remedy(
    old: str, new: str, line: int, message: str
) -> None:
    assert FILE.count(old) >= 1
    with pytest.raises(ConfigError) as refused:
        parse_topology(FILE.replace(old, new, 1), "some/rmq.toml")
    assert str(refused.value.args[0]).startswith(
        f"some/rmq.toml, line {line}: "
    ) and message in str(refused.value)


def test_copies_on_one_host_must_be_meant() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            "line 4: this copy of broker-a is on the same node as that of line "
            "1.*allow_same_node = true"
        ),
    ):
        parse_topology(ONE_HOST)
    assert parse_topology(
        ONE_HOST.replace("[[brokers.replicas]]", "allow_same_node = true\n[[brokers.replicas]]")
    ).has_slaves


def test_ten_slaves_are_too_many() -> None:
    with pytest.raises(ConfigError, match="10 replicas are too many: at most 9"):
        parse_topology(ONE_HOST + '[[brokers.replicas]]\nstore = { path = "b" }\n' * 9)


def test_what_the_file_at_the_top_level_proposes_is_right() -> None:
    text = (Path(__file__).resolve().parents[3] / "rmq.toml").read_text()
    proposed = re.sub(
        r"^# (?=\[|\w+ = )",
        "",
        text.replace('store = { path = "rmq-data/broker-a" } # relative: beside this file\n', ""),
        flags=re.MULTILINE,
    )
    found = parse_topology(proposed)
    assert [(spec.actor, spec.resource) for spec in found.copies] == [
        ("broker-a", "store_db1"),
        ("broker-a/1", "store_db2"),
    ]
    assert (found.controller.ledger, found.resources["controller"], found.failover) == (
        "/data/rmq-controller",
        "store_head",
        FailoverConfig(),
    )
