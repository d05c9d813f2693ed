"""The file that tells a first start from every later one: names are added, never changed, and a
damaged file is not taken for an empty one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.errors import ConfigError
from rmq_ray.topology import known_stores
from rmq_ray.topology.reader import read_topology
from rmq_ray.topology.rules import Topology


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    (tmp_path / "rmq.toml").write_text(
        '[[brokers]]\nname = "broker-a"\nstore = { path = "data" }\n'
    )
    return read_topology(tmp_path / "rmq.toml")


def test_stores_are_remembered_beside_the_topology_and_the_first_stays(
    topology: Topology, tmp_path: Path
) -> None:
    assert known_stores.read(topology) == {}
    known_stores.remember(topology, {"broker-a": "1f"})
    known_stores.remember(topology, {"broker-a": "2e", "broker-b": "3d"})
    assert known_stores.read(topology) == {"broker-a": "1f", "broker-b": "3d"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rmq.stores.json", "rmq.toml"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"broker-a": 1}', "\xff"])
def test_a_damaged_file_is_an_error_and_not_a_first_start(topology: Topology, text: str) -> None:
    known_stores.file_of(topology).write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="rmq.stores.json .*restore it from a copy"):
        known_stores.read(topology)


def test_a_file_that_cannot_be_written_is_told(topology: Topology, tmp_path: Path) -> None:
    (tmp_path / "rmq.stores.json.new").mkdir()
    with pytest.raises(ConfigError, match="the cluster runs, but .* cannot be written"):
        known_stores.remember(topology, {"broker-a": "1f"})
