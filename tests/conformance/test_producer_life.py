"""States, groups, forks and pickles of producers; what a client instance does between its start and
its end.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rmq_ray.client.instance import broker_link
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClientError, ClusterError, ConnectFailed, NoNameServer, SendUnknown
from rmq_ray.model.message import Message
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.brokers.tiny_cluster import FixedDiscovery, TinyCluster
from tests.support.clients.forked import in_child
from tests.support.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 4}) as running:
        yield running


@pytest.mark.seed("S3-007", "S3-014", "S3-015", "S3-026")
def test_a_producer_starts_once_and_ends_for_good(cluster: TinyCluster) -> None:
    producer = Producer("web", discovery=cluster)
    assert producer.state is ServiceState.CREATE_JUST
    producer.start()
    assert producer.state is ServiceState.RUNNING
    assert producer._core is not None and producer._core.instance.state is ServiceState.RUNNING
    with pytest.raises(ClientError, match="cannot start: it is running"):
        producer.start()
    producer.close()
    producer.close()
    assert producer.state is ServiceState.SHUTDOWN_ALREADY
    for call in (
        producer.start,
        lambda: producer.send("orders", b"x"),
        lambda: producer.send_async("orders", b"x"),
        lambda: producer.send_oneway("orders", b"x"),
        producer.flush,
    ):
        with pytest.raises(ClientError, match="closed"):
            call()


@pytest.mark.seed("S3-008", "S3-015")
def test_a_start_that_failed_is_final(cluster: TinyCluster) -> None:
    class Missing:
        def lookup(self) -> ClusterAddress:
            raise ClusterError("no such cluster")

    producer = Producer("web", discovery=Missing())
    with pytest.raises(ClusterError):
        producer.start()
    assert producer.state is ServiceState.START_FAILED
    with pytest.raises(ClientError, match="make a new one"):
        producer.start()


@pytest.mark.seed("S1-009", "S1-010", "S1-011", "S1-012")
def test_starting_looks_name_servers_up_opens_the_channel_and_sets_the_timers_going(
    cluster: TinyCluster,
) -> None:
    instance = ClientInstance.get_or_create(cluster)
    asked_for_the_id, seen = cluster.lookups, list[ServiceState]()
    look_up = instance.link.look_up
    instance.link.look_up = lambda: (seen.append(instance.state), look_up())[1]  # type: ignore[method-assign]
    instance.start()
    try:
        assert seen == [ServiceState.START_FAILED] and instance.state is ServiceState.RUNNING
        assert cluster.lookups == asked_for_the_id + 1
        assert (
            instance.name_server_invoke(
                Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "orders"})
            ).code
            == 0
        )
        assert f"rmq-client-{instance.client_id}" in {
            thread.name for thread in threading.enumerate()
        }
    finally:
        instance.release()


@pytest.mark.seed("S0-059", "S3-013")
def test_a_new_producer_knows_the_default_topic_before_its_first_send(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster) as producer:
        assert producer._core is not None
        routes = producer._core.instance.routes
        eventually(lambda: routes.route("TBW102"))  # after 10 ms, not after 30 s
        assert cluster.name_servers[0].asked == ["TBW102"]


@pytest.mark.seed("S3-046")
def test_without_any_name_server_nothing_starts_and_no_topic_is_blamed() -> None:
    nowhere = FixedDiscovery(ClusterAddress("tiny", ()))
    for begin in (
        Producer("web", discovery=nowhere).start,
        lambda: Producer("web", discovery=nowhere).send("orders", b"x"),
    ):
        with pytest.raises(NoNameServer, match="no name server address is known") as caught:
            begin()
        assert caught.value.code == 10004


@pytest.mark.seed("S0-011", "S0-021", "S0-023")
def test_producers_of_one_group_take_queues_and_brokers_in_turn() -> None:
    with (
        TinyCluster(brokers=2, topics={"orders": 2}) as pair,
        Producer("web", discovery=pair) as one,
        Producer("web", discovery=pair) as two,
    ):
        for producer in (one, two):
            queues = [producer.send("orders", b"x").queue for _ in range(8)]
            assert len(set(queues[:4])) == 4 and queues[:4] == queues[4:]
        assert [broker.messages for broker in pair.brokers] == [8, 8]


@pytest.mark.seed("S3-011", "S3-012")
def test_a_group_is_taken_once_in_a_client(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster, client_id="c1") as first:
        second = Producer("web", discovery=cluster, client_id="c1")
        with pytest.raises(ClientError, match="has been created before"):
            second.start()
        assert second.state is ServiceState.CREATE_JUST
        with Producer("other", discovery=cluster, client_id="c1") as third:
            assert third._core.instance is first._core.instance  # type: ignore[union-attr]
        assert first.send("orders", b"x")
    second.start()
    second.close()


@pytest.mark.seed("S3-010")
def test_every_producer_is_a_client_of_its_own_named_by_address_process_and_time(
    cluster: TinyCluster,
) -> None:
    with Producer("web", discovery=cluster) as one, Producer("web", discovery=cluster) as two:
        ids = [producer._core.instance.client_id for producer in (one, two)]  # type: ignore[union-attr]
    assert ids[0] != ids[1]
    assert all(name.startswith(f"127.0.0.1@{os.getpid()}#") for name in ids)


@pytest.mark.seed("S3-016")
def test_brokers_hear_of_the_group_and_of_its_end(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster) as producer:
        instance = producer._core.instance  # type: ignore[union-attr]
        eventually(
            lambda: cluster.broker.heartbeats
        )  # after a second, when the routes have told who the brokers are
        assert cluster.broker.heartbeats[-1].producer_groups == ("web",)
        assert cluster.broker.heartbeats[-1].client_id == instance.client_id
        names = {thread.name for thread in threading.enumerate()}
        assert f"rmq-client-{instance.client_id}" in names
    assert cluster.broker.unregistered == [{"clientID": instance.client_id, "producerGroup": "web"}]
    eventually(
        lambda: (
            not {thread.name for thread in threading.enumerate()}
            & {f"rmq-client-{instance.client_id}", "rmq-producer-web"}
        )
    )
    assert instance.state is ServiceState.SHUTDOWN_ALREADY


@pytest.mark.seed("S3-019", "S3-020", "S3-021", "S3-022", "S3-023")
def test_the_timers_are_rocketmqs(cluster: TinyCluster) -> None:
    instance = ClientInstance.get_or_create(cluster)
    instance.start()
    try:
        periods = {name: period for name, (_, period, _) in instance.timers._due.items()}
        assert periods == {
            "name servers": 120_000,
            "routes": 30_000,
            "heartbeat": 30_000,
            "offsets": 5_000,
        }
    finally:
        instance.release()


@pytest.mark.seed("S0-059", "S4-220", "S4-025", "S1-004")
def test_routes_come_first_heartbeats_soon_and_offsets_after_ten_seconds(
    cluster: TinyCluster,
) -> None:
    clock = ManualClock()
    instance = ClientInstance.get_or_create(cluster, clock=clock)
    instance.start()
    try:
        times = {
            name: (due - clock.monotonic_ms(), period)
            for name, (due, period, _) in instance.timers._due.items()
        }
    finally:
        instance.release()
    assert times["routes"] == (10, 30_000)
    assert times["heartbeat"] == (1_000, 30_000)
    assert times["offsets"] == (10_000, 5_000)


@pytest.mark.seed("S1-016", "S1-009")
def test_a_running_client_starts_no_further_and_one_whose_start_failed_never_does(
    cluster: TinyCluster,
) -> None:
    instance = ClientInstance.get_or_create(cluster)
    instance.start()
    instance.start()
    assert instance.state is ServiceState.RUNNING
    instance.release()
    failing = ClientInstance.get_or_create(FixedDiscovery(ClusterAddress("tiny", ())))
    with pytest.raises(NoNameServer):
        failing.start()
    assert failing.state is ServiceState.START_FAILED
    for client in (instance, failing):
        with pytest.raises(ClientError, match="cannot start"):
            client.start()
    failing.release()


def test_a_failed_name_server_is_left_for_the_next_and_the_choice_stays() -> None:
    with TinyCluster(name_servers=3, topics={"orders": 1, "bills": 1}) as cluster:
        cluster.stop(cluster.name_servers[0])
        with Producer("web", discovery=cluster) as producer:
            producer.send("orders", b"x")
            producer.send("bills", b"x")
        assert "bills" in cluster.name_servers[1].asked and cluster.name_servers[2].asked == []


def test_a_changed_list_of_name_servers_is_taken_over(cluster: TinyCluster) -> None:
    class Moving:
        address = ClusterAddress("tiny", ("127.0.0.1:1",), cluster.lookup().secret)

        def lookup(self) -> ClusterAddress:
            return self.address

    moving = Moving()
    instance = ClientInstance.get_or_create(moving)
    instance.start()
    try:
        moving.address = cluster.lookup()
        instance.link.look_up()
        assert instance.routes.find_publish("orders").ok
    finally:
        instance.release()


def test_name_servers_and_a_discovery_that_are_gone_are_logged_once_an_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_link, "LOOK_UP_AGAIN_MS", 0)

    class Gone:
        away = False

        def lookup(self) -> ClusterAddress:
            if self.away:
                raise ClusterError("no cluster runs here")
            return ClusterAddress("tiny", ("127.0.0.1:1",), b"")

    gone = Gone()
    instance = ClientInstance.get_or_create(gone)
    instance.start()
    try:
        for gone.away in (True, True, True, False, True, True):
            with pytest.raises(ConnectFailed):
                instance.routes.refresh("orders")
    finally:
        instance.release()
    assert [
        record.name
        for record in caplog.records
        if "the discovery knows no others" in record.getMessage()
    ] == ["rmq_ray.client"] * 2


def test_a_pickled_producer_carries_its_settings_only_and_connects_anew(
    cluster: TinyCluster,
) -> None:
    with Producer("web", discovery=cluster, retries=5) as producer:
        producer.send("orders", b"one")
        text = pickle.dumps(producer)
        core = producer._core
        assert core is not None and core.identity.producer_id not in text
        copy: Producer = pickle.loads(text)
        assert copy.state is ServiceState.CREATE_JUST and copy._config.retries == 5
        assert copy.send("orders", b"two")
        assert (
            copy._core is not None and copy._core.identity.producer_id != core.identity.producer_id
        )
        copy.close()
    ids = {arrival.frame_id.producer_id for arrival in cluster.broker.arrivals if arrival.frame_id}
    assert len(ids) == 2


def test_a_forked_child_cannot_use_the_parents_producer_but_a_new_one_under_an_id_of_its_own(
    cluster: TinyCluster,
) -> None:
    patient = {"send_timeout_ms": 30_000}  # nothing is sent again while the process forks
    producer = Producer("web", discovery=FixedDiscovery(cluster.lookup()), **patient)
    producer.send("orders", b"parent")
    cluster.broker.hold.clear()
    pending = producer.send_async("orders", b"pending")
    eventually(lambda: len(cluster.broker.arrivals) == 2)
    cluster.broker.hold.set()
    unused = Producer("later", discovery=FixedDiscovery(cluster.lookup()))
    result = in_child(lambda: _child(producer, pending, unused, FixedDiscovery(cluster.lookup())))
    assert result == "ok"
    cluster.release(cluster.broker)
    assert pending.result(5) and producer.send("orders", b"parent again")
    producer.close()
    ids = {arrival.frame_id.producer_id for arrival in cluster.broker.arrivals if arrival.frame_id}
    bodies = [arrival.records[0].body for arrival in cluster.broker.arrivals]
    assert len(ids) == 3 and sorted(bodies) == [
        b"child",
        b"child",
        b"parent",
        b"parent again",
        b"pending",
    ]
    assert len({fields["clientID"] for fields in cluster.broker.unregistered}) == 3, (
        "clients of a child have ids of their own"
    )


def _child(producer: Producer, pending: Any, unused: Producer, discovery: FixedDiscovery) -> str:
    try:
        pending.result(1)
    except ClientError as error:
        if "before a fork" not in str(error):
            return f"wrong error {error!r}"
    else:
        return "the parent's future had a result in the child"
    calls: tuple[Any, ...] = (
        producer.start,
        producer.flush,
        lambda: producer.send("orders", b"no"),
        lambda: producer.send_async("orders", b"no"),
    )
    calls += (
        lambda: producer.send_oneway("orders", b"no"),
        lambda: producer.send_batch([Message("orders", b"no")]),
        lambda: producer.request("orders", b"no"),
    )
    for call in calls:
        try:
            call()
        except ClientError as error:
            if "fork" not in str(error):
                return f"wrong error {error!r}"
        else:
            return "the parent's producer sent from the child"
    producer.close()
    with Producer("web", discovery=discovery) as own:
        own.send("orders", b"child", timeout=5)
        unused.send("orders", b"child", timeout=5)
        unused.close()
    return "ok"


def test_a_forked_child_cannot_use_the_parents_asynchronous_producer(cluster: TinyCluster) -> None:
    discovery = FixedDiscovery(cluster.lookup())
    used, unused = (
        AsyncProducer("web", discovery=discovery),
        AsyncProducer("later", discovery=discovery),
    )
    loop = asyncio.new_event_loop()
    loop.run_until_complete(used.send("orders", b"parent"))

    async def child() -> str:
        try:
            await used.send("orders", b"no")
        except ClientError as error:
            if "fork" not in str(error):
                return f"wrong error {error!r}"
        else:
            return "the parent's producer sent from the child"
        await used.close()
        await unused.send("orders", b"child")
        await unused.close()
        return "ok"

    assert in_child(lambda: asyncio.run(child())) == "ok"
    loop.run_until_complete(used.send("orders", b"parent again"))
    loop.run_until_complete(used.close())
    loop.close()
    assert sorted(arrival.records[0].body for arrival in cluster.broker.arrivals) == [
        b"child",
        b"parent",
        b"parent again",
    ]


def test_closing_sends_what_lingers_and_ends_what_is_never_answered(cluster: TinyCluster) -> None:
    producer = Producer("web", discovery=cluster, linger_ms=60_000.0)
    future = producer.send_async("orders", b"lingers")
    producer.close()
    assert future.result(0).queue_offset == 0
    producer = Producer("web", discovery=cluster, send_timeout_ms=200)
    producer.send("orders", b"warm", timeout=20)
    cluster.broker.fault = lambda arrival, number: "lose"
    future = producer.send_async("orders", b"lost")
    producer.close()
    with pytest.raises(SendUnknown):
        future.result(0)


def test_requests_of_brokers_that_a_producer_does_not_know_are_answered_with_code_three(
    cluster: TinyCluster,
) -> None:
    from rmq_ray.remoting.wire.frame import Command

    with Producer("web", discovery=cluster) as producer:
        producer.send("orders", b"x")
        instance = producer._core.instance  # type: ignore[union-attr]
        answer = instance._on_request(
            Command(RequestCode.GET_CONSUMER_RUNNING_INFO, fields={"consumerGroup": "g"}),
            cluster.broker.address,
        )
        assert answer is not None and answer.code == 3
        assert (
            instance._on_request(
                Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=2), cluster.broker.address
            )
            is None
        )
