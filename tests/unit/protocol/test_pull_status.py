"""Codes of pull answers."""

from __future__ import annotations

import pytest

from rmq_ray.model.pulling import GetMessageStatus as Status
from rmq_ray.server.pull.pull_results import response_code, suggested_broker


@pytest.mark.seed("S4-106", "S4-107", "S4-109", "S4-110")
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.FOUND, 0),
        (Status.NO_MATCHED_MESSAGE, 20),
        (Status.MESSAGE_WAS_REMOVING, 20),
        (Status.OFFSET_FOUND_NULL, 19),
        (Status.OFFSET_OVERFLOW_ONE, 19),
        (Status.OFFSET_OVERFLOW_BADLY, 21),
        (Status.OFFSET_TOO_SMALL, 21),
    ],
)
def test_each_status_has_its_code_whatever_the_offset(status: Status, code: int) -> None:
    assert response_code(status, 0) == response_code(status, 7) == code


@pytest.mark.seed("S4-108", "S4-126")
@pytest.mark.parametrize("status", [Status.NO_MATCHED_LOGIC_QUEUE, Status.NO_MESSAGE_IN_QUEUE])
def test_an_empty_queue_is_not_found_at_offset_zero_and_moved_elsewhere(status: Status) -> None:
    assert (response_code(status, 0), response_code(status, 1)) == (19, 21)


@pytest.mark.seed("S4-111", "S4-122", "S4-126")
def test_nine_statuses_become_four_codes() -> None:
    found: dict[int, set[Status]] = {}
    for status in Status:
        found.setdefault(response_code(status, 1), set()).add(status)
    assert found == {
        0: {Status.FOUND},
        19: {Status.OFFSET_FOUND_NULL, Status.OFFSET_OVERFLOW_ONE},
        20: {Status.NO_MATCHED_MESSAGE, Status.MESSAGE_WAS_REMOVING},
        21: {
            Status.NO_MATCHED_LOGIC_QUEUE,
            Status.NO_MESSAGE_IN_QUEUE,
            Status.OFFSET_OVERFLOW_BADLY,
            Status.OFFSET_TOO_SMALL,
        },
    }


@pytest.mark.seed("S4-105", "S3-141", "S3-142", "S3-143")
def test_slaves_are_suggested_only_where_they_serve_reads() -> None:
    assert suggested_broker(slow=True, slave_reads=False, broker_id=3, broker_when_slow=1) == 0
    assert suggested_broker(slow=True, slave_reads=True, broker_id=0, broker_when_slow=1) == 1
    assert suggested_broker(slow=False, slave_reads=True, broker_id=0, broker_when_slow=1) == 0
