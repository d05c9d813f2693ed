"""Events of one account are booked in their order, whatever fails in between; accounts run beside
one another.

python -m examples.orderly
"""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

import rmq_ray as rmq

TOPIC = "bookings"
ACCOUNTS, EVENTS = 6, 50


class Ledger:
    """Books amounts; the first try of every tenth event of an account fails, as a database
    would.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: set[str] = set()
        self.booked: dict[str, list[int]] = {}

    def __call__(self, messages: list[rmq.MessageExt], ctx: rmq.OrderlyContext) -> Any:
        """One event. Until it is booked, nothing behind it in its queue is handed out."""
        (message,) = messages
        account, number = message.properties["account"], int(message.body)
        with self._lock:
            if number % 10 == 9 and message.message_id not in self._failed:
                self._failed.add(message.message_id)
                ctx.suspend_ms = 20
                return rmq.SUSPEND_CURRENT_QUEUE_A_MOMENT
            self.booked.setdefault(account, []).append(number)
        return None

    def done(self) -> int:
        """How many events are booked."""
        with self._lock:
            return sum(map(len, self.booked.values()))


def main(cluster: str = "default") -> dict[str, list[int]]:
    """Send 50 events for each of 6 accounts, book them with two consumers; returns the events of
    each account as they were booked.
    """
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=4)
    ledger = Ledger()
    consumers = [
        rmq.PushConsumer(
            "ledger",
            listener=ledger,
            subscriptions={TOPIC: "*"},
            orderly=True,
            start_from="first",
            cluster=cluster,
        )
        for _ in range(2)
    ]
    with consumers[0], consumers[1], rmq.Producer("bank", cluster=cluster) as bank:
        for number in range(EVENTS):
            for account in range(ACCOUNTS):
                bank.send(
                    TOPIC,
                    b"%d" % number,
                    properties={"account": f"a-{account}"},
                    message_group=f"a-{account}",
                )
        deadline = time.monotonic() + 60
        while ledger.done() < ACCOUNTS * EVENTS and time.monotonic() < deadline:
            time.sleep(0.05)
    return ledger.booked


if __name__ == "__main__":
    ray.init()
    queue = rmq.start("default", store_path="rmq-data")
    for account, events in sorted(main().items()):
        print(
            account,
            "in order" if events == sorted(events) else "OUT OF ORDER",
            len(events),
            "events",
        )
    queue.stop()
