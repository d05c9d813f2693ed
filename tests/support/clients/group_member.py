"""What ``GroupMember`` of interop is, with our consumers: ``python -m
tests.support.clients.group_member``.

Arguments: name server, its name, how many messages to send, the cluster's name and secret. Prints
JSON lines: each message that it got, and each 200 ms which queues it holds; goes on until its input
ends or it is killed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.client.messages.listener import RECONSUME_LATER, SUSPEND_CURRENT_QUEUE_A_MOMENT
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig

RETRIED = 10
"""Of so many offsets one fails at first."""
_printing = threading.Lock()


def tell(**line: Any) -> None:
    """One line, whole."""
    with _printing:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def told(group: str, message: Any) -> None:
    """What came, as ``GroupMember`` tells it."""
    tell(
        kind="got",
        group=group,
        at=time.time_ns() // 1_000_000,
        topic=message.topic,
        queue=message.queue.queue_id,
        offset=message.queue_offset,
        times=message.reconsume_times,
        body=bytes(message.body).decode(),
        id=message.message_id,
        tag=message.tag,
        keys=" ".join(message.keys),
        born=message.born_ms,
        stored=message.store_ms,
        properties=dict(message.all_properties),
    )


def main(name_server: str, name: str, sends: int, cluster: str, secret: str) -> None:
    """Consume until the input ends."""
    discovery = StaticDiscovery(name_server, secret.encode(), cluster)
    failed: set[tuple[int, int]] = set()

    def free(messages: list[Any], ctx: Any) -> Any:
        for message in messages:
            told("free", message)
            if not message.reconsume_times and message.queue_offset % RETRIED == 5:
                ctx.delay_level_when_next_consume = 1
                return RECONSUME_LATER
        return None

    def ordered(messages: list[Any], ctx: Any) -> Any:
        (message,) = messages
        place = message.queue.queue_id, message.queue_offset
        if message.queue_offset % RETRIED == 5 and place not in failed:
            failed.add(place)
            ctx.suspend_ms = 20
            return SUSPEND_CURRENT_QUEUE_A_MOMENT
        told("ordered", message)
        return None

    consumers = {
        group: PushConsumer(
            f"mixed-{group}",
            listener=listener,
            subscriptions={topic: "*"},
            discovery=discovery,
            client_id=f"python@{name}",
            start_from="first",
            orderly=group == "ordered",
            config=ConsumerConfig(f"mixed-{group}", lock_refresh_ms=1_000, lock_trusted_ms=5_000),
        )
        for group, topic, listener in (("free", "Free", free), ("ordered", "Ordered", ordered))
    }
    with consumers["free"], consumers["ordered"]:
        with Producer(f"mixed-{name}", discovery=discovery) as producer:
            for number in range(sends):
                keys = [f"{name}-{number}", "second"]
                body = f"{name}-{number}".encode()
                producer.send("Free", body, tag="python", keys=keys, properties={"city": "Zürich"})
        ended = threading.Event()
        threading.Thread(target=_holds, args=(consumers, ended), daemon=True).start()
        sys.stdin.read()
        ended.set()
    tell(kind="left")


def _holds(consumers: dict[str, PushConsumer], ended: threading.Event) -> None:
    while not ended.wait(0.2):
        for group, consumer in consumers.items():
            held = [one.queue_id for one in consumer.assignment() if not one.topic.startswith("%")]
            tell(kind="held", group=group, queues=held)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
