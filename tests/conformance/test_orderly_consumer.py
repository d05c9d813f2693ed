"""Ordered consumption with real brokers, connections and disks: order through failures, rebalances,
zombies and kills.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.messages.listener import SUSPEND_CURRENT_QUEUE_A_MOMENT, Reject
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import ClusterAddress
from tests.support.brokers.live_cluster import LiveCluster, LiveProcess
from tests.support.clients.collecting import Collector
from tests.support.clients.ordered import Handled, History, check_order
from tests.support.clients.ordered_process import OrderedProcess
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually

QUEUES = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, queue_lock_ms=1_500) as running:
        yield running


def consumer(
    cluster: Any, history: History, who: str, group: str = "billing", **options: Any
) -> PushConsumer:
    options.setdefault(
        "config",
        ConsumerConfig(group, lock_refresh_ms=300, lock_trusted_ms=1_000, suspend_queue_ms=20),
    )
    return PushConsumer(
        group,
        listener=history.listener(who),
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
        orderly=True,
        **options,
    )


def send(cluster: Any, count: int, first: int = 0) -> None:
    """Numbers, one queue after the other."""
    with Producer("p", discovery=cluster) as producer:
        for number in range(first, first + count):
            producer.send(
                "orders",
                b"%d" % number,
                queue=MessageQueue("orders", "broker-a", number % QUEUES)
                if number >= QUEUES
                else None,
            )


def status(cluster: LiveCluster) -> dict[str, Any]:
    core = cluster.brokers[0]._core
    assert core is not None

    async def ask() -> dict[str, Any]:
        return core.status()

    found: dict[str, Any] = cluster.run(ask())
    return found


@pytest.mark.seed("S3-117", "S4-020", "S4-054")
def test_each_queue_comes_in_its_order_and_queues_run_beside_one_another(
    cluster: LiveCluster,
) -> None:
    together = threading.Barrier(2, timeout=10)
    first: set[int] = set()

    def answer(messages: list[Any], ctx: Any) -> None:
        if ctx.queue.queue_id in (0, 1) and ctx.queue.queue_id not in first:
            first.add(ctx.queue.queue_id)
            together.wait()  # two queues at the same time, or never

    history = History(answer)
    send(cluster, 400)
    with consumer(cluster, history, "one") as running:
        history.wait_for(400)
        assert {type(running._engine.consumption).__name__ for _ in (1,)} == {"OrderlyConsumption"}  # type: ignore[union-attr]
    check_order(history.calls)
    assert len(history.calls) == 400 and not together.broken


@pytest.mark.seed("S4-007")
def test_a_topic_of_one_queue_is_in_order_as_a_whole_whatever_fails_in_between(
    cluster: LiveCluster,
) -> None:
    failures = Counter({b"3": 2, b"7": 1})
    done: list[bytes] = []

    def answer(messages: list[Any], ctx: Any) -> Any:
        ctx.suspend_ms = 10
        (message,) = messages
        if failures[message.body] > 0:
            failures[message.body] -= 1
            if message.body == b"7":
                raise ValueError("planted")
            return SUSPEND_CURRENT_QUEUE_A_MOMENT
        done.append(message.body)
        return None

    with Producer("p", discovery=cluster) as producer:
        one = producer.send("orders", b"0").queue
        for number in range(1, 20):
            producer.send("orders", b"%d" % number, queue=one)
    history = History(answer)
    with consumer(cluster, history, "one") as running:
        eventually(lambda: len(done) == 20)
        eventually(lambda: running.stats()["consumed_ok"] == 20)
        assert running.stats()["consumed_failed"] == 3
    assert done == [b"%d" % number for number in range(20)]
    assert history.offsets(one.queue_id) == sorted(history.offsets(one.queue_id))


def test_what_failed_too_often_lies_in_the_dead_letter_topic_and_the_queue_goes_on(
    cluster: LiveCluster,
) -> None:
    def answer(messages: list[Any], ctx: Any) -> Any:
        ctx.suspend_ms = 10
        if messages[0].body == b"4":
            return SUSPEND_CURRENT_QUEUE_A_MOMENT
        return Reject if messages[0].body == b"9" else None

    send(cluster, 40)
    history = History(answer)
    with consumer(cluster, history, "one", max_reconsume_times=2):
        history.wait_for(40)
        dead = Collector()
        with PushConsumer(
            "undertaker",
            listener=dead,
            subscriptions={"%DLQ%billing": "*"},
            discovery=cluster,
            start_from="first",
        ):
            assert sorted(dead.wait_for(2)) == [b"4", b"9"]
        times = {message.body: message.reconsume_times for message in dead.messages}
        assert times[b"4"] == 3
        assert times[b"9"] in (1, 2), "1 where the retry topic's route was not known yet"
    check_order(history.calls)
    assert Counter(history.offsets(0))[1] == 3, "1 + 2 deliveries of message 4"


def test_a_second_consumer_takes_queues_over_without_a_gap_a_repeat_or_two_at_once(
    cluster: LiveCluster,
) -> None:
    history = History(lambda _messages, _ctx: time.sleep(0.004))
    send(cluster, 600)
    with consumer(cluster, history, "one"):
        eventually(lambda: len(history.calls) > 40)
        with consumer(cluster, history, "two"):
            eventually(lambda: len({call.place for call in history.by("two")}) == 2)
            with consumer(cluster, history, "three"):
                eventually(lambda: len(history.by("three")) > 10)
        history.wait_for(600, 30)
    check_order(history.calls)
    assert len(history.calls) == 600, (
        "who gives a queue away finishes what he began, and nobody else begins it"
    )
    assert status(cluster)["commits_fenced"] == 0


def test_a_queue_stays_with_its_holder_while_the_listener_runs(cluster: LiveCluster) -> None:
    begun, go_on = threading.Event(), threading.Event()
    slow = MessageQueue("orders", "broker-a", 3)

    def answer(messages: list[Any], ctx: Any) -> None:
        if ctx.queue == slow and messages[0].queue_offset == 0:
            begun.set()
            assert go_on.wait(20)

    history = History(answer)
    send(cluster, 40)
    with consumer(cluster, history, "one") as one:
        assert begun.wait(10)
        with consumer(cluster, history, "two") as two:
            eventually(
                lambda: len([queue for queue in two.assignment() if queue.topic == "orders"]) == 1
            )
            time.sleep(1.8)  # longer than a lock that nobody refreshes
            assert slow in one.assignment() and slow not in two.assignment() and not one.balanced
            go_on.set()
            eventually(lambda: slow in two.assignment())
            history.wait_for(40)
    check_order(history.calls)
    assert Counter((call.place, call.offset) for call in history.calls).most_common(1)[0][1] == 1


def test_a_zombie_cannot_commit_and_hands_out_nothing_more(cluster: LiveCluster) -> None:
    begun, go_on = threading.Event(), threading.Event()
    history = History()
    stuck = MessageQueue("orders", "broker-a", 3)  # of the later one of two

    def stuck_listener(messages: list[Any], ctx: Any) -> None:
        if ctx.queue == stuck and messages[0].queue_offset == 3:
            begun.set()
            assert go_on.wait(20)

    zombies = History(stuck_listener)
    send(cluster, 80)
    zombie = consumer(cluster, zombies, "zombie")
    zombie.start()
    try:
        assert begun.wait(10)
        engine = zombie._engine
        assert engine is not None and engine.leases is not None
        engine.leases.stop()  # as if it could reach nobody
        engine.rebalancer.stop()
        with consumer(cluster, history, "heir") as heir:
            eventually(lambda: stuck in heir.assignment())
            eventually(lambda: history.offsets(3)[-1:] == [19])
            heir.persist_offsets()
            eventually(lambda: committed(cluster, stuck) == 20)
            go_on.set()
            eventually(lambda: zombies.offsets(3) == [0, 1, 2, 3])
            eventually(lambda: engine.parts.offsets.clone().get(stuck) == 4)
            zombie.persist_offsets()
            assert not engine.parts.offsets.persist(stuck)
            eventually(lambda: status(cluster)["commits_fenced"] >= 2)
            time.sleep(0.3)
            assert committed(cluster, stuck) == 20 and zombies.offsets(3) == [0, 1, 2, 3]
            assert history.offsets(3)[0] <= 3, (
                "nothing that the zombie had not finished was skipped"
            )
    finally:
        go_on.set()
        zombie.stop()


def committed(cluster: LiveCluster, queue: MessageQueue) -> int | None:
    core = cluster.brokers[0]._core
    assert core is not None

    async def ask() -> int | None:
        return core.tables.offsets.query(queue.topic, "billing", queue.queue_id)

    found: int | None = cluster.run(ask())
    return found


def test_a_holder_whose_lock_was_given_away_takes_the_queue_anew_where_the_other_stopped(
    cluster: LiveCluster,
) -> None:
    history = History()
    send(cluster, 40)
    with consumer(cluster, history, "one") as one:
        history.wait_for(40)
        queue = MessageQueue("orders", "broker-a", 1)
        old = one._engine.parts.assigned.get(queue)  # type: ignore[union-attr]
        core = cluster.brokers[0]._core
        assert old is not None and old.lease is not None and core is not None

        async def give_away() -> None:
            core.members.locks.unlock("billing", one.client_id, [queue])
            core.members.locks.lock("billing", "other", [queue], core.clock.monotonic_ms())
            core.tables.offsets.commit(
                "orders", "billing", queue.queue_id, 7, "other", administrator=True
            )

        cluster.run(give_away())
        eventually(lambda: one._engine.parts.assigned.get(queue) not in (old, None))  # type: ignore[union-attr]
        eventually(lambda: history.offsets(1) == [*range(10), 7, 8, 9])
    check_order(history.calls)


def test_after_a_clean_stop_the_next_owner_goes_on_at_once(tmp_path: Path) -> None:
    history = History()
    with LiveCluster(tmp_path, queue_lock_ms=60_000) as cluster:
        send(cluster, 40)
        with consumer(cluster, history, "one"):
            history.wait_for(40)
        assert status(cluster)["queue_locks"] == 0
        send(cluster, 40, first=40)
        watch = Stopwatch()
        with consumer(cluster, history, "two"):
            history.wait_for(80)
        assert watch.lived_s < 5, "nobody waited for a lock to run out"
    assert len(history.calls) == 80


def test_a_listener_cannot_stop_its_own_consumer(cluster: LiveCluster) -> None:
    errors: list[BaseException] = []

    def answer(messages: list[Any], ctx: Any) -> None:
        try:
            running.stop()
        except ClientError as error:
            errors.append(error)

    history = History(answer)
    send(cluster, 4)
    with consumer(cluster, history, "one") as running:
        history.wait_for(4)
    assert len(errors) == 4


def test_a_broadcasting_consumer_has_every_queue_in_order_and_asks_no_broker_for_locks(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    failing = Counter({b"8": 2})

    def answer(messages: list[Any], ctx: Any) -> Any:
        ctx.suspend_ms = 10
        failing[messages[0].body] -= 1
        return SUSPEND_CURRENT_QUEUE_A_MOMENT if failing[messages[0].body] >= 0 else None

    history = History(answer)
    send(cluster, 40)
    config = ConsumerConfig("billing", local_offset_dir=str(tmp_path / "offsets"))
    with consumer(cluster, history, "one", model="broadcasting", config=config) as one:
        history.wait_for(40)
        assert len(one.assignment()) == QUEUES and status(cluster)["queue_locks"] == 0
        eventually(lambda: one.stats()["consumed_ok"] == 40)
    check_order(history.calls)
    assert history.offsets(0) == [0, 1, 2, 2, 2, *range(3, 10)]


def test_columns_and_async_listeners_come_in_order_too(cluster: LiveCluster) -> None:
    got: list[tuple[int, list[int]]] = []

    async def columns(batch: Any, ctx: Any) -> None:
        got.append((ctx.queue.queue_id, batch.column("queue_offset").to_pylist()))

    send(cluster, 400)
    with PushConsumer(
        "columns",
        listener=columns,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
        orderly=True,
        batch="arrow",
        batch_size=16,
    ):
        eventually(lambda: sum(len(offsets) for _, offsets in got) == 400)
    for queue_id in range(QUEUES):
        assert [
            offset for owner, offsets in got if owner == queue_id for offset in offsets
        ] == list(range(100))


def test_an_administrator_sees_who_holds_which_queue_and_until_when(tmp_path: Path) -> None:
    history = History()
    with LiveCluster(tmp_path) as cluster:
        send(cluster, 40)
        admin = Admin(cluster)
        try:
            with consumer(cluster, history, "one", config=ConsumerConfig("billing")) as running:
                history.wait_for(40)
                (holder,) = {row["client_id"] for row in admin.group_clients("billing")}
                found = admin.group_locks("billing")
                queues = running.stats()["queues"]
        finally:
            admin.close()
    locks = [row for row in found if row["topic"] == "orders"]
    assert [row["queue"] for row in locks] == list(range(QUEUES))
    assert {(row["broker"], row["holder"], row["left"]) for row in locks} == {
        ("broker-a", holder, False)
    }
    assert all(0 < row["ends_in_ms"] <= 60_000 for row in locks)
    held = [row for row in queues if row["topic"] == "orders"]
    assert len(held) == QUEUES
    assert all(row["lock_epoch"] > 0 and row["lock_trusted_ms"] <= 30_000 for row in held)


def test_a_consumer_whose_connection_breaks_comes_back_and_keeps_its_queues(
    tmp_path: Path,
) -> None:
    history = History()
    with LiveCluster(tmp_path) as cluster:
        core = cluster.brokers[0]._core
        assert core is not None
        send(cluster, 40)
        with consumer(cluster, history, "one", config=ConsumerConfig("billing")) as running:
            history.wait_for(40)
            assert running._engine is not None
            client = running._engine.client
            before = core.members.channel(client.client_id)

            def locks() -> list[tuple[str, int, int, bool]]:
                return [
                    (row["topic"], row["queue_id"], row["lock_epoch"], row["lock_trusted_ms"] > 5e3)
                    for row in running.stats()["queues"]
                ]

            held = locks()
            pool = client.link._brokers
            assert pool is not None
            for slot in pool._slots.values():
                assert slot.connection is not None
                slot.connection._sock.shutdown(socket.SHUT_RDWR)
            eventually(
                lambda: (
                    core.members.channel(client.client_id) not in (None, before) and locks() == held
                )
            )
            assert not any(row.left for row in core.members.locks.of_group("billing", 0).values())
            send(cluster, 40, first=40)
            history.wait_for(80)
    check_order(history.calls)
    assert len(history.calls) == 80


# --- processes that are killed --------------------------------------------------------------------


class Sending:
    """Sends numbers, queue after queue, from a thread; ``places`` are those that were
    acknowledged.
    """

    def __init__(self, cluster: ClusterAddress | LiveProcess) -> None:
        self.places: set[tuple[tuple[str, int], int]] = set()
        self._producer = Producer("p", discovery=cluster, send_timeout_ms=20_000)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sending:
        self._producer.start()
        self._thread.start()
        return self

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            result = self._producer.send("orders", b"%d" % number, message_group=str(number % 16))
            self.places.add(
                ((result.queue.broker_name, result.queue.queue_id), int(result.queue_offset))
            )
            number += 1
            self._stop.wait(0.002)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._producer.close()


def test_a_restarted_broker_gives_nobody_the_queues_of_a_holder_that_has_not_come_back_yet(
    tmp_path: Path,
) -> None:
    """The newcomer is alone in the group when it asks: RocketMQ would give it everything, while the
    holder is in its listener.
    """
    store = tmp_path / "cluster"
    living = LiveProcess(store, 60_000)
    address = Fixed(living.lookup())
    holder = OrderedProcess(address, tmp_path, "holder", refresh_ms=5_000)
    newcomers = History()
    try:
        send(address, 400)
        eventually(lambda: len(holder.history()) > 20)
        holder.pause()
        living.kill()
        living = LiveProcess(store, 60_000)
        with consumer(address, newcomers, "newcomer") as newcomer:
            eventually(lambda: newcomer.stats()["rebalances"] >= 3, timeout_s=60)
            assert newcomer.assignment() == [] and not newcomer.balanced
            holder.go_on()
            eventually(lambda: newcomers.calls)
            eventually(
                lambda: (
                    len(
                        {
                            (call.place, call.offset)
                            for call in [*holder.history(), *newcomers.calls]
                            if call.end is not None
                        }
                    )
                    == 400
                )
            )
    finally:
        holder.go_on()
        holder.kill()
        living.kill()
    check_order([*holder.history(), *newcomers.calls])


def test_the_queues_of_a_killed_consumer_go_on_long_before_its_locks_run_out(
    tmp_path: Path,
) -> None:
    """Locks live for 60 s here, and the killed consumer has refreshed its own a moment ago."""
    heirs = History()
    waits: list[dict[str, Any]] = []
    living = LiveProcess(tmp_path / "cluster", 60_000)
    address = Fixed(living.lookup())
    killed = OrderedProcess(address, tmp_path, "killed", refresh_ms=20_000)

    def done() -> set[tuple[tuple[str, int], int]]:
        calls = [*killed.history(), *heirs.calls]
        return {(call.place, call.offset) for call in calls if call.end is not None}

    def held(heir: PushConsumer) -> int:
        waits.extend(heir.stats()["waiting_for_locks"])
        return sum(queue.topic == "orders" for queue in heir.assignment())

    try:
        with Sending(address) as sending:
            eventually(lambda: len({call.place for call in killed.history()}) == QUEUES)
            plain = ConsumerConfig("billing")
            with consumer(address, heirs, "heir", config=plain) as heir:
                eventually(lambda: held(heir) == QUEUES // 2 and heirs.calls, 40)
                waits.clear()
                killed.kill()
                eventually(lambda: held(heir) == QUEUES, 40)
                assert heir.stats()["waiting_for_locks"] == []
                sent = set(sending.places)
                eventually(lambda: sent <= done(), 40)
    finally:
        killed.kill()
        living.kill()
    assert all(wait["left"] and wait["ends_in_ms"] <= 5_000 for wait in waits)
    check_order([*killed.history(), *heirs.calls])
    assert len(sent) > 100


def test_order_survives_kill_9_of_consumers_and_of_the_broker(tmp_path: Path) -> None:
    store = tmp_path / "cluster"
    living = LiveProcess(store, 1_000)
    address = Fixed(living.lookup())
    processes = [OrderedProcess(address, tmp_path, "one"), OrderedProcess(address, tmp_path, "two")]

    def history() -> list[Handled]:
        return [call for process in processes for call in process.history()]

    def works_on(who: OrderedProcess, queues: int) -> Callable[[], bool]:
        """From now on, it gets messages of that many queues."""
        moment = time.monotonic()
        return lambda: len({call.place for call in who.history() if call.begin > moment}) >= queues

    try:
        with Sending(address) as sending:
            eventually(works_on(processes[0], 2))
            eventually(works_on(processes[1], 2))
            processes[0].kill()
            eventually(works_on(processes[1], 4))
            processes.append(OrderedProcess(address, tmp_path, "three"))
            eventually(works_on(processes[2], 2))
            living.kill()
            living = LiveProcess(store, 1_000)
            eventually(works_on(processes[1], 2))
            processes[1].kill()
            living.kill()
            living = LiveProcess(store, 1_000)
            eventually(works_on(processes[2], 4))
        eventually(
            lambda: (
                sending.places
                <= {(call.place, call.offset) for call in history() if call.end is not None}
            ),
            30,
        )
    finally:
        for process in processes:
            process.kill()
        living.kill()
    calls = history()
    check_order(calls)
    assert len(calls) >= len(sending.places) > 300


class Fixed:
    """A discovery that is only an address: the killed cluster comes back at it."""

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address

    def lookup(self) -> ClusterAddress:
        return self._address
