"""``bench produce | consume | e2e``: quick figures of the running cluster, in messages a second and
milliseconds.

Made to answer "is it fast here?"; comparisons with floors and peers are the project's ``make
bench``.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import click

import rmq_ray
from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import AdminError, GroupNotFound, TopicNotFound

TOPIC = "rmq-ray-bench"
PATIENCE_S = 60.0
_messages = click.option(
    "--messages", default=100_000, show_default=True, type=click.IntRange(min=1), help="How many."
)
_size = click.option(
    "--size",
    default=100,
    show_default=True,
    type=click.IntRange(1, 4 << 20),
    help="Bytes of each body.",
)
_topic = click.option("--topic", default=TOPIC, show_default=True, help="Topic to use.")


@click.group()
def bench() -> None:
    """Quick figures of the running cluster."""


@bench.command()
@_messages
@_size
@_topic
@pass_options
@told
def produce(options: Options, messages: int, size: int, topic: str) -> None:
    """Send as fast as one process can, self-batched."""
    options.connect()
    rate = _produce(options.cluster, topic, messages, size)
    output.record(
        {"messages": messages, "size": size, "messages_per_s": round(rate)}, options.style
    )


@bench.command()
@_messages
@_size
@_topic
@pass_options
@told
def consume(options: Options, messages: int, size: int, topic: str) -> None:
    """Send first, then consume everything with a new group, bodies read."""
    options.connect()
    _produce(options.cluster, topic, messages, size)
    counter = _Counter(messages)
    group = f"rmq-ray-bench-{SYSTEM_CLOCK.now_ms()}"
    begin = SYSTEM_CLOCK.monotonic_ms()
    with rmq_ray.PushConsumer(
        group,
        listener=counter,
        subscriptions={topic: "*"},
        start_from="first",
        batch_size=32,
        cluster=options.cluster,
    ):
        complete = counter.complete.wait(PATIENCE_S)
        seconds = (SYSTEM_CLOCK.monotonic_ms() - begin) / 1000
    if not complete:
        raise click.ClickException(
            f"only {counter.count} of {messages} messages came within {PATIENCE_S:.0f} s"
        )
    output.record(
        {"messages": counter.count, "size": size, "messages_per_s": round(counter.count / seconds)},
        options.style,
    )
    _forget(options, group)


@bench.command()
@click.option(
    "--messages",
    default=1_000,
    show_default=True,
    type=click.IntRange(min=10),
    help="How many, one at a time.",
)
@_size
@_topic
@pass_options
@told
def e2e(options: Options, messages: int, size: int, topic: str) -> None:
    """Time from send to listener, idle cluster, one message at a time."""
    options.connect()
    topic = f"{topic}-e2e-{SYSTEM_CLOCK.now_ms()}"
    arrived = threading.Semaphore(0)

    def listener(found: list[Any], ctx: Any) -> None:
        for _ in found:
            arrived.release()

    group = f"{topic}-group"
    options.admin.create_topic(topic, queues=1)
    times = []
    with (
        rmq_ray.Producer("rmq-ray-bench-e2e", cluster=options.cluster) as producer,
        rmq_ray.PushConsumer(
            group,
            listener=listener,
            subscriptions={topic: "*"},
            start_from="first",
            cluster=options.cluster,
        ),
    ):
        for _ in range(messages):
            begin = SYSTEM_CLOCK.monotonic_ms()
            producer.send(topic, b"x" * size)
            if not arrived.acquire(timeout=PATIENCE_S):
                raise click.ClickException(f"a message did not arrive within {PATIENCE_S:.0f} s")
            times.append(SYSTEM_CLOCK.monotonic_ms() - begin)
            SYSTEM_CLOCK.sleep_ms(1)
    times.sort()
    output.record(
        {
            "messages": messages,
            "p50_ms": round(times[len(times) // 2], 3),
            "p99_ms": round(times[int(len(times) * 0.99)], 3),
            "max_ms": round(times[-1], 3),
        },
        options.style,
    )
    _forget(options, group, topic)


def _forget(options: Options, group: str, *topics: str) -> None:
    """Leave nothing behind but the benchmark's topic. The broker may still be unregistering the
    consumer, which keeps its group.
    """
    give_up = SYSTEM_CLOCK.monotonic_ms() + 1_000 * PATIENCE_S
    while True:  # ends: without the group, or when the time is over
        try:
            options.admin.delete_group(group)
            break
        except GroupNotFound:
            break
        except AdminError:
            if SYSTEM_CLOCK.monotonic_ms() > give_up:
                return
            SYSTEM_CLOCK.sleep_ms(100)
    for topic in topics:
        with suppress(AdminError, TopicNotFound):
            options.admin.delete_topic(topic)


def _produce(cluster: str, topic: str, messages: int, size: int) -> float:
    body = b"x" * size
    with rmq_ray.Producer("rmq-ray-bench", cluster=cluster) as producer:
        producer.send(topic, body)  # route and connection; counts as one of them
        begin = SYSTEM_CLOCK.monotonic_ms()
        futures = [producer.send_async(topic, body) for _ in range(messages - 1)]
        for future in futures:
            future.result(timeout=PATIENCE_S)
        return messages / max(1e-9, (SYSTEM_CLOCK.monotonic_ms() - begin) / 1000)


class _Counter:
    """Listener that reads every body and counts."""

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self.bytes = 0
        self._wanted = wanted
        self._lock = threading.Lock()
        self.complete = threading.Event()

    def __call__(self, messages: list[Any], ctx: Any) -> None:
        size = sum(len(message.body) for message in messages)
        with self._lock:
            self.count += len(messages)
            self.bytes += size
            if self.count >= self._wanted:
                self.complete.set()
