"""Rollouts, a trainer and a broker that are killed at each step of a put, a get and a clear:
``python transfer_queue_job.py STORE``. Prints what became of each group as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from ray.exceptions import RayActorError
from tensordict import TensorDict

import rmq_ray as rmq
from rmq_ray.transfer_queue import register
from rmq_ray.transfer_queue.store import ValueStore

SAMPLES = 4
TRIES = 30
CONFIG = {
    "controller": {"polling_mode": True},
    "backend": {"storage_backend": "Rmq", "Rmq": {"topic": "experience"}},
}
KILLS = (
    ("rollout", "itself", "_note", "before"),
    ("rollout", "itself", "put", "after"),
    ("rollout", "broker", "_sent", "before"),
    ("rollout", "broker", "_note", "before"),
    ("rollout", "broker", "put", "after"),
    ("trainer", "itself", "_read", "before"),
    ("trainer", "itself", "clear", "before"),
    ("trainer", "itself", "clear", "after"),
    ("trainer", "broker", "_read", "before"),
    ("trainer", "broker", "get", "after"),
    ("trainer", "broker", "_note", "before"),
)
"""Who works, who is killed, at which method of the store: when it begins, or has returned."""


def arm(step: str, when: str, victim: int) -> None:
    """Once in this process."""
    method = getattr(ValueStore, step)

    def dying(self: ValueStore, *arguments: Any) -> Any:
        setattr(ValueStore, step, method)
        if when == "before":
            os.kill(victim or os.getpid(), signal.SIGKILL)
        found = method(self, *arguments)
        if when == "after":
            os.kill(victim or os.getpid(), signal.SIGKILL)
        return found

    setattr(ValueStore, step, dying)


def tensor_of(group: int) -> torch.Tensor:
    return torch.arange(SAMPLES * 1_000).reshape(SAMPLES, -1) + group


def keys_of(group: int) -> list[str]:
    return [f"{group}_{sample}" for sample in range(SAMPLES)]


@ray.remote(num_cpus=0, max_restarts=-1)
class Worker:
    """A rollout or the trainer, made again where it is killed."""

    def __init__(self, trained: str) -> None:
        tq.init()
        self.trained = Path(trained)

    def rollout(self, group: int, armed: tuple[str, str, int] | None) -> None:
        """Put a group; again where the first try was killed."""
        if armed:
            arm(*armed)
        fields = TensorDict({"ids": tensor_of(group)}, batch_size=SAMPLES)
        tags = [{"group": group}] * SAMPLES
        tq.kv_batch_put(keys=keys_of(group), partition_id="train", fields=fields, tags=tags)

    def train(self, _group: int, armed: tuple[str, str, int] | None) -> None:
        """Train on all groups that are there; what was trained is written down, as a model is."""
        if armed:
            arm(*armed)
        there = tq.kv_list("train").get("train", {})
        for group in sorted({tag["group"] for tag in there.values()}):
            done = [int(line.split()[0]) for line in self.trained.read_text().splitlines()]
            if group not in done:
                batch = tq.kv_batch_get(keys=keys_of(group), partition_id="train")
                right = all(map(torch.equal, batch["ids"].unbind(), tensor_of(group).unbind()))
                with self.trained.open("a") as file:
                    file.write(f"{group} {right}\n")
            tq.kv_clear(keys=keys_of(group), partition_id="train")


def until_done(work: Any, group: int, armed: tuple[str, str, int] | None) -> int:
    """Call it until it ends; 1 where its actor was killed meanwhile."""
    killed = 0
    for _ in range(TRIES):
        try:
            ray.get(work.remote(group, armed))
            return killed
        except RayActorError:  # also while it is made again
            killed, armed = 1, None
            time.sleep(1)
    raise RuntimeError(f"{work} does not end")


def main(store: str) -> None:
    hook = {"worker_process_setup_hook": "rmq_ray.transfer_queue.register"}
    ray.init(address="local", include_dashboard=False, log_to_driver=False, runtime_env=hook)
    mq = rmq.start(store_path=store, store_settings={"segment_bytes": 64 << 20})
    register()
    tq.init(OmegaConf.create(CONFIG))
    trained = Path(store) / "trained"
    trained.touch()
    rollout, trainer = (Worker.remote(str(trained)) for _ in range(2))  # type: ignore[attr-defined]
    killed = {"rollout": 0, "trainer": 0, "broker": 0}
    for group, (who, victim, step, when) in enumerate(KILLS):
        pid = mq.status()["broker-a/0"]["pid"] if victim == "broker" else 0
        armed = (step, when, pid)
        killed["rollout"] += until_done(rollout.rollout, group, armed if who == "rollout" else None)
        killed["trainer"] += until_done(trainer.train, group, armed if who == "trainer" else None)
        killed["broker"] += bool(pid and not Path(f"/proc/{pid}").exists())
    left = list(tq.kv_list("train").get("train", {}))
    rows = trained.read_text().splitlines()
    print(json.dumps({"groups": len(KILLS), "trained": rows, "left": left, "killed": killed}))
    tq.close()
    mq.stop()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
