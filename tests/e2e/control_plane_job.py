"""What sends and receives while Ray's control plane is dead: a driver that answers a line on
standard input with a line of JSON.

    python control_plane_job.py <Ray address> <store directory> <brokers | copies>
    then: mark | late | master | end

brokers: two of them; copies: one broker with two slaves, SYNC_MASTER. The cluster has this name; it
is stopped at the end.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import ray

import rmq_ray as rmq
from rmq_ray.actors import gateway, names

TOPIC = "beats"
PAUSE_S = 0.02


class Beats:
    """Numbers to broker-a, one after the other, and what a consumer got of them."""

    def __init__(self, producer: rmq.Producer) -> None:
        self._producer = producer
        self._end = threading.Event()
        self.sent = 0
        self.received: list[int] = []
        self.errors: list[str] = []
        self.gap_ms = {"send": 0.0, "receive": 0.0}
        self._last = {"send": time.monotonic(), "receive": time.monotonic()}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        queue = rmq.MessageQueue(TOPIC, "broker-a", 0)
        while not self._end.is_set():
            try:
                self._producer.send(TOPIC, b"%d" % self.sent, queue=queue)
                self.sent += 1
                self._passed("send")
            except rmq.RmqError as error:
                self.errors.append(repr(error)[:300])
            time.sleep(PAUSE_S)

    def _passed(self, what: str) -> None:
        now = time.monotonic()
        self.gap_ms[what] = max(self.gap_ms[what], (now - self._last[what]) * 1000)
        self._last[what] = now

    def take(self, messages: list[Any], _context: Any) -> None:
        self.received += [int(message.body) for message in messages]
        self._passed("receive")

    def mark(self) -> dict[str, Any]:
        """Since the last mark: the longest pauses; and the counts."""
        found = {
            "sent": self.sent,
            "received": len(self.received),
            "gap_ms": dict(self.gap_ms),
            "errors": self.errors[:3],
        }
        self.gap_ms = {"send": 0.0, "receive": 0.0}
        return found

    def end(self) -> dict[str, Any]:
        self._end.set()
        self._thread.join(10)
        deadline = time.monotonic() + 60
        while len(self.received) < self.sent and time.monotonic() < deadline:
            time.sleep(0.01)
        return {
            "missing": sorted(set(range(self.sent)) - set(self.received))[:10],
            "twice": len(self.received) - len(set(self.received)),
        }


def late(producer: rmq.Producer) -> dict[str, Any]:
    """A send to the broker that was killed, as soon as it is back."""
    begun = time.monotonic()
    queue = rmq.MessageQueue(TOPIC, "broker-b", 0)
    while time.monotonic() - begun < 60:
        try:
            producer.send(TOPIC, b"late", queue=queue)
            return {"back_s": round(time.monotonic() - begun, 1)}
        except rmq.RmqError:
            time.sleep(0.1)
    return {"back_s": None}


def master(controller: Any) -> dict[str, Any]:
    """What the controller says of broker-a, by a handle that was looked up before."""
    found = gateway.call(controller, "elections")["broker-a"]
    return {
        key: found[key] for key in ("serving", "master", "master_epoch", "sync_state_set", "why")
    }


def main(address: str, store: str, what: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    layout: dict[str, Any] = (
        {"replicas": 2, "replication": "sync"} if what == "copies" else {"brokers": 2}
    )
    mq = rmq.start(what, store_path=store, store_settings={"segment_bytes": 1 << 22}, **layout)
    controller = gateway.find(names.controller(what))
    mq.admin.create_topic(TOPIC, queues=1)
    with rmq.Producer(
        cluster=what, send_timeout_ms=30_000 if what == "copies" else 3_000
    ) as producer:
        beats = Beats(producer)
        with rmq.PushConsumer(
            "listener",
            listener=beats.take,
            subscriptions={TOPIC: "*"},
            cluster=what,
            start_from="first",
        ):
            status = mq.status()
            pids = {
                name: status[name]["pid"]
                for name in ("broker-a/0", "broker-a/1", "broker-b/0")
                if name in status
            }
            print(json.dumps(pids), flush=True)
            for line in sys.stdin:
                answer = {
                    "mark": beats.mark,
                    "late": lambda: late(producer),
                    "master": lambda: master(controller),
                    "end": beats.end,
                }[line.strip()]()
                print(json.dumps(answer), flush=True)
                if line.strip() == "end":
                    break
    mq.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
