"""A real cluster while brokers and consumers die: afterwards the log, the acknowledgements and the
deliveries must agree.
"""

from __future__ import annotations

import array
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rmq_ray as rmq
from tests.support.brokers.tiny_cluster import FixedDiscovery
from tests.support.clients.collecting import Collector
from tests.support.faults.chaos import Acknowledged, SendingThread, check_log, read_log
from tests.support.outcomes import judging
from tests.support.waiting import eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
BROKER = "broker-a/0"
KILLS = 3
ROOT = Path(__file__).parents[2]


def kill_broker(mq: rmq.Cluster) -> None:
    """kill -9; returns once another process serves."""
    pid = int(eventually(lambda: mq.status()[BROKER].get("pid")))
    os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: (
            mq.status()[BROKER].get("pid") not in (None, pid)
            and mq.status()[BROKER].get("state") == "serving"
        ),
        30,
    )


def ends_of(mq: rmq.Cluster, topic: str) -> dict[rmq.MessageQueue, int]:
    return {queue: stats.max_offset for queue, stats in mq.admin.topic_stats(topic).items()}


@judging()
def check_offsets(mq: rmq.Cluster, group: str, topic: str, collectors: list[Collector]) -> None:
    """Everything below a committed offset was delivered."""
    rows = mq.admin.group_lag(group)
    got = delivered(collectors)  # looked at after the offsets: both go on meanwhile
    for row in rows:
        if row["topic"] == topic:
            missing = [
                n
                for n in range(max(0, row["committed"]))
                if (row["broker"], row["queue"], n) not in got
            ]
            assert not missing, (
                f"queue {row['queue']} is committed up to {row['committed']}, never "
                f"delivered: {missing[:5]}, {len(missing)} in all"
            )


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_while_a_broker_is_killed_again_and_again_nothing_is_lost_and_nothing_is_stored_twice(
    mortal: rmq.Cluster, start: Callable[..., rmq.Cluster], flush: str
) -> None:
    mq = mortal if flush == "async" else start(flush=flush)
    mq.admin.create_topic("chaos", queues=4)
    group = f"chaos-{uuid.uuid4().hex[:6]}"
    collectors = [Collector(), Collector()]
    consumers = [
        rmq.PushConsumer(
            group,
            listener=collector,
            subscriptions={"chaos": "*"},
            start_from="first",
            concurrency=4,
            cluster=mq.name,
        )
        for collector in collectors
    ]
    producers = [
        rmq.Producer(
            f"chaos-{number}", cluster=mq.name, send_timeout_ms=30_000, raise_on_status=False
        )
        for number in range(2)
    ]
    senders = [
        SendingThread(producers[0], "chaos", "waiting", wait=True),
        SendingThread(producers[1], "chaos", "async", wait=False),
    ]
    for consumer in consumers:
        consumer.start()
    try:
        with senders[0], senders[1]:
            for _ in range(KILLS):
                before = len(senders[0].acknowledged.places)
                eventually(
                    lambda before=before: len(senders[0].acknowledged.places) > before + 100, 30
                )
                kill_broker(mq)
                check_offsets(mq, group, "chaos", collectors)
            before = len(senders[0].acknowledged.places)
            eventually(lambda before=before: len(senders[0].acknowledged.places) > before + 100, 90)
            for sender in senders:
                sender.finish()
        everything = Acknowledged()
        for sender in senders:
            everything.places |= sender.acknowledged.places
            everything.failed |= sender.acknowledged.failed
        log = read_log(mq.discovery, "chaos")
        check_log(log, everything, ends_of(mq, "chaos"))
        assert not everything.failed
        eventually(lambda: delivered(collectors) >= log.keys(), 90)
        for consumer in consumers:
            consumer.stop()
        check_offsets(mq, group, "chaos", collectors)
        assert {
            row["queue"]: row["lag"] for row in mq.admin.group_lag(group) if row["topic"] == "chaos"
        } == dict.fromkeys(range(4), 0)
    finally:
        for consumer in consumers:
            consumer.stop()


def delivered(collectors: list[Collector]) -> set[tuple[str, int, int]]:
    return {place for collector in collectors for place in collector.places}


@contextmanager
def consumer_process(
    mq: rmq.Cluster, group: str, topic: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A consumer that can be killed, and what it printed (filled by ``communicate`` when it has
    ended).
    """
    where = pickle.dumps(FixedDiscovery(mq.discovery.lookup())).hex()
    output: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.clients.consumer_process", where, group, topic, "*"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process, output
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        output += process.communicate(timeout=20)[0].split("\n")


def printed(process: subprocess.Popen[str]) -> int:
    """Bytes that wait in the process's output; they stay there."""
    assert process.stdout is not None
    waiting = array.array("i", [0])
    fcntl.ioctl(process.stdout.fileno(), termios.FIONREAD, waiting)
    return waiting[0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_queues_of_a_consumer_that_is_killed_or_stopped_move_and_nothing_is_lost(
    mq: rmq.Cluster, how: signal.Signals
) -> None:
    """A killed one is noticed by its connection; a stopped one keeps its queues until it is killed
    or goes on, and then nothing is missing.
    """
    topic, group = f"moving-{how.name}", f"moving-{how.name}-group"
    mq.admin.create_topic(topic, queues=4)
    collector = Collector()
    with (
        rmq.PushConsumer(
            group,
            listener=collector,
            subscriptions={topic: "*"},
            start_from="first",
            cluster=mq.name,
        ) as stays,
        consumer_process(mq, group, topic) as (process, output),
        SendingThread(rmq.Producer(cluster=mq.name), topic, "m", wait=True) as sender,
    ):
        eventually(
            lambda: sum(queue["topic"] == topic for queue in stays.stats()["queues"]) == 2, 30
        )
        eventually(
            lambda: len(sender.acknowledged.places) > 200 and printed(process) > 100, 60
        )  # the other one consumes, too
        process.send_signal(how)
        if how is signal.SIGSTOP:
            time.sleep(1.0)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.5)
            process.kill()
        eventually(
            lambda: sum(queue["topic"] == topic for queue in stays.stats()["queues"]) == 4, 30
        )
        before = len(sender.acknowledged.places)
        eventually(lambda: len(sender.acknowledged.places) > before + 100)
        acknowledged = sender.finish()
        log = read_log(mq.discovery, topic)
        check_log(log, acknowledged, ends_of(mq, topic))
        eventually(
            lambda: (
                sum(row["lag"] for row in mq.admin.group_lag(group)) == 0
                if stays.persist_offsets() is None
                else False
            ),
            30,
        )
    theirs = {
        ("broker-a", int(queue_id), int(offset))
        for queue_id, offset in (line.split() for line in output[:-1])
    }
    with judging():
        assert set(collector.places) | theirs == log.keys()
    assert theirs and set(collector.places) - theirs


def test_a_listener_that_raises_a_thousand_times_loses_nothing(mq: rmq.Cluster) -> None:
    """Failed messages are sent back, come again from the retry topic, and are done in the end; the
    originals count as consumed.
    """
    mq.admin.create_topic("raising", queues=2)
    collector, failed = Collector(), set()

    def listener(messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
        for message in messages:
            if bytes(message.body) not in failed:
                failed.add(bytes(message.body))
                raise RuntimeError("told to")
        collector(messages, ctx)

    group = "raising-group"
    with (
        rmq.PushConsumer(
            group,
            listener=listener,
            subscriptions={"raising": "*"},
            start_from="first",
            concurrency=8,
            cluster=mq.name,
        ) as consumer,
        rmq.Producer(cluster=mq.name) as p,
    ):
        bodies = {b"%d" % number for number in range(1_000)}
        for future in [p.send_async("raising", body) for body in sorted(bodies)]:
            future.result(20)
        eventually(lambda: set(collector.bodies) == bodies, 40)
        assert consumer.stats()["listener_faults"] >= 1_000
        assert consumer.stats()["consumed_failed"] == consumer.stats()["sent_back"]


def test_two_consumers_of_a_group_with_different_subscriptions_do_not_stop_the_group(
    mq: rmq.Cluster,
) -> None:
    """The latest subscription wins at the broker (RocketMQ's rule); whatever tags are lost to it,
    both go on and agree again afterwards.
    """
    mq.admin.create_topic("split", queues=2)
    group, red, blue = "split-group", Collector(), Collector()
    with (
        rmq.PushConsumer(
            group, listener=red, subscriptions={"split": "red"}, start_from="first", cluster=mq.name
        ),
        rmq.Producer(cluster=mq.name) as p,
    ):
        p.send("split", b"first", tag="red")
        red.wait_for(1)
        with rmq.PushConsumer(
            group,
            listener=blue,
            subscriptions={"split": "blue"},
            start_from="first",
            cluster=mq.name,
        ) as other:
            eventually(lambda: any(queue["topic"] == "split" for queue in other.stats()["queues"]))
            for number in range(40):
                p.send(
                    "split", b"%d" % number, tag="red" if number // 2 % 2 else "blue"
                )  # both tags in both queues
            eventually(lambda: blue.bodies or red.bodies[1:])
        before = len(red.bodies)
        assert all(message.tag == "red" for message in red.messages) and all(
            message.tag == "blue" for message in blue.messages
        )
        eventually(
            lambda: p.send("split", b"last", tag="red") and len(red.bodies) > before,
            30,
            every_s=0.2,
        )
