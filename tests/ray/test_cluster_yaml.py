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


@pytest.mark.parametrize("part", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_every_node_starts_at_niceness_zero_asks_for_the_token_and_offers_its_disk(
    part: str,
) -> None:
    stop, start = launcher_file()[part]
    assert stop.endswith("ray stop") and "PATH=~/rmq-ray-venv/bin" in stop
    assert (
        "RAY_worker_niceness=0" in start
        and "RAY_AUTH_MODE=token" in start
        and "PATH=~/rmq-ray-venv/bin" in start
        and "store_$(hostname -s)" in start
    )
    assert launcher_file()["file_mounts"] == {
        "~/.ray/auth_token": "~/.ray/auth_token",
        "~/rmq-ray-dist": "dist",
    }


def test_the_head_keeps_its_tables_on_disk_and_listens_outside_the_ports_of_the_workers() -> None:
    start = launcher_file()["head_start_ray_commands"][1]
    port = int(start.partition("--port=")[2].split()[0])
    assert (
        not 10_002 <= port <= 19_999 and "--autoscaling-config=~/ray_bootstrap_config.yaml" in start
    )
    assert (
        "RAY_gcs_storage=rocksdb RAY_gcs_storage_path=" in start
        and "RAY_enable_autoscaler_v2=0" in start
    )
