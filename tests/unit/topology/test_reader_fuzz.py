"""Any text as ``rmq.toml``, and any lawful one with a mistake in it: a topology, or a typed error
that names the file.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import ConfigError
from rmq_ray.topology.reader import parse_topology
from rmq_ray.topology.rules import Topology

LAWFUL = """\
cluster = "prod"
foreign = "open"
[defaults]
auto_create_topics = false
delay_levels = "1s 5s"
[defaults.store]
flush = "sync"
disk_full_ratio = 1
[failover]
automatic = true
[controller]
store = "/data/controller"
[[name_servers]]
port = 29876
resource = "store_a"
[[brokers]]
name = "broker-a"
resource = "store_a"
port = 20911
store = { path = "/data/rmq" }
replication = "sync"
[[brokers.replicas]]
resource = "store_b"
store = { path = "/data/rmq" }
"""
PIECES = st.sampled_from(
    [
        *("[", "]", "[[brokers]]", "[brokers.store]", "=", "{", "}", '"', '"""', "'", ",", "#"),
        *("true", "nan", "inf", "-1", "1e999", "99999999999999999999", "2026-01-01", "\n", " "),
        *("name", "port", "store", "path", "replicas", "x.y", "\x00", "\u2028", "é", "\\u0000"),
        *("[]", "{}", "[[1]]", "brokers = 3", "cluster = []", 'store = "x"', "port = true"),
    ]
)


def judged(text: str) -> None:
    """A topology, or an error with the file's name in it."""
    try:
        found = parse_topology(text, "conf/rmq.toml")
    except ConfigError as error:
        assert "conf/rmq.toml" in error.message
    else:
        assert isinstance(found, Topology)


@settings(max_examples=200)
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=25).map(" ".join)))
def test_any_text_is_a_topology_or_a_typed_error(text: str) -> None:
    judged(text)


@pytest.mark.parametrize("value", ["[" * 5_000, "9" * 5_000, "{a=" * 3_000, "0x" + "f" * 9_999])
def test_what_the_parser_gives_up_on_is_a_typed_error(value: str) -> None:
    with pytest.raises(ConfigError, match="conf/rmq.toml"):
        parse_topology(f"cluster = {value}", "conf/rmq.toml")


@settings(max_examples=400)
@given(st.integers(0, len(LAWFUL)), st.integers(0, 12), st.lists(PIECES, max_size=3).map("".join))
def test_a_lawful_file_with_a_mistake_is_a_topology_or_a_typed_error(
    at: int, removed: int, put: str
) -> None:
    judged(LAWFUL[:at] + put + LAWFUL[at + removed :])


@settings(max_examples=300)
@given(st.integers(0, LAWFUL.count("\n")), PIECES)
def test_a_value_of_any_other_type_is_a_topology_or_a_typed_error(line: int, put: str) -> None:
    lines = LAWFUL.splitlines()
    if line < len(lines) and "=" in lines[line]:
        lines[line] = lines[line].partition("=")[0] + "= " + put
    judged("\n".join(lines))
