"""A service behind a topic: callers send a request and wait for its reply; any of several servers
answers.

    python -m examples.request_reply

Prices, say. Two servers share the work as members of one group. A question that no server answers
ends with a typed error.
"""

from __future__ import annotations

import asyncio

import ray

import rmq_ray as rmq

TOPIC = "prices"
PRICES = {"apple": 40, "pear": 55, "plum": 15}


def serve(messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
    """A listener like any other; what it replies goes straight back to who asked."""
    for message in messages:
        price = PRICES.get(message.body.decode())
        if price is not None:  # else: silence, which is the caller's time-out
            rmq.reply(message, str(price).encode())


async def basket(cluster: str, fruits: list[str]) -> int:
    """All prices at once, from an event loop."""
    async with rmq.AsyncProducer("baskets", cluster=cluster) as producer:
        replies = await asyncio.gather(
            *(producer.request(TOPIC, fruit.encode(), timeout=10.0) for fruit in fruits)
        )
    return sum(int(reply.body) for reply in replies)


def main(cluster: str = "default") -> tuple[dict[str, int], int, str]:
    """Ask for some prices; returns them, the price of a basket, and what was said about a fruit
    that nobody sells.
    """
    rmq.connect(cluster).admin.create_topic(TOPIC, queues=2)
    servers = [
        rmq.PushConsumer(
            "price-servers",
            listener=serve,
            subscriptions={TOPIC: "*"},
            cluster=cluster,
            start_from="first",
        )
        for _ in range(2)
    ]
    with servers[0], servers[1], rmq.Producer("callers", cluster=cluster) as producer:
        asked = {
            fruit: int(producer.request(TOPIC, fruit.encode(), timeout=10.0).body)
            for fruit in PRICES
        }
        total = asyncio.run(basket(cluster, ["apple", "plum"] * 5))
        try:
            producer.request(TOPIC, b"durian", timeout=0.5)
        except rmq.RequestTimeout as error:
            said = str(error)
    print(f"{asked}, ten fruits for {total}; durian: {said}")
    return asked, total, said


if __name__ == "__main__":
    ray.init()
    mq = rmq.start("default", store_path="rmq-data")
    try:
        main()
    finally:
        mq.stop()
