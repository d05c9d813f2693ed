"""Rollouts, a trainer and a broker that are killed at each step of a put, a get and a clear:
``python transfer_queue_job.py STORE``. Prints what became of each group as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from ray.exceptions import RayError
from tensordict import TensorDict

import rmq_ray as rmq
from rmq_ray.transfer_queue import register
from rmq_ray.transfer_queue.store import ValueStore

SAMPLES = 4
CONFIG = {
    "controller": {"polling_mode": True},
    "backend": {"storage_backend": "Rmq", "Rmq": {"topic": "experience"}},
}
STEPS = ("_sent", "_note", "_read", "put", "get", "clear")
"""Methods of the store: the victim dies when one begins, and when one has returned."""


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


def rollout(group: int, armed: tuple[str, str, int] | None) -> None:
    """Put a group; again where the first try was killed."""
    tq.init()
    if armed:
        arm(*armed)
    fields = TensorDict({"ids": tensor_of(group)}, batch_size=SAMPLES)
    tags = [{"group": group}] * SAMPLES
    tq.kv_batch_put(keys=keys_of(group), partition_id="train", fields=fields, tags=tags)


def train(ledger: str, armed: tuple[str, str, int] | None) -> None:
    """Train on all groups that are there; what was trained is written down, as a model is."""
    tq.init()
    if armed:
        arm(*armed)
    there = tq.kv_list("train").get("train", {})
    for group in sorted({tag["group"] for tag in there.values()}):
        if group not in trained(ledger):
            batch = tq.kv_batch_get(keys=keys_of(group), partition_id="train")
            right = all(map(torch.equal, batch["ids"].unbind(), tensor_of(group).unbind()))
            with Path(ledger).open("a") as file:
                file.write(f"{group} {right}\n")
        tq.kv_clear(keys=keys_of(group), partition_id="train")


def trained(ledger: str) -> list[int]:
    text = Path(ledger).read_text() if Path(ledger).exists() else ""
    return [int(line.split()[0]) for line in text.splitlines()]


def until_done(work: Any, *arguments: Any) -> int:
    """Run it in a worker of its own, again until it ends; how often it was killed."""
    armed, killed = arguments[-1], 0
    while True:  # ends: only the first try is armed
        task = ray.remote(num_cpus=0.1, max_retries=0, max_calls=1)(work)
        try:
            ray.get(task.remote(*arguments[:-1], armed))
            return killed
        except RayError as error:
            if killed > 2:
                raise
            killed, armed = killed + 1, None
            print(f"{work.__name__} {arguments}: {error!s:.60}", file=sys.stderr)


def main(store: str) -> None:
    hook = {"worker_process_setup_hook": "rmq_ray.transfer_queue.register"}
    ray.init(address="local", include_dashboard=False, log_to_driver=False, runtime_env=hook)
    mq = rmq.start(store_path=store, store_settings={"segment_bytes": 64 << 20})
    register()
    tq.init(OmegaConf.create(CONFIG))
    ledger = f"{tempfile.mkdtemp(dir=store)}/trained"
    killed, group = {"rollout": 0, "trainer": 0, "broker": 0}, 0
    for step in STEPS:
        for when in ("before", "after"):
            for broker in (False, True):
                if broker and step in ("put", "get", "clear") and when == "before":
                    continue  # as the step within it that comes first
                pid = mq.status()["broker-a/0"]["pid"] if broker else 0
                armed = (step, when, pid)
                mine, its = (armed, None) if step in ("_sent", "_note", "put") else (None, armed)
                killed["rollout"] += until_done(rollout, group, mine)
                killed["trainer"] += until_done(train, ledger, its)
                killed["broker"] += bool(pid and mq.status()["broker-a/0"].get("pid") != pid)
                group += 1
    rows = Path(ledger).read_text().split()
    left = tq.kv_list("train").get("train", {})
    print(json.dumps({"groups": group, "trained": rows, "left": list(left), "killed": killed}))
    tq.close()
    mq.stop()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
