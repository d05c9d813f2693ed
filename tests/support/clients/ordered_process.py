"""An ordered consumer in a process of its own, to be killed: ``python -m
tests.support.clients.ordered_process``.

Arguments: discovery (hexadecimal pickle), group, topic, ms that each message takes, lock refresh
ms. Prints a line when the listener gets a message and one when it is through: ``b <broker> <queue
id> <offset> <monotonic s>`` and ``e ...``; the last one may be cut by the kill.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from tests.support.brokers.live_cluster import ROOT
from tests.support.clients.ordered import Handled

LIVES_S = 120


class OrderedProcess:
    """One life of the process. ``kill`` is SIGKILL; ``history`` what it told."""

    def __init__(
        self,
        discovery: Any,
        directory: Path,
        who: str,
        topic: str = "orders",
        group: str = "billing",
        work_ms: int = 3,
        refresh_ms: int = 300,
    ) -> None:
        self.who = who
        self._path = directory / f"{who}.txt"
        found = pickle.dumps(discovery).hex()
        with self._path.open("wb") as out:
            command = [
                sys.executable,
                "-m",
                "tests.support.clients.ordered_process",
                found,
                group,
                topic,
                str(work_ms),
                str(refresh_ms),
            ]
            self._process = subprocess.Popen(command, stdout=out, cwd=ROOT)

    def kill(self) -> None:
        """End it as the out-of-memory killer would."""
        self._process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        """It does nothing more, and nobody sees why."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After ``pause``."""
        self._process.send_signal(signal.SIGCONT)

    def history(self) -> list[Handled]:
        """Every call of the listener so far."""
        open_calls: dict[tuple[str, int, int], float] = {}
        found = []
        for line in self._path.read_text("utf-8").splitlines():
            parts = line.split(" ")
            if len(parts) != 5 or not parts[4].endswith("s"):
                continue
            key, moment = (parts[1], int(parts[2]), int(parts[3])), float(parts[4][:-1])
            if parts[0] == "b":
                open_calls[key] = moment
            elif key in open_calls:
                found.append(Handled(self.who, key[:2], key[2], open_calls.pop(key), moment))
        return found + [
            Handled(self.who, key[:2], key[2], begin, None) for key, begin in open_calls.items()
        ]


def main(discovery: str, group: str, topic: str, work_ms: str, refresh_ms: str) -> None:
    """Consume until killed."""

    def tell(kind: str, message: Any) -> None:
        queue = message.queue
        os.write(
            1,
            (
                f"{kind} {queue.broker_name} {queue.queue_id} {message.queue_offset} "
                f"{time.monotonic()}s\n"
            ).encode(),
        )

    def listener(messages: list[Any], ctx: Any) -> None:
        for message in messages:
            tell("b", message)
        time.sleep(int(work_ms) / 1000)
        for message in messages:
            tell("e", message)

    config = ConsumerConfig(
        group, lock_refresh_ms=int(refresh_ms), lock_trusted_ms=3 * int(refresh_ms)
    )
    found = pickle.loads(bytes.fromhex(discovery))
    with PushConsumer(
        group,
        listener=listener,
        subscriptions={topic: "*"},
        discovery=found,
        start_from="first",
        orderly=True,
        config=config,
    ):
        threading.Event().wait(LIVES_S)


if __name__ == "__main__":
    main(*sys.argv[1:6])
