"""Topics of a broker: templates, versions, built-in ones."""

from __future__ import annotations

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.errors import TopicNotFound
from rmq_ray.model.topics import DataVersion, TopicConfig
from rmq_ray.server.tables.topic_table import TopicTable


def table(auto_create: bool = True) -> tuple[TopicTable, list[TopicConfig | None]]:
    changes: list[TopicConfig | None] = []
    made = TopicTable(ManualClock(1_000), auto_create, changes.append)
    made.add_built_in("default", "broker-a", 8, 18)
    return made, changes


def test_a_broker_begins_with_rocketmqs_topics() -> None:
    topics, changes = table()
    queues = {
        name: (config.write_queues, config.permission)
        for name, config in topics.snapshot()[0].items()
    }
    assert queues == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "default": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "default_REPLY_TOPIC": (1, 6),
    }
    assert changes == []


@pytest.mark.seed("S3-087", "S0-020")
def test_a_send_creates_four_queues_with_the_templates_permission_without_inherit() -> None:
    topics, changes = table()
    made = topics.create_by_send("orders", "TBW102", 4)
    assert made == TopicConfig("orders", 4, 4, 6)
    assert changes == [made] and topics.get("orders") == made
    assert topics.create_by_send("orders", "TBW102", 2) == made, (
        "a topic that exists stays as it is"
    )


def test_the_templates_queues_are_the_upper_bound() -> None:
    topics, _ = table()
    assert topics.create_by_send("wide", "TBW102", 100).write_queues == 8
    assert topics.create_by_send("from-broker", "broker-a", 4).write_queues == 1


def test_no_template_no_topic() -> None:
    topics, _ = table(auto_create=False)
    with pytest.raises(TopicNotFound):
        topics.create_by_send("orders", "TBW102", 4)
    with pytest.raises(TopicNotFound):
        topics.create_by_send("orders", "absent", 4)
    with pytest.raises(TopicNotFound):
        topics.create_by_send("orders", "SELF_TEST_TOPIC", 4)


def test_the_version_rises_with_every_change_and_only_then() -> None:
    topics, changes = table()
    before = topics.version
    topics.put(TopicConfig("a", 1, 1))
    topics.put(TopicConfig("a", 1, 1))
    assert topics.version == DataVersion(before.counter + 1, 1_000)
    assert topics.delete("a") and not topics.delete("a")
    assert topics.version.counter == before.counter + 2
    assert changes == [TopicConfig("a", 1, 1), None]


def test_the_schedule_topic_grows_with_the_levels() -> None:
    topics, _ = table()
    topics.add_built_in("default", "broker-a", 8, 20)
    config = topics.get("SCHEDULE_TOPIC_XXXX")
    assert config is not None and config.write_queues == 20


def test_order_flags_come_from_the_name_server_and_leave_system_topics_alone() -> None:
    topics, _ = table()
    topics.put(TopicConfig("a", 1, 1))
    topics.put(TopicConfig("b", 1, 1, order=True))
    topics.set_order({"a": "broker-a:1", "TBW102": "broker-a:1"})
    flags = {
        name: config.order
        for name, config in topics.snapshot()[0].items()
        if config.order or name in "ab"
    }
    assert flags == {"a": True, "b": False}


def test_an_adopted_topic_grows_with_the_queues_that_producers_know() -> None:
    topics, _ = table()
    assert topics.adopt("orders", 1)
    guessed = topics.get("orders")
    assert guessed is not None and guessed.write_queues == 2
    before = topics.version
    assert topics.widen(guessed, 3).write_queues == 4
    assert topics.version != before
    grown = topics.get("orders")
    assert grown == TopicConfig("orders", 4, 4, adopted=True)
    assert topics.widen(grown, 5).read_queues == 6
    assert topics.widen(grown, 4_096) == grown


def test_settings_of_the_master_or_of_an_administrator_end_an_adoption() -> None:
    topics, _ = table()
    topics.adopt("orders", 1)
    by_hand = topics.put(TopicConfig("orders", 3, 3))
    assert topics.widen(by_hand, 3) == by_hand and not topics.has_adopted()
    topics.adopt("bills", 0)
    topics.load({"bills": TopicConfig("bills", 2, 2)}, topics.version)
    assert not topics.has_adopted()
    assert topics.widen(TopicConfig("bills", 2, 2), 2) == TopicConfig("bills", 2, 2)


def test_system_topics_are_known() -> None:
    topics, _ = table()
    assert all(
        map(topics.is_system, ("default", "broker-a", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"))
    )
    assert not topics.is_system("orders")
