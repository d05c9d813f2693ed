"""Whoever must see the queues of all brokers waits for those that are away: when one dies right
behind the look at who is there, when it comes back while it is asked for, when only its slave is
registered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.instance import outage
from rmq_ray.client.instance.broker_link import BrokerLink
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan.batch_planner import BatchLimits, BatchPlanner, KnowsBrokers
from rmq_ray.client.scan.kafka_offsets import kafka_range
from rmq_ray.client.scan.partition_sink import write_queues
from rmq_ray.client.scan.scan_plan import ScanOptions, plan_scan
from rmq_ray.client.scan.shared_queues import first_queue, queues_to_share
from rmq_ray.errors import ClusterError, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.stream_offsets import StreamPosition
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.serve import revocations
from rmq_ray.server.broker.registration import BrokerRegistration
from rmq_ray.table.source import TopicSource
from tests.conformance.test_stream_batches import QUEUES, Expecting, fill
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.brokers.replicated import ReplicatedCluster
from tests.support.waiting import eventually

BROKERS = ("broker-a", "broker-b")
Queues = Collection[MessageQueue]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Topic orders, ten messages in each of ``QUEUES``."""
    with LiveCluster(tmp_path_factory.mktemp("away"), brokers=2) as running:
        fill(running, "orders")
        yield running


@pytest.fixture
def expecting(cluster: LiveCluster) -> Expecting:
    return Expecting(cluster, *BROKERS)


class Absence:
    """Of one broker from the name server, which takes its queues out of every route."""

    def __init__(self, cluster: LiveCluster, registration: BrokerRegistration) -> None:
        self._cluster, self._registration = cluster, registration
        self._begun = False
        self.asked: list[int] = []
        """Codes of what name servers were asked since ``watch`` began."""

    @contextmanager
    def watch(self, heard: Callable[[], None]) -> Iterator[None]:
        """``heard()`` behind each answer of a name server; at the end the broker is there."""
        invoke = BrokerLink.name_server_invoke

        def invoked(link: BrokerLink, command: Command, *limits: float) -> Command:
            answer = invoke(link, command, *limits)
            self.asked.append(command.code)
            heard()
            return answer

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(BrokerLink, "name_server_invoke", invoked)
            try:
                yield
            finally:
                self.end()

    def begin(self) -> None:
        self._begun = True
        self._cluster.run(self._registration.stop())

    def end(self) -> None:
        if not self._begun:
            return
        self._begun = False

        async def back() -> bool:
            self._registration.start()
            return await self._registration.everywhere(10.0)

        assert self._cluster.run(back())

    def right_behind_the_look(self) -> None:
        """The broker dies right behind the first answer that says who is there, and is back behind
        the next one that follows a look at a route.
        """
        who, route = RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ROUTEINFO_BY_TOPIC
        if self.asked[-1] != who:
            return
        if self.asked.count(who) == 1:
            self.begin()
        elif route in self.asked[self.asked.index(who) :]:
            self.end()

    def until_asked(self) -> None:
        """It is back behind the first answer that says who is there."""
        if self.asked[-1] == RequestCode.GET_BROKER_CLUSTER_INFO:
            self.end()


@pytest.fixture
def absence(cluster: LiveCluster) -> Absence:
    return Absence(cluster, cluster.brokers[1]._registration)


# --- what must see all queues ---------------------------------------------------------------------


def planned(discovery: KnowsBrokers) -> Queues:
    plan = plan_scan(discovery, "orders", "earliest", "latest", 1, discovery.broker_names())
    return {split.queue for split in plan.splits}


def matched(discovery: KnowsBrokers) -> Queues:
    options = ScanOptions(pattern=True)
    plan = plan_scan(discovery, "ord.*", 0, "latest", 1, discovery.broker_names(), options)
    return {split.queue for split in plan.splits}


def written(discovery: KnowsBrokers) -> Queues:
    return write_queues(discovery, "orders", discovery.broker_names())


def by_kafkas_offsets(discovery: KnowsBrokers) -> Queues:
    low, _ = kafka_range(discovery, "orders", 3, "latest")
    assert isinstance(low, dict) and set(low.values()) == {3}
    return low.keys()


def shared(discovery: KnowsBrokers) -> Queues:
    return queues_to_share(discovery, "orders")


@contextmanager
def planner(discovery: KnowsBrokers) -> Iterator[BatchPlanner]:
    made = BatchPlanner(discovery, ["orders"], BatchLimits(start="latest"))
    try:
        yield made
    finally:
        made.close()


def begun(discovery: KnowsBrokers) -> Queues:
    with planner(discovery) as stream:
        return stream.begin().offsets


def to_what_is_there_now(discovery: KnowsBrokers) -> Queues:
    with planner(discovery) as stream:
        return stream.ends()


WAYS = [planned, matched, written, by_kafkas_offsets, shared, begun, to_what_is_there_now]


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_that_dies_right_behind_the_look_at_who_is_there_does_not_lack(
    way: Callable[[KnowsBrokers], Queues], expecting: Expecting, absence: Absence
) -> None:
    with absence.watch(absence.right_behind_the_look):
        assert set(way(expecting)) == set(QUEUES)
        assert absence.asked.count(RequestCode.GET_BROKER_CLUSTER_INFO) > 2


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_that_is_away_is_waited_for(
    way: Callable[[KnowsBrokers], Queues], expecting: Expecting, absence: Absence
) -> None:
    absence.begin()
    with absence.watch(absence.until_asked):
        assert set(way(expecting)) == set(QUEUES)


def test_a_stream_that_ends_at_a_target_waits_for_who_has_it_and_one_without_goes_on(
    expecting: Expecting, absence: Absence
) -> None:
    with planner(expecting) as stream:
        before = StreamPosition(dict.fromkeys(QUEUES, 0), stream.begin().epochs)
        target = stream.ends()
        absence.begin()
        with absence.watch(lambda: None):
            there = stream.next(before)
            assert there.offsets == {
                **dict.fromkeys(QUEUES[:2], 10),
                **dict.fromkeys(QUEUES[2:], 0),
            }
            assert stream.plan(before, there, 1).rows == 20, "of who is there, without waiting"
            reached = StreamPosition(target, before.epochs)
            assert stream.next(reached, target) is reached, "there is nothing to wait for"
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(outage, "PATIENCE_MS", 200)
                with pytest.raises(ClusterError, match="broker-b did not come back"):
                    stream.next(before, target)
        assert stream.next(before, target).offsets == target


def test_a_topic_that_is_not_there_is_made_once_all_brokers_are(
    cluster: LiveCluster, expecting: Expecting, absence: Absence
) -> None:
    with pytest.raises(TopicNotFound):
        queues_to_share(expecting, "new")
    admin = Admin(cluster)
    absence.begin()
    with absence.watch(absence.until_asked):
        create = partial(admin.create_topic, "new", queues=1)
        assert first_queue(expecting, "new", create) == MessageQueue("new", "broker-a", 0)
    admin.close()
    made = [MessageQueue("new", broker, 0) for broker in BROKERS]
    assert queues_to_share(expecting, "new") == made


def test_a_topic_that_nobody_may_read_is_not_made_anew(
    cluster: LiveCluster, expecting: Expecting
) -> None:
    admin = Admin(cluster)
    admin.create_topic("hidden", queues=2, permission=2)
    with pytest.raises(TopicNotFound, match="nobody may read it"):
        first_queue(expecting, "hidden", lambda: pytest.fail("it is there"))
    admin.close()


def test_revoked_tasks_are_read_once_their_broker_is_back(
    expecting: Expecting, absence: Absence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "PATIENCE_MS", 0)
    monkeypatch.setattr(revocations, "PAUSE_S", 0.05)
    found: list[str] = []
    reader = revocations.Revocations(expecting, "orders", found.append)
    absence.begin()
    reader.start()
    with absence.watch(lambda: None):
        who = RequestCode.GET_BROKER_CLUSTER_INFO
        eventually(lambda: absence.asked.count(who) > 2)
        assert not reader.ready.is_set()
    eventually(reader.ready.is_set)
    reader.stop()
    assert len(found) == 40


@pytest.mark.parametrize("away", [0, 1])
def test_the_first_queue_of_a_topic_is_the_same_while_a_broker_is_away(
    away: int, cluster: LiveCluster, expecting: Expecting
) -> None:
    """Who comes to another one puts into a queue that nobody else gets from. A broker that has no
    earlier queue is not waited for.
    """
    absence = Absence(cluster, cluster.brokers[away]._registration)
    absence.begin()
    with absence.watch(absence.until_asked):
        found = first_queue(expecting, "orders", lambda: pytest.fail("it is there"))
        assert found == QUEUES[0]
        asked = RequestCode.GET_BROKER_CLUSTER_INFO in absence.asked
        assert asked == (BROKERS[away] == "broker-a")


# --- a slave alone --------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path) as running:
        with Producer("p", discovery=running) as producer:
            producer.send("orders", b"x")
        running.caught_up()
        yield running


def test_queues_of_a_broker_without_a_master_are_read_but_not_written(
    pair: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "PATIENCE_MS", 200)
    expecting = Expecting(pair, "broker-a")
    assert len(written(expecting)) == 4
    pair.stop_master()
    at_once = ScanOptions(master_alone_ms=0)
    with plan_scan(expecting, "orders", 0, "latest", 1, ("broker-a",), at_once) as plan:
        assert plan.rows == 1
    with pytest.raises(ClusterError, match="broker-a did not come back .* belong to the write"):
        written(expecting)


def test_positions_wait_for_the_master_of_a_slave_that_stands_alone(
    pair: ReplicatedCluster,
) -> None:
    absence = Absence(pair, pair.brokers[0]._registration)
    pair.stop_master()
    looks = 0

    def heard() -> None:
        nonlocal looks
        looks += absence.asked[-1] == RequestCode.GET_ROUTEINFO_BY_TOPIC
        if looks == 5 and not pair.brokers:  # the others came before the master's address is needed
            pair.start_master()

    with absence.watch(heard):
        assert len(begun(Expecting(pair, "broker-a"))) == 4
    assert looks > 5


def test_a_slave_that_is_registered_before_its_master_brings_no_queues(
    pair: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a name server that restarts: it has the broker's name, and no route of it."""
    monkeypatch.setattr(outage, "PATIENCE_MS", 200)
    expecting = Expecting(pair, "broker-a")
    pair.stop_slave()
    pair.stop_master()
    pair.start_slave(master="127.0.0.1:9")
    assert pair.run(pair.slaves[1]._registration.everywhere(10.0))
    with pytest.raises(ClusterError, match="broker-a did not come back .* lack its queues"):
        planned(expecting)


# --- queues that come while a table is read -------------------------------------------------------


def test_rows_of_queues_that_came_behind_the_ranges_are_not_handed_out(
    cluster: LiveCluster,
) -> None:
    """They would be written to the table, and again in the next turn, which knows them."""
    source = TopicSource(cluster, "orders")
    read = [(queue, behind) for queue, _, _, behind in source.read({QUEUES[0]: (2, 7)})]
    source.close()
    assert read == [(QUEUES[0], 7)]
