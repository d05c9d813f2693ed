"""A cluster in a process that kills itself at a chosen step of storing: ``python -m
tests.support.faults.killing_process DIRECTORY STEP``.

STEP: ``before TOPIC [N]`` or ``after TOPIC [N]``: SIGKILL right before or after the N-th (1) write
to the log that holds a record for that topic, long before it is answered; ``within TOPIC [N]``:
when the log has that write up to its first record for the topic, and no more; or ``never``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from rmq_ray.codec.record import decode_record
from rmq_ray.files import Bytes
from rmq_ray.store.log.commit_log import CommitLog
from tests.support.brokers.live_cluster import LiveCluster

QUICK = {"transaction_timeout_ms": 300, "transaction_check_interval_ms": 400}
"""Broker settings of a life that begins every half second what takes a minute otherwise."""


def kill_at(step: str) -> None:
    """Arrange the end."""
    moment, _, rest = step.partition(" ")
    topic, _, number = rest.partition(" ")
    wanted, count = int(number or 1), 0
    write = CommitLog.write

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_write(self: CommitLog, data: Bytes, log_offset: int, length: int) -> None:
        nonlocal count
        end = first_end(bytes(data), topic)
        count += end > 0
        here = end > 0 and count == wanted
        if here and moment == "before":
            die()
        if here and moment == "within":
            write(self, bytes(data)[:end], log_offset, end)
            die()
        write(self, data, log_offset, length)
        if here:
            die()

    CommitLog.write = dying_write  # type: ignore[method-assign]


def first_end(data: bytes, topic: str) -> int:
    """Where the first record for ``topic`` ends; 0 when there is none."""
    at = 0
    while at < len(data):
        record = decode_record(data, at)
        at += record.size
        if record.topic == topic:
            return at
    return 0


if __name__ == "__main__":
    if sys.argv[2] != "never":
        kill_at(sys.argv[2])
    with LiveCluster(Path(sys.argv[1]), broker=QUICK) as living:
        print(living.lookup().name_servers[0], flush=True)
        threading.Event().wait(120)
