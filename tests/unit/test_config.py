"""Settings: a group that is built holds values that work; everything else is refused by name, with
what it may be.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from rmq_ray.config import (
    BrokerConfig,
    ConsumerConfig,
    NameServerConfig,
    ProducerConfig,
    StoreConfig,
)
from rmq_ray.errors import ConfigError

STORE = StoreConfig("/s")


def build(kind: type, **settings: Any) -> Any:
    if kind is BrokerConfig:
        return BrokerConfig(STORE, **settings)
    if kind is NameServerConfig:
        return NameServerConfig(**settings)
    return StoreConfig("/s", **settings) if kind is StoreConfig else ConsumerConfig("g", **settings)


@pytest.mark.parametrize("kind", [StoreConfig, BrokerConfig, ConsumerConfig, NameServerConfig])
def test_no_number_below_zero_and_no_text_is_taken_for_a_whole_number(kind: type) -> None:
    meant = {"max_reconsume_times", "consume_timestamp_ms"} | {
        f"threshold_{unit}_{of}" for unit in ("messages", "mib") for of in ("topic", "group")
    }
    unchecked = []
    for setting in fields(kind):
        if str(setting.type) not in ("int", "int | None") or setting.name in meant:
            continue
        for wrong in (-1, "7", 1.5, True):
            try:
                build(kind, **{setting.name: wrong})
            except ConfigError as error:
                assert setting.name in str(error) and repr(wrong) in str(error)
            else:
                unchecked.append((setting.name, wrong))
    assert not unchecked


@pytest.mark.parametrize(
    ("kind", "name", "wrong", "said"),
    [
        (StoreConfig, "index_slots", 0, "1 to"),
        (StoreConfig, "index_items", 1, "2 to"),
        (StoreConfig, "checkpoint_interval_ms", 0, "1 to"),
        (StoreConfig, "deduplication_frames", 0, "1024 to"),
        (StoreConfig, "deduplication_frames", 1_023, "1024 to"),
        (StoreConfig, "segment_bytes", 0, "4096 to 2147479552"),
        (StoreConfig, "segment_bytes", 4_097, "multiple of 4096"),
        (StoreConfig, "delete_when", "at night", "04;16"),
        (StoreConfig, "delete_when", "24", "04;16"),
        (StoreConfig, "delete_when", "04;77", "04;16"),
        (StoreConfig, "consume_queue_entries", 15, "16 to"),
        (BrokerConfig, "default_topic_queues", 0, "1 to 4096"),
        (BrokerConfig, "pull_records_max", 0, "1 to"),
        (BrokerConfig, "port", 65_536, "0 to 65535"),
        (BrokerConfig, "auto_create_topics", "no", "bool"),
        (BrokerConfig, "long_polling", 1, "bool"),
        (NameServerConfig, "broker_expiry_ms", 0, "1000 to"),
        (NameServerConfig, "scan_interval_ms", 0, "1 to"),
        (NameServerConfig, "order_messages", 1, "bool"),
        (ConsumerConfig, "threshold_mib_group", 0, "-1 or 1 to 102400"),
        (ConsumerConfig, "lock_trusted_ms", 5, "10 to"),
        (ConsumerConfig, "lock_trusted_ms", 19_999, "20000 to"),
    ],
)
def test_values_that_could_never_work_are_refused(
    kind: type, name: str, wrong: object, said: str
) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        build(kind, **{name: wrong})
    assert said in str(caught.value) and repr(wrong) in str(caught.value)


@pytest.mark.parametrize("hours", ["04", "4", "04;16", " 4 ; 23 ", ""])
def test_hours_of_retention_are_a_list(hours: str) -> None:
    assert StoreConfig("/s", delete_when=hours).delete_when == hours


def test_no_file_of_a_store_is_greater_than_apache_rocketmq_can_open() -> None:
    most = {
        "segment_bytes": (1 << 31) - 4_096,
        "index_slots": 100_000_000,
        "index_items": 87_000_000,
        "consume_queue_entries": 1 << 26,
    }
    config = StoreConfig("/s", **most)
    for size in (
        config.segment_bytes,
        40 + 4 * config.index_slots + 20 * config.index_items,
        20 * config.consume_queue_entries,
    ):
        assert size < 1 << 31
    for name, value in most.items():
        with pytest.raises(ConfigError, match=name):
            StoreConfig("/s", **{name: value + 4_096})


def test_limits_of_a_body_and_of_what_recovery_reads_are_as_promised() -> None:
    assert STORE.body_bytes_max == ProducerConfig().body_bytes_max == 4 << 20, (
        "Apache RocketMQ's maxMessageSize"
    )
    assert (STORE.checkpoint_interval_ms, STORE.checkpoint_bytes) == (1_000, 64 << 20)
    assert (STORE.deduplication_frames, STORE.deduplication_keep_ms) == (1_024, 600_000)
