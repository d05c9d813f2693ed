"""Offsets of a clustering group: memory, the broker, and what is handed over when."""

from __future__ import annotations

import pytest

from rmq_ray.client.consumer.offset_store import ReadOffset, RemoteOffsetStore
from rmq_ray.client.pull.pull_engine import CommittedOffsets
from rmq_ray.errors import ConnectFailed, RequestTimeout
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.clients.scripted_client import ADDRESS, ScriptedClient

QUERY, UPDATE = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET


def store() -> tuple[RemoteOffsetStore, ScriptedClient, list[MessageQueue]]:
    client = ScriptedClient()
    queues = client.add_topic("orders")
    return RemoteOffsetStore("g", client), client, queues


@pytest.mark.seed("S4-214")
def test_an_offset_only_rises_unless_it_is_said_otherwise() -> None:
    offsets, _, (queue, *_) = store()
    offsets.update(queue, 10)
    offsets.update(queue, 7)
    assert offsets.clone() == {queue: 10}
    offsets.update(queue, 7, increase_only=False)
    assert offsets.clone("orders") == {queue: 7}
    assert offsets.clone("other") == {}
    offsets.remove(queue)
    assert offsets.clone() == {}


@pytest.mark.seed("S4-215", "S4-222")
def test_reading_looks_in_memory_at_the_broker_or_in_both_and_remembers_what_the_broker_said() -> (
    None
):
    offsets, client, (queue, other, *_) = store()
    client.answer(QUERY, lambda command, _address: command.answer(fields={"offset": "33"}))
    assert offsets.read(queue, ReadOffset.MEMORY) == -1
    assert offsets.read(queue, ReadOffset.STORE) == 33
    assert offsets.read(queue, ReadOffset.MEMORY) == 33
    assert len(client.requests(QUERY)) == 1
    assert offsets.read(queue, ReadOffset.MEMORY_FIRST) == 33
    assert len(client.requests(QUERY)) == 1
    assert offsets.read(other, ReadOffset.MEMORY_FIRST) == 33
    assert client.requests(QUERY)[0].fields == {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "0",
        "rmqWithEpoch": "true",
    }


@pytest.mark.seed("S4-222")
def test_no_stored_offset_is_minus_one_and_any_failure_minus_two() -> None:
    offsets, client, (queue, *_) = store()
    client.answer(QUERY, lambda command, _address: command.answer(22))
    assert offsets.read(queue, ReadOffset.STORE) == -1
    client.answer(QUERY, lambda command, _address: command.answer(1))
    assert offsets.read(queue, ReadOffset.STORE) == -2
    client.answer(QUERY, lambda _command, _address: RequestTimeout("slow", "a"))
    assert offsets.read(queue, ReadOffset.STORE) == -2
    client.down.add(ADDRESS)
    assert offsets.read(queue, ReadOffset.STORE) == -2


@pytest.mark.seed("S4-219", "S4-223", "S4-214")
def test_persisting_all_tells_the_broker_one_way_and_forgets_queues_that_are_not_held() -> None:
    offsets, client, queues = store()
    for number, queue in enumerate(queues[:3]):
        offsets.update(queue, number)
    offsets.persist_all(queues[1:])
    told = client.requests(UPDATE)
    assert [command.is_oneway for command in told] == [True, True]
    assert told[0].fields == {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "1",
        "commitOffset": "1",
        "rmqClient": client.client_id,
        "rmqIncreaseOnly": "true",
    }
    assert offsets.clone() == {queues[1]: 1, queues[2]: 2}


@pytest.mark.seed("S4-214", "S4-223")
def test_persisting_one_queue_waits_for_the_answer_and_says_whether_it_was_taken() -> None:
    offsets, client, (queue, other, *_) = store()
    offsets.update(queue, 5)
    assert offsets.persist(queue)
    assert not client.requests(UPDATE)[0].is_oneway
    client.answer(UPDATE, lambda command, _address: command.answer(1))
    assert not offsets.persist(queue)
    client.answer(UPDATE, lambda _command, _address: RequestTimeout("slow", "a"))
    assert not offsets.persist(queue)
    assert not offsets.persist(other)


def test_a_broker_that_is_away_does_not_keep_the_others_from_hearing_their_offsets() -> None:
    offsets, client, queues = store()
    for queue in queues:
        offsets.update(queue, 1)
    client.down.add(ADDRESS)
    offsets.persist_all(queues)
    assert offsets.clone() == dict.fromkeys(queues, 1)


class Timed(ScriptedClient):
    """Each try to reach a broker takes the time of a connection, and fails."""

    tried = 0

    def oneway(self, address: Address, command: Command) -> None:
        self.tried += 1
        self.clock.sleep_ms(3_000)
        raise ConnectFailed("its host is gone", str(address))


def test_a_broker_that_is_gone_is_tried_once_and_the_others_until_the_time_is_over() -> None:
    client = Timed()
    queues = client.add_topic("orders", 4, brokers=("broker-a", "broker-b", "broker-c"))
    offsets = RemoteOffsetStore("g", client)
    table = dict.fromkeys(queues, 1)
    offsets.hand_over(table)
    assert client.tried == 3
    offsets.hand_over(table, until_ms=client.clock.monotonic_ms() + 4_000)
    assert client.tried == 5


def test_a_commit_says_that_it_only_rises_unless_somebody_moved_its_queue() -> None:
    offsets, client, (queue, *_) = store()
    client.answer(QUERY, lambda command, _address: command.answer(fields={"offset": "33"}))

    def rises(offsets: RemoteOffsetStore) -> bool:
        assert offsets.persist(queue)
        return client.requests(UPDATE)[-1].fields.get("rmqIncreaseOnly") == "true"

    assert offsets.read(queue, ReadOffset.STORE) == 33 and rises(offsets)
    offsets.update(queue, 40)
    assert rises(offsets)
    offsets.update(queue, 10, increase_only=False)
    assert not rises(offsets)
    offsets.update(queue, 12)
    assert not rises(offsets), "what follows is lower than what is stored, too"
    offsets.remove(queue)
    offsets.update(queue, 50)
    assert not rises(offsets), "the broker may have forgotten where it was moved to"
    offsets.persist_all([])
    offsets.update(queue, 50)
    assert rises(offsets), "it was given away, and came again"
    of_a_user = CommittedOffsets("g", client)
    of_a_user.commit(queue, 7)
    assert not rises(of_a_user), "who seeks back commits what lies there"


def test_the_epoch_of_an_offset_is_that_of_the_latest_answer() -> None:
    offsets, client, (queue, *_) = store()
    told = {"offset": "33", "rmqLogEpoch": "4"}
    client.answer(QUERY, lambda command, _address: command.answer(fields=told))
    assert offsets.epoch(queue) == 0
    assert offsets.read(queue, ReadOffset.STORE) == 33 and offsets.epoch(queue) == 4
    client.answer(QUERY, lambda command, _address: command.answer(22))
    assert offsets.read(queue, ReadOffset.STORE) == -1 and offsets.epoch(queue) == 0
