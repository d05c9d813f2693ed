"""Apache Kafka's ways to do each row, with confluent-kafka.

Failures are seen by ``on_delivery``: ``flush`` alone counts a message that failed as done. Room in
the producer's buffer and a fresh group's start are no settings that are compared.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.python_peers.way import (
    BATCH,
    PAGE,
    PAGES,
    PATIENCE_S,
    SENDERS,
    TICK_MS,
    TICKS,
    Arrivals,
    Way,
    bodies,
    highest,
    of_threads,
    one_by_one,
    paced,
    rate,
    ticks,
    times,
    whole,
)
from benchmarks.scene import Crew

BACKLOG = 500_000
PARTITIONS = 4
ROOM = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1 << 20}
FAILURES_ONLY = {"delivery.report.only.error": True}
AT_ONCE = {"linger.ms": 0}
LONGER = {"linger.ms": 50}
REFETCH = {"fetch.queue.backoff.ms": 5}
SYNCED = {"flush.messages": "1"}
"""Of a topic: fsync behind each append."""


def versions() -> str:
    """As the page says it."""
    library = confluent_kafka.libversion()[0]
    return f"confluent-kafka {version('confluent-kafka')} (librdkafka {library})"


@contextmanager
def connected(where: dict[str, Any]) -> Iterator[list[Way]]:
    """``where``: {"bootstrap.servers": its address}."""
    system = Kafka(where)
    for topic, settings in (
        ("produce", {}),
        ("produce_1k", {}),
        ("one", {}),
        ("backlog", {}),
        ("synced", SYNCED),
    ):
        system.create(topic, settings)
    system.batches("backlog", 100, system.producer({}), BACKLOG)
    yield [
        *system.produced("produce", 100, 500_000),
        Way(
            ("each",),
            "produce, on_delivery, defaults",
            500_000,
            whole(partial(system.each, system.producer({}))),
        ),
        Way(
            ("each",),
            f"produce_batch, on_delivery, {said(LONGER)}",
            500_000,
            whole(partial(system.batches, "produce", 100, system.producer(LONGER))),
            multiple=BATCH,
        ),
        *system.produced("produce_1k", 1_024, 100_000),
        *system.singly("one", "one", 1_000),
        *(
            Way(
                ("steady",),
                f"produce, on_delivery, {said(settings)}",
                TICKS,
                highest(partial(system.offered, system.producer(settings))),
            )
            for settings in ({}, AT_ONCE)
        ),
        *system.consumed(),
        *(
            Way(
                ("idle",),
                f"produce and flush, poll, {said(settings | fetching)}",
                200,
                times(partial(system.end_to_end, settings, fetching)),
            )
            for settings, fetching in (({}, {}), (AT_ONCE, REFETCH))
        ),
        *system.singly("fsync", "synced", 300),
        *(
            Way(
                ("fsync_64",),
                f"produce, {SENDERS} threads, {said(settings)}",
                SENDERS * 20,
                of_threads(Shared(system.producer(settings), "synced")),
                multiple=SENDERS,
            )
            for settings in ({}, AT_ONCE)
        ),
    ]


def said(settings: dict[str, Any]) -> str:
    """As they are written."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "defaults"


class Kafka:
    """Producers, topics and consumers of one broker."""

    def __init__(self, where: dict[str, Any]) -> None:
        self._where = where
        self._admin = AdminClient(where)
        self._numbers = itertools.count()

    def create(self, topic: str, settings: dict[str, str]) -> None:
        """One copy."""
        made = self._admin.create_topics(
            [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1, config=settings)]
        )
        made[topic].result(PATIENCE_S)

    def producer(self, settings: dict[str, Any]) -> Outcomes:
        """With room."""
        return Outcomes(self._where | ROOM | settings)

    def produced(self, row: str, size: int, messages: int) -> list[Way]:
        """The quickest way in which failures are seen."""
        return [
            Way(
                (row,),
                f"produce_batch, on_delivery, {said(settings)}",
                messages,
                whole(partial(self.batches, row, size, self.producer(settings))),
                multiple=BATCH,
            )
            for settings in ({}, FAILURES_ONLY | LONGER)
        ]

    def batches(self, topic: str, size: int, producer: Outcomes, count: int) -> None:
        """New dictionaries for each batch."""
        values = bodies(size)
        for _ in range(max(1, count // BATCH)):
            messages = [{"value": value} for value in values]
            taken = producer.handle.produce_batch(topic, messages)
            if taken != BATCH:
                raise RuntimeError(f"librdkafka took {taken} of {BATCH} messages")
            producer.handle.poll(0)
        producer.flush()

    def each(self, producer: Outcomes, count: int) -> None:
        """A call for each message."""
        values = bodies(100)
        for number in range(count):
            producer.handle.produce("produce", values[number % BATCH], on_delivery=producer.seen)
            producer.handle.poll(0)
        producer.flush()

    def offered(self, producer: Outcomes, count: int, each: int) -> list[float]:
        """See ``highest``; callbacks run at the next tick."""
        values, found = bodies(100), list[float]()
        for due in ticks(count, TICK_MS):

            def came(error: Any, message: Any, due: float = due) -> None:
                producer.seen(error, message)
                found.append((perf_counter() - due) * 1e3)

            for number in range(each):
                producer.handle.produce("produce", values[number % BATCH], on_delivery=came)
            producer.handle.poll(0)
        producer.flush()
        return found

    def singly(self, row: str, topic: str, messages: int) -> list[Way]:
        """``flush`` behind each message: it does not wait for others (``linger.ms``) then."""
        found = []
        for settings in ({}, AT_ONCE):
            producer = self.producer(settings)

            def send(body: bytes, producer: Outcomes = producer) -> None:
                producer.handle.produce(topic, body, on_delivery=producer.seen)
                producer.flush()

            how = f"produce and flush, {said(settings)}"
            found.append(Way((row,), how, messages, one_by_one(send)))
        return found

    def consumed(self) -> list[Way]:
        """By pages that are committed, and one by one."""
        return [
            Way(
                (row,),
                f"{how}, {said(settings)}",
                BACKLOG if row == "batches" else BACKLOG // 2,
                rate(partial(read, settings)),
                counts=row == "batches" or not settings,
                multiple=PAGES,
            )
            for row, how, read in (
                ("batches", f"consume({PAGE}), commit", self.pages),
                ("single", "poll", self.polled),
            )
            for settings in ({}, REFETCH)
        ]

    def consumer(self, topic: str, settings: dict[str, Any]) -> Consumer:
        """Of a new group, from the first message on."""
        group = f"bench-{os.getpid()}-{next(self._numbers)}"
        start = {"group.id": group, "auto.offset.reset": "earliest"}
        consumer = Consumer(self._where | start | settings)
        consumer.subscribe([topic])
        return consumer

    def pages(self, settings: dict[str, Any], count: int) -> float:
        """Messages a second, from the first page to the last; each is committed before the next."""
        by_hand = {"enable.auto.commit": False}
        with closing(self.consumer("backlog", settings | by_hand)) as consumer:
            began, first, got = 0.0, 0, 0
            while got < count:
                page = consumer.consume(PAGE, timeout=PATIENCE_S / 4)
                if not page:
                    raise RuntimeError(f"only {got} of {count} messages came")
                size = 0
                for message in page:
                    if message.error() is not None:
                        raise RuntimeError(str(message.error()))
                    size += len(message.value())
                consumer.commit(asynchronous=False)
                got += len(page)
                if not began:
                    began, first = perf_counter(), got
            return (got - first) / (perf_counter() - began)

    def polled(self, settings: dict[str, Any], count: int) -> float:
        """Messages a second of ``poll``, which commits by itself."""
        with closing(self.consumer("backlog", settings)) as consumer:
            taken(consumer.poll(PATIENCE_S / 4))
            began = perf_counter()
            for _ in range(count - 1):
                taken(consumer.poll(PATIENCE_S / 4))
            return (count - 1) / (perf_counter() - began)

    def end_to_end(
        self, settings: dict[str, Any], fetching: dict[str, Any], count: int
    ) -> list[float]:
        """Milliseconds; a topic and a group for each round."""
        topic, arrivals = f"idle-{next(self._numbers)}", Arrivals(count)
        self.create(topic, {})
        with closing(self.consumer(topic, fetching)) as consumer:
            listener = Crew(1, lambda _: listen(consumer, arrivals))
            producer = self.producer(settings)

            def send(body: bytes) -> None:
                producer.handle.produce(topic, body, on_delivery=producer.seen)
                producer.flush()

            paced(arrivals, count, send)
            listener.join()
        return arrivals.taken()


def taken(message: Any) -> bytes:
    """The value."""
    if message is None or message.error() is not None:
        raise RuntimeError("no message came" if message is None else str(message.error()))
    value: bytes = message.value()
    return value


def listen(consumer: Consumer, arrivals: Arrivals) -> None:
    """Until the last one came."""
    while not arrivals.came(taken(consumer.poll(PATIENCE_S / 4))):
        pass


class Outcomes:
    """A producer, and the failures that its callback told of."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._failed: list[Any] = []
        self.handle = Producer(settings | {"on_delivery": self.seen})

    def seen(self, error: Any, _message: Any) -> None:
        """Of one message."""
        if error is not None:
            self._failed.append(error)

    def flush(self) -> None:
        """All have an outcome. ``RuntimeError`` where one failed."""
        left = self.handle.flush(PATIENCE_S)
        if left or self._failed:
            raise RuntimeError(f"{left} messages have no outcome, failed: {self._failed[:3]}")


class Shared:
    """One producer of many threads: a lock for each message that its outcome opens. A thread of its
    own calls back.
    """

    def __init__(self, producer: Outcomes, topic: str) -> None:
        self._handle, self._topic = producer.handle, topic
        threading.Thread(target=self._serve, daemon=True).start()

    def __call__(self, body: bytes) -> None:
        """Send one, and wait."""
        gate, errors = threading.Lock(), []
        gate.acquire()

        def seen(error: Any, _message: Any) -> None:
            errors.append(error)
            gate.release()

        self._handle.produce(self._topic, body, on_delivery=seen)
        if not gate.acquire(timeout=PATIENCE_S) or errors[0] is not None:
            raise RuntimeError(f"a message was not sent: {errors}")

    def _serve(self) -> None:
        while True:
            self._handle.poll(1.0)
