"""Values are taken as dataclasses are, and tell no secret."""

from __future__ import annotations

import dataclasses
import pickle
from pprint import pformat

import pytest
from msgspec.structs import replace

from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ConfigError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import ClusterAddress

QUEUE = MessageQueue("a-topic-with-a-long-name", "a-broker-with-a-longer-name", 12)
WHERE = ClusterAddress("orders", ("10.0.0.1:9876", "10.0.0.2:9876"), b"do not tell")


def test_what_takes_a_dataclass_takes_a_value() -> None:
    assert dataclasses.replace(QUEUE, queue_id=3) == MessageQueue(
        *dataclasses.astuple(QUEUE)[:2], 3
    )
    assert dataclasses.asdict(Address("h", 1)) == {"host": "h", "port": 1}
    assert [field.name for field in dataclasses.fields(QUEUE)] == [
        "topic",
        "broker_name",
        "queue_id",
    ]
    assert pickle.loads(pickle.dumps(WHERE)) == WHERE


def test_a_value_that_is_wider_than_a_line_is_printed_as_it_is() -> None:
    assert pformat(QUEUE, width=20) == repr(QUEUE)
    assert "broker_name" in pformat([QUEUE, QUEUE], width=20)


@pytest.mark.parametrize("shown", [repr(WHERE), pformat(WHERE), str(list(WHERE.__rich_repr__()))])
def test_a_secret_is_shown_to_nobody(shown: str) -> None:
    assert "do not tell" not in shown and "10.0.0.2" in shown


def test_settings_are_checked_whichever_way_they_are_made() -> None:
    config = ConsumerConfig("billing")
    for make in (config.but, lambda **changes: replace(config, **changes)):
        with pytest.raises(ConfigError, match="concurrency"):
            make(concurrency=0)
