"""SQL92 filters on real ports: push and pull consumers, refusals at the start, a subscription that
changes, members that disagree.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.messages.listener import RECONSUME_LATER
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.model.message import Message
from rmq_ray.model.pulling import Sql
from rmq_ray.protocol.filters.subscriptions import sql
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.waiting import eventually

DEAR = sql("amount > 100 AND region IN ('eu','us')")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as running:
        yield running


class Seen:
    """A listener that counts bodies."""

    def __init__(self, answer: Any = None) -> None:
        self.bodies: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._answer = answer

    def __call__(self, messages: Any, ctx: Any) -> Any:
        with self._lock:
            self.bodies.update(message.body for message in messages)
        return self._answer(messages, ctx) if self._answer is not None else None


def send(cluster: LiveCluster, count: int, start: int = 0, topic: str = "orders") -> set[bytes]:
    """Amounts 0, 10, 20 ... in regions by turn; returns what ``DEAR`` lets pass."""
    regions = ("eu", "cn", "us")
    with Producer("p", discovery=cluster) as producer:
        for first in range(start, start + count, 1_000):
            numbers = range(first, min(first + 1_000, start + count))
            producer.send_batch(
                [
                    Message(
                        topic,
                        b"%d" % at,
                        properties={"amount": str(at % 30 * 10), "region": regions[at % 3]},
                    )
                    for at in numbers
                ]
            )
    return {
        b"%d" % at
        for at in range(start, start + count)
        if at % 30 * 10 > 100 and regions[at % 3] != "cn"
    }


def consumer(
    cluster: LiveCluster, listener: Any, expression: Any = DEAR, group: str = "billing", **more: Any
) -> PushConsumer:
    more.setdefault("start_from", "first")
    return PushConsumer(
        group, listener=listener, subscriptions={"orders": expression}, discovery=cluster, **more
    )


@pytest.mark.seed("S4-008", "S4-099", "S4-142")
def test_a_push_consumer_gets_what_passes_and_its_offset_moves_over_the_rest(
    cluster: LiveCluster,
) -> None:
    wanted, seen = send(cluster, 3_000), Seen()
    with consumer(cluster, seen) as running:
        eventually(lambda: set(seen.bodies) == wanted)
        wanted |= send(cluster, 300, 3_000)
        eventually(lambda: set(seen.bodies) == wanted)
        eventually(running.assignment)
    assert set(seen.bodies.values()) == {1}
    with closing(Admin(cluster)) as admin:
        assert (
            sum(row["lag"] for row in admin.group_lag("billing") if row["topic"] == "orders") == 0
        )


def test_parked_pulls_sleep_through_what_does_not_pass(cluster: LiveCluster) -> None:
    send(cluster, 3)
    seen = Seen()
    with consumer(cluster, seen):
        eventually(lambda: len(cluster.brokers[0]._core.pulls.parked) > 0)  # type: ignore[union-attr]
        time.sleep(0.2)
        before = cluster.brokers[0].status()["pulls"]
        with Producer("q", discovery=cluster) as producer:
            for _ in range(30):
                producer.send("orders", b"cheap", properties={"amount": "1", "region": "eu"})
            assert not seen.bodies and cluster.brokers[0].status()["pulls"] - before <= 8, (
                "the consumer was not answered for each of them"
            )
            producer.send("orders", b"dear", properties={"amount": "999", "region": "us"})
        eventually(lambda: seen.bodies[b"dear"] == 1)


@pytest.mark.seed("S4-231")
def test_a_failed_message_comes_again_through_the_retry_topic_whatever_the_filter(
    cluster: LiveCluster,
) -> None:
    seen = Seen(lambda messages, ctx: RECONSUME_LATER if messages[0].reconsume_times == 0 else None)
    with Producer("p", discovery=cluster) as producer:
        producer.send("orders", b"once more", properties={"amount": "500", "region": "eu"})

    def soon(messages: Any, ctx: Any) -> Any:
        ctx.delay_level_when_next_consume = 1
        return seen(messages, ctx)

    with consumer(cluster, soon):
        assert eventually(lambda: seen.bodies[b"once more"] == 2)


def test_a_pull_consumer_takes_the_same_expressions(cluster: LiveCluster) -> None:
    wanted = send(cluster, 600)
    with PullConsumer("reader", discovery=cluster, start_from="first") as reader:
        reader.subscribe("orders", DEAR)
        found: set[bytes] = set()
        assert eventually(
            lambda: (
                found.update(m.body for m in reader.poll(500, timeout=0.2) or ()) or found == wanted
            )
        )


@pytest.mark.seed("S4-081")
def test_a_refused_filter_is_told_at_the_start_and_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(SubscriptionInvalid, match="character 10"):
        sql("amount > ")
    with LiveCluster(tmp_path, broker={"property_filter": False}) as cluster:
        send(cluster, 1)
        for expression in (Sql("amount >"), DEAR):
            with pytest.raises(SubscriptionInvalid):
                consumer(cluster, Seen(), expression).start()
        again = consumer(cluster, Seen(), "*")
        again.start()
        with pytest.raises(SubscriptionInvalid, match="refuses the SQL filter"):
            again.subscribe("orders", DEAR)
        again.stop()


def test_a_subscription_that_changes_while_it_runs_counts_from_then_on(
    cluster: LiveCluster,
) -> None:
    wanted, seen = send(cluster, 300), Seen()
    with consumer(cluster, seen) as running:
        eventually(lambda: set(seen.bodies) == wanted)
        running.subscribe("orders", sql("amount = 10"))
        known = cluster.brokers[0]._core.tables.filters  # type: ignore[union-attr]
        eventually(lambda: known.find("orders", "billing").expression == "amount = 10")
        seen.bodies.clear()
        send(cluster, 30, 300)
        assert eventually(lambda: set(seen.bodies) == {b"301"})


def test_members_that_subscribe_differently_are_told(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, 3)
    with (
        caplog.at_level(logging.WARNING),
        consumer(cluster, Seen(), client_id="one"),
        consumer(cluster, Seen(), "paid || sent", client_id="two"),
    ):
        with closing(Admin(cluster)) as admin:
            eventually(lambda: len(admin.group_conflicts("billing")) == 2)
            rows = admin.group_conflicts("billing")
        eventually(
            lambda: any(
                record.name.startswith("rmq_ray.client")
                and "subscribe differently" in record.message
                for record in caplog.records
            )
        )
    assert {(row["topic"], row["expression"], tuple(row["client_ids"])) for row in rows} == {
        ("orders", "SQL92 " + DEAR.expression, ("one",)),
        ("orders", "TAG paid || sent", ("two",)),
    }
    assert cluster.brokers[0].status()["subscription_conflicts"] >= 1
