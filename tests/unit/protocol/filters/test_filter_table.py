"""SQL filters of groups: which heartbeat counts, how long they live, bit maps, conflicting
subscriptions.
"""

from __future__ import annotations

import pytest

from rmq_ray.model.groups import SQL92, Subscription
from rmq_ray.protocol.filters import filter_table
from rmq_ray.protocol.filters.bloom_filter import filter_for, is_hit
from rmq_ray.protocol.filters.filter_table import KEPT_AFTER_DEATH_MS, FilterTable
from rmq_ray.protocol.filters.filter_tag import tag_subscription
from rmq_ray.protocol.filters.subscription_conflicts import NOT_SUBSCRIBED, Declarations, describe

NOW_MS = 1_700_000_000_000


def by_sql(expression: str, version: int = 1, topic: str = "orders") -> Subscription:
    return Subscription(topic, expression, version=version, expression_type=SQL92)


def test_bits_are_those_of_apache_rocketmqs_bloom_filter() -> None:
    bloom = filter_for()
    assert (bloom.hashes, bloom.bits) == (3, 112)
    vectors = {
        "G#T": (24, 26, 83),
        "billing#orders": (31, 20, 9),
        "": (0, 0, 0),
        "a": (94, 99, 7),
        "0123456789abcdef": (11, 47, 60),
        "0123456789abcdef0": (60, 67, 74),
        "标签#主题": (87, 36, 95),
        "%RETRY%g#averyveryverylongtopicname_0123456789": (23, 37, 60),
    }
    assert {key: bloom.positions(key) for key in vectors} == vectors
    assert bloom.bit_map([bloom.data_of("G", "T")]).hex() == "0000000500000000000008000000"
    assert [
        (filter_for(f, n).hashes, filter_for(f, n).bits) for f, n in ((1, 32), (50, 1), (10, 1000))
    ] == [(7, 312), (1, 8), (4, 4800)]


def test_a_hit_may_be_wrong_and_a_miss_never_is() -> None:
    bloom = filter_for()
    datas = [bloom.data_of(f"group{at}", "orders") for at in range(400)]
    for at in range(0, 400, 20):
        some = datas[at : at + 4]
        bit_map = bloom.bit_map(some)
        assert all(is_hit(data, bit_map) for data in some)
        assert sum(is_hit(data, bit_map) for data in datas) < 40
    assert is_hit(datas[0], b"") and is_hit(datas[0], bytes(13)), (
        "a map of another size says nothing"
    )
    assert not is_hit(datas[0], bytes(14))


def test_a_newer_heartbeat_replaces_a_filter_and_an_older_one_does_not() -> None:
    table = FilterTable()
    table.register("g", [by_sql("a > 1", 5)], NOW_MS)
    first = table.find("orders", "g")
    for expression, version in (("a > 2", 4), ("a > 2", 5), ("a > 1", 6)):
        table.register("g", [by_sql(expression, version)], NOW_MS + 1)
        assert table.find("orders", "g") is first
    assert first is not None and first.client_version == 6 and first.born_ms == NOW_MS
    table.register("g", [by_sql("a > 2", 7)], NOW_MS + 9)
    second = table.find("orders", "g")
    assert second is not None and second.expression == "a > 2" and second.born_ms == NOW_MS + 9


def test_a_filter_dies_with_its_group_or_topic_comes_back_and_is_forgotten_after_a_day() -> None:
    table = FilterTable()
    table.register("g", [by_sql("a > 1"), by_sql("b > 1", topic="bills")], NOW_MS)
    table.register(
        "g", [by_sql("b > 1", topic="bills"), tag_subscription("orders", "x", 9)], NOW_MS + 5
    )
    data = table.find("orders", "g")
    assert data is not None and data.dead_ms == NOW_MS + 5
    table.register("g", [by_sql("a > 1"), by_sql("b > 1", topic="bills")], NOW_MS + 6)
    assert data.dead_ms == 0
    table.unregister("g", NOW_MS + 10)
    table.clean(NOW_MS + 9 + KEPT_AFTER_DEATH_MS)
    assert len(table) == 2
    table.clean(NOW_MS + 10 + KEPT_AFTER_DEATH_MS)
    assert len(table) == 0 and not table.has_filters("orders")


def test_malformed_and_too_many_filters_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FilterTable()
    table.register("g", [by_sql("a > 1")], NOW_MS)
    table.register("g", [by_sql("a >", 2)], NOW_MS)
    assert len(table) == 0
    monkeypatch.setattr(filter_table, "FILTERS_MAX", 3)
    table.register("g", [by_sql("a > 1", topic=f"t{at}") for at in range(5)], NOW_MS)
    assert len(table) == 3


def test_the_table_survives_its_file_and_what_makes_no_sense_in_it_is_left_out() -> None:
    table = FilterTable()
    table.register("g", [by_sql("a > 1", 7)], NOW_MS)
    value = table.encode()
    for change in ({"expression": "a >"}, {"expressionType": "X"}, {"clientVersion": None}):
        value["orders"]["groupFilterData"][f"bad{change}"] = (
            value["orders"]["groupFilterData"]["g"] | change
        )
    other = value["orders"]["groupFilterData"]["g"] | {
        "bloomFilterData": {"bitNum": 64, "bitPos": [1]}
    }
    value["bills"] = {"groupFilterData": {"g": other}, "topic": "bills"}
    loaded = FilterTable()
    loaded.load(value, NOW_MS + 50)
    assert len(loaded) == 2
    kept, foreign = loaded.find("orders", "g"), loaded.find("bills", "g")
    assert kept is not None and (kept.born_ms, kept.client_version, kept.dead_ms) == (
        NOW_MS,
        7,
        NOW_MS + 50,
    )
    assert foreign is not None and foreign.born_ms == NOW_MS + 50, (
        "other bits than ours: what was mapped before says nothing"
    )


@pytest.mark.seed("S4-142")
def test_bit_maps_rule_out_only_what_arrived_while_the_filter_lived() -> None:
    table = FilterTable()
    table.register("g", [by_sql("a > 1")], NOW_MS)
    data = table.find("orders", "g")
    assert data is not None
    passing, failing = (
        table.bit_map("orders", text, NOW_MS + 1) for text in (b"a\x012", b"a\x011")
    )
    assert (
        data.may_match(NOW_MS + 1, passing)
        and not data.may_match(NOW_MS + 1, failing)
        and data.may_match(NOW_MS, failing)
    )
    table.bit_map("orders", b"a\x011", NOW_MS + 500)
    table.register("late", [by_sql("a > 1")], NOW_MS + 100)  # the clock was set back
    late = table.find("orders", "late")
    assert (
        late is not None
        and late.may_match(NOW_MS + 500, failing)
        and not late.may_match(NOW_MS + 501, failing)
    )


# --- conflicts ---


def test_members_that_disagree_are_named_with_what_they_say() -> None:
    said = Declarations()
    said.hear(1, [tag_subscription("orders", "b || a", 1), tag_subscription("bills", "*", 1)])
    said.hear(2, [tag_subscription("orders", "a||b", 9), tag_subscription("bills", "*", 9)])
    assert not said.differ and said.conflicts({}) == {}
    said.hear(3, [by_sql("a > 1")])
    assert said.differ
    found = said.conflicts({1: "one", 2: "two", 3: "three"})
    assert found["orders"] == {"TAG a || b": ["one", "two"], "SQL92 a > 1": ["three"]}
    assert found["bills"] == {"TAG *": ["one", "two"], NOT_SUBSCRIBED: ["three"]}
    assert "three" in describe("g", found) and "group g" in describe("g", found)
    said.forget(3)
    assert not said.differ
    said.forget(3)
