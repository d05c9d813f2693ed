"""A consumer with limits for each key, on a real broker: a busy key holds nobody up, and nothing is
lost or repeated.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.consumer.key_limits import KeyLimits
from rmq_ray.client.messages.listener import RECONSUME_LATER
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.outcomes import judging
from tests.support.waiting import eventually

KEYS, EACH = 5, 60


class Calls:
    """A listener that counts what runs at once of each key. ``hold``: those of key "0" wait."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.done: list[bytes] = []
        self.most: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._failed = False
        self._lock = threading.Lock()

    def __call__(self, messages: list[Any], ctx: Any) -> Any:
        (message,) = messages
        (key,) = message.keys
        with self._lock:
            self._running[key] += 1
            self.most[key] = max(self.most[key], self._running[key])
            fails = not self._failed and key == "1"
            self._failed = self._failed or fails
        if key == "0":
            self.go_on.wait(30)
        with self._lock:
            self._running[key] -= 1
            if fails:
                ctx.delay_level_when_next_consume = 1
                return RECONSUME_LATER
            self.done.append(message.body)
        return None


def test_a_busy_key_holds_up_no_other_one_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    calls = Calls()
    with LiveCluster(tmp_path) as cluster:
        with closing(Admin(cluster)) as admin, Producer("p", discovery=cluster) as producer:
            admin.create_topic("calls", queues=2)
            for number in range(EACH):
                for key in range(KEYS):
                    producer.send("calls", b"%d-%d" % (key, number), keys=[str(key)])
        with PushConsumer(
            "diallers",
            listener=calls,
            subscriptions={"calls": "*"},
            discovery=cluster,
            start_from="first",
            key_limits=KeyLimits(concurrency=2),
        ) as running:
            others = (KEYS - 1) * EACH
            eventually(lambda: len(calls.done) >= others - 1)
            eventually(lambda: running.stats()["waiting_for_keys"] == EACH - 2)
            calls.go_on.set()
            eventually(lambda: len(calls.done) >= KEYS * EACH)
            assert running.stats()["waiting_for_keys"] == 0
    with judging():
        assert len(set(calls.done)) == len(calls.done) == KEYS * EACH
        assert max(calls.most.values()) == calls.most["0"] == 2
