"""What waits in a broker until it is stored in its topic, when that topic has other queues then, is
gone, or was made again: nothing acknowledged lies where nobody reads, nothing deleted comes back.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_ray.codec.record import parse_offset_message_id
from rmq_ray.model.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import (
    CreateTopicHeader,
    EndTransactionHeader,
    SendBackHeader,
    SendHeader,
)
from rmq_ray.server.tables import topic_table
from tests.support.brokers.broker_bench import Bench, bodies_of

RMQ_RAY = Path(__file__).resolve().parents[4] / "rmq_ray"
QUEUE = 3


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    create(made, 4)
    made.core._deliver()
    yield made
    made.close()


def create(bench: Bench, queues: int) -> None:
    header = CreateTopicHeader("orders", "TBW102", queues, queues, 6)
    assert bench.ask(Code.UPDATE_AND_CREATE_TOPIC, header.to_fields()).code == 0


def delete(bench: Bench) -> None:
    assert bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0


def send(bench: Bench, **properties: str) -> Command:
    text = "\x02".join(
        f"{name}\x01{value}" for name, value in {"UNIQ_KEY": "K" * 32, **properties}.items()
    )
    flag = 4 if "TRAN_MSG" in properties else 0
    header = SendHeader("web", "orders", QUEUE, flag, bench.clock.now_ms(), 0, properties=text)
    answer = bench.ask(Code.SEND_MESSAGE_V2, header.to_v2(), b"waits")
    assert answer.code == 0, answer.remark
    return answer


def pass_time(bench: Bench) -> Command | None:
    for _ in range(40):
        bench.clock.advance_ms(50)
        bench.core.tick()
        bench.offload.drain()
    return None


Finish = Callable[[Bench], Command | None]


def delayed(bench: Bench) -> Finish:
    send(bench, DELAY="1")
    return pass_time


def timed(bench: Bench) -> Finish:
    send(bench, TIMER_DELAY_MS="1000")
    return pass_time


def half(bench: Bench) -> Finish:
    fields = send(bench, TRAN_MSG="true", PGROUP="web").fields or {}
    log_offset = parse_offset_message_id(fields["msgId"])[2]
    header = EndTransactionHeader("web", int(fields["queueOffset"]), log_offset, 8, "K" * 32)
    return lambda bench: bench.ask(Code.END_TRANSACTION, header.to_fields())


WAITING: dict[str, tuple[Callable[[Bench], Finish], str]] = {
    "delayed": (delayed, SCHEDULE_TOPIC),
    "timed": (timed, TIMER_TOPIC),
    "half": (half, HALF_TOPIC),
}
"""What waits, and in which topic."""
each = pytest.mark.parametrize("waits", [row[0] for row in WAITING.values()], ids=list(WAITING))


def found(bench: Bench) -> dict[int, list[bytes]]:
    """Queue id -> what a reader finds in it."""
    store = bench.core.keeper.store
    assert store is not None
    places = {}
    for queue_id in range(8):
        low, high = store.bounds("orders", queue_id)
        if low < high:
            places[queue_id] = bodies_of(bench.pull("orders", queue_id, low)[1])
    return places


@each
def test_what_waits_goes_to_the_queue_that_it_names(
    bench: Bench, waits: Callable[[Bench], Finish]
) -> None:
    waits(bench)(bench)
    assert found(bench) == {QUEUE: [b"waits"]}


@each
@pytest.mark.parametrize(("queues", "place"), [(1, 0), (2, 1), (3, 0)])
def test_what_waits_for_a_queue_that_is_no_more_goes_to_another_one(
    bench: Bench, waits: Callable[[Bench], Finish], queues: int, place: int
) -> None:
    finish = waits(bench)
    create(bench, queues)
    answer = finish(bench)
    assert answer is None or answer.code == 0
    assert found(bench) == {place: [b"waits"]}


@each
@pytest.mark.parametrize("again", [False, True])
def test_what_waits_for_a_topic_that_was_deleted_is_dropped_or_refused(
    bench: Bench,
    waits: Callable[[Bench], Finish],
    again: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    finish = waits(bench)
    delete(bench)
    if again:
        create(bench, 4)
    with caplog.at_level(logging.WARNING):
        answer = finish(bench)
    if answer is None:
        assert bench.core.status()["dropped_deleted"] == 1
        assert caplog.text.count("messages that waited for topic orders are dropped") == 1
    else:
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST and "was deleted" in str(answer.remark)
    assert ("orders" in bench.core.tables.topics) is again
    create(bench, 4)
    assert found(bench) == {}


@pytest.mark.parametrize(("waits", "count"), [(delayed, "delayed"), (timed, "timed")])
def test_a_table_without_room_for_the_topic_of_what_is_due_stops_nothing(
    bench: Bench,
    waits: Callable[[Bench], Finish],
    count: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish = waits(bench)
    topics = bench.core.tables.topics
    topics.delete("orders")  # as a slave that was promoted does not know it
    monkeypatch.setattr(topic_table, "TOPICS_MAX", len(topics.snapshot()[0]))
    finish(bench)
    status = bench.core.status()
    assert (status[f"{count}_dropped"], status[f"{count}_delivered"]) == (1, 0)
    monkeypatch.undo()
    waits(bench)(bench)
    assert bench.core.status()[f"{count}_delivered"] == 1


def test_a_half_for_a_topic_that_was_deleted_is_given_up_by_the_next_check_and_not_asked_about(
    bench: Bench,
) -> None:
    half(bench)
    delete(bench)
    bench.core._check_halves()
    bench.clock.advance_ms(60_000)
    bench.core._check_halves()
    status = bench.core.status()
    assert status["half_messages"] == 0
    assert (status["half_discarded"], status["dropped_deleted"], status["half_checks"]) == (1, 1, 0)


def test_a_half_for_a_topic_that_was_deleted_can_be_rolled_back(bench: Bench) -> None:
    fields = send(bench, TRAN_MSG="true", PGROUP="web").fields or {}
    log_offset = parse_offset_message_id(fields["msgId"])[2]
    delete(bench)
    header = EndTransactionHeader("web", int(fields["queueOffset"]), log_offset, 12, "K" * 32)
    assert bench.ask(Code.END_TRANSACTION, header.to_fields()).code == 0


def test_a_commit_that_is_repeated_after_its_topic_was_deleted_is_told_that_it_was_done(
    bench: Bench,
) -> None:
    finish = half(bench)
    finish(bench)
    delete(bench)
    answer = finish(bench)
    assert answer is not None and answer.code == 0


def back(bench: Bench, log_offset: int) -> int:
    header = SendBackHeader(log_offset, "billing", 1, "U", "orders", False, None)
    return bench.ask(Code.CONSUMER_SEND_MSG_BACK, header.to_fields()).code


def retries(bench: Bench) -> int:
    store = bench.core.keeper.store
    assert store is not None
    return store.bounds("%RETRY%billing", 0)[1]


def test_a_message_of_a_topic_that_was_deleted_comes_back_to_nobody(bench: Bench) -> None:
    first, second = (bench.send(bodies_=[b"x"]).base_log_offset for _ in range(2))
    assert back(bench, first) == 0
    delete(bench)
    assert back(bench, second) == 0, "it is settled: nobody has to keep it"
    pass_time(bench)
    assert retries(bench) == 0
    assert bench.core.status()["dropped_deleted"] == 2


def test_what_waits_is_not_shown_when_its_topic_was_deleted(bench: Bench) -> None:
    delayed(bench)
    store = bench.core.keeper.store
    assert store is not None
    log_offset = store.log_offset_of(SCHEDULE_TOPIC, 0, 0)
    assert bench.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(log_offset)}).code == 0
    delete(bench)
    assert bench.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(log_offset)}).code != 0


APPENDS = {"put", "put_encoded", "put_batch", "append_frame", "append_message", "append_mixed"}
ADMITTED = "a client's send: TopicGate"
OWN = "OwnWrites"
INTERNAL = "a topic of the broker's own, or of a group, that is made where it is missing"
WRITERS = {
    ("server/delay/delay_service.py", "_store"): OWN,
    ("server/delay/timer_service.py", "_deliver_one"): OWN,
    ("server/delay/timer_service.py", "_roll"): OWN,
    ("server/delay/timer_service.py", "_write_cancel"): INTERNAL,
    ("server/pop/pop_service.py", "_copy"): INTERNAL,
    ("server/pull/pull_handlers.py", "tell"): INTERNAL,
    ("server/send/plain_sends.py", "write"): ADMITTED,
    ("server/send/records_handlers.py", "_append"): ADMITTED,
    ("server/send/reply_handlers.py", "_end"): ADMITTED,
    ("server/send/send_back.py", "_copy"): INTERNAL,
    ("server/send/send_handlers.py", "_put_batch"): ADMITTED,
    ("server/send/send_handlers.py", "_put_single"): ADMITTED,
    ("server/transaction/transaction_service.py", "_finish_together"): OWN,
    ("server/transaction/transaction_service.py", "_put_copy"): INTERNAL,
    ("server/transaction/transaction_service.py", "_write_op"): INTERNAL,
}
"""Who stores messages, and what lets them in."""


def writers() -> set[tuple[str, str]]:
    places = set()
    for path in sorted((RMQ_RAY / "server").rglob("*.py")):
        if path.name == "message_writer.py":
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
                for call in calls:
                    if isinstance(call.func, ast.Attribute) and call.func.attr in APPENDS:
                        whose = ast.unparse(call.func.value)
                        if whose.endswith(("writer", "store")):
                            places.add((str(path.relative_to(RMQ_RAY)), function.name))
    return places


def test_whoever_stores_messages_has_its_admission() -> None:
    assert writers() == set(WRITERS)
