"""What slaves cost and give: SYNC_MASTER against ASYNC_MASTER, batched; how fast a fresh one has
the log (``log_copy``); how long a consumer stands still when the master is killed.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import log_copy
from benchmarks.replica_party import Lookup, party, send_all, status, until
from benchmarks.report import Figure
from benchmarks.scene import Scene
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from rmq_ray.model.message import SendStatus

BODY_BYTES = 1_000


def run(scene: Scene) -> None:
    """Both modes with one slave on the same machine, then the catching up of a second one."""
    scene.settle()
    messages = scene.count(400_000)
    rates = {
        mode: produced_rate(scene.directory / f"replication-{mode}", mode, messages)
        for mode in ("async", "sync")
    }
    scene.report.add(
        Figure(
            "SYNC_MASTER, one slave, batches of 1 KB messages",
            rates["sync"],
            "msg/s",
            "ASYNC_MASTER",
            rates["async"],
            0.6,
        )
    )
    log_copy.run(scene)
    gaps = [
        consumer_gap_s(scene.directory / f"replication-gap-{number}")
        for number in range(scene.count(5, 2))
    ]
    scene.report.add(
        Figure(
            "kill -9 of a master until its consumer goes on at the slave, worst",
            max(gaps),
            "s",
            "a second",
            1.0,
            1.0,
            less_is_better=True,
        )
    )


def produced_rate(directory: Path, mode: str, messages: int) -> float:
    """Acknowledged messages per second."""
    directory.mkdir()
    with (
        party(directory, "ns") as name_server,
        party(directory, "master", mode),
        party(directory, "1", mode),
        Producer(
            "bench", discovery=Lookup(name_server), send_timeout_ms=20_000, raise_on_status=False
        ) as producer,
    ):
        until(lambda: producer.send("bench", b"first").status is SendStatus.SEND_OK)
        send_all(producer, min(20_000, messages), BODY_BYTES)
        begin = time.perf_counter()
        send_all(producer, messages, BODY_BYTES)
        seconds = time.perf_counter() - begin
    shutil.rmtree(directory)
    return messages / seconds


def consumer_gap_s(directory: Path) -> float:
    """The longest pause of a consumer of 1,500 messages whose master is killed after 400. Every
    message must come, and once.
    """
    directory.mkdir()
    got: list[tuple[float, bytes]] = []

    def listen(messages: list[Any], _ctx: Any) -> None:
        got.extend((time.perf_counter(), bytes(message.body)) for message in messages)
        time.sleep(0.002)

    config = ConsumerConfig("bench", threshold_messages=50, pull_records=10, concurrency=1)
    with party(directory, "ns") as name_server, party(directory, "1") as slave, ExitStack() as life:
        life.enter_context(party(directory, "master"))
        with Producer("bench", discovery=Lookup(name_server)) as producer:
            for future in [producer.send_async("bench", b"%d" % number) for number in range(1_500)]:
                future.result(30)
            producer.send("bench", b"last")
            until(lambda: status(producer, slave)["store"]["records"] >= 1_501)
        with PushConsumer(
            "bench",
            listener=listen,
            subscriptions={"bench": "*"},
            discovery=Lookup(name_server),
            start_from="first",
            config=config,
        ):
            until(lambda: len(got) > 400, 0.005)
            killed = time.perf_counter()
            life.close()
            until(lambda: len({body for _, body in got}) == 1_501)
    shutil.rmtree(directory)
    assert len(got) == 1_501, f"{len(got) - 1_501} came twice"
    times = [at for at, _ in got]
    return max(after - before for before, after in pairwise(times) if after > killed)
