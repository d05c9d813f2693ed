"""Ray's autoscaler brings nodes for a broker and for workers, and takes away only those that are
idle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

import rmq_ray as rmq
from rmq_ray.cli.base import ray_head
from tests.support.pages import ROOT
from tests.support.programs import free_port
from tests.support.waiting import eventually

IDLE_MINUTES = 0.02


def config(gcs_address: str) -> dict[str, object]:
    """Of a head that runs nothing of the user's, a node with a disk, and one with a CPU; Ray's fake
    provider starts either on this machine.
    """
    types = {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "store": {"resources": {"CPU": 0, "disk_a": 1}, "node_config": {}, "max_workers": 1},
        "worker": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 1},
    }
    return {
        "cluster_name": "scaled",
        "max_workers": 2,
        "upscaling_speed": 100,
        "idle_timeout_minutes": IDLE_MINUTES,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": gcs_address,
            "use_node_id_as_ip": True,  # all nodes have one address
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": types,
        "head_node_type": "ray.head.default",
        "auth": {},
        "docker": {},
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
    }


def main(directory: Path) -> dict[str, object]:
    """In a process of its own: it joins the Ray that scales."""
    ray.init(address=sys.argv[2], log_to_driver=False, logging_level="ERROR")
    mq = rmq.start(
        resources={"broker-a": "disk_a"},
        store_path=str(directory / "stores"),
        store_settings={"segment_bytes": 4 << 20},
    )
    mq.admin.create_topic("orders", queues=2)

    def bill(_message: rmq.MessageExt) -> None:
        return None

    app = rmq.consumer("orders", group="billing")(bill)
    workers = app.deploy(1, num_cpus=1, wait_for_nodes=True)
    found: dict[str, object] = {"at work": offered()}
    workers.stop()
    eventually(lambda: "CPU" not in offered(), 60, every_s=0.2)
    found["idle"] = offered()
    with mq.producer() as producer:
        found["stored"] = producer.send("orders", b"1").status.value
    return found


def offered() -> list[str]:
    """What the living nodes offer, but for what every node has."""
    return sorted({"CPU", "disk_a"} & ray.cluster_resources().keys())


@contextmanager
def scaling_head(directory: Path) -> Iterator[str]:
    """A head with the autoscaler; everything of it belongs to one session of the operating system,
    which ends with it.
    """
    port = free_port()
    address = f"{ray.util.get_node_ip_address()}:{port}"
    file = directory / "scaling.json"
    file.write_text(json.dumps(config(address)))
    ray_program = str(Path(sys.executable).with_name("ray"))
    starter = subprocess.Popen(
        [ray_program, "start", "--head", f"--port={port}", "--num-cpus=0",
         "--include-dashboard=false", f"--autoscaling-config={file}"],
        env=os.environ
        | {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert starter.wait(60) == 0
        yield address
    finally:
        for found in ray_head.running():
            if found.port == port:
                ray_head.stop(found)


def test_a_brokers_node_stays_and_a_workers_node_comes_and_goes(tmp_path: Path) -> None:
    with scaling_head(tmp_path) as address:
        ended = subprocess.run(
            [sys.executable, __file__, str(tmp_path), address],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["at work"] == ["CPU", "disk_a"] and found["idle"] == ["disk_a"]
    assert found["stored"] == rmq.SendStatus.SEND_OK.value


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
