"""What a send's result says."""

from __future__ import annotations

import pytest

from rmq_ray.model.ids import MessageQueue, QueueOffset
from rmq_ray.model.message import SendResult, SendStatus


@pytest.mark.parametrize("status", SendStatus)
def test_a_status_below_ok_is_unknown_and_says_what_it_means(status: SendStatus) -> None:
    result = SendResult(status, "id", MessageQueue("T", "b", 0), QueueOffset(0))
    assert result.unknown is (status is not SendStatus.SEND_OK)
    assert ("may be lost" in status.meaning) is result.unknown
