"""Bodies about members and positions of groups: the dialect's text, both ways, and what is no such
body.
"""

from __future__ import annotations

import pytest

from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire.bodies_groups import (
    decode_offsets,
    decode_status,
    encode_client_status,
    encode_direct_result,
    encode_offsets,
    encode_producers,
    encode_running_info,
    encode_status,
)
from rmq_ray.remoting.wire.body_json import BodyInvalid, parse

QUEUE = MessageQueue("orders", "broker-a", 2)
TEXT = b'{"offsetTable":{{"brokerName":"broker-a","queueId":2,"topic":"orders"}:5}}'


def test_positions_have_queues_as_object_keys() -> None:
    assert encode_offsets({QUEUE: 5}) == TEXT
    assert decode_offsets(TEXT) == {QUEUE: 5}
    assert decode_offsets(b"") == {}


def test_the_form_for_clients_in_other_languages_is_read_too() -> None:
    assert decode_offsets(
        b'{"offsetTable":[{"brokerName":"broker-a","queueId":2,"topic":"orders","offset":5}]}'
    ) == {QUEUE: 5}


def test_what_members_say_of_themselves_goes_both_ways() -> None:
    assert decode_offsets(encode_client_status({QUEUE: 7}), "messageQueueTable") == {QUEUE: 7}
    assert decode_status(encode_status({"c1": {QUEUE: 7}, "c2": {}})) == {
        "c1": {QUEUE: 7},
        "c2": {},
    }


def test_running_info_direct_results_and_producers_have_rocketmqs_members() -> None:
    info = parse(
        encode_running_info(
            {"PROP_CONSUMEORDERLY": "false"},
            {QUEUE: {"commitOffset": 3}},
            {"orders": {"consumeRT": 0.5}},
        )
    )
    assert set(info) == {"mqTable", "properties", "statusTable", "subscriptionSet"}
    assert (
        encode_direct_result("CR_LATER", 3, None, order=False)
        == b'{"autoCommit":true,"consumeResult":"CR_LATER","order":false,"spentTimeMills":3}'
    )
    assert parse(encode_producers({"web": [{"clientId": "c"}]})) == {
        "data": {"web": [{"clientId": "c"}]}
    }


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"offsetTable":5}',
        b'{"offsetTable":{"x":1}}',
        b'{"offsetTable":[{"offset":1}]}',
        b'{"offsetTable":[5]}',
    ],
)
def test_anything_else_is_refused_as_no_such_body(body: bytes) -> None:
    with pytest.raises(BodyInvalid):
        decode_offsets(body)
