"""An order pipeline of Ray actors: one actor sells, two bill, one packs. Orders that cannot be
billed become dead letters, which are looked at, and sent again once the reason is gone.

    shop (ProducerActor) ──> orders ──> cashiers (2 ConsumerActors) ──> billed ──> packer
                               ^              │ no tax rate for CH
                               └── resent ── dead letters: who failed, why, how often

python -m examples.order_pipeline
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

import rmq_ray as rmq
from rmq_ray.client.admin.dead_letters import DeadLetters

ORDERS, BILLED = "pipeline-orders", "pipeline-billed"
CASHIERS, PACKERS = "pipeline-cashiers", "pipeline-packers"
COUNTRIES = ("DE", "FR", "CH")
ORDER_COUNT = 300
LIMIT_S = 120.0

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What the script saw. ``reasons``: why how many orders had died; ``packed``: number of each
    order -> its price with tax, in cents.
    """

    packed_before: int
    reasons: Counter[str]
    resent: int
    packed: dict[str, int]


def sell(producer: rmq.Producer, count: int) -> int:
    """Runs inside the shop's actor; how many orders are stored."""
    orders = [
        rmq.Message(
            ORDERS,
            json.dumps({"country": COUNTRIES[number % 3], "cents": 1_000 + number}).encode(),
            keys=[f"o-{number}"],
        )
        for number in range(count)
    ]
    return sum(future.result().count for future in [producer.send_async(one) for one in orders])


class Cashier:
    """Listener of a cashier's actor: bills an order and hands it on. The bill is stored before the
    order is acknowledged, so a cashier that dies loses none; one may be billed twice.
    """

    def __init__(self, cluster: str) -> None:
        self._rates = {"DE": 19, "FR": 20}
        self._producer = rmq.Producer(CASHIERS, cluster=cluster)
        self._producer.start()

    def __call__(self, messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
        """An exception is what the dead letter will say."""
        for message in messages:
            order = json.loads(message.body)
            rate = self._rates.get(order["country"])
            if rate is None:
                raise LookupError(f"no tax rate for {order['country']}")
            price = order["cents"] * (100 + rate) // 100
            self._producer.send(BILLED, str(price).encode(), keys=message.keys)

    def learn(self, country: str, rate: int) -> None:
        """What ``ask("learn", ...)`` calls."""
        self._rates[country] = rate


class Packer:
    """Listener of the packer's actor: each order once, however often its bill comes."""

    def __init__(self) -> None:
        self._packed: dict[str, int] = {}
        self._lock = threading.Lock()  # the consumer's threads and ask() meet here

    def __call__(self, messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
        """To return is to acknowledge."""
        with self._lock:
            for message in messages:
                self._packed.setdefault(message.keys[0], int(message.body))

    def packed(self) -> dict[str, int]:
        """What ``ask("packed")`` returns."""
        with self._lock:
            return self._packed.copy()


def main(cluster: str = "default") -> Outcome:
    """Sell, bill, pack; look at what died, teach the cashiers, send it again."""
    mq = rmq.connect(cluster)
    for topic in (ORDERS, BILLED):
        mq.admin.create_topic(topic, queues=4)
    consumer, settings = rmq.ConsumerActor.options(num_cpus=0), {"start_from": "first"}
    cashiers = [
        consumer.remote(
            CASHIERS,
            Cashier,
            {ORDERS: "*"},
            listener_args=[cluster],
            cluster=cluster,
            max_reconsume_times=0,  # an order that fails once is looked at by somebody
            **settings,
        )
        for _ in range(2)
    ]
    packer = consumer.remote(PACKERS, Packer, {BILLED: "*"}, cluster=cluster, **settings)
    shop = rmq.ProducerActor.options(num_cpus=0).remote("pipeline-shop", cluster=cluster)
    ray.get([actor.ping.remote() for actor in (*cashiers, packer, shop)])  # all are connected
    until(lambda: shares(cashiers), lambda found: found == [2, 2])
    sold = ray.get(shop.run.remote(sell, ORDER_COUNT))
    dead = DeadLetters(mq.discovery)
    try:
        letters = until(lambda: letters_of(dead), lambda found: len(found) >= sold // 3)
        billable = sold - len(letters)
        before = until(lambda: packed_by(packer), lambda found: len(found) >= billable)
        for letter in letters[:3]:
            print(
                f"order {letter.keys[0]} died at {letter.store_ts:%H:%M:%S} on {letter.failed_on} "
                f"after {letter.reconsume_times} tries: {letter.failed_with}"
            )
        reasons = Counter(str(letter.failed_with) for letter in letters)
        ray.get([cashier.ask.remote("learn", "CH", 8) for cashier in cashiers])
        resent = dead.resend_dead_letters(CASHIERS, execute=True)[ORDERS]
        packed = until(lambda: packed_by(packer), lambda found: len(found) >= sold)
    finally:
        dead.close()
        ray.get([actor.stop.remote() for actor in (*cashiers, packer)])
        ray.get(shop.close.remote())
    print(f"{len(before)} packed, {dict(reasons)}; {resent} sent again, {len(packed)} packed")
    return Outcome(len(before), reasons, resent, packed)


def letters_of(dead: DeadLetters) -> list[rmq.MessageExt]:
    """Dead letters of the cashiers so far."""
    try:
        return list(dead.dead_letters(CASHIERS))
    except rmq.GroupNotFound:  # none yet
        return []


def packed_by(packer: Any) -> dict[str, int]:
    """What the packer has packed so far."""
    return dict(ray.get(packer.ask.remote("packed")))


def shares(cashiers: list[Any]) -> list[int]:
    """How many queues of orders each cashier has: half of them, once both have joined."""
    found = ray.get([cashier.stats.remote() for cashier in cashiers])
    return [sum(row["topic"] == ORDERS for row in one["queues"]) for one in found]


def until(look: Callable[[], T], enough: Callable[[T], bool]) -> T:
    """What ``look`` finds as soon as it is enough, at the latest after two minutes."""
    deadline = time.monotonic() + LIMIT_S
    while not enough(found := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


if __name__ == "__main__":
    ray.init()
    queue = rmq.start("default", store_path="rmq-data")
    main()
    queue.stop()
