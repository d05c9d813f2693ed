"""Futures that share a condition behave as concurrent.futures' own do."""

from __future__ import annotations

import asyncio
import concurrent.futures as futures
import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable

import pytest

from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.outgoing.send_payload import StoredAt
from rmq_ray.codec.record import offset_message_id
from rmq_ray.errors import BrokerBusy, ClientError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import SendResult, SendStatus

FIELDS = dataclasses.fields(SendResult)
QUEUE, ADDRESS = MessageQueue("orders", "broker-a", 2), Address("127.0.0.1", 10911)


def batch(count: int) -> tuple[BatchOutcome, list[SendFuture]]:
    outcome = BatchOutcome(QUEUE)
    outcome.message_ids = [f"{n:032X}" for n in range(count)]
    outcome.sizes = [100 + n for n in range(count)]
    return outcome, [SendFuture(outcome, index) for index in range(count)]


def store(outcome: BatchOutcome) -> None:
    outcome.stored = StoredAt(SendStatus.SEND_OK, QUEUE, ADDRESS, 40, 1000)
    outcome.finish()


def test_every_future_has_its_own_place_in_the_frame() -> None:
    outcome, made = batch(3)
    store(outcome)
    results = [future.result(timeout=1) for future in made]
    assert [result.queue_offset for result in results] == [40, 41, 42]
    assert [result.log_offset for result in results] == [1000, 1100, 1201]
    assert [result.offset_message_id for result in results] == [
        offset_message_id(ADDRESS.host, ADDRESS.port, at) for at in (1000, 1100, 1201)
    ]
    assert (
        results[1].message_id == f"{1:032X}"
        and results[1].queue == QUEUE
        and results[1].status is SendStatus.SEND_OK
    )


def test_wait_and_as_completed_work_on_futures_of_one_batch_and_of_several() -> None:
    first, some = batch(3)
    second, more = batch(2)
    threading.Timer(0.02, lambda: (store(first), store(second))).start()
    done, pending = futures.wait([*some, *more], timeout=5)
    assert len(done) == 5 and not pending
    assert len(list(futures.as_completed([*some, *more], timeout=5))) == 5


def test_wait_for_the_first_returns_when_one_batch_is_done() -> None:
    first, some = batch(2)
    _, more = batch(2)
    threading.Timer(0.02, lambda: store(first)).start()
    done, pending = futures.wait([*some, *more], timeout=5, return_when=futures.FIRST_COMPLETED)
    assert done == set(some) and pending == set(more)


def test_they_can_be_awaited() -> None:
    outcome, made = batch(25)

    async def gather() -> list[int]:
        threading.Timer(0.02, lambda: store(outcome)).start()
        return [
            result.queue_offset
            for result in await asyncio.wait_for(asyncio.gather(*map(asyncio.wrap_future, made)), 5)
        ]

    assert asyncio.run(gather()) == list(range(40, 65))


def test_a_failed_batch_raises_a_copy_for_every_reader() -> None:
    outcome, made = batch(2)
    outcome.finish(BrokerBusy("full", "orders"))
    errors = [future.exception(timeout=1) for future in (*made, made[0])]
    assert all(
        isinstance(error, BrokerBusy) and error.args == ("full", "orders") for error in errors
    )
    assert len(set(map(id, errors))) == 3
    with pytest.raises(BrokerBusy, match="full"):
        made[0].result(timeout=1)


def test_callbacks_run_once_whether_added_before_or_after() -> None:
    outcome, made = batch(1)
    called: list[object] = []
    made[0].add_done_callback(called.append)
    made[0].add_done_callback(lambda future: 1 / 0)
    made[0].add_done_callback(called.append)
    store(outcome)
    outcome.finish()
    made[0].add_done_callback(called.append)
    assert called == [made[0]] * 3


def test_cancelling_is_refused_and_changes_nothing() -> None:
    outcome, (future,) = batch(1)
    assert not future.cancel() and not future.cancelled() and not future.done() and future.running()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    store(outcome)
    assert future.done() and not future.cancel()
    assert "finished" in repr(future)


def test_an_outcome_in_a_forked_child_ends_even_if_its_condition_is_held() -> None:
    outcome, (future,) = batch(1)
    holder = threading.Thread(target=outcome.condition.acquire, daemon=True)
    holder.start()
    holder.join(5)
    outcome.orphan(ClientError("forked"))
    with pytest.raises(ClientError, match="forked"):
        future.result(timeout=1)


@pytest.mark.parametrize(
    "copied",
    [
        lambda result: pickle.loads(pickle.dumps(result)),
        copy.copy,
        copy.deepcopy,
        dataclasses.replace,
        lambda result: SendResult(**{f.name: getattr(result, f.name) for f in FIELDS}),
    ],
    ids=["pickle", "copy", "deepcopy", "replace", "fields"],
)
def test_a_result_that_is_made_when_looked_at_is_a_send_result_in_every_respect(
    copied: Callable[[SendResult], SendResult],
) -> None:
    outcome, made = batch(2)
    outcome.transactional = True
    store(outcome)
    result, again, other = made[1].result(), made[1].result(), made[0].result()
    plain = copied(result)
    assert isinstance(result, SendResult) and type(plain) is SendResult
    assert plain == result and result == plain and result == again and result != other
    assert result != "result" and not result.unknown
    assert len({plain, result, again, other}) == 2
    assert repr(result) == repr(plain) and repr(plain).startswith("SendResult(status=")
    assert dataclasses.asdict(result) == dataclasses.asdict(plain)
    assert dataclasses.replace(result, count=5) == dataclasses.replace(plain, count=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.count = 3  # type: ignore[misc]
    match result:
        case SendResult(status=SendStatus.SEND_OK, message_id=message_id):
            assert message_id == result.transaction_id == f"{1:032X}"
