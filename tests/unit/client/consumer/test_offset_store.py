"""Offsets of a clustering group: memory, the broker, and what is handed over when."""

from __future__ import annotations

import pytest

from rmq_ray.client.consumer.offset_store import ReadOffset, RemoteOffsetStore
from rmq_ray.errors import RequestTimeout
from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire.codes import RequestCode
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
