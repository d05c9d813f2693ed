"""What a send's result says."""

from __future__ import annotations

import pytest

from rmq_ray.model.ids import MessageQueue, QueueOffset
from rmq_ray.model.message import SendResult, SendStatus, decode_properties


@pytest.mark.parametrize("status", SendStatus)
def test_a_status_below_ok_is_unknown_and_says_what_it_means(status: SendStatus) -> None:
    result = SendResult(status, "id", MessageQueue("T", "b", 0), QueueOffset(0))
    assert result.unknown is (status is not SendStatus.SEND_OK)
    assert ("may be lost" in status.meaning) is result.unknown


@pytest.mark.parametrize("ending", ["", "\x02"])
@pytest.mark.parametrize("text", ["TAGS\x01paid", "KEYS\x01a b\x02TAGS\x01paid"])
def test_both_endings_of_a_property_string_are_read(text: str, ending: str) -> None:
    assert decode_properties(text + ending)["TAGS"] == "paid" and decode_properties(
        text + ending
    ) == decode_properties(text)
