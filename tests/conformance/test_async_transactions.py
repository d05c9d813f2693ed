"""Transactions and columns of the producer on an event loop, against a live broker."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.transaction import transaction_engine
from rmq_ray.client.transaction.transaction_listener import TransactionListener
from rmq_ray.errors import (
    ClientError,
    MessageIllegal,
    SendError,
    TransactionEnded,
    TransactionUnknown,
)
from rmq_ray.model.message import Message, SendStatus
from rmq_ray.protocol.transaction import LocalTransactionState
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.faults.chaos import read_log
from tests.support.faults.killing_process import QUICK
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


@pytest.fixture
def unhurried(tmp_path: Path) -> Iterator[LiveCluster]:
    """Asks about halves at RocketMQ's pace. A question is two frames more, and on a slow machine
    the other cluster asks about halves under way.
    """
    with LiveCluster(tmp_path) as running:
        yield running


def never(_message: Any) -> LocalTransactionState:
    raise AssertionError("nobody should have been asked")


def stored(cluster: LiveCluster, topic: str) -> list[bytes]:
    return sorted(bytes(record.body) for record in read_log(cluster, topic).values())


def test_a_process_knows_every_transaction_that_it_has_open_however_many(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_engine, "KNOWN_MAX", 1)
    with Producer("many-open", discovery=cluster) as producer, producer.transaction(never) as tx:
        keys = [tx.send("many-open", b"%d" % number).transaction_id for number in range(3)]
        engine = producer._core.transactions  # type: ignore[union-attr]
        assert [engine.known(str(key)) for key in keys] == [UNKNOWN] * 3  # type: ignore[attr-defined]
    assert eventually(lambda: stored(cluster, "many-open") == [b"0", b"1", b"2"])


def pending(cluster: LiveCluster) -> int:
    async def ask() -> int:
        return int(cluster.brokers[0].status()["half_messages"])

    return int(cluster.run(ask()))


def run(
    cluster: LiveCluster,
    group: str,
    work: Callable[[AsyncProducer], Awaitable[None]],
    **settings: Any,
) -> None:
    async def main() -> None:
        async with AsyncProducer(
            group, discovery=cluster, send_timeout_ms=20_000, **settings
        ) as producer:
            await asyncio.wait_for(work(producer), 30)

    asyncio.run(main())


def test_messages_become_visible_when_the_block_ends_and_are_ended_together(
    cluster: LiveCluster,
) -> None:
    async def work(producer: AsyncProducer) -> None:
        async with producer.transaction(never) as tx:
            results = [await tx.send("a-commit", b"%d" % n, tag="t", keys=["k"]) for n in range(5)]
            assert tx.state is UNKNOWN and all(
                result.transaction_id == result.message_id for result in results
            )
            assert stored(cluster, "a-commit") == []
        assert tx.state is COMMIT and [result.message_id for result in tx.results] == [
            result.message_id for result in results
        ]

    run(cluster, "a-commit", work)
    assert stored(cluster, "a-commit") == [b"0", b"1", b"2", b"3", b"4"] and pending(cluster) == 0


def test_many_tasks_have_a_transaction_each(cluster: LiveCluster) -> None:
    async def work(producer: AsyncProducer) -> None:
        async def one(n: int) -> None:
            tx = producer.transaction(never)
            await tx.send("a-many", b"%d" % n)
            await (tx.commit() if n % 2 else tx.rollback())

        await asyncio.gather(*(one(n) for n in range(100)))

    run(cluster, "a-many", work)
    assert (
        stored(cluster, "a-many") == sorted(b"%d" % n for n in range(1, 100, 2))
        and pending(cluster) == 0
    )


def test_transactions_of_one_turn_of_the_loop_share_frames_and_requests(
    unhurried: LiveCluster,
) -> None:
    core = unhurried.brokers[0]._core
    assert core is not None
    frames, store_frames = core.counters.put_frames, unhurried.store().counters["frames"]

    async def work(producer: AsyncProducer) -> None:
        async def one(n: int) -> None:
            if n == 7:
                await asyncio.sleep(0.01)  # in a turn of its own
            async with producer.transaction(never) as tx:
                result = await tx.send("a-shared", b"%03d" % n, properties={"n": str(n)})
                ids[n] = result.message_id
                if n == 8:
                    raise KeyError("rolled back")

        ids: dict[int, str] = {}
        outcomes = await asyncio.gather(*(one(n) for n in range(400)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [KeyError] and len(
            set(ids.values())
        ) == 400

    run(unhurried, "a-shared", work)
    assert (
        stored(unhurried, "a-shared") == [b"%03d" % n for n in range(400) if n != 8]
        and pending(unhurried) == 0
    )
    assert (
        core.counters.put_frames - frames < 20
        and unhurried.store().counters["frames"] - store_frames < 100
    ), "of 400 halves, 400 ends"


def test_a_cancelled_send_of_a_shared_frame_leaves_the_others_alone(cluster: LiveCluster) -> None:
    async def work(producer: AsyncProducer) -> None:
        async with producer.transaction(never) as first:
            await first.send("a-cancel", b"first")  # connections are there from here on
        blocks = [asyncio.ensure_future(one(producer, n)) for n in range(6)]
        await asyncio.sleep(0)  # all have joined
        blocks[2].cancel()
        outcomes = await asyncio.gather(*blocks, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType"] * 2 + [
            "CancelledError"
        ] + ["NoneType"] * 3
        await asyncio.to_thread(
            eventually, lambda: pending(cluster) == 0
        )  # the broker asks about the cancelled one, and is told to roll it back

    async def one(producer: AsyncProducer, n: int) -> None:
        async with producer.transaction(never) as tx:
            await tx.send("a-cancel", b"%d" % n)

    run(cluster, "a-cancel", work)
    assert stored(cluster, "a-cancel") == [b"0", b"1", b"3", b"4", b"5", b"first"]


@pytest.mark.parametrize("how", ["error", "cancelled"])
def test_an_error_or_a_cancellation_in_the_block_rolls_back(cluster: LiveCluster, how: str) -> None:
    async def work(producer: AsyncProducer) -> None:
        sent = asyncio.Event()

        async def block() -> None:
            async with producer.transaction(never) as tx:
                await tx.send("a-rollback", b"x")
                sent.set()
                if how == "error":
                    raise ZeroDivisionError
                await asyncio.sleep(60)

        task = asyncio.create_task(block())
        await sent.wait()
        if how == "cancelled":
            task.cancel()
        with pytest.raises(ZeroDivisionError if how == "error" else asyncio.CancelledError):
            await task

    run(cluster, "a-rollback", work)
    assert stored(cluster, "a-rollback") == [] and pending(cluster) == 0


def test_it_ends_once_and_refuses_what_a_thread_s_refuses(cluster: LiveCluster) -> None:
    async def work(producer: AsyncProducer) -> None:
        async with producer.transaction(never) as tx:
            await tx.send("a-once", b"x")
            await tx.commit()
            await tx.commit()
            with pytest.raises(ClientError, match="cannot roll back: this transaction has ended"):
                await tx.rollback()
            with pytest.raises(ClientError, match="cannot send"):
                await tx.send("a-once", b"y")
            with pytest.raises(ClientError, match="begin another one where it is needed"):
                pickle.dumps(tx)
        other = producer.transaction(never)
        with pytest.raises(ClientError, match="neither delayed"):
            await other.send(Message("a-once", b"x", delay_level=3))
        with pytest.raises(ClientError, match="check_immunity is -1"):
            await other.send("a-once", b"x", check_immunity=-1)
        with pytest.raises(SendError, match="empty"):
            await other.send("a-once", b"")
        with pytest.raises(ClientError, match="needs a checker"):
            producer.transaction(None)  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="cannot be called"):
            await producer.transaction("checker").send("a-once", b"x")  # type: ignore[arg-type]

    run(cluster, "a-once", work)
    assert stored(cluster, "a-once") == [b"x"] and pending(cluster) == 0


def test_what_it_leaves_open_is_asked_of_its_group_and_a_late_end_is_told(
    cluster: LiveCluster,
) -> None:
    async def work(producer: AsyncProducer) -> None:
        tx = producer.transaction(lambda message: False)
        await tx.send("a-late", b"x")
        core = producer._core
        assert core is not None
        core.transactions._forget(tx._halves[0].key)  # type: ignore[attr-defined]
        await asyncio.to_thread(eventually, lambda: pending(cluster) == 0)
        for _ in "commits that are not true":
            with pytest.raises(TransactionEnded, match="rolled back"):
                await tx.commit()
        closed = producer.transaction(never)
        await closed.send("a-late", b"y")
        await producer.close()
        with pytest.raises((TransactionUnknown, ClientError), match="closed|make a new one"):
            await closed.commit()

    run(cluster, "a-late", work)
    with Producer("a-late", discovery=cluster) as other:
        other.transaction(lambda message: message.body == b"y")
        eventually(lambda: stored(cluster, "a-late") == [b"y"])


class Pay(TransactionListener):
    def __init__(self, said: Any, awaits: bool) -> None:
        self.said, self.awaits = said, awaits
        self.seen: list[Any] = []

    def execute_local_transaction(self, message: Message, arg: Any) -> Any:
        self.seen.append((message.body, arg))
        return self._later() if self.awaits else self._now()

    async def _later(self) -> Any:
        await asyncio.sleep(0)
        return self._now()

    def _now(self) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def check_local_transaction(self, message: Any) -> Any:
        return True


@pytest.mark.parametrize("awaits", [False, True], ids=["function", "coroutine"])
@pytest.mark.parametrize(
    ("said", "state"),
    [(True, COMMIT), (ROLLBACK, ROLLBACK), (ValueError("no"), UNKNOWN), (7, UNKNOWN)],
    ids=str,
)
def test_a_listener_decides(
    cluster: LiveCluster, said: Any, state: LocalTransactionState, awaits: bool
) -> None:
    topic = f"a-listener-{type(said).__name__}-{awaits}"
    listener = Pay(said, awaits)

    async def work(producer: AsyncProducer) -> None:
        result = await producer.send_in_transaction(Message(topic, b"x"), listener, 42)
        assert result.local_state is state and result.status is SendStatus.SEND_OK
        assert result.error is (said if isinstance(said, Exception) else None)
        with pytest.raises(ClientError, match="takes a Message"):
            await producer.send_in_transaction(topic, listener)  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="no TransactionListener"):
            await producer.send_in_transaction(Message(topic, b"x"), never)  # type: ignore[arg-type]
        await asyncio.to_thread(eventually, lambda: pending(cluster) == 0)

    run(cluster, topic, work)
    assert stored(cluster, topic) == ([] if state is ROLLBACK else [b"x"]) and listener.seen == [
        (b"x", 42)
    ]


def test_hooks_namespaces_and_compression_are_around_halves_too(cluster: LiveCluster) -> None:
    class Hook:
        seen: list[str] = []

        def before(self, ctx: Any) -> None:
            ctx.add_property("sender", "web")

        def after(self, ctx: Any) -> None:
            self.seen.append(ctx.topic)

    async def work(producer: AsyncProducer) -> None:
        async with producer.transaction(never) as tx:
            await tx.send("a-steps", b"x" * 9_000)

    run(cluster, "a-steps", work, hooks=[Hook()], namespace="tenant", compression="zlib")
    assert Hook.seen == ["tenant%a-steps"]
    ((_, record),) = read_log(cluster, "tenant%a-steps").items()
    assert "sender\x01web" in record.properties and len(record.body) < 9_000


@pytest.mark.parametrize(
    "settings", [{}, {"compression": "zlib", "compress_over_bytes": 10}], ids=["columns", "steps"]
)
def test_columns_are_sent_beside_the_loop(cluster: LiveCluster, settings: dict[str, Any]) -> None:
    topic = f"a-columns-{len(settings)}"
    table = pa.table(
        {"body": [b"%d" % n for n in range(1_000)], "id": [f"k{n}" for n in range(1_000)]}
    )

    async def work(producer: AsyncProducer) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        beside = asyncio.create_task(tick())
        results = await producer.send_arrow(topic, table, key="id")
        beside.cancel()
        assert sum(result.count for result in results) == 1_000 and ticks > 0
        with pytest.raises(MessageIllegal):
            await producer.send_arrow(topic, pa.table({"body": pa.array([b"x", None])}))

    run(cluster, topic, work, **settings)
    assert stored(cluster, topic) == sorted(b"%d" % n for n in range(1_000))
