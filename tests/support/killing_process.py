"""A cluster in a process that kills itself at a chosen step of storing: ``python -m tests.support.killing_process DIRECTORY STEP``.

STEP: ``before TOPIC [N]`` or ``after TOPIC [N]``: SIGKILL right before or after the N-th (1) single message for that topic is written, long before it is
answered; or ``never``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from rmq_ray.store.message_store import AppendResult, MessageStore
from rmq_ray.store.single_message import StoredMessage
from tests.support.live_cluster import LiveCluster

QUICK = {"transaction_timeout_ms": 300, "transaction_check_interval_ms": 400}
"""Broker settings of a life that begins every half second what takes a minute otherwise."""


def kill_at(step: str) -> None:
    """Arrange the end."""
    moment, _, rest = step.partition(" ")
    topic, _, number = rest.partition(" ")
    count: Counter[str] = Counter()
    append = MessageStore.append_message

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def append_message(self: MessageStore, message: StoredMessage, *rest: Any) -> AppendResult:
        count[message.topic] += 1
        here = message.topic == topic and count[topic] == int(number or 1)
        if here and moment == "before":
            die()
        result = append(self, message, *rest)
        if here and moment == "after":
            die()
        return result

    MessageStore.append_message = append_message  # type: ignore[method-assign]


if __name__ == "__main__":
    if sys.argv[2] != "never":
        kill_at(sys.argv[2])
    with LiveCluster(Path(sys.argv[1]), broker=QUICK) as living:
        print(living.lookup().name_servers[0], flush=True)
        threading.Event().wait(120)
