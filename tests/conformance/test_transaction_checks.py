"""Whom a broker asks about the halves of a producer that died: who can say, and the next one where
somebody cannot.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.instance.broker_link import BrokerLink
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.transaction.transaction_engine import TransactionEngine
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.record import decode_record
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import ClientError
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.server.core.broker_core import BrokerCore
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.brokers.tiny_cluster import FixedDiscovery
from tests.support.faults.chaos import read_log
from tests.support.waiting import eventually

HALVES = sorted(b"%d" % number for number in range(8))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A broker that asks about a half in one round only: what is open in the next is given up."""
    rules = {
        "transaction_timeout_ms": 2_000,
        "transaction_check_interval_ms": 4_000,
        "transaction_check_max": 1,
        "auto_create_topics": False,
    }
    with LiveCluster(tmp_path_factory.mktemp("live"), broker=rules) as running:
        yield running


def core_of(cluster: LiveCluster) -> BrokerCore:
    core = cluster.brokers[0].core
    assert core is not None
    return core


def known(cluster: LiveCluster, group: str, count: int) -> None:
    """Wait until the broker knows so many producers of the group."""
    members = core_of(cluster).members.producers
    eventually(lambda: len(members.channels(group)) == count)


def make_topic(cluster: LiveCluster, topic: str) -> None:
    admin = Admin(cluster)
    admin.create_topic(topic, queues=1)
    admin.close()


def leave_halves(cluster: LiveCluster, group: str) -> None:
    """A process of the group sends eight halves to the topic of its name, and is killed."""
    where = pickle.dumps(FixedDiscovery(cluster.lookup())).hex()
    code = (
        "import os, pickle, signal; from rmq_ray.client.producer.producer import Producer\n"
        f"p = Producer({group!r}, discovery=pickle.loads(bytes.fromhex('{where}')))\n"
        "tx = p.transaction(lambda m: True)\n"
        f"for n in range({len(HALVES)}): tx.send({group!r}, b'%d' % n)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == -9


def settled(cluster: LiveCluster) -> None:
    """Wait until no half is open."""

    async def ask() -> int:
        return int(cluster.brokers[0].status()["half_messages"])

    eventually(lambda: cluster.run(ask()) == 0, 60)


def stored(cluster: LiveCluster, topic: str) -> list[bytes]:
    return sorted(bytes(record.body) for record in read_log(cluster, topic).values())


class Checker:
    """Says what it was told to say; keeps whom it was asked about."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[bytes] = []

    def __call__(self, message: Any) -> object:
        self.asked.append(bytes(message.body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_producer_without_a_checker_is_not_asked_about_the_halves_of_its_group(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(cluster, "mixed")
    checker, before = Checker(True), core_of(cluster).counters.half_checks
    with (
        Producer("mixed", discovery=cluster) as plain,
        Producer("mixed", discovery=cluster) as able,
    ):
        plain.send("mixed", b"plain")
        able.send("mixed", b"able")
        known(cluster, "mixed", 2)
        leave_halves(cluster, "mixed")
        able.transaction(checker)
        settled(cluster)
    assert stored(cluster, "mixed") == sorted([*HALVES, b"plain", b"able"])
    assert sorted(checker.asked) == HALVES, "each once"
    assert core_of(cluster).counters.half_checks - before == len(HALVES), "and nobody else"
    assert not any("cannot say" in text for text in caplog.messages)


def test_a_checker_that_fails_costs_a_half_no_round_while_another_producer_can_say(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(cluster, "t-fails")
    failing, good = Checker(RuntimeError("no database")), Checker(True)
    with (
        Producer("t-fails", discovery=cluster, checker=failing),
        Producer("t-fails", discovery=cluster, checker=good),
    ):
        known(cluster, "t-fails", 2)
        leave_halves(cluster, "t-fails")
        settled(cluster)
    assert stored(cluster, "t-fails") == HALVES == sorted(good.asked)
    assert failing.asked
    told = [text for text in caplog.messages if "cannot say what became of half message" in text]
    assert told and "no database" in told[0] and "the next one is asked" in told[0]


def test_a_producer_that_lost_its_checker_says_so_and_another_one_is_asked(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(cluster, "t-lost")
    lost, good = Checker(True), Checker(False)
    with (
        Producer("t-lost", discovery=cluster, checker=lost) as loser,
        Producer("t-lost", discovery=cluster, checker=good),
    ):
        known(cluster, "t-lost", 2)
        core = loser._core
        assert core is not None
        TransactionEngine.of(core)._checks.checker = None
        leave_halves(cluster, "t-lost")
        settled(cluster)
    assert stored(cluster, "t-lost") == [] and sorted(good.asked) == HALVES and not lost.asked
    assert any("(it has no checker); the next one is asked" in text for text in caplog.messages)


class JavaLike:
    """What Apache RocketMQ's producer says of itself and does when it is asked: commit."""

    def __init__(self, cluster: LiveCluster, group: str) -> None:
        self.asked: list[bytes] = []
        self._group = group
        self._link = BrokerLink(cluster, RemotingLimits(), SYSTEM_CLOCK, self._heard)
        self._link.look_up()
        self._broker = cluster.brokers[0].address
        said = {"clientID": "10.0.0.1@77", "producerDataSet": [{"groupName": group}]}
        beat = Command(RequestCode.HEART_BEAT, body=json.dumps(said).encode())
        assert self._link.invoke(self._broker, beat, 3_000).code == 0

    def close(self) -> None:
        self._link.close()

    def _heard(self, command: Command, _address: Address) -> None:
        assert command.code == RequestCode.CHECK_TRANSACTION_STATE
        self.asked.append(bytes(decode_record(command.body_bytes()).body))
        asked = command.fields or {}
        names = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
        fields = {name: asked[name] for name in names} | {
            "producerGroup": self._group,
            "commitOrRollback": "8",
            "fromTransactionCheck": "true",
        }
        end = Command(RequestCode.END_TRANSACTION, flag=FLAG_ONEWAY, fields=fields)
        self._link.oneway(self._broker, end)


def test_a_client_that_announces_nothing_like_apache_rocketmqs_is_asked(
    cluster: LiveCluster,
) -> None:
    make_topic(cluster, "t-java")
    with Producer("t-java", discovery=cluster) as plain:
        plain.send("t-java", b"plain")
        java = JavaLike(cluster, "t-java")
        known(cluster, "t-java", 2)
        leave_halves(cluster, "t-java")
        settled(cluster)
        java.close()
    assert stored(cluster, "t-java") == sorted([*HALVES, b"plain"])
    assert sorted(java.asked) == HALVES


def test_a_restarted_producer_answers_before_it_sends_anything(cluster: LiveCluster) -> None:
    """Also where brokers create no topics, so that no topic of its own leads it to them."""
    make_topic(cluster, "t-restart")
    leave_halves(cluster, "t-restart")
    checker = Checker(True)
    with Producer("t-restart", discovery=cluster, checker=checker) as producer:
        settled(cluster)
        with producer.transaction() as tx:
            tx.send("t-restart", b"9")
    assert stored(cluster, "t-restart") == sorted([*HALVES, b"9"])
    assert sorted(checker.asked) == HALVES


def test_a_restarted_producer_of_an_event_loop_answers_too(cluster: LiveCluster) -> None:
    make_topic(cluster, "t-loop")
    leave_halves(cluster, "t-loop")
    checker = Checker(True)

    async def live() -> None:
        async with AsyncProducer("t-loop", discovery=cluster, checker=checker) as producer:
            await asyncio.to_thread(settled, cluster)
            async with producer.transaction() as tx:
                await tx.send("t-loop", b"9")

    asyncio.run(live())
    assert stored(cluster, "t-loop") == sorted([*HALVES, b"9"])
    assert sorted(checker.asked) == HALVES


def in_a_pickle(_message: Any) -> bool:
    return True


def test_a_checker_travels_with_its_producer(cluster: LiveCluster) -> None:
    make_topic(cluster, "t-pickle")
    leave_halves(cluster, "t-pickle")
    where = FixedDiscovery(cluster.lookup())
    made = Producer("t-pickle", discovery=where, checker=in_a_pickle)
    with pickle.loads(pickle.dumps(made)):
        settled(cluster)
    assert stored(cluster, "t-pickle") == HALVES


@pytest.mark.parametrize("make", [Producer, AsyncProducer])
def test_what_cannot_be_a_checker_is_refused_when_the_producer_is_made(
    cluster: LiveCluster, make: Callable[..., Any]
) -> None:
    async def coroutine(_message: Any) -> bool:
        return True

    with pytest.raises(ClientError, match="'yes' cannot be called; give a function"):
        make("t-bad", discovery=cluster, checker="yes")
    with pytest.raises(ClientError, match="is a coroutine function; give a function"):
        make("t-bad", discovery=cluster, checker=coroutine)
    with pytest.raises(ClientError, match="needs a checker.*give it here, or to the producer"):
        make("t-bad", discovery=cluster).transaction()
