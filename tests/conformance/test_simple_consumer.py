"""SimpleConsumer against real brokers on real ports: times, receipts, many workers, brokers that
die, answers that get lost.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.dead_letters import DeadLetters
from rmq_ray.client.pop.receipts import ReceivedMessage
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import (
    ClientError,
    ConfigError,
    GroupInUse,
    ReceiptStale,
    RemotingError,
    SubscriptionInvalid,
    TooManyInFlight,
    TopicNotFound,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.protocol.filters.subscriptions import sql
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.store.reading import log_reader
from tests.support.brokers.live_cluster import LiveCluster, LiveProcess
from tests.support.clients.collecting import Collector
from tests.support.clients.pop_rig import Worker, stop, together
from tests.support.faults.lossy_proxy import LossyProxy
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    with LiveCluster(tmp_path_factory.mktemp("live")) as live:
        yield live


def send(discovery: object, topic: str, bodies: list[bytes], **more: object) -> None:
    with Producer("sender", discovery=discovery) as producer:  # type: ignore[arg-type]
        for body in bodies:
            producer.send(topic, body, **more)  # type: ignore[arg-type]


def drain(consumer: SimpleConsumer, count: int, **times: float) -> list[ReceivedMessage]:
    """``count`` messages, however many receives it takes."""
    found: list[ReceivedMessage] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.receive(32, **{"wait": 1.0, **times})
    assert len(found) == count, [message.body for message in found]
    return found


def commits(cluster: LiveCluster, group: str, topic: str) -> int:
    core = cluster.brokers[0]._core
    assert core is not None
    return sum(core.tables.offsets.of_group(group).get(topic, {}).values())


def test_what_was_acknowledged_does_not_come_again_and_the_lag_is_gone(
    cluster: LiveCluster,
) -> None:
    send(cluster, "acks", [b"%d" % n for n in range(10)])
    with SimpleConsumer("acks", "g-acks", discovery=cluster) as consumer:
        messages = drain(consumer, 10, invisible=3)
        for message in messages:
            message.ack()
            message.ack()
        assert commits(cluster, "g-acks", "acks") == 10
        assert consumer.receive(32, invisible=1, wait=3.5) == []
        assert consumer.stats()["acknowledged"] == 10


def test_an_expired_message_comes_to_somebody_else_and_the_old_receipt_is_refused(
    cluster: LiveCluster,
) -> None:
    send(cluster, "expiry", [b"x"])
    with (
        SimpleConsumer("expiry", "g-expiry", discovery=cluster) as one,
        SimpleConsumer("expiry", "g-expiry", discovery=cluster) as other,
    ):
        (mine,) = drain(one, 1, invisible=0.3)
        (theirs,) = drain(other, 1, invisible=20)
        assert (theirs.body, theirs.reconsume_times, theirs.topic, theirs.message_id) == (
            b"x",
            1,
            "expiry",
            mine.message_id,
        )
        with pytest.raises(ReceiptStale) as stale:
            mine.ack()
        assert stale.value.args[1] == 1
        with pytest.raises(ReceiptStale):
            mine.extend(5)
        theirs.ack()


def test_a_worker_that_needs_longer_extends_its_time(cluster: LiveCluster) -> None:
    send(cluster, "extend", [b"x"])
    with SimpleConsumer("extend", "g-extend", discovery=cluster) as consumer:
        (message,) = drain(consumer, 1, invisible=2)
        first = message.invisible_until
        message.extend(20)
        assert message.invisible_until > first + 10_000
        assert consumer.receive(1, wait=2.5) == []
        message.ack()


def test_a_message_given_back_comes_again_after_its_delay_and_not_before(
    cluster: LiveCluster,
) -> None:
    send(cluster, "nacks", [b"x"])
    with SimpleConsumer("nacks", "g-nacks", discovery=cluster) as consumer:
        (message,) = drain(consumer, 1)
        watch = Stopwatch()
        message.nack(0.5)
        with pytest.raises(ClientError, match="given back"):
            message.ack()
        (again,) = drain(consumer, 1)
        assert watch.passed_s >= 0.45 and watch.lived_s < 3
        assert again.reconsume_times == 1
        again.ack()
        with pytest.raises(ClientError, match="acknowledged before"):
            again.nack()


def test_rejected_messages_and_those_out_of_retries_are_dead_letters(cluster: LiveCluster) -> None:
    send(cluster, "deads", [b"bad", b"worse"])
    with SimpleConsumer("deads", "g-deads", discovery=cluster, max_reconsume_times=1) as consumer:
        for message in drain(consumer, 2):
            if message.body == b"bad":
                message.reject()
            else:
                message.nack()
        (worse,) = drain(consumer, 1)
        assert (worse.body, worse.reconsume_times) == (b"worse", 1)
        worse.nack()
        with SimpleConsumer("%DLQ%g-deads", "g-undertaker", discovery=cluster) as undertaker:
            assert sorted(message.body for message in drain(undertaker, 2)) == [b"bad", b"worse"]
        assert consumer.receive(32, wait=0.3) == []
    assert eventually(lambda: commits(cluster, "g-deads", "deads") == 2, 15)


def test_what_fails_in_its_last_try_is_dead_at_once_and_what_takes_longer_is_not(
    cluster: LiveCluster,
) -> None:
    send(cluster, "lasts", [b"longer", b"failed"])
    with SimpleConsumer("lasts", "g-lasts", discovery=cluster, max_reconsume_times=1) as consumer:
        for message in drain(consumer, 2, invisible=600):
            message.nack(0.01)
        failed, longer = sorted(drain(consumer, 2, invisible=600), key=lambda message: message.body)
        longer.extend(600)
        failed.nack(600)
        with SimpleConsumer("%DLQ%g-lasts", "g-buried", discovery=cluster) as undertaker:
            (dead,) = drain(undertaker, 1)
            assert (dead.body, dead.reconsume_times) == (b"failed", 2)
            assert undertaker.receive(1, wait=0) == []
        longer.ack()
    assert eventually(lambda: commits(cluster, "g-lasts", "%RETRY%g-lasts") == 2, 15)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [("paid", [b"1"]), ("paid || open", [b"1", b"2"]), (sql("amount > 1"), [b"2", b"3"])],
)
def test_only_what_the_group_subscribed_to_comes(
    cluster: LiveCluster, expression: object, wanted: list[bytes]
) -> None:
    topic, group = (
        f"filters-{len(wanted)}-{wanted[0].decode()}",
        f"g-filters-{len(wanted)}-{wanted[0].decode()}",
    )
    with Producer("sender", discovery=cluster) as producer:
        for number, tag in enumerate(("paid", "open", "void"), 1):
            producer.send(topic, b"%d" % number, tag=tag, properties={"amount": str(number)})
    with SimpleConsumer(topic, group, discovery=cluster, expression=expression) as consumer:  # type: ignore[arg-type]
        messages = drain(consumer, len(wanted))
        assert sorted(message.body for message in messages) == wanted
        consumer.ack_all(messages)
        consumer.receive(1, wait=0.1)
        assert commits(cluster, group, topic) == 3


def test_a_namespace_is_put_before_the_names_and_taken_off_what_is_shown(
    cluster: LiveCluster,
) -> None:
    send(cluster, "ns%spaced", [b"x"])
    with SimpleConsumer("spaced", "g-spaced", discovery=cluster, namespace="ns") as consumer:
        (message,) = drain(consumer, 1)
        assert (message.topic, message.queue.topic, consumer.topic, consumer.group) == (
            "spaced",
            "ns%spaced",
            "spaced",
            "ns%g-spaced",
        )
        message.nack()
        (again,) = drain(consumer, 1)
        assert again.topic == "spaced"
        again.ack()
    assert eventually(lambda: commits(cluster, "ns%g-spaced", "ns%spaced") == 1, 15)


def test_eight_workers_share_one_queue(cluster: LiveCluster) -> None:
    bodies = [b"%d" % n for n in range(400)]
    queue = MessageQueue("shared", "broker-a", 0)
    workers = [Worker("shared", "g-shared", cluster) for _ in range(8)]
    with Producer("sender", discovery=cluster) as producer:
        producer.send("shared", b"0")
        for worker in workers:
            worker.start()
        producer.send_batch([Message("shared", body) for body in bodies[1:200]], queue=queue)
        eventually(lambda: len(together(workers, "done")) >= 200)
        producer.send_batch([Message("shared", body) for body in bodies[200:]], queue=queue)
        eventually(lambda: len(together(workers, "done")) == 400)
    stop(workers)
    assert together(workers, "got") == Counter(bodies)
    assert sum(1 for worker in workers if worker.done) >= 2
    assert not [error for worker in workers for error in worker.errors]


def test_a_waiting_worker_is_woken_by_the_first_message(cluster: LiveCluster) -> None:
    send(cluster, "wakes", [b"first"])
    with SimpleConsumer("wakes", "g-wakes", discovery=cluster) as consumer:
        consumer.ack_all(drain(consumer, 1))
        timer = threading.Timer(0.3, lambda: send(cluster, "wakes", [b"second"]))
        watch = Stopwatch()
        timer.start()
        (message,) = consumer.receive(1, wait=10)
        assert message.body == b"second"
        assert watch.passed_s > 0.25 and watch.lived_s < 3
        timer.join()


def test_acknowledgements_that_nobody_waits_for_arrive_soon(cluster: LiveCluster) -> None:
    send(cluster, "later", [b"%d" % n for n in range(6)])
    with SimpleConsumer("later", "g-later", discovery=cluster) as consumer:
        for message in drain(consumer, 6):
            message.ack(wait=False)
        watch = Stopwatch()
        assert eventually(lambda: commits(cluster, "g-later", "later") == 6)
        assert watch.lived_s < 3
        send(cluster, "later", [b"last"])
        consumer.ack_all(drain(consumer, 1), wait=False)
    assert commits(cluster, "g-later", "later") == 7, "close() tells what it knows"


def test_a_group_is_pushed_or_popped_not_both(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, "modes", [b"x"])
    collector = Collector()
    with PushConsumer(
        "g-modes",
        listener=collector,
        subscriptions={"modes": "*"},
        start_from="first",
        discovery=cluster,
    ):
        collector.wait_for(1)
        with (
            SimpleConsumer("modes", "g-modes", discovery=cluster) as consumer,
            pytest.raises(GroupInUse, match="push or pull"),
        ):
            consumer.receive(1, wait=5)
    with SimpleConsumer("modes", "g-modes", discovery=cluster) as consumer:
        assert consumer.receive(1, wait=0.2) == []
        with PushConsumer(
            "g-modes", listener=collector, subscriptions={"modes": "*"}, discovery=cluster
        ):
            send(cluster, "modes", [b"y"])
            (message,) = drain(consumer, 1)
            message.ack()
            # the push consumer's log says why it gets nothing
            eventually(lambda: "g-modes is used by simple consumers" in caplog.text)
    assert collector.bodies == [b"x"]


def test_administration_sees_workers_and_their_lag_and_can_move_them(cluster: LiveCluster) -> None:
    admin = Admin(cluster)
    admin.create_topic("admin", queues=1)
    send(cluster, "admin", [b"%d" % n for n in range(5)])
    with SimpleConsumer("admin", "g-admin", discovery=cluster) as consumer:
        messages = drain(consumer, 5)
        consumer.ack_all(messages[:3])
        lag = {row["topic"]: row["lag"] for row in admin.group_lag("g-admin")}
        assert lag["admin"] == 2
        assert [row["client_id"] for row in admin.group_clients("g-admin")] == [consumer.client_id]
        consumer.ack_all(messages)
        admin.seek_group("g-admin", "admin", "first", execute=True)
        assert [message.body for message in drain(consumer, 5)] == [b"%d" % n for n in range(5)]
    admin.close()


def test_a_new_group_begins_with_what_a_young_topic_holds_and_at_the_end_of_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with LiveCluster(tmp_path / "young") as young:
        send(young, "jobs", [b"before the first worker"])
        with SimpleConsumer("jobs", "workers", discovery=young) as worker:
            assert [message.body for message in drain(worker, 1)] == [b"before the first worker"]
    assert "begins at the end" not in caplog.text
    monkeypatch.setattr(log_reader, "IN_MEMORY_RATIO", 0.0)
    with LiveCluster(tmp_path / "old", brokers=2) as old:
        Admin(old).create_topic("jobs", queues=2)
        send(old, "jobs", [b"old"] * 8)
        with SimpleConsumer("jobs", "workers", discovery=old) as worker:
            assert worker.receive(1, wait=0) == []
            send(old, "jobs", [b"%d" % number for number in range(8)])
            assert {message.body for message in drain(worker, 8)} == {b"%d" % n for n in range(8)}
        with SimpleConsumer("jobs", "readers", start_from="first", discovery=old) as reader:
            drain(reader, 16)
    said = "group 'workers' begins at the end of 'jobs': the 8 messages that are there are not read"
    assert caplog.text.count(said) == caplog.text.count("begins at the end") == 1


def test_a_queue_that_is_full_of_work_is_told_with_a_type(tmp_path: Path) -> None:
    with LiveCluster(tmp_path) as cluster:
        core = cluster.brokers[0]._core
        assert core is not None
        core.pops.handlers._config = core.config.but(pop_in_flight_max=2)
        with Producer("sender", discovery=cluster) as producer:
            producer.send("full", b"0")
            producer.send_batch(
                [Message("full", b"%d" % n) for n in range(5)],
                queue=MessageQueue("full", "broker-a", 0),
            )
        with SimpleConsumer("full", "g-full", discovery=cluster) as consumer:
            held: list[ReceivedMessage] = []
            with pytest.raises(TooManyInFlight, match="pop_in_flight_max"):
                for _ in range(5):
                    held += consumer.receive(32, wait=0)
            consumer.ack_all(held)
            assert consumer.receive(32, wait=1)


def test_two_brokers_are_waited_for_at_once(tmp_path: Path) -> None:
    with (
        LiveCluster(tmp_path, brokers=2) as cluster,
        Producer("sender", discovery=cluster) as producer,
    ):
        admin = Admin(cluster)
        admin.create_topic("wide", queues=1)
        admin.close()
        with SimpleConsumer("wide", "g-wide", discovery=cluster) as consumer:
            assert consumer.receive(8, wait=0.2) == []
            for name in ("broker-a", "broker-b", "broker-a"):
                queue = MessageQueue("wide", name, 0)
                threading.Timer(
                    0.2, producer.send, ("wide", name.encode()), {"queue": queue}
                ).start()
                watch = Stopwatch()
                (message,) = consumer.receive(8, wait=10)
                assert message.body == name.encode()
                assert watch.lived_s < 3
                message.ack()


def test_a_killed_broker_forgets_neither_who_has_what_nor_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    lives = [first := LiveProcess(tmp_path)]
    try:
        send(first, "crash", [b"%d" % n for n in range(20)])
        with SimpleConsumer("crash", "g-crash", discovery=first, ack_timeout=30) as consumer:
            messages = drain(consumer, 20, invisible=2.5)
            consumer.ack_all(messages[:10])
            messages[10].extend(60)
            first.kill()
            threading.Timer(0.3, lambda: lives.append(LiveProcess(tmp_path))).start()
            messages[10].ack()  # goes on until the broker is back, and counts there
            again = drain(consumer, 9, invisible=20)
            assert sorted(message.body for message in again) == sorted(
                message.body for message in messages[11:]
            )
            assert {message.reconsume_times for message in again} == {1}
            consumer.ack_all(again)
            assert consumer.receive(32, wait=0.3) == []
    finally:
        for life in eventually(lambda: lives[1:]):
            life.kill()


def test_lost_answers_lose_nothing_and_settle_nothing_twice(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"%d" % n for n in range(40)]
    send(cluster, "lossy", bodies)
    monkeypatch.setattr(
        "tests.support.faults.lossy_proxy.SENDS",
        {RequestCode.POP_RECORDS, RequestCode.SETTLE_POPPED},
    )
    monkeypatch.setattr("rmq_ray.client.pop.ack_sender.REQUEST_MS", 200)
    monkeypatch.setattr("rmq_ray.client.pop.pop_client.ANSWER_MS", 200)
    with LossyProxy(cluster, {"lossy": 8}, 0.2) as proxy:
        workers = [Worker("lossy", "g-lossy", proxy, batch=4, invisible=60) for _ in range(3)]
        for worker in workers:
            worker.start()
        eventually(lambda: len(together(workers, "done")) == 40, 30)
        stop(workers)
        assert sum(proxy.lost.values()) > 0
    assert together(workers, "got") == together(workers, "done") == Counter(bodies), (
        "handed out again at once, acknowledged exactly once"
    )
    assert eventually(lambda: commits(cluster, "g-lossy", "lossy") == 40, 15)


def test_without_a_broker_a_receive_ends_with_its_wait_and_says_so(tmp_path: Path) -> None:
    life = LiveProcess(tmp_path)
    send(life, "gone", [b"x"])
    with SimpleConsumer("gone", "g-gone", discovery=life, ack_timeout=0.3) as consumer:
        (message,) = drain(consumer, 1)
        life.kill()
        watch = Stopwatch()
        with pytest.raises(RemotingError):
            consumer.receive(1, wait=0.5)
        assert watch.passed_s > 0.3 and watch.lived_s < 5
        with pytest.raises(RemotingError):
            message.ack()


def test_wrong_arguments_are_told_with_their_names(cluster: LiveCluster) -> None:
    with pytest.raises(ConfigError, match="start_from"):
        SimpleConsumer("jobs", "g", discovery=cluster, start_from="middle")
    with pytest.raises(ConfigError, match="max_reconsume_times"):
        SimpleConsumer("jobs", "g", discovery=cluster, max_reconsume_times=True)
    with pytest.raises(SubscriptionInvalid):
        SimpleConsumer("jobs", "g", discovery=cluster, expression="||")
    consumer = SimpleConsumer("no-such-topic", "g-wrong", discovery=cluster)
    with pytest.raises(ClientError, match="start"):
        consumer.receive(1)
    with consumer:
        for wrong in (
            {"max_messages": 0},
            {"max_messages": 2_000},
            {"invisible": 0},
            {"invisible": 50_000},
            {"wait": -1},
        ):
            with pytest.raises(ClientError):
                consumer.receive(**wrong)  # type: ignore[arg-type]
        with pytest.raises(TopicNotFound):
            consumer.receive(1, wait=0.1)
        with pytest.raises(ClientError, match="make a new one"):
            consumer.start()
    with pytest.raises(ClientError, match="closed"):
        consumer.receive(1)


def test_a_pickled_consumer_is_a_new_one_and_a_pickled_message_a_plain_one(
    cluster: LiveCluster,
) -> None:
    send(cluster, "pickles", [b"x"])
    with SimpleConsumer("pickles", "g-pickles", discovery=cluster) as consumer:
        (message,) = drain(consumer, 1)
        copy = pickle.loads(pickle.dumps(message))
        assert (copy.body, copy.message_id, hasattr(copy, "ack")) == (
            b"x",
            message.message_id,
            False,
        )
        assert repr(message).startswith("ReceivedMessage(")
        message.ack()


def test_a_message_becomes_a_dead_letter_of_a_group_that_is_known_and_tells_why(
    cluster: LiveCluster,
) -> None:
    send(cluster, "buried", [b"old", b"young"])
    graves = DeadLetters(cluster)
    with SimpleConsumer("buried", "diggers", discovery=cluster, start_from="first") as consumer:
        old, young = sorted(drain(consumer, 2, invisible=30.0), key=lambda message: message.body)
        graves.create_group("graves")
        consumer.dead_letter(old, "too old", "graves")
        consumer.dead_letter(young, "too young")
        assert old.ack() is None, "it was acknowledged: twice is as good as once"
    for group, body, why in (("graves", b"old", "too old"), ("diggers", b"young", "too young")):
        (dead,) = graves.dead_letters(group)
        assert (dead.body, dead.failed_with) == (body, why)
    graves.close()
