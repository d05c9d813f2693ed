"""Tasks and records travel as they are; of several records the right one stands."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from rmq_ray.errors import BodyUnreadable, ClientError, TaskNotEncodable
from rmq_ray.serve.task_codec import (
    Status,
    Task,
    TaskRecord,
    begun,
    called,
    decode_record,
    decode_task,
    encode_record,
    encode_task,
    made_ms,
    new_id,
    reason,
    standing,
)

NOW_MS = 1_764_000_000_123
ID = new_id(NOW_MS, bytes(range(10)))


def record(status: Status, tries: int = 1, result: Any = None) -> TaskRecord:
    return TaskRecord(ID, status, tries, result, NOW_MS, NOW_MS + 1)


def test_an_id_is_a_uuid_of_version_7_that_says_when_it_was_made() -> None:
    assert made_ms(ID) == NOW_MS and ID[14] == "7" and ID[19] in "89ab"
    assert len({new_id(NOW_MS, bytes([n] * 10)) for n in range(200)}) == 200
    for wrong in ("", "7", None, 7, "0f6e9a5e-1c1b-4c3a-9f60-6d1f2a3b4c5d"):
        with pytest.raises(ClientError, match="no id of a task"):
            made_ms(wrong)


def test_tasks_and_records_come_back_equal_and_of_their_types() -> None:
    args = [1, "ü", b"", None, (1, (2, [3])), {"a": {1: 2.5}}]
    task = Task(ID, "résumé", args, {"key": (1,)}, NOW_MS)
    assert decode_task(encode_task(task, False), False) == task
    done = record(Status.SUCCESS, 2, {"labels": [("cat", 0.9)]})
    assert decode_record(encode_record(done, False), False) == done


@pytest.mark.parametrize(
    "value", [bytearray(b"x"), [memoryview(b"")], {"a": (msgpack.ExtType(4, b"pickled"),)}]
)
@pytest.mark.parametrize("pickle", [True, False])
def test_what_would_come_back_as_another_type_is_refused(value: Any, pickle: bool) -> None:
    with pytest.raises(TaskNotEncodable, match="come back as something else"):
        encode_task(Task(ID, "t", [value], {}, 0), pickle)
    with pytest.raises(TaskNotEncodable):
        encode_record(record(Status.SUCCESS, 1, value), pickle)


@pytest.mark.parametrize("value", [object(), {1}, 1 << 64, "\ud800", [[set()]]])
def test_what_has_no_form_is_refused_unless_pickled(value: Any) -> None:
    with pytest.raises(TaskNotEncodable):
        encode_task(Task(ID, "t", [value], {}, 0), False)


def test_pickled_values_are_read_by_who_says_so() -> None:
    body = encode_task(Task(ID, "t", [{1, 2}], {}, 0), True)
    assert decode_task(body, True).args == [{1, 2}]
    with pytest.raises(BodyUnreadable, match="unpickles nothing"):
        decode_task(body, False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x96\x01\x01\x01\x01\x01\x01",
        b"\x96\x02\xa1a\xa1b\x90\x80\x01",
        encode_task(Task(ID, "t", [], {}, 0), False)[:-1],
    ],
)
def test_what_is_no_task_is_told(body: bytes) -> None:
    with pytest.raises(BodyUnreadable):
        decode_task(body, False)


def test_the_newest_final_record_stands_else_the_newest() -> None:
    started, again = record(Status.STARTED, 2), record(Status.RETRY)
    done, failed = record(Status.SUCCESS), record(Status.FAILURE)
    assert standing([]) is None
    assert standing([started, again]) is started
    assert standing([started, done, again]) is done
    assert standing([done, started, failed]) is done


def test_a_reason_is_text_whatever_the_exception_does() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert reason(Odd()) == "Odd: (its text cannot be had)"
    assert reason(ValueError("\ud800")) == "ValueError: \\ud800"
    assert len(reason(ValueError("x" * 10_000))) == 4_096


@pytest.mark.parametrize(
    ("told", "tries"),
    [
        ("", 0),
        ("S1", 1),
        ("S1 R1 S2 R2 S3", 3),
        ("S1 P1", 0),
        ("S1 P1 S1 P1 S1", 1),
        ("S1 R1 S2 P2 S2 P2", 1),
        ("S1 R1 S2 P2 S2", 2),
        ("P2 S2 P2 S2 P2", 1),  # older ones are not found any more
        ("S2 P2 S2 S2", 2),  # a worker died
        ("S1 R1 S2 R2 S3 P3 S1", 2),  # in another order
    ],
)
def test_tries_that_were_told_as_pending_do_not_count(told: str, tries: int) -> None:
    kinds = {"S": Status.STARTED, "P": Status.PENDING, "R": Status.RETRY}
    records = [record(kinds[one[0]], int(one[1:])) for one in told.split()]
    assert begun(reversed(records)) == begun(records) == tries


def test_the_name_of_a_task_is_found_without_its_arguments() -> None:
    big = encode_task(Task(ID, "resize", (b"x" * 1_000_000, {1: (2,)}), {}, NOW_MS), False)
    assert called(big) == "resize"
    for junk in (b"", b"\xc1", b"\x96", b"\xff" * 9, msgpack.packb({"a": 1}), big[:9]):
        assert called(junk) is None
    assert called(msgpack.packb([1, "id", 7])) is called(msgpack.packb([1])) is None
    assert called(msgpack.packb([1, b"\xff", b"\xff"])) is None
