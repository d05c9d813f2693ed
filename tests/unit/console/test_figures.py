"""What pages make of brokers' answers: sums that say when they are not whole, gaps in rates."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.console.figures import broker_rows, client_rows, group_rows, topic_rows
from rmq_ray.console.rates import Rates
from rmq_ray.console.source import Answers
from rmq_ray.model.topics import BrokerData

TWO = {
    "a": {
        "groups": [["billing", 1, "PUSH", "CLUSTERING", 0], ["new", 0, "", "", 0]],
        "lags": [["billing", "orders", 5, 1, 800], ["billing", "paid", 0, 0, None]],
        "dead_letters": [["billing", 2]],
    },
    "b": {"groups": [], "lags": [["billing", "orders", 7, 0, 900]], "dead_letters": []},
}


def test_a_group_is_the_sum_of_all_brokers() -> None:
    billing, new = group_rows(Answers(TWO))
    assert (billing.lag, billing.age_ms, billing.in_flight) == (12, 900, 1)
    assert (billing.members, billing.dead_letters, billing.at_least) == (1, 2, False)
    assert billing.topics == {"orders", "paid"} and billing.state == "ok"
    assert new.lag is None and new.state == "not begun" and new.dead_letters == 0


def test_without_a_broker_sums_are_at_least_and_nothing_is_unknown_not_0() -> None:
    answers = Answers({"b": {**TWO["b"], "lags": [["idle", "orders", 0, 0, None]]}}, {"a": "hangs"})
    (idle,) = group_rows(answers)
    assert idle.lag is None and idle.at_least and idle.state == "unknown"
    assert idle.dead_letters is None
    (billing,) = group_rows(Answers({"b": TWO["b"]}, {"a": "hangs"}))
    assert billing.lag == 7 and billing.at_least


def test_a_broker_whose_store_cannot_be_read_makes_lag_unknown() -> None:
    (row,) = group_rows(Answers({"a": {"groups": [["billing", 0, "", "", 0]]}}))
    assert row.lag is None and row.state == "unknown"


def test_what_is_unknown_stands_first_then_the_greatest_lag() -> None:
    lags = [["small", "t", 1, 0, None], ["great", "t", 9, 0, None], ["none", "t", 0, 0, None]]
    answers = Answers({"a": {"groups": [["fresh", 0, "", "", 0]], "lags": lags}})
    assert [row.group for row in group_rows(answers)] == ["great", "small", "none", "fresh"]
    partial = Answers(answers.found, {"b": "hangs"})
    assert {row.group for row in group_rows(partial)[:2]} == {"fresh", "none"}


def test_a_group_whose_messages_wait_for_a_retry_is_not_well() -> None:
    groups = [["billing", 1, "PUSH", "CLUSTERING", 0], ["calm", 1, "PUSH", "CLUSTERING", 0]]
    told = {
        "groups": groups,
        "lags": [[name, "orders", 0, 0, None] for name in ("calm", "billing")],
        "delayed": {"%RETRY%billing": 2_000, "%RETRY%fresh": 1, "orders": 5},
        "uncommitted": {"orders": 3},
    }
    billing, fresh, calm = group_rows(Answers({"a": told}))
    assert (billing.group, billing.retries, billing.state) == ("billing", 2_000, "retries wait")
    assert (calm.retries, calm.state) == (0, "ok")
    assert (fresh.group, fresh.state) == ("fresh", "nobody consumes")
    topics = [["orders", 4, 4, 6, False, 0, False, 3, 300]]
    (orders,) = topic_rows(Answers({"a": {**told, "topics": topics, "messages": {}}}))
    assert (orders.delayed, orders.uncommitted) == (5, 3) and not orders.delayed_at_least


def test_what_waits_is_unknown_where_a_broker_does_not_tell() -> None:
    (billing, _) = group_rows(Answers(TWO))
    assert billing.retries is None and billing.retries_at_least, "brokers of an older version"
    one = Answers({**TWO, "a": {**TWO["a"], "delayed": {"%RETRY%billing": 7}}})
    assert group_rows(one)[0].retries == 7 and group_rows(one)[0].retries_at_least
    none = Answers({"a": {**TWO["a"], "delayed": {}}}, {"b": "hangs"})
    assert group_rows(none)[0].retries is None, "none was found, not none"


def test_system_groups_and_topics_are_shown_when_asked_for() -> None:
    answers = Answers({"a": {"groups": [["TOOLS_CONSUMER", 0, "", "", 0]], "lags": []}})
    assert not group_rows(answers) and len(group_rows(answers, system=True)) == 1
    topics = [["orders", 4, 4, 6, False, 0, False, 3, 300], ["a", 1, 1, 7, False, 0, False, 0, 0]]
    told = Answers({"a": {"topics": topics, "messages": {"orders": 3, "a": 0}}})
    assert [row.topic for row in topic_rows(told)] == ["orders"]
    assert [row.topic for row in topic_rows(told, system=True)] == ["a", "orders"]


def test_messages_of_a_topic_are_unknown_while_no_broker_tells_them() -> None:
    topics = [["orders", 4, 4, 6, False, 0, False, 3, 300]]
    (row,) = topic_rows(Answers({"a": {"topics": topics}}))
    assert row.messages is None and row.at_least and row.queues == 4


def status(**more: Any) -> dict[str, Any]:
    store = {"disk_used_ratio": 0.5, "disk_free_bytes": 9, "disk_full": False, "quarantined": 0}
    copies = {"slaves": {1: {"in_sync": True, "lag_bytes": 0, "lag_ms": 0}}, "leads": True}
    found = {"state": "serving", "put_messages": 1, "got_messages": 2, "topics": 3, "store": store}
    return found | {"replication": copies | {"master_epoch": 4}} | more


def test_a_broker_that_did_not_answer_has_a_row_and_no_numbers() -> None:
    known = (BrokerData("live", "a", {0: "h:1", 1: "h:2"}), BrokerData("live", "b", {0: "h:3"}))
    answers = Answers({"a": {"status": status()}}, {"b": "hangs"}, known)
    well, ill = broker_rows(answers)
    assert well.well and well.epoch == 4 and well.slaves[0]["address"] == "h:2"
    assert not ill.well and ill.state == "did not answer" and ill.why == "hangs"
    assert ill.put_messages is None and ill.disk_free_bytes is None


def test_a_slave_that_only_a_name_server_knows_has_an_unknown_gap() -> None:
    known = (BrokerData("live", "a", {0: "h:1", 1: "h:2", 2: "h:4"}),)
    (row,) = broker_rows(Answers({"a": {"status": status()}}, {}, known))
    assert [slave["in_sync"] for slave in row.slaves] == [True, None] and not row.well


def test_a_client_of_several_brokers_is_one_row() -> None:
    one = ["billing", "PUSH", "me", "h:1", "PYTHON", 407]
    answers = Answers({"a": {"clients": [[*one, 5]]}, "b": {"clients": [[*one, 9]]}})
    (row,) = client_rows(answers)
    assert row["brokers"] == ["a", "b"] and row["heard_ms"] == 9


def counted(**brokers: tuple[int, int]) -> Answers:
    return Answers(
        {
            name: {"status": {"put_messages": put, "got_messages": got}}
            for name, (put, got) in brokers.items()
        }
    )


@pytest.mark.parametrize(
    "gap",
    [Answers({}, {"a": "hangs"}), counted(a=(200, 0)), counted(a=(0, 0), b=(0, 0))],
    ids=["silent", "fewer brokers", "begun anew"],
)
def test_a_rate_is_unknown_where_the_samples_do_not_fit(gap: Answers) -> None:
    rates = Rates()
    rates.add(0, counted(a=(100, 50), b=(10, 0)))
    rates.add(2_000, counted(a=(300, 60), b=(10, 0)))
    rates.add(4_000, gap)
    found = rates.columns()
    assert found["at"] == [2, 4]
    assert found["stored"] == [100.0, None] and found["handed_out"] == [5.0, None]
