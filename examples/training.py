"""From actors that make features to a trained model: yesterday's rows as a dataset, then those that came since, by workers that share both.

    python -m examples.training

Two producer actors send rows of eight features and a target. The workers read yesterday's rows as shards of one dataset (each row once), then share
a consumer group for today's (each row at least once; ``iter_batches`` commits a batch when the next one is asked for). The model is least
squares: a worker adds up x'x and x'y of its rows and sends the sums to a topic; whoever wants the model adds those and solves.

The workers are plain actors. In Ray Train the body of ``train`` is the train loop of a ``DataParallelTrainer`` (or ``TorchTrainer``) with
``datasets={"history": ...}``, and the shard comes from ``ray.train.get_dataset_shard("history")``.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd

FEATURES_TOPIC, SUMS_TOPIC = "features", "features-sums"
FEATURES, HISTORY, FRESH, WORKERS = 8, 20_000, 4_000, 2
WEIGHTS = np.arange(1.0, FEATURES + 1)
NOISE = 0.1


def send_features(producer: rmq.Producer, seed: int, rows: int) -> None:
    """Runs in a producer actor. A body: eight features and the target, float64."""
    chance = np.random.default_rng(seed)
    x = chance.standard_normal((rows, FEATURES))
    y = x @ WEIGHTS + NOISE * chance.standard_normal(rows)
    bodies = np.column_stack((x, y))
    width = bodies.shape[1] * 8
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(bodies)])
    producer.send_arrow(FEATURES_TOPIC, pa.table({"body": column.cast(pa.binary())}), body="body")


def produce(cluster: str, rows: int, first_seed: int) -> None:
    """Two producer actors, half of the rows each."""
    actors: list[Any] = [rmq.ProducerActor.options(num_cpus=0).remote("features", cluster=cluster) for _ in range(2)]
    ray.get([actor.run.remote(send_features, first_seed + n, rows // 2) for n, actor in enumerate(actors)])
    for actor in actors:
        ray.get(actor.close.remote())
        ray.kill(actor)


@ray.remote(num_cpus=0)
def train(history: Any, cluster: str, midnight: datetime, idle_s: float) -> dict[str, int]:
    """One worker; ``history``: its shard. Returns how many rows of each kind it learnt from."""
    sums, counts = np.zeros((FEATURES + 1, FEATURES + 1)), {"history": 0, "fresh": 0}

    def learn(what: str, bodies: list[bytes]) -> None:
        rows = np.frombuffer(b"".join(bodies)).reshape(-1, FEATURES + 1)
        sums[:] += rows.T @ rows
        counts[what] += len(rows)

    for batch in history.iter_batches(batch_size=4_096, batch_format="pyarrow"):
        learn("history", batch["body"].to_pylist())
    since: dict[str, Any] = {"start_from": "timestamp", "start_at": midnight}
    for table in mqd.iter_batches(FEATURES_TOPIC, group="trainers", columns=["body"], idle_s=idle_s, cluster=cluster, **since):
        learn("fresh", table["body"].to_pylist())
    with rmq.Producer(cluster=cluster) as producer:
        producer.send(SUMS_TOPIC, sums.tobytes())
    return counts


def main(cluster: str = "default", idle_s: float = 4.0) -> tuple[int, int, Any]:
    """Run it on a cluster that is up; returns how many rows of history and of fresh ones were learnt from, and the weights found."""
    mq = rmq.connect(cluster)
    for topic in (FEATURES_TOPIC, SUMS_TOPIC):
        mq.admin.create_topic(topic, queues=4)
    produce(cluster, HISTORY, first_seed=1)
    time.sleep(0.01)
    midnight = datetime.now(UTC)  # what was stored before is history
    produce(cluster, FRESH, first_seed=3)
    history = mqd.read_topic(FEATURES_TOPIC, end=midnight, columns=["body"], cluster=cluster, splits=4)
    shards = history.streaming_split(WORKERS)
    counts = ray.get([train.remote(shard, cluster, midnight, idle_s) for shard in shards])
    parts = mq.admin.to_arrow(SUMS_TOPIC, columns=["body"])["body"].to_pylist()
    sums = np.sum([np.frombuffer(part).reshape(FEATURES + 1, FEATURES + 1) for part in parts], axis=0)
    learnt = [sum(count[what] for count in counts) for what in ("history", "fresh")]
    weights = np.linalg.solve(sums[:-1, :-1], sums[:-1, -1])
    print(f"{len(parts)} workers learnt from {learnt[0]} rows of history and {learnt[1]} fresh ones: weights {np.round(weights, 2)}")
    return learnt[0], learnt[1], weights


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
