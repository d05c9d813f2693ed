"""Transactions over sockets: both forms of producers, check-back, and a broker that dies at every
step.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.admin_link import AdminLink
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.producer.transaction_producer import TransactionProducer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.client.transaction.transaction import Transaction
from rmq_ray.client.transaction.transaction_listener import TransactionListener
from rmq_ray.client.transaction.transaction_sending import EndSender
from rmq_ray.errors import (
    ClientError,
    ConnectionLost,
    SendError,
    TransactionEnded,
    TransactionUnknown,
)
from rmq_ray.model.message import Message, SendStatus
from rmq_ray.model.topics import HALF_TOPIC, OP_HALF_TOPIC
from rmq_ray.ports import Discovery
from rmq_ray.protocol.transaction import LocalTransactionState
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.brokers.live_cluster import LiveCluster, LiveProcess
from tests.support.brokers.tiny_cluster import FixedDiscovery
from tests.support.clients.collecting import Collector
from tests.support.faults.chaos import read_log
from tests.support.faults.killing_process import QUICK
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOWN,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live"), broker=QUICK) as running:
        yield running


def never(_message: Any) -> LocalTransactionState:
    raise AssertionError("nobody should have been asked")


def stored(cluster: LiveCluster, topic: str) -> list[bytes]:
    return sorted(bytes(record.body) for record in read_log(cluster, topic).values())


def pending(cluster: LiveCluster) -> int:
    async def ask() -> int:
        return int(cluster.brokers[0].status()["half_messages"])

    return int(cluster.run(ask()))


def settled(cluster: LiveCluster) -> bool:
    return pending(cluster) == 0


class Checker:
    """Says what it was told to say; keeps whom it was asked about."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[bytes] = []

    def __call__(self, message: Any) -> Any:
        self.asked.append(bytes(message.body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_messages_become_visible_when_the_block_ends(cluster: LiveCluster) -> None:
    with Producer("t-commit", discovery=cluster) as producer:
        with producer.transaction(never) as tx:
            first = tx.send("t-commit", b"1", tag="paid", keys=["k"], properties={"a": "b"})
            tx.send(Message("t-commit", b"2"))
            assert (
                first.status is SendStatus.SEND_OK
                and first.transaction_id == first.message_id
                and tx.state is UNKNOWN
            )
            assert stored(cluster, "t-commit") == []
        assert (
            stored(cluster, "t-commit") == [b"1", b"2"]
            and tx.state is COMMIT
            and len(tx.results) == 2
        )
    collector = Collector()
    with PushConsumer(
        "t-commit-g",
        listener=collector,
        subscriptions={"t-commit": "paid"},
        discovery=cluster,
        start_from="first",
    ):
        collector.wait_for(1)
    (message,) = collector.messages
    assert (message.tag, list(message.keys), dict(message.properties), message.message_id) == (
        "paid",
        ["k"],
        {"a": "b"},
        first.message_id,
    )


def test_an_error_in_the_block_rolls_back_and_is_raised(cluster: LiveCluster) -> None:
    with Producer("t-rollback", discovery=cluster) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(never) as tx:
            tx.send("t-rollback", b"x")
            raise ZeroDivisionError
        assert tx.state is ROLLBACK and stored(cluster, "t-rollback") == [] and settled(cluster)


def test_a_transaction_ends_once_and_cannot_be_used_afterwards(cluster: LiveCluster) -> None:
    with Producer("t-once", discovery=cluster) as producer:
        with producer.transaction(never) as tx:
            tx.send("t-once", b"x")
            tx.commit()
            tx.commit()
            with pytest.raises(ClientError, match="cannot roll back: this transaction has ended"):
                tx.rollback()
            with pytest.raises(ClientError, match="cannot send: this transaction has ended"):
                tx.send("t-once", b"y")
        with pytest.raises(ClientError, match="cannot begin"), tx:
            pass
        with producer.transaction(never):
            pass
        assert stored(cluster, "t-once") == [b"x"]


def test_what_cannot_be_transactional_is_refused_before_anything_is_sent(
    cluster: LiveCluster,
) -> None:
    with Producer("t-bad", discovery=cluster) as producer, producer.transaction(never) as tx:
        with pytest.raises(ClientError, match="neither delayed"):
            tx.send(Message("t-bad", b"x", delay_level=3))
        with pytest.raises(ClientError, match="check_immunity is -1"):
            tx.send("t-bad", b"x", check_immunity=-1)
        with pytest.raises(SendError, match="empty"):
            tx.send("t-bad", b"")
        with pytest.raises(ClientError, match="begin another one where it is needed"):
            pickle.dumps(tx)
        with pytest.raises(ClientError, match="cannot be called"):
            producer.transaction("checker")  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="needs a checker"):
            producer.transaction(None)  # type: ignore[arg-type]
    assert settled(cluster)


def test_a_closed_producer_begins_nothing_and_leaves_the_open_to_the_check(
    cluster: LiveCluster,
) -> None:
    producer = Producer("t-closed", discovery=cluster)
    tx = producer.transaction(never)
    tx.send("t-closed", b"x")
    producer.close()
    producer.close()
    with pytest.raises(ClientError):
        producer.transaction(never)
    with pytest.raises(ClientError, match="closed"):
        tx.send("t-closed", b"y")
    watch = Stopwatch()
    with pytest.raises(TransactionUnknown, match="closed"):
        tx.commit()
    assert watch.lived_s < 1
    checker = Checker(COMMIT)
    with Producer("t-closed", discovery=cluster) as other:
        other.transaction(checker)
        eventually(lambda: stored(cluster, "t-closed") == [b"x"])
    assert set(checker.asked) == {b"x"} and settled(cluster)


@pytest.mark.seed("S0-012")
def test_the_sender_dies_and_another_of_its_group_answers(cluster: LiveCluster) -> None:
    """A process sends a half and is killed; whoever is left of the group is asked, other groups are
    not.
    """
    where = pickle.dumps(FixedDiscovery(cluster.lookup())).hex()
    code = (
        "import os, pickle, signal; from rmq_ray.client.producer.producer import Producer\n"
        f"p = Producer('t-dead', discovery=pickle.loads(bytes.fromhex('{where}')))\n"
        "p.transaction(lambda m: True).send('t-dead', b'x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    checker, stranger = Checker(COMMIT), Checker(ROLLBACK)
    with (
        Producer("t-dead", discovery=cluster) as member,
        Producer("t-other", discovery=cluster) as other,
    ):
        member.transaction(checker)
        other.transaction(stranger)
        done = subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
        assert done.returncode == -9
        eventually(lambda: stored(cluster, "t-dead") == [b"x"])
    assert (
        set(checker.asked) == {b"x"} and not stranger.asked and eventually(lambda: settled(cluster))
    )


def test_an_open_transaction_is_not_judged_by_the_checker_of_its_own_process(
    cluster: LiveCluster,
) -> None:
    with Producer("t-open", discovery=cluster) as producer:
        with producer.transaction(Checker(ROLLBACK)) as tx:
            tx.send("t-open", b"x")
            core = cluster.brokers[0]._core
            assert core is not None
            before = core.counters.half_unknown
            eventually(lambda: core.counters.half_unknown > before + 1)
        assert stored(cluster, "t-open") == [b"x"]


@pytest.mark.parametrize(
    "first", [RuntimeError("no database"), "nonsense", UNKNOWN, None], ids=repr
)
def test_a_checker_that_fails_or_does_not_know_is_asked_again(
    cluster: LiveCluster, first: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"t-again-{type(first).__name__}"
    checker = Checker(first, COMMIT)
    lost = Producer(topic, discovery=cluster)
    lost.transaction(never).send(topic, b"x")
    lost.close()
    with Producer(topic, discovery=cluster) as producer:
        producer.transaction(checker)
        eventually(lambda: stored(cluster, topic) == [b"x"])
        eventually(lambda: settled(cluster))
    assert len(checker.asked) >= 2 and set(checker.asked) == {
        b"x"
    }  # once more where an answer takes longer than the pause between two questions
    assert stored(cluster, topic) == [b"x"]
    if isinstance(first, RuntimeError | str):
        assert any("stays open" in record.message for record in caplog.records), "told"


def test_its_own_immunity_keeps_a_half_from_being_asked_about(cluster: LiveCluster) -> None:
    checker = Checker(COMMIT)
    lost = Producer("t-immune", discovery=cluster)
    began = time.monotonic()
    lost.transaction(never).send("t-immune", b"x", check_immunity=2)
    lost.close()
    with Producer("t-immune", discovery=cluster) as producer:
        producer.transaction(checker)
        eventually(lambda: checker.asked)
        assert time.monotonic() - began > 1.9
    eventually(lambda: settled(cluster))


def test_a_commit_after_another_member_has_rolled_back_says_so(cluster: LiveCluster) -> None:
    with Producer("t-late", discovery=cluster) as producer:
        tx = producer.transaction(never)
        tx.send("t-late", b"x")
        tx._sender.engine._forget(tx._halves[0].key)  # as when the process remembers too many
        producer.transaction(Checker(ROLLBACK))
        eventually(lambda: settled(cluster))
        for _ in "commits that are not true":
            with pytest.raises(TransactionEnded, match="rolled back"):
                tx.commit()


def test_a_commit_that_nobody_acknowledged_is_made_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LiveCluster(tmp_path) as cluster, Producer("t-again", discovery=cluster) as producer:
        tx = producer.transaction(never, timeout=1.0)
        for body in (b"1", b"2"):
            tx.send("t-again", body, timeout=3)
        real, asked = EndSender.end, []

        def lose(sender: Any, name: str, end: Any, timeout_ms: float) -> Any:
            asked.append(end)
            if len(asked) > 1:
                raise ConnectionLost("the broker is away")
            return real(sender, name, end, timeout_ms)

        with monkeypatch.context() as patched:
            patched.setattr(EndSender, "end", lose)
            with pytest.raises(TransactionUnknown):
                tx.commit()
        ends = len(set(asked))
        monkeypatch.setattr(EndSender, "end", lambda *told: asked.append(told[2]) or real(*told))
        asked.clear()
        tx.commit()
        tx.commit()
        assert ends == 2 and len(asked) == 1, "the one that was not acknowledged, once"
        assert stored(cluster, "t-again") == [b"1", b"2"]


class Pay(TransactionListener):
    """Does what it is told to do."""

    def __init__(self, said: Any, checked: Any = ROLLBACK) -> None:
        self.said, self.checked = said, checked
        self.seen: list[Any] = []

    def execute_local_transaction(self, message: Message, arg: Any) -> Any:
        self.seen.append((message.body, arg))
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def check_local_transaction(self, message: Any) -> Any:
        self.seen.append(bytes(message.body))
        return self.checked


@pytest.mark.parametrize(
    ("said", "state", "expected"),
    [
        (COMMIT, COMMIT, [b"x"]),
        (False, ROLLBACK, []),
        (ValueError("no"), UNKNOWN, [b"x"]),
        (7, UNKNOWN, [b"x"]),
    ],
)
def test_a_listener_decides_and_what_it_leaves_open_is_asked_later(
    cluster: LiveCluster, said: Any, state: Any, expected: list[bytes]
) -> None:
    topic = f"t-listener-{type(said).__name__}"
    listener = Pay(said, COMMIT)
    with TransactionProducer(topic, listener=listener, discovery=cluster) as producer:
        result = producer.send_in_transaction(Message(topic, b"x"), 42)
        assert result.local_state is state and result.transaction_id == result.message_id
        assert result.error is (said if isinstance(said, Exception) else None)
        eventually(lambda: settled(cluster) and stored(cluster, topic) == expected)
    asked = listener.seen[1:]  # again where an answer takes longer than the pause
    assert listener.seen[0] == (b"x", 42) and set(asked) == ({b"x"} if state is UNKNOWN else set())


def test_a_transactional_producer_pickles_with_its_listener_and_refuses_others(
    cluster: LiveCluster,
) -> None:
    with TransactionProducer(
        "t-pickle", listener=Pay(COMMIT), discovery=FixedDiscovery(cluster.lookup())
    ) as producer:
        producer.send_in_transaction(Message("t-pickle", b"1"))
        with pickle.loads(pickle.dumps(producer)) as other:
            other.send_in_transaction(Message("t-pickle", b"2"))
        with pytest.raises(ClientError, match="takes a Message"):
            producer.send_in_transaction("t-pickle")  # type: ignore[arg-type]
    assert stored(cluster, "t-pickle") == [b"1", b"2"]
    with pytest.raises(ClientError, match="no TransactionListener"):
        TransactionProducer("t-pickle", listener=never, discovery=cluster)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="None is no TransactionListener"):
        TransactionProducer("t-pickle", discovery=cluster)
    for wrong in ({}, {"listener": Pay(COMMIT)}):
        with pytest.raises(
            ClientError, match=r"takes no checker=.*Producer\(group, checker=\.\.\.\)"
        ):
            TransactionProducer("t-pickle", checker=never, discovery=cluster, **wrong)


def test_two_producers_of_many_threads_lose_and_double_nothing(cluster: LiveCluster) -> None:
    """Every third transaction is rolled back, every fifth left to the check."""
    checker = Checker(COMMIT)
    with Producer("t-many", discovery=cluster) as producer:

        def run(number: int) -> None:
            for n in range(20):
                tx = producer.transaction(checker)
                tx.send("t-many", b"%d-%d" % (number, n))
                if n % 5 == 4:
                    tx._sender.engine._forget(tx._halves[0].key)
                elif n % 3 == 0:
                    tx.rollback()
                else:
                    tx.commit()

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        eventually(lambda: settled(cluster))
    expected = sorted(
        b"%d-%d" % (number, n) for number in range(8) for n in range(20) if n % 5 == 4 or n % 3
    )
    assert stored(cluster, "t-many") == expected


COMMITS = [
    f"before {HALF_TOPIC}",
    f"after {HALF_TOPIC}",
    "before orders",
    "within orders",
    "after orders",
]
ROLLBACKS = [f"before {OP_HALF_TOPIC}", f"after {OP_HALF_TOPIC}"]


def outcome_after_a_kill(
    directory: Path, step: str, work: Callable[[Discovery], None]
) -> tuple[list[bytes], int]:
    """(what is in "orders" afterwards, pending halves) when the broker is killed at ``step`` of
    ``work`` and started again.
    """
    living = LiveProcess(directory, step, "tests.support.faults.killing_process")
    discovery = FixedDiscovery(living.lookup())
    admin = Admin(discovery)
    admin.create_topic("orders", queues=1)
    admin.close()
    worker = threading.Thread(target=work, args=(discovery,), daemon=True)
    worker.start()
    living.wait()
    again = LiveProcess(directory, "never", "tests.support.faults.killing_process")
    try:
        worker.join(30)
        assert not worker.is_alive()
        eventually(lambda: status_of(discovery)["half_messages"] == 0)
        return sorted(bytes(record.body) for record in read_log(discovery, "orders").values()), 0
    finally:
        again.kill()


def status_of(discovery: Discovery) -> dict[str, Any]:
    """BROKER_STATUS of the only broker."""
    link = AdminLink(discovery)
    try:
        (address,) = link.masters().values()
        found = msgpack.unpackb(
            link._client().invoke(address, Command(RequestCode.BROKER_STATUS)).body_bytes(),
            strict_map_key=False,
        )
        assert isinstance(found, dict)
        return found
    finally:
        link.close()


@pytest.mark.parametrize(
    ("commits", "step"),
    [*((True, step) for step in COMMITS), *((False, step) for step in ROLLBACKS)],
)
def test_a_broker_killed_at_any_step_delivers_a_commit_once_and_a_rollback_never(
    tmp_path: Path, commits: bool, step: str
) -> None:
    asked = Checker(commits)

    def work(discovery: Discovery) -> None:
        with Producer("web", discovery=discovery, send_timeout_ms=60_000) as producer:
            tx: Transaction = producer.transaction(asked)
            tx.send("orders", b"x")
            if commits:
                tx.commit()
            else:
                tx.rollback()

    assert outcome_after_a_kill(tmp_path, step, work) == ([b"x"] if commits else [], 0)


@pytest.mark.parametrize(
    "step",
    [f"before {HALF_TOPIC} 2", f"after {HALF_TOPIC} 2", f"after {OP_HALF_TOPIC} 1", "after orders"],
)
def test_a_broker_killed_while_it_asks_delivers_once(tmp_path: Path, step: str) -> None:
    """The first life is killed at a step of the check, or of the end that answers it."""

    def work(discovery: Discovery) -> None:
        lost = Producer("web", discovery=discovery)
        lost.transaction(never).send("orders", b"x")
        lost.close()
        with Producer("web", discovery=discovery, send_timeout_ms=60_000) as producer:
            checker = Checker(COMMIT)
            producer.transaction(checker)
            assert producer._core is not None
            instance = producer._core.instance

            def asked() -> bool:
                instance.heartbeat(wait_s=10.0)  # else each 30 s
                return bool(checker.asked)

            eventually(asked, every_s=0.2)
            threading.Event().wait(1.0)

    assert outcome_after_a_kill(tmp_path, step, work) == ([b"x"], 0)


@pytest.fixture
def unhurried(tmp_path: Path) -> Iterator[LiveCluster]:
    """It asks about no half."""
    with LiveCluster(tmp_path) as running:
        yield running


def test_threads_that_begin_and_end_transactions_at_once_share_frames_and_writes(
    unhurried: LiveCluster,
) -> None:
    cluster = unhurried
    core = cluster.brokers[0]._core
    assert core is not None
    frames = core.counters.put_frames
    store_frames = cluster.store().counters["frames"]
    with Producer("t-shared", discovery=cluster) as producer:

        def run(number: int) -> None:
            for n in range(20):
                with producer.transaction(never) as tx:
                    tx.send("t-shared", b"%d-%d" % (number, n), properties={"n": str(n)})

        threads = [
            threading.Thread(target=run, args=(number,), daemon=True) for number in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert stored(cluster, "t-shared") == sorted(
        b"%d-%d" % (number, n) for number in range(24) for n in range(20)
    )
    assert (
        core.counters.put_frames - frames < 300
        and cluster.store().counters["frames"] - store_frames < 600
    ), "of 480 halves, 480 ends"
    assert settled(cluster)


def test_a_half_that_moves_to_another_broker_is_for_a_queue_there(tmp_path: Path) -> None:
    with LiveCluster(tmp_path, brokers=2) as two, Producer("t-moves", discovery=two) as producer:
        admin = Admin(two)
        admin.create_topic("t-moves", queues=12)
        admin.close()
        with producer.transaction(never) as tx:
            for n in range(2):
                tx.send("t-moves", b"%d" % n)
        two.run(two.brokers[0].stop())
        with producer.transaction(never) as tx:
            results = [tx.send("t-moves", b"%d" % n) for n in range(2, 6)]
        assert {result.queue.broker_name for result in results} == {"broker-b"}
        eventually(lambda: two.store(1).bounds("t-moves", results[0].queue.queue_id)[1] > 0)
