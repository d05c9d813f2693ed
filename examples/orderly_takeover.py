"""Two tellers book the events of accounts in order. The second one joins in the middle and takes
over half of the queues; then the first one is killed, and the second one takes over the rest. No
account ever skips an event, and no two tellers work on the same account at once.

python -m examples.orderly_takeover
"""

from __future__ import annotations

import time
from typing import Any

import ray

import rmq_ray as rmq

TOPIC = "transfers"
GROUP = "tellers"
ACCOUNTS, EVENTS = 8, 60
TIMEOUT_S = 120

Booked = dict[str, list[tuple[int, str]]]
"""Account -> (number of the event, who booked it) in the order of booking. What was booked and not
yet committed when a teller was killed stands there twice.
"""


@ray.remote(num_cpus=0)
class Ledger:
    """Where events are booked; it outlives every teller."""

    def __init__(self) -> None:
        self.booked: Booked = {}

    def book(self, account: str, number: int, teller: str) -> None:
        """A real one would refuse what it has already: here repeats are kept, to be seen."""
        self.booked.setdefault(account, []).append((number, teller))

    def all(self) -> Booked:
        """Everything so far."""
        return self.booked


@ray.remote(num_cpus=0)
class Teller:
    """An orderly consumer in a process of its own."""

    def __init__(self, cluster: str, name: str, ledger: Any) -> None:
        self._name, self._ledger = name, ledger
        self._consumer = rmq.PushConsumer(
            GROUP,
            listener=self._book,
            subscriptions={TOPIC: "*"},
            orderly=True,
            start_from="first",
            cluster=cluster,
        )
        self._consumer.start()

    def _book(self, messages: list[rmq.MessageExt], ctx: rmq.OrderlyContext) -> None:
        for message in messages:
            account = message.properties["account"]
            ray.get(self._ledger.book.remote(account, int(message.body), self._name))
        time.sleep(0.005)

    def look(self) -> tuple[int, list[dict[str, Any]]]:
        """(queues that it holds, queues that it waits for)."""
        held = [queue for queue in self._consumer.assignment() if queue.topic == TOPIC]
        return len(held), self._consumer.stats()["waiting_for_locks"]

    def stop(self) -> None:
        """In good order: what was begun is committed, locks are given back."""
        self._consumer.close()


def send(bank: rmq.Producer, first: int, last: int) -> None:
    """Events ``first`` to ``last`` of every account; a message group is one queue's."""
    for number in range(first, last):
        for account in range(ACCOUNTS):
            bank.send(
                TOPIC,
                b"%d" % number,
                properties={"account": f"a-{account}"},
                message_group=f"a-{account}",
            )


def wait_for_queues(teller: Any, count: int) -> float:
    """Until it holds so many; how long that took, s."""
    began = time.monotonic()
    while True:
        held, waiting = ray.get(teller.look.remote())
        for wait in waiting:
            print(f"queue {wait['queue_id']} is {wait['holder']}'s for {wait['ends_in_ms']} ms")
        if held == count:
            return time.monotonic() - began
        if time.monotonic() - began > TIMEOUT_S:
            raise TimeoutError(f"{held} of {count} queues after {TIMEOUT_S} s")
        time.sleep(1)


def wait_until_booked(ledger: Any, events: int) -> Booked:
    """Until every account has so many different events."""
    began = time.monotonic()
    while True:
        booked: Booked = ray.get(ledger.all.remote())
        done = sum(len({number for number, _ in rows}) for rows in booked.values())
        if done >= ACCOUNTS * events:
            return booked
        if time.monotonic() - began > TIMEOUT_S:
            raise TimeoutError(f"{done} of {ACCOUNTS * events} events after {TIMEOUT_S} s")
        time.sleep(0.2)


def main(cluster: str = "default") -> tuple[Booked, float]:
    """What was booked, and how long the killed teller's queues rested, s."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=4)
    ledger = Ledger.remote()
    with rmq.Producer("bank", cluster=cluster) as bank:
        first = Teller.remote(cluster, "first", ledger)
        send(bank, 0, EVENTS // 3)
        wait_for_queues(first, 4)
        second = Teller.remote(cluster, "second", ledger)
        wait_for_queues(second, 2)
        send(bank, EVENTS // 3, 2 * EVENTS // 3)
        ray.kill(first)  # its process ends at once, without a word to the broker
        rested_s = wait_for_queues(second, 4)
        send(bank, 2 * EVENTS // 3, EVENTS)
        booked = wait_until_booked(ledger, EVENTS)
    ray.get(second.stop.remote())
    for actor in (second, ledger):
        ray.kill(actor)
    return booked, rested_s


if __name__ == "__main__":
    ray.init()
    queue = rmq.start("default", store_path="rmq-data")
    accounts, rested_s = main()
    print(f"the killed teller's queues rested for {rested_s:.0f} s")
    for account, rows in sorted(accounts.items()):
        once = list(dict.fromkeys(number for number, _ in rows))
        print(account, "in order" if once == sorted(once) else "OUT OF ORDER", f"{len(rows)} rows")
    queue.stop()
