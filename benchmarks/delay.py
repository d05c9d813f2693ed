"""Exact delivery times: how late messages come, and what memory they cost, while a million wait."""

from __future__ import annotations

import struct
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import rmq_ray as rmq
from benchmarks.report import Figure
from benchmarks.scene import Scene, rss_anonymous
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import StoreConfig
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.store.frames.single_message import StoredMessage
from rmq_ray.store.front.message_store import MessageStore

WAITING = 1_000_000
RATE = 500  # messages a second that are due while the others wait
SECONDS = 6
AHEAD_S = 900
BATCH = 1_000


def run(scene: Scene) -> None:
    """A store with many waiting messages, then a broker on it."""
    waiting = scene.count(WAITING, 10_000)
    with scene.cluster() as mq:
        status = mq.status()["broker-a/0"]
        empty = rss_anonymous(int(status["pid"]))
        name, path = mq.name, Path(status["store_path"]) if "store_path" in status else None
    path = path or scene.directory / name / "broker-a"
    begin = time.perf_counter()
    fill(path, waiting)
    scene.report.tell(
        f"{waiting:,} waiting messages written to a store",
        waiting / (time.perf_counter() - begin),
        "msg/s",
    )
    begin = time.perf_counter()
    mq = rmq.start(name, store_path=str(scene.directory / name))
    try:
        scene.report.tell("start on them", time.perf_counter() - begin, "s")
        measure(scene, mq, waiting)
        grown = rss_anonymous(int(mq.status()["broker-a/0"]["pid"])) - empty
        scene.report.tell(f"memory of {waiting:,} waiting messages", grown / (1 << 20), "MiB")
    finally:
        mq.stop()


def fill(path: Path, waiting: int) -> None:
    """Write them as a broker would, due within the quarter of an hour after the measurement,
    without sockets.
    """
    store = MessageStore(
        StoreConfig(str(path)), SYSTEM_CLOCK, broker_name="broker-a", store_host=("127.0.0.1", 1)
    )
    store.open(create=True)
    store.recover()
    store.start(lambda _offset: None)
    due = SYSTEM_CLOCK.now_ms() + 120_000
    step = AHEAD_S * 1_000 / waiting
    for first in range(0, waiting, BATCH):
        items = []
        for number in range(first, min(first + BATCH, waiting)):
            text = (
                b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01waiting\x02REAL_QID\x010\x02UNIQ_KEY\x01%032X"
                % (due + int(number * step), number)
            )
            items.append(
                struct.pack(">iiiii", 22 + 100 + len(text), 0, 0, 0, 100)
                + b"x" * 100
                + struct.pack(">h", len(text))
                + text
            )
        store.append_batch_body(
            StoredMessage(TIMER_TOPIC, 0, b"".join(items), born_ms=SYSTEM_CLOCK.now_ms())
        )
    store.shutdown()


def measure(scene: Scene, mq: rmq.Cluster, waiting: int) -> None:
    """``RATE`` messages a second are due for some seconds; how late each one is stored under its
    own topic.
    """
    mq.admin.create_topic("due", queues=1)
    late: list[float] = []
    done = threading.Event()
    seconds = max(2, int(SECONDS * scene.scale))
    total = RATE * seconds

    def listen(messages: list[rmq.MessageExt], _ctx: object) -> None:
        late.extend(
            message.store_ts.timestamp() * 1_000 - float(message.body) for message in messages
        )
        if len(late) >= total:
            done.set()

    with rmq.Producer("bench-delay", cluster=mq.name) as producer:
        first = datetime.now(UTC) + timedelta(seconds=3 + total / 2_000)
        for number in range(total):
            at = first + timedelta(seconds=number / RATE)
            producer.send_async("due", b"%.3f" % (at.timestamp() * 1_000), deliver_at=at)
        producer.flush(30)
        with rmq.PushConsumer(
            "bench-delay",
            listener=listen,
            subscriptions={"due": "*"},
            start_from="first",
            cluster=mq.name,
        ):
            done.wait(60)
    late.sort()
    worst = late[-1] if late else 60_000.0
    scene.report.add(
        Figure(
            f"delivered late, worst of {len(late):,}, {waiting:,} waiting",
            worst,
            "ms",
            "the limit",
            1_000.0,
            1.0,
            True,
        )
    )
    scene.report.tell("delivered late, median", late[len(late) // 2] if late else 60_000.0, "ms")
    scene.report.add(Figure("delivered early", float(sum(1 for value in late if value < 0)), "msg"))
