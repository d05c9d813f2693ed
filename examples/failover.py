"""A broker with a slave goes through the death of its master, through a hand-over, and through the
loss of a copy for good: who sends retries, who listens notices nothing.

    python -m examples.failover

Readings are sent one by one and counted when every copy in sync has them (replication="sync"). The
master's process is killed with signal 9: Ray has it back on its disk in about a second, before the
slave would take over (2.5 s; on a slow machine it does), and it is elected again. Later whoever is
slave then is made master by hand, as before an upgrade, and the old master follows it. At last the
master is stopped and does not come back: the other copy is master, and goes on alone, because
copies_min=1 lets it. Every reading arrives. A host of its own for each copy, which makes this worth
while, takes a topology file: docs/operations.md.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ray

import rmq_ray as rmq

TOPIC, READINGS = "readings", 400
KILLED_AT, HANDED_OVER_AT, GONE_AT = 100, 200, 300


def send(producer: rmq.Producer, number: int) -> float:
    """Until both copies have it; returns the seconds that this took. A reading may be stored twice,
    so its number goes with it.
    """
    begun = time.monotonic()
    while True:
        try:
            producer.send(TOPIC, b"%d" % number)
            return time.monotonic() - begun
        except rmq.SendError as error:
            if time.monotonic() - begun > 60:
                raise error
        time.sleep(0.02)


def master(mq: rmq.Cluster) -> dict[str, Any]:
    """Replica, address, epoch of the copy that is master, once one does."""
    begun = time.monotonic()
    while time.monotonic() - begun < 60:
        for row in mq.replicas():
            if row["role"] == "master":
                return row
        time.sleep(0.2)
    raise TimeoutError("no copy is master")


def when_in_sync(change: Callable[[], object]) -> None:
    """Do what needs the other copy as soon as it serves and has everything."""
    begun = time.monotonic()
    while True:
        try:
            change()
            return
        except rmq.ClusterError:
            if time.monotonic() - begun > 60:
                raise
        time.sleep(0.2)


def main(store_path: str, cluster: str = "failover") -> dict[str, Any]:
    """Start a cluster of its own, kill its master, hand over, take a copy away, stop it; returns
    what was found.
    """
    mq = rmq.start(
        cluster,
        replicas=1,
        replication="sync",
        broker_settings={"copies_min": 1},
        store_path=store_path,
        store_settings={"segment_bytes": 64 << 20},
    )
    received: set[int] = set()
    complete = threading.Event()

    def listen(messages: list[Any], _context: Any) -> None:
        received.update(int(message.body) for message in messages)
        if len(received) == READINGS:
            complete.set()

    try:
        before = master(mq)
        with (
            rmq.Producer(cluster=cluster) as producer,
            rmq.PushConsumer(
                "dashboard",
                listener=listen,
                subscriptions={TOPIC: "*"},
                cluster=cluster,
                start_from="first",
            ),
        ):
            longest, led, gone = 0.0, before, before
            for number in range(READINGS):
                if number == KILLED_AT:
                    os.kill(mq.status()[f"broker-a/{before['replica']}"]["pid"], signal.SIGKILL)
                if number == HANDED_OVER_AT:
                    led = master(mq)
                    when_in_sync(partial(mq.promote, "broker-a"))
                if number == GONE_AT:
                    gone = master(mq)
                    when_in_sync(partial(mq.stop_broker, "broker-a", gone["replica"]))
                longest = max(longest, send(producer, number))
            complete.wait(60)
        after = master(mq)
        print(
            f"{len(received)} of {READINGS} readings arrived; the longest send took {longest:.1f} s"
        )
        print(
            f"master: replica {before['replica']} in epoch {before['epoch']}, handed over "
            f"from replica {led['replica']} to {gone['replica']} in epoch {gone['epoch']}, which "
            f"was taken away: replica {after['replica']} goes on alone in epoch {after['epoch']}"
        )
        print(f"status says: {mq.weak_brokers()['broker-a']}")
        return {
            "arrived": len(received),
            "handed_over": (led["replica"], gone["replica"]),
            "alone": after["replica"],
            "epochs": (before["epoch"], after["epoch"]),
        }
    finally:
        mq.stop()


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
