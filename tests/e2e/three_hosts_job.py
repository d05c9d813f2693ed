"""What people run on the head of a cluster: producer and consumer actors from a script, bulk reads,
Spark. Writes what it found to /mnt/answer.json.

    python three_hosts_job.py produce:0:2000       producer actors send messages 0..1999; says how
                                                   many are stored
    python three_hosts_job.py consume:4000         consumer actors gather messages until so many
                                                   different ones came
    python three_hosts_job.py plan                 plans a bulk read and keeps the plan
    python three_hosts_job.py scan:db1:db2         reads what was planned on these hosts: beside the
                                                   log where it can, and through the stream
    python three_hosts_job.py spark                reads the topic into Spark
    python three_hosts_job.py create_table         makes the topic a table in the desk's store
    python three_hosts_job.py table                waits until all is in the table, and verifies it

Several words are done one after the other.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

import rmq_ray as rmq
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.scan.scan_plan import open_reader, plan_scan
from rmq_ray.client.scan.stream_split_reader import StreamSplitReader
from rmq_ray.clock import SYSTEM_CLOCK
from tests.e2e.three_hosts_lake import LOCATION
from tests.support.waiting import eventually

CLUSTER, TOPIC = "hosts", "orders"
ACTORS, BATCH = 2, 100
PLACES = (
    "store_head",
    "store_db2",
)  # Ray gives work to a host that lost its power until it has declared it dead
PLAN = Path("/mnt/plan.pickle")


class Gather:
    """Keeps the numbers of the messages that it was given."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, message: Any) -> None:
        self.seen.append(int(message.body))

    def numbers(self) -> list[int]:
        return self.seen


def produce(first: int, end: int) -> dict[str, Any]:
    """Each actor sends every second number; a batch that a dead host did not acknowledge is sent
    again, so numbers may come twice.
    """
    actors = [
        rmq.ProducerActor.options(num_cpus=0, resources={place: 0.001}).remote(cluster=CLUSTER)
        for place in PLACES
    ]
    waiting = []
    for index, actor in enumerate(actors):
        numbers = list(range(first + index, end, len(PLACES)))
        waiting.append(
            actor.run.remote(
                stored, [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
            )
        )
    found = ray.get(waiting, timeout=90)
    return {
        "stored": sum(count for count, _ in found),
        "brokers": sorted(set().union(*(brokers for _, brokers in found))),
    }


def stored(producer: rmq.Producer, batches: list[list[int]]) -> tuple[int, set[str]]:
    """(messages that are acknowledged, brokers that have them): inside the actor."""
    count, brokers = 0, set()
    for numbers in batches:
        deadline = time.monotonic() + 60
        while True:
            try:
                results = producer.send_batch(
                    [rmq.Message(TOPIC, b"%d" % number) for number in numbers]
                )
                if all(result.status is rmq.SendStatus.SEND_OK for result in results):
                    break
            except rmq.RmqError as error:
                if time.monotonic() > deadline:
                    raise error
            time.sleep(0.1)
        count += sum(result.count for result in results)
        brokers |= {result.queue.broker_name for result in results}
    return count, brokers


def consume(expected: int) -> dict[str, Any]:
    """Until that many different numbers came, at most 60 s."""
    app = rmq.consumer(TOPIC, group=f"readers-{expected}", start_from="first")(Gather)
    workers = app.deploy(ACTORS, cluster=CLUSTER, num_cpus=0)
    deadline = time.monotonic() + 60
    try:
        while True:
            seen = [number for numbers in workers.ask("numbers") for number in numbers]
            if len(set(seen)) >= expected or time.monotonic() > deadline:
                return {"numbers": sorted(set(seen)), "repeats": len(seen) - len(set(seen))}
            time.sleep(0.2)
    finally:
        workers.stop()


def plan() -> dict[str, Any]:
    """Kept in a file: a later word reads it, whoever is master then."""
    made = plan_scan(discovery_for(CLUSTER, None, b""), TOPIC, "earliest", "latest", 4)
    PLAN.write_bytes(pickle.dumps(made))
    return {
        "rows": made.rows,
        "copies": {split.queue.broker_name: len(split.addresses) for split in made.splits},
    }


def rows_read(data: bytes, beside: bool) -> int:
    made = pickle.loads(data)
    reader: Any = open_reader(made) if beside else StreamSplitReader(made.credentials, SYSTEM_CLOCK)
    try:
        return sum(len(sizes) for split in made.splits for _, sizes in reader.read(split, 1 << 20))
    finally:
        reader.close()


def scan(*hosts: str) -> dict[str, Any]:
    """host -> [rows read beside the log where that is there, rows read through the stream]."""
    data = PLAN.read_bytes()
    tasks = {
        host: [
            ray.remote(rows_read)
            .options(num_cpus=0, resources={f"store_{host}": 0.001})
            .remote(data, beside)
            for beside in (True, False)
        ]
        for host in hosts
    }
    return {"scans": {host: ray.get(both, timeout=90) for host, both in tasks.items()}}


def spark() -> dict[str, Any]:
    """How many messages, and how many different ones."""
    from rmq_ray import spark as mqs

    session = mqs.session(
        "hosts", executor_cores=1, quick_start=True, configs={"spark.sql.shuffle.partitions": 1}
    )
    try:
        rows = (
            mqs.read_topic(session, TOPIC, cluster=CLUSTER)
            .selectExpr("count(*)", "count(distinct body)")
            .collect()[0]
        )
        return {"spark": [int(rows[0]), int(rows[1])]}
    finally:
        mqs.stop()


def create_table() -> dict[str, Any]:
    rmq.connect(CLUSTER).tables.create(TOPIC, LOCATION, max_lag_s=10)
    return {}


def table() -> dict[str, Any]:
    """Rows that log and table both have, and whether they are the same."""
    tables = rmq.connect(CLUSTER).tables

    def is_flushed() -> bool:
        with suppress(rmq.ClusterError):  # its archivist begins on another host
            tables.flush(TOPIC, 30.0)
            return True
        return False

    eventually(is_flushed)
    found = tables.verify(TOPIC)
    return {"table": [sum(row["table_rows"] for row in found), all(row["equal"] for row in found)]}


if __name__ == "__main__":
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    answer: dict[str, Any] = {}
    for word in sys.argv[1:]:
        name, *arguments = word.split(":")
        work: Any = {
            "produce": produce,
            "consume": consume,
            "plan": plan,
            "scan": scan,
            "spark": spark,
            "create_table": create_table,
            "table": table,
        }[name]
        answer |= work(
            *(int(argument) if argument.isdigit() else argument for argument in arguments)
        )
    Path("/mnt/answer.json").write_text(json.dumps(answer))
