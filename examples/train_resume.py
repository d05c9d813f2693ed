"""A training run over a topic that loses a worker, goes on, and goes on again with another number
of workers: every row is learnt once.

    python -m examples.train_resume

Each worker shuffles the rows of its queues within windows. Its position goes into the same
checkpoint as its part of the model, so both go back together. The model is sums: a row that is
missing or learnt twice shows. Needs the extra ``train``.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import rmq_ray as rmq
from rmq_ray import data as mqd

TOPIC, QUEUES, ROWS = "numbers", 6, 6_000


def fill(cluster: str) -> None:
    """The rows: one number each, spread over the queues."""
    with rmq.Producer("sensors", cluster=cluster) as producer:
        for first in range(0, ROWS, 100):
            bodies = [str(number) for number in range(first, first + 100)]
            producer.send_arrow(TOPIC, pa.table({"body": bodies}))


def save(source: mqd.TrainSource, sums: Any, rank: int) -> None:
    """Model and position of this worker, in one checkpoint with those of all others."""
    with tempfile.TemporaryDirectory() as directory:
        np.save(Path(directory) / f"sums-{rank}.npy", sums)
        source.save(directory)
        ray.train.report(
            {"rows": int(sums[0])}, checkpoint=ray.train.Checkpoint.from_directory(directory)
        )


def train(config: dict[str, Any]) -> None:
    """The train loop of one worker."""
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    saved = ray.train.get_checkpoint() or config["saved"]
    sums = np.zeros(3, np.int64)  # rows, their sum, the sum of their squares
    source = mqd.train_source(
        TOPIC,
        "trainers",
        batch_size=100,
        shuffle_rows=700,
        seed=17,
        columns=["body"],
        end="latest",
        cluster=config["cluster"],
    )
    if source.restore(saved):
        with saved.as_directory() as directory:
            for path in sorted(Path(directory).glob("sums-*.npy"))[rank::workers]:
                sums += np.load(path)
    with source:
        for number in range(config["rounds"]):  # all workers report equally often
            for table in itertools.islice(source, 6):
                rows = np.array(table["body"].to_pylist()).astype(np.int64)
                sums += [len(rows), rows.sum(), (rows**2).sum()]
                if rank == 1 and number == 1 and not Path(config["killed"]).exists():
                    Path(config["killed"]).touch()
                    time.sleep(8)  # Ray Train asks its workers for checkpoints every 2 s
                    os.kill(os.getpid(), signal.SIGKILL)
            save(source, sums, rank)
            source.commit()  # for `rmq-ray group lag trainers`; the checkpoint decides


def run(cluster: str, directory: str, workers: int, rounds: int, saved: Any) -> Any:
    """One training run; returns its last checkpoint."""
    trainer = DataParallelTrainer(
        train,
        train_loop_config={
            "cluster": cluster,
            "rounds": rounds,
            "saved": saved,
            "killed": f"{directory}/killed",
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": 0.5}
        ),
        run_config=ray.train.RunConfig(
            name=f"with-{workers}",
            storage_path=f"{directory}/train",
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    )
    return trainer.fit().checkpoint


def main(cluster: str = "default") -> list[int]:
    """The sums that all workers have together: rows, their sum, the sum of their squares."""
    rmq.connect(cluster).admin.create_topic(TOPIC, queues=QUEUES)
    fill(cluster)
    with tempfile.TemporaryDirectory() as directory:
        half = run(cluster, directory, 2, 3, None)  # a worker is killed in the second round
        whole = run(cluster, directory, 3, 5, half)
        with whole.as_directory() as saved:
            sums = sum(np.load(path) for path in Path(saved).glob("sums-*.npy"))
    print(f"{sums[0]} of {ROWS} rows, sum {sums[1]}, sum of squares {sums[2]}")
    return [int(value) for value in sums]


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
