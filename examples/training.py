"""From actors that measure, through Spark that makes features, to Ray Train: history first, then
what comes in, each row learnt once.

    python -m examples.training        --kill: a worker is killed in the middle; same result

Producer actors send raw measurements to "measured". Spark turns what is new into features in
"features", as a stream with a checkpoint. Ray Train's workers read the history as shards of one
dataset, then each its own queues of the topic without an end (``iter_batches(shard=...)``). A
worker saves its model and the position up to which the model has learnt in one checkpoint: after a
death both go back together.

The model is least squares, trained by adding up x'x and x'y: every row that is missing or learnt
twice shows. Needs the extras ``spark`` and ``train``.
"""

from __future__ import annotations

import os
import signal
import sys
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
from rmq_ray import spark as mqs

MEASURED, FEATURES = "measured", "features"
HISTORY, FRESH, WORKERS, ROUNDS = 4_000, 1_000, 2, 2
WEIGHTS = np.array([5.0, 2.0, -3.0, 0.5])  # of 1, a, b, a * b
NOISE = 0.1


def measure(producer: rmq.Producer, seed: int, rows: int) -> None:
    """Runs in a producer actor. A body: a, b and what came of them."""
    chance = np.random.default_rng(seed)
    a, b = chance.standard_normal((2, rows))
    y = WEIGHTS @ np.array([np.ones(rows), a, b, a * b]) + NOISE * chance.standard_normal(rows)
    producer.send_arrow(
        MEASURED,
        pa.table(
            {
                "body": [
                    f"{one},{other},{result}" for one, other, result in zip(a, b, y, strict=True)
                ]
            }
        ),
    )


def produce(actors: list[Any], rows: int, first_seed: int) -> None:
    """By producer actors, an equal part of the rows each."""
    each = rows // len(actors)
    ray.get([actor.run.remote(measure, first_seed + n, each) for n, actor in enumerate(actors)])


def make_features(session: Any, cluster: str, checkpoint: str) -> None:
    """What was measured since the last time: 1, a, b, a * b and the result, as text."""
    measured = mqs.read_stream(
        session, MEASURED, group="features", columns=["body"], cluster=cluster
    ).dataframe()
    numbers = measured.selectExpr("split(string(body), ',') as v").selectExpr(
        "double(v[0]) as a", "double(v[1]) as b", "v[2] as y"
    )
    features = numbers.selectExpr("concat_ws(',', '1', a, b, a * b, y) as body")
    query = mqs.write_stream_topic(
        features, FEATURES, checkpoint=checkpoint, available_now=True, partitions=2, cluster=cluster
    )
    query.awaitTermination()


def learn(bodies: Any) -> Any:
    """What a column of bodies adds to the sums."""
    rows = np.array([body.decode().split(",") for body in bodies.to_pylist()], dtype=float).reshape(
        -1, len(WEIGHTS) + 1
    )
    return rows.T @ rows


def save(rank: int, sums: Any, position: str) -> None:
    """Model and position of one worker; Ray Train puts the files of all workers into one checkpoint
    when all have come here.
    """
    with tempfile.TemporaryDirectory() as directory:
        np.save(Path(directory) / f"sums-{rank}.npy", sums)
        (Path(directory) / f"position-{rank}.json").write_text(position)
        ray.train.report(
            {"rows": int(sums[0, 0])}, checkpoint=ray.train.Checkpoint.from_directory(directory)
        )


def die(once: str) -> None:
    """In the middle of a round: what this worker has learnt since its last checkpoint is lost with
    it, and comes again.
    """
    Path(once).touch()
    time.sleep(3)  # Ray Train asks its workers for checkpoints every 2 s
    os.kill(os.getpid(), signal.SIGKILL)


def train(config: dict[str, Any]) -> None:
    """The train loop of one worker."""
    rank, workers = (
        ray.train.get_context().get_world_rank(),
        ray.train.get_context().get_world_size(),
    )
    sums, positions = np.zeros((len(WEIGHTS) + 1, len(WEIGHTS) + 1)), [config["history_end"]]
    saved = ray.train.get_checkpoint()
    if saved is not None:
        with saved.as_directory() as directory:
            sums += np.load(Path(directory) / f"sums-{rank}.npy")
            positions = [path.read_text() for path in Path(directory).glob("position-*.json")]
    where = {"group": "trainers", "columns": ["body"], "cluster": config["cluster"]}
    with mqd.iter_batches(
        FEATURES,
        shard=(rank, workers),
        after=positions,
        commit="manual",
        idle_s=1.0,
        batch_size=100,
        **where,
    ) as batches:
        if saved is None:
            for batch in ray.train.get_dataset_shard("history").iter_batches(
                batch_size=1_024, batch_format="pyarrow"
            ):
                sums += learn(batch["body"])
            save(rank, sums, batches.position)
        for _ in range(
            ROUNDS
        ):  # of a real job: until it is stopped. All workers report the same number of times
            for table in batches:  # ends when nothing came for a second, and may be entered again
                sums += learn(table["body"])
                if config["kill"] and rank == 0 and not Path(config["kill"]).exists():
                    die(config["kill"])
            save(rank, sums, batches.position)
            batches.commit()  # for the eyes of `rmq-ray group lag trainers`; the checkpoint decides


def main(cluster: str = "default", session: Any = None, kill: bool = False) -> tuple[int, Any]:
    """Run it on a cluster that is up; returns how many rows were learnt from, and the weights
    found. ``session``: a Spark session to use.
    """
    mq = rmq.connect(cluster)
    for topic in (MEASURED, FEATURES):
        mq.admin.create_topic(topic, queues=4)
    spark = session or mqs.session("features", quick_start=True)
    sensors: list[Any] = [
        rmq.ProducerActor.options(num_cpus=0).remote("sensors", cluster=cluster) for _ in range(2)
    ]
    with tempfile.TemporaryDirectory() as directory:
        produce(sensors, HISTORY, first_seed=1)
        make_features(spark, cluster, f"{directory}/features")
        end = {
            rmq.MessageQueue(FEATURES, row["broker"], row["queue"]): row["max_offset"]
            for row in mq.admin.describe_topic(FEATURES)
        }
        history = mqd.read_topic(FEATURES, end=end, columns=["body"], cluster=cluster, splits=2)
        produce(sensors, FRESH, first_seed=3)
        for sensor in sensors:
            ray.get(sensor.close.remote())
            ray.kill(sensor)
        make_features(spark, cluster, f"{directory}/features")
        if session is None:
            mqs.stop()
        trainer = DataParallelTrainer(
            train,
            train_loop_config={
                "cluster": cluster,
                "history_end": end,
                "kill": f"{directory}/killed" if kill else "",
            },
            scaling_config=ray.train.ScalingConfig(
                num_workers=WORKERS, resources_per_worker={"CPU": 0.5}
            ),
            run_config=ray.train.RunConfig(
                storage_path=f"{directory}/train",
                failure_config=ray.train.FailureConfig(max_failures=1),
            ),
            datasets={"history": history},
        )
        result = trainer.fit()
        assert result.checkpoint is not None
        with result.checkpoint.as_directory() as saved:
            sums = sum(np.load(path) for path in Path(saved).glob("sums-*.npy"))
    weights = np.linalg.solve(sums[:-1, :-1], sums[:-1, -1])
    print(f"{WORKERS} workers learnt from {int(sums[0, 0])} rows: weights {np.round(weights, 2)}")
    return int(sums[0, 0]), weights


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main(kill="--kill" in sys.argv)
