"""Rollout actors and a trainer with a durable replay buffer between them. A rollout actor and the
trainer are killed in the middle; each batch that was put is learnt from once.

    python -m examples.replay_buffer

A rollout actor puts batches of arrays and waits while the buffer is full. The trainer takes the
oldest, learns, keeps model and position in one file, and acknowledges. Batches that were made with
a model of more than so many versions ago are left out, and counted.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd

NAME, SLOTS, ROWS, STEPS = "experience", 8, 64, 30


@ray.remote(num_cpus=0.2)
class Rollout:
    """Makes experience for ever; each life has a number of its own."""

    def __init__(self, buffer: mqd.ReplayBuffer) -> None:
        self.buffer = buffer
        self.life = random.SystemRandom().randrange(1 << 30)

    def run(self) -> None:
        """Batch after batch: what was seen, and which batch of which life it is."""
        for number in range(1_000_000):
            chance = np.random.default_rng([self.life, number])
            rows = {
                "seen": chance.standard_normal((ROWS, 4, 4), np.float32),
                "life": np.full(ROWS, self.life),
                "number": np.full(ROWS, number),
            }
            self.buffer.put(rows, version=number, timeout=120)


@ray.remote(num_cpus=0.2)
class Trainer:
    """Learns until it has made so many steps; goes on from its file after a death."""

    def __init__(self, buffer: mqd.ReplayBuffer, kept: str) -> None:
        self.buffer, self.kept = buffer, Path(kept)
        self.state: dict[str, Any] = {"steps": 0, "sum": 0.0, "batches": []}
        if self.kept.exists():
            self.state = json.loads(self.kept.read_text())
            buffer.restore(self.state["position"])

    def run(self, steps: int, die: bool = False) -> dict[str, Any]:
        """Up to ``steps`` steps in all; with ``die`` its process ends before it keeps the last."""
        while self.state["steps"] < steps:
            batch = self.buffer.take(3, timeout=30)
            state = self.state
            state["sum"] += float(batch.columns["seen"].sum())
            firsts = (entry.numpy() for entry in batch)
            state["batches"] += [[int(one["life"][0]), int(one["number"][0])] for one in firsts]
            state["steps"] += 1
            if die and state["steps"] == steps:
                os._exit(1)
            part = self.kept.with_suffix(".part")
            part.write_text(json.dumps(state | {"position": batch.position}))
            part.rename(self.kept)  # model and position are kept together, or not
            batch.ack()
        return self.state


def main(cluster: str = "default", fault: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """(batches learnt from, lives of rollout actors they come from). ``fault``: called in the
    middle.
    """
    rmq.connect(cluster)
    buffer = mqd.ReplayBuffer(NAME, slots=SLOTS, cluster=cluster)
    with TemporaryDirectory() as directory:
        kept = f"{directory}/model.json"
        rollouts: list[Any] = [Rollout.remote(buffer) for _ in range(2)]
        for rollout in rollouts:
            rollout.run.remote()
        trainer: Any = Trainer.remote(buffer, kept)
        try:
            ray.get(trainer.run.remote(STEPS // 2, die=True))  # what it took last comes again
        except ray.exceptions.RayActorError:
            print("the trainer died")
        ray.kill(rollouts[0])  # perhaps in the middle of a put
        rollouts[0] = Rollout.remote(buffer)
        rollouts[0].run.remote()
        fault()
        while len(buffer) < SLOTS:  # the rollout actors wait for room now
            time.sleep(0.1)
        trainer = Trainer.remote(buffer, kept)
        state = ray.get(trainer.run.remote(STEPS))
        for actor in (*rollouts, trainer):
            ray.kill(actor)
    buffer.close()
    learnt = Counter(map(tuple, state["batches"]))
    assert set(learnt.values()) == {1}, "a batch was learnt from twice"
    for life in {life for life, _ in learnt}:
        numbers = sorted(number for one, number in learnt if one == life)
        assert numbers == list(range(len(numbers))), "a batch is missing"
    print(f"{len(learnt)} batches of {len({life for life, _ in learnt})} lives, each once")
    return len(learnt), len({life for life, _ in learnt})


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
