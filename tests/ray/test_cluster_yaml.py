"""The launcher file at the top level is one that Ray's own launcher accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]


def launcher_file() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "cluster.yaml").read_text()))


def test_ray_accepts_the_launcher_file() -> None:
    config = prepare_config(launcher_file())
    validate_config(config)
    assert config["cluster_name"] == "rmq-ray" and config["provider"]["type"] == "local"


def test_ray_refuses_a_key_that_it_does_not_know() -> None:
    with pytest.raises(Exception, match="brokers"):
        validate_config(prepare_config({**launcher_file(), "brokers": 2}))


def test_the_head_starts_at_niceness_zero_outside_the_ports_of_the_workers() -> None:
    (start,) = [command for command in launcher_file()["head_start_ray_commands"] if " start " in command]
    port = int(start.partition("--port=")[2].split()[0])
    assert "RAY_worker_niceness=0" in start and not 10_002 <= port <= 19_999
