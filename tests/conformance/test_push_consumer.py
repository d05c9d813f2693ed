"""The push consumer over real connections, against a broker in memory that speaks real frames."""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.messages.listener import RECONSUME_LATER, ConsumeContext, Reject
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError
from rmq_ray.model.groups import ConsumeFromWhere, ConsumeType, MessageModel
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.brokers.pull_broker import PullCluster
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually

Handler = Callable[[list[MessageExt], ConsumeContext], Any]


@pytest.fixture
def cluster() -> Iterator[PullCluster]:
    with PullCluster(topics={"orders": 4}) as running:
        yield running


class Seen:
    """A listener that counts bodies; ``answer`` decides."""

    def __init__(self, answer: Handler = lambda _messages, _ctx: None) -> None:
        self.answer = answer
        self.bodies: Counter[bytes] = Counter()
        self.messages: list[MessageExt] = []
        self.threads: set[str] = set()
        self.batches: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, messages: list[MessageExt], ctx: ConsumeContext) -> Any:
        with self._lock:
            self.bodies.update(message.body for message in messages)
            self.messages.extend(messages)
            self.batches.append(len(messages))
            self.threads.add(threading.current_thread().name)
        return self.answer(messages, ctx)


def consumer(
    cluster: PullCluster, listener: Handler, group: str = "billing", **options: Any
) -> PushConsumer:
    options.setdefault("start_from", "first")
    options.setdefault("subscriptions", {"orders": "*"})
    return PushConsumer(group, listener=listener, discovery=cluster, **options)


def bodies(queue_id: int, count: int, start: int = 0) -> list[bytes]:
    return [b"%d-%d" % (queue_id, i) for i in range(start, start + count)]


def fill(cluster: PullCluster, count: int, start: int = 0, broker: int = 0) -> set[bytes]:
    for queue_id in range(4):
        cluster.put("orders", queue_id, bodies(queue_id, count, start), broker=broker)
    return {body for queue_id in range(4) for body in bodies(queue_id, count, start)}


@pytest.mark.seed("S0-058", "S1-001", "S4-003", "S4-022")
def test_stored_messages_come_once_each_in_batches_on_the_consumers_own_threads(
    cluster: PullCluster,
) -> None:
    expected, seen = fill(cluster, 300), Seen()
    with consumer(cluster, seen, batch_size=32, concurrency=3):
        eventually(lambda: len(seen.bodies) == 1_200)
    assert set(seen.bodies) == expected and set(seen.bodies.values()) == {1}
    assert max(seen.batches) == 32
    assert (
        all(name.startswith("rmq-consume-billing-") for name in seen.threads)
        and len(seen.threads) <= 3
    )


@pytest.mark.seed("S1-002", "S4-004", "S4-021", "S0-001")
def test_a_message_sent_later_comes_through_the_held_pull_without_polling(
    cluster: PullCluster,
) -> None:
    seen = Seen()
    with consumer(cluster, seen) as running:
        eventually(lambda: len(cluster.pull_brokers[0].pulls) == 5)
        cluster.put("orders", 1, [b"now"])
        eventually(lambda: seen.bodies[b"now"] == 1)
        eventually(
            lambda: len(cluster.pull_brokers[0].pulls) >= 6
        )  # the next pull is written after the listener got the message
        assert running.stats()["pulls"] == 1
        assert len(cluster.pull_brokers[0].pulls) == 6


@pytest.mark.seed("S4-006")
def test_one_thread_sees_the_messages_of_a_queue_in_their_order(cluster: PullCluster) -> None:
    fill(cluster, 200)
    seen = Seen()
    with consumer(cluster, seen, concurrency=1, batch_size=7):
        eventually(lambda: len(seen.messages) == 800)
    for queue_id in range(4):
        assert [
            message.queue_offset for message in seen.messages if message.queue.queue_id == queue_id
        ] == list(range(200))


@pytest.mark.seed("S1-005", "S4-049", "S4-051", "S4-052")
def test_the_heartbeat_names_the_group_and_its_retry_topic(cluster: PullCluster) -> None:
    with consumer(cluster, Seen(), subscriptions={"orders": "paid || refund"}) as running:
        eventually(lambda: running.balanced)
        (data,) = cluster.pull_brokers[0].heartbeats[0].consumers
        assert (data.group, data.consume_type, data.model) == (
            "billing",
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
        )
        assert data.from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        assert {
            subscription.topic: subscription.expression for subscription in data.subscriptions
        } == {"%RETRY%billing": "*", "orders": "paid || refund"}
        assert cluster.pull_brokers[0].heartbeats[0].client_id == running.client_id


def test_only_messages_of_the_subscribed_tags_come(cluster: PullCluster) -> None:
    for tag in ("paid", "lost", "refund", "Aa", "BB"):
        cluster.put("orders", 0, [tag.encode()] * 50, f"TAGS\x01{tag}")
    seen = Seen()
    with consumer(cluster, seen, subscriptions={"orders": "paid || refund || Aa"}) as running:
        eventually(lambda: sum(seen.bodies.values()) == 150)
        assert seen.bodies == {b"paid": 50, b"refund": 50, b"Aa": 50}
        eventually(lambda: running.stats()["filtered"] == 50)


@pytest.mark.seed("S4-031", "S4-032")
def test_a_new_group_with_last_offset_gets_only_what_comes_after_it_and_says_so(
    cluster: PullCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cluster, 10)
    seen = Seen()
    with consumer(cluster, seen, start_from="last") as running:
        eventually(lambda: running.balanced)
        cluster.put("orders", 0, [b"new"])
        eventually(lambda: len(seen.bodies))
    assert seen.bodies == {b"new": 1}
    said = "group 'billing' begins at the end of 'orders': the 40 messages that are there"
    assert caplog.text.count(said) == 1


@pytest.mark.seed("S0-085", "S1-051", "S4-005", "S3-132", "S0-022")
def test_a_second_consumer_takes_half_the_queues_at_once_and_gives_them_back_when_it_stops(
    cluster: PullCluster,
) -> None:
    first, second = Seen(), Seen()
    with consumer(cluster, first) as one:
        eventually(lambda: len(one.assignment()) == 5)
        with consumer(cluster, second) as two:
            eventually(
                lambda: (
                    one.balanced
                    and two.balanced
                    and len(one.assignment()) == 3
                    and len(two.assignment()) == 2
                ),
                timeout_s=10,
            )
            assert not set(one.assignment()) & set(two.assignment())
            fill(cluster, 50)
            eventually(lambda: len(first.bodies) == 100 and len(second.bodies) == 100)
        eventually(lambda: len(one.assignment()) == 5, timeout_s=10)
        fill(cluster, 50, start=50)
        eventually(lambda: len(first.bodies) == 300)
    assert set((first.bodies + second.bodies).values()) == {1}


@pytest.mark.seed("S3-131", "S0-013", "S4-001")
def test_a_consumer_that_dies_is_replaced_when_its_connection_closes(cluster: PullCluster) -> None:
    first, second = Seen(), Seen()
    with consumer(cluster, first) as one:
        two = consumer(cluster, second)
        two.start()
        eventually(lambda: len(one.assignment()) == 3 and two.balanced)
        engine = two._engine
        assert engine is not None
        engine.client.link.close()
        eventually(lambda: len(one.assignment()) == 5, timeout_s=10)
        two.stop(timeout_ms=1_000)


def test_stopping_loses_nothing_and_repeats_nothing(cluster: PullCluster) -> None:
    expected = fill(cluster, 500)
    gate = threading.Event()

    def slow(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        gate.wait(0.001)

    seen = Seen(slow)
    for _ in range(5):
        with consumer(cluster, seen, batch_size=3, concurrency=4):
            before = len(seen.bodies)
            eventually(
                lambda before=before: len(seen.bodies) >= min(before + 150, 2_000), every_s=0.001
            )
    gate.set()
    with consumer(cluster, seen, batch_size=3):
        eventually(lambda: len(seen.bodies) == 2_000)
    assert set(seen.bodies) == expected
    assert set(seen.bodies.values()) == {1}


def test_stopping_hands_the_offsets_over_with_an_answer_and_leaves_the_group(
    cluster: PullCluster,
) -> None:
    fill(cluster, 20)
    seen = Seen()
    broker = cluster.pull_brokers[0]
    with consumer(cluster, seen) as running:
        eventually(lambda: len(seen.bodies) == 80)
        client_id = running.client_id
    assert sorted(entry for entry in broker.committed if entry[0] == "request") == [
        ("request", "orders", i, 20) for i in range(4)
    ]
    assert {"clientID": client_id, "consumerGroup": "billing"} in broker.unregistered
    assert broker.members["billing"] == {}


@pytest.mark.seed("S4-027", "S4-073", "S4-228")
def test_offsets_travel_with_the_pulls(cluster: PullCluster) -> None:
    seen = Seen()
    with consumer(cluster, seen) as running:
        cluster.put("orders", 0, [b"a"])
        eventually(lambda: seen.bodies[b"a"] and running.stats()["in_flight"] == 0)
        cluster.put("orders", 0, [b"b"])
        carried = eventually(
            lambda: [
                entry
                for entry in cluster.pull_brokers[0].committed
                if entry[:3] == ("pull", "orders", 0)
            ]
        )
    assert carried[0][3] in (1, 2)  # what the listener had finished when the pull was written


@pytest.mark.seed("S4-228")
def test_offsets_are_persisted_one_way_by_the_instances_timer(cluster: PullCluster) -> None:
    fill(cluster, 5)
    seen = Seen()
    with consumer(cluster, seen) as running:
        eventually(lambda: len(seen.bodies) == 20 and running.stats()["in_flight"] == 0)
        running.persist_offsets()
        told = eventually(
            lambda: [
                entry
                for entry in cluster.pull_brokers[0].committed
                if entry[0] == "oneway" and entry[3] == 5
            ]
        )
    assert {(topic, queue_id) for _, topic, queue_id, _ in told} <= {
        ("orders", i) for i in range(4)
    }


@pytest.mark.seed("S4-180", "S4-183")
def test_a_failed_message_comes_again_from_the_retry_topic_under_its_own_topic(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, [b"good", b"bad"], "UNIQ_KEY\x01" + "A" * 32)

    def once(messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        return (
            RECONSUME_LATER
            if messages[0].body == b"bad" and messages[0].reconsume_times < 2
            else None
        )

    seen = Seen(once)
    with consumer(cluster, seen) as running:
        eventually(lambda: seen.bodies[b"bad"] == 3)
        eventually(lambda: running.stats()["consumed_ok"] == 2)
    bad = [message for message in seen.messages if message.body == b"bad"]
    assert [(message.topic, message.queue.topic, message.reconsume_times) for message in bad] == [
        ("orders", "orders", 0),
        ("orders", "%RETRY%billing", 1),
        ("orders", "%RETRY%billing", 2),
    ]
    assert seen.bodies[b"good"] == 1


@pytest.mark.parametrize("how", ["raise", "return"])
def test_a_rejected_message_becomes_a_dead_letter_at_once(cluster: PullCluster, how: str) -> None:
    cluster.put("orders", 0, [b"poison"])

    def reject(_messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        if how == "raise":
            raise Reject("bad order")
        return Reject

    seen = Seen(reject)
    with consumer(cluster, seen):
        eventually(lambda: cluster.bodies("%DLQ%billing") == [b"poison"])
    assert seen.bodies[b"poison"] == 1


def test_a_message_that_always_fails_is_delivered_as_often_as_allowed_and_then_dead(
    cluster: PullCluster,
) -> None:
    cluster.put("orders", 0, [b"poison"])

    def fail(_messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        raise ValueError("never")

    seen = Seen(fail)
    with consumer(cluster, seen, max_reconsume_times=3):
        eventually(lambda: cluster.bodies("%DLQ%billing") == [b"poison"])
    assert seen.bodies[b"poison"] == 4


@pytest.mark.seed("S4-125", "S4-127")
def test_an_offset_that_expired_is_corrected_and_consumption_goes_on(cluster: PullCluster) -> None:
    fill(cluster, 100)
    broker = cluster.pull_brokers[0]
    cluster.run(_in_loop(partial(broker.cut, "orders", 0, 60)))
    broker.offsets["billing", ("orders", 0)] = 10
    seen = Seen()
    with consumer(
        cluster, seen, config=ConsumerConfig("billing", offset_illegal_delay_ms=50)
    ) as running:
        eventually(lambda: len(seen.bodies) == 340)
        assert running.stats()["offsets_moved"] == 1
    assert ("request", "orders", 0, 60) in broker.committed


def test_after_a_cut_of_the_log_the_old_offset_is_not_committed_any_more(
    cluster: PullCluster,
) -> None:
    """100 messages were consumed, the broker lost the last 40 of them; whoever takes the queue next
    must get what is stored there now.
    """
    fill(cluster, 100)
    broker, place, seen = cluster.pull_brokers[0], ("orders", 0), Seen()

    def lose() -> None:
        del broker.queues[place][60:], broker.codes[place][60:]

    with consumer(
        cluster,
        seen,
        config=ConsumerConfig("billing", offset_illegal_delay_ms=60_000, suspend_ms=100),
    ) as running:
        eventually(lambda: len(seen.bodies) == 400)
        cluster.run(_in_loop(lose))
        eventually(lambda: running.stats()["offsets_moved"] == 1)
        running.persist_offsets()
        eventually(lambda: broker.offsets.get(("billing", place)) == 60)
    assert broker.offsets["billing", place] == 60


PATIENT = ConsumerConfig("billing", exception_delay_ms=30_000)
"""Pulls that failed are not tried again by themselves within the test: only the reconnector brings
them back.
"""


def test_a_broker_that_restarts_is_pulled_again_as_soon_as_it_listens_and_without_repeats(
    cluster: PullCluster,
) -> None:
    fill(cluster, 20)
    seen = Seen()
    with consumer(cluster, seen, config=PATIENT):
        eventually(lambda: len(seen.bodies) == 80)
        broker = cluster.pull_brokers[0]
        cluster.stop(broker)
        broker.subscriptions.clear()
        cluster.start(broker)
        fill(cluster, 20, start=20)
        eventually(lambda: len(seen.bodies) == 160, timeout_s=10)
    assert set(seen.bodies.values()) == {1}


def test_a_broker_that_hangs_up_on_every_pull_is_asked_less_and_less_often(
    cluster: PullCluster,
) -> None:
    seen = Seen()
    broker = cluster.pull_brokers[0]
    with consumer(cluster, seen, config=PATIENT):
        eventually(lambda: len(broker.pulls) == 5)
        broker.hang_up = True
        cluster.put("orders", 0, [b"x"])
        threading.Event().wait(1.5)
        assert len(broker.pulls) < 60
        broker.hang_up = False
        eventually(lambda: seen.bodies[b"x"])
    assert seen.bodies == {b"x": 1}


def test_while_one_broker_is_away_the_other_is_consumed() -> None:
    with PullCluster(brokers=2, topics={"orders": 4}) as cluster:
        seen = Seen()
        with consumer(cluster, seen, config=PATIENT) as running:
            eventually(lambda: len(running.assignment()) == 10)
            cluster.stop(cluster.pull_brokers[1])
            fill(cluster, 30)
            eventually(lambda: len(seen.bodies) == 120, timeout_s=10)
            cluster.start(cluster.pull_brokers[1])
            cluster.put("orders", 0, [b"back"], broker=1)
            eventually(lambda: seen.bodies[b"back"], timeout_s=10)
        assert set(seen.bodies.values()) == {1}


def test_a_subscription_that_the_broker_forgot_is_told_again(cluster: PullCluster) -> None:
    seen = Seen()
    with consumer(cluster, seen):
        eventually(lambda: len(cluster.pull_brokers[0].pulls) == 5)
        cluster.pull_brokers[0].subscriptions.clear()
        cluster.put("orders", 0, [b"first"])
        eventually(lambda: seen.bodies[b"first"])
        cluster.put("orders", 0, [b"second"])
        eventually(lambda: seen.bodies[b"second"], timeout_s=10)
    assert seen.bodies == {b"first": 1, b"second": 1}


@pytest.mark.seed("S4-069")
def test_a_slow_listener_does_not_make_the_client_pull_without_end(cluster: PullCluster) -> None:
    cluster.put("orders", 0, bodies(0, 5_000))
    release = threading.Event()
    seen = Seen(lambda _messages, _ctx: release.wait(20) and None)
    with consumer(
        cluster,
        seen,
        concurrency=2,
        config=ConsumerConfig("billing", threshold_messages=100, pull_records=50),
    ) as running:
        eventually(lambda: running.stats()["held_back"].get("messages", 0) >= 3)
        assert running.stats()["in_flight"] <= 150
        release.set()
        eventually(lambda: len(seen.bodies) == 5_000)


@pytest.mark.seed("S4-150", "S4-001", "S0-016")
def test_subscribing_and_unsubscribing_while_running_moves_queues_at_once(
    cluster: PullCluster,
) -> None:
    cluster.add_topic("later", 2)
    seen = Seen()
    with consumer(cluster, seen) as running:
        eventually(lambda: len(running.assignment()) == 5)
        running.subscribe("later")
        eventually(lambda: len(running.assignment()) == 7, timeout_s=10)
        cluster.put("later", 1, [b"x"])
        eventually(lambda: seen.bodies[b"x"])
        running.unsubscribe("orders")
        eventually(
            lambda: {queue.topic for queue in running.assignment()} == {"later", "%RETRY%billing"},
            timeout_s=10,
        )
        with pytest.raises(ClientError):
            running.unsubscribe("orders")


@pytest.mark.seed("S4-068")
def test_a_paused_consumer_gets_nothing_new_until_it_resumes(cluster: PullCluster) -> None:
    seen = Seen()
    with consumer(cluster, seen) as running:
        eventually(lambda: len(cluster.pull_brokers[0].pulls) == 5)
        running.pause()
        cluster.put("orders", 0, [b"already pulled for"])
        eventually(lambda: seen.bodies)
        cluster.put("orders", 0, [b"waits"])
        assert not threading.Event().wait(0.3) and seen.bodies[b"waits"] == 0
        running.resume()
        eventually(lambda: seen.bodies[b"waits"])


def test_a_topic_that_does_not_exist_yet_is_consumed_soon_after_it_appears(
    cluster: PullCluster,
) -> None:
    seen = Seen()
    with consumer(cluster, seen, subscriptions={"future": "*"}):
        eventually(lambda: cluster.name_servers[0].asked.count("future") >= 2)
        cluster.add_topic("future", 1)
        cluster.put("future", 0, [b"x"])
        eventually(lambda: seen.bodies[b"x"], timeout_s=10)
    assert [message.topic for message in seen.messages] == ["future"]


@pytest.mark.seed("S0-061", "S1-042")
def test_a_topic_that_gets_more_queues_is_consumed_from_all_of_them_after_the_next_route(
    cluster: PullCluster,
) -> None:
    seen = Seen()
    with consumer(cluster, seen) as running:
        eventually(lambda: len(running.assignment()) == 5)
        cluster.add_topic("orders", 6)
        engine = running._engine
        assert engine is not None and engine.client.routes.refresh("orders")
        cluster.put("orders", 5, [b"x"])
        eventually(lambda: seen.bodies[b"x"], timeout_s=10)
        assert len(running.assignment()) == 7


@pytest.mark.seed("S4-166", "S4-055")
def test_two_groups_in_one_client_instance_each_divide_the_queues_for_themselves(
    cluster: PullCluster,
) -> None:
    fill(cluster, 10)
    a, b = Seen(), Seen()
    with (
        consumer(cluster, a, "group-a", client_id="one") as first,
        consumer(cluster, b, "group-b", client_id="one") as second,
    ):
        eventually(lambda: len(a.bodies) == 40 and len(b.bodies) == 40)
        assert first.client_id == second.client_id == "one"
        assert {queue for queue in first.assignment() if queue.topic == "orders"} == {
            queue for queue in second.assignment() if queue.topic == "orders"
        }
    assert {"clientID": "one", "consumerGroup": "group-b"} in cluster.pull_brokers[0].unregistered


@pytest.mark.seed("S3-112", "S3-133", "S0-070", "S3-124")
def test_the_client_id_names_host_and_process_and_no_thread_keeps_the_process_alive(
    cluster: PullCluster,
) -> None:
    with consumer(cluster, Seen()) as running:
        host, _, rest = running.client_id.partition("@")
        assert host == "127.0.0.1" and rest.split("#")[0] == str(os.getpid())
        mine = [
            thread
            for thread in threading.enumerate()
            if thread.name.startswith("rmq-") and thread.name != "rmq-at-exit"  # it ends by itself
        ]
        assert len(mine) > 20 and all(thread.daemon for thread in mine)


def test_stats_count_what_was_pulled_done_failed_and_sent_back_over_all_queues_held(
    cluster: PullCluster,
) -> None:
    fill(cluster, 10)
    cluster.put("orders", 0, [b"bad"] * 3)
    seen = Seen(
        lambda messages, _ctx: (
            RECONSUME_LATER
            if messages[0].body == b"bad" and messages[0].reconsume_times == 0
            else None
        )
    )
    with consumer(cluster, seen) as running:
        wanted = {"consumed_ok": 43, "consumed_failed": 3, "sent_back": 3, "in_flight": 0}
        eventually(lambda: running.balanced and running.stats().items() >= wanted.items())
        found = running.stats()
    assert (found["pulled"], found["lag"]) == (46, 0)
    assert found["state"] == "RUNNING" and found["balanced"] and len(found["queues"]) == 5


@pytest.mark.seed("S3-110", "S3-120")
def test_a_consumer_starts_once_and_a_stopped_one_does_not_start_again(
    cluster: PullCluster,
) -> None:
    made = consumer(cluster, Seen())
    assert made.state is ServiceState.CREATE_JUST
    made.start()
    assert made.state is ServiceState.RUNNING
    with pytest.raises(ClientError, match="cannot start"):
        made.start()
    made.stop()
    assert made.state is ServiceState.SHUTDOWN_ALREADY
    assert made.stop()
    with pytest.raises(ClientError, match="cannot start"):
        made.start()


@pytest.mark.seed("S3-118")
def test_a_group_taken_in_the_same_client_is_refused_and_the_consumer_stays_new(
    cluster: PullCluster,
) -> None:
    with consumer(cluster, Seen(), client_id="one"):
        other = consumer(cluster, Seen(), client_id="one")
        with pytest.raises(ClientError, match="created before"):
            other.start()
        assert other.state is ServiceState.CREATE_JUST
        assert other.stop()


@pytest.mark.seed("S3-119", "S1-013", "S1-014", "S3-018")
def test_starting_asks_for_routes_sends_a_heartbeat_and_rebalances_at_once(
    cluster: PullCluster,
) -> None:
    with consumer(cluster, Seen()) as running:
        watch = Stopwatch()
        eventually(lambda: running.balanced)
        eventually(lambda: len(cluster.pull_brokers[0].pulls) == 5)
        assert watch.lived_s < 4
        assert {f"rmq-client-{running.client_id}", "rmq-rebalance-billing"} <= {
            thread.name for thread in threading.enumerate()
        }
        assert {"orders", "%RETRY%billing"} <= set(cluster.name_servers[0].asked)
        assert cluster.pull_brokers[0].requests[RequestCode.HEART_BEAT] >= 1
        assert cluster.pull_brokers[0].requests[RequestCode.GET_CONSUMER_LIST_BY_GROUP] >= 1


def test_a_listener_that_stops_its_own_consumer_is_told_why_it_cannot(cluster: PullCluster) -> None:
    errors: list[ClientError] = []

    def stop(_messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        try:
            running.stop()
        except ClientError as error:
            errors.append(error)

    with consumer(cluster, stop) as running:
        cluster.put("orders", 0, [b"x"])
        eventually(lambda: errors)
    assert "called by the listener" in str(errors[0])


def test_a_listener_that_never_ends_does_not_keep_the_consumer_from_stopping(
    cluster: PullCluster,
) -> None:
    release, begun = threading.Event(), threading.Event()

    def hang(_messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        begun.set()
        release.wait(20)

    running = consumer(cluster, hang)
    running.start()
    cluster.put("orders", 0, [b"x"])
    assert begun.wait(5)
    assert not running.stop(timeout_ms=100)
    assert not running.stop(timeout_ms=100)
    release.set()
    assert running.stop(timeout_ms=10_000)
    assert ("request", "orders", 0, 1) not in cluster.pull_brokers[0].committed


def test_a_pickled_consumer_comes_back_as_a_new_one(cluster: PullCluster) -> None:
    back = pickle.loads(pickle.dumps(consumer(cluster, _module_level_listener, batch_size=5)))
    assert (back.group, back.state) == ("billing", ServiceState.CREATE_JUST)
    _module_level_seen.clear()
    cluster.put("orders", 0, [b"x"] * 5)
    with back:
        eventually(lambda: _module_level_seen == [5])


_module_level_seen: list[int] = []


def _module_level_listener(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
    _module_level_seen.append(len(messages))


async def _in_loop(call: Callable[[], None]) -> None:
    call()


def test_a_quick_listener_that_begins_to_block_runs_in_all_threads_at_once(
    cluster: PullCluster,
) -> None:
    """What a thread has claimed does not wait behind a call that does not return."""
    threads = 20
    together = threading.Barrier(threads, timeout=30)

    def listener(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        if messages[0].body.startswith(b"0-"):
            together.wait()

    seen = Seen(listener)
    for queue_id in (1, 2, 3):
        cluster.put("orders", queue_id, bodies(queue_id, 300))
    with consumer(cluster, seen, concurrency=threads) as running:
        eventually(lambda: sum(seen.bodies.values()) == 900, 30)
        cluster.put("orders", 0, bodies(0, 2 * threads))  # a page: more than one thread may claim
        eventually(lambda: running.stats()["consumed_ok"] == 900 + 2 * threads, 60)
    assert not together.broken and set(seen.bodies.values()) == {1}
    assert len(seen.threads) == threads and set(seen.batches) == {1}
