"""What is delayed, or does not wait for the store, leaves room for what the broker adds to its
properties.
"""

from __future__ import annotations

import pytest

from rmq_ray.client.outgoing.send_request import checked_request
from rmq_ray.errors import MessageTooLarge
from rmq_ray.model.message import Message
from rmq_ray.protocol.validators import SPECIAL_PROPERTIES_BYTES_MAX, USER_PROPERTIES_BYTES_MAX


@pytest.mark.parametrize(("time", "wait"), [(3, True), (0, False)])
def test_properties_of_a_special_message_have_a_lower_limit(time: int, wait: bool) -> None:
    fits = {"p": "x" * (SPECIAL_PROPERTIES_BYTES_MAX - len("p\x01\x02"))}
    longer = {"p": fits["p"] + "x"}
    assert len(make(fits, time, wait)) > SPECIAL_PROPERTIES_BYTES_MAX
    with pytest.raises(MessageTooLarge, match=f"the limit is {SPECIAL_PROPERTIES_BYTES_MAX}"):
        make(longer, time, wait)
    assert len(make(longer, 0, True)) < USER_PROPERTIES_BYTES_MAX


def make(properties: dict[str, str], time: int, wait: bool) -> str:
    return checked_request(
        Message("orders", b"x", properties=properties, delay_level=time, wait_store_ok=wait),
        None,
        (None, (), None),
        0,
        1_000,
    ).text
