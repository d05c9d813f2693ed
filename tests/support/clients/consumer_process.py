"""A push consumer in a process of its own, to be stopped and killed: ``python -m
tests.support.clients.consumer_process``.

Arguments: discovery (hexadecimal pickle), group, topic, subscription. Prints one line for each
message it got: queue id and offset.
"""

from __future__ import annotations

import pickle
import sys
import threading
from typing import Any

from rmq_ray.client.push.push_consumer import PushConsumer

LIVES_S = 120


def main(discovery: str, group: str, topic: str, subscription: str) -> None:
    """Consume until killed."""
    lock = threading.Lock()

    def listener(messages: list[Any], ctx: Any) -> None:
        with lock:
            for message in messages:
                sys.stdout.write(f"{message.queue.queue_id} {message.queue_offset}\n")
            sys.stdout.flush()

    found = pickle.loads(bytes.fromhex(discovery))
    with PushConsumer(
        group,
        listener=listener,
        subscriptions={topic: subscription},
        discovery=found,
        start_from="first",
    ):
        threading.Event().wait(LIVES_S)


if __name__ == "__main__":
    main(*sys.argv[1:5])
