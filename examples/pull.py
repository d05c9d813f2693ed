"""A program that decides itself what it reads when: replay of a day, a checkpoint of its own,
columns instead of messages.

    python -m examples.pull

Temperatures of four sensors lie in a topic of four queues. A first reader takes them as Arrow
tables and commits what it has summed up; it stops half-way. A second one of the same group goes on
where the first one was. An auditor reads a single sensor's queue again, from a moment in time on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import pyarrow.compute as pc
import ray

import rmq_ray as rmq

TOPIC = "temperatures"
SENSORS, READINGS = 4, 500


def send(cluster: str) -> int:
    """Two halves with a pause between them; returns the time (ms) that lies in the pause."""
    moment = 0
    with rmq.Producer(cluster=cluster) as producer:
        for half in range(2):
            for sensor in range(SENSORS):
                target = rmq.MessageQueue(TOPIC, "broker-a", sensor)
                numbers = range(half * READINGS, (half + 1) * READINGS)
                producer.send_batch(
                    [
                        rmq.Message(TOPIC, b"%d" % number, tag=f"sensor-{sensor}")
                        for number in numbers
                    ],
                    queue=target,
                )
            if not half:
                time.sleep(0.05)
                moment = int(time.time() * 1000)
                time.sleep(0.05)
    return moment


def add_up(reader: Any, totals: dict[str, int], limit: int) -> int:
    """Sums by tag from Arrow tables, each committed; stops after ``limit`` messages or when nothing
    comes any more.
    """
    count = 0
    while count < limit and (batch := reader.poll(250, timeout=2.0)):
        table = batch.to_arrow(["tag", "body"])
        numbers = pc.cast(pc.cast(table["body"], "string"), "int64")
        for row in (
            table.append_column("number", numbers)
            .group_by("tag")
            .aggregate([("number", "sum")])
            .to_pylist()
        ):
            totals[row["tag"]] += row["number_sum"]
        reader.commit(batch)
        count += len(batch)
    return count


def main(cluster: str = "default") -> dict[str, int]:
    """Run it on a cluster that is up; returns the sums by sensor."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=SENSORS)
    moment = send(cluster)
    totals: dict[str, int] = defaultdict(int)
    with rmq.PullConsumer("sums", cluster=cluster, start_from="first", auto_commit=False) as reader:
        reader.subscribe(TOPIC)
        first = add_up(reader, totals, limit=1_000)
    with rmq.PullConsumer("sums", cluster=cluster, start_from="first", auto_commit=False) as reader:
        reader.assign(reader.fetch_message_queues(TOPIC))
        second = add_up(reader, totals, limit=10_000)
    print(
        f"{first} readings by the first reader, {second} by the second, none twice: "
        f"{dict(sorted(totals.items()))}"
    )
    with rmq.PullConsumer("audit", cluster=cluster) as auditor:
        queue = rmq.MessageQueue(TOPIC, "broker-a", 2)
        auditor.assign([queue])
        auditor.seek(queue, auditor.offsets_for_times({queue: moment})[queue])
        again = auditor.poll(10, timeout=5.0)
        print(
            f"sensor 2 after the pause: {[message.body.decode() for message in again]}, "
            f"position {auditor.position(queue)}"
        )
    return dict(totals)


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
