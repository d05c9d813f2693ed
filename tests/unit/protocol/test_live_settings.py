"""Which settings change while a broker runs, and what is said of those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.config import MIB, BrokerConfig, StoreConfig
from rmq_ray.errors import ConfigError
from rmq_ray.protocol.live_settings import (
    SETTINGS,
    configured,
    effective,
    encode_properties,
    parse_properties,
    told,
    with_changes,
)

BASE = BrokerConfig(StoreConfig("/s"))


def test_rocketmq_names_and_ours_mean_the_same_setting() -> None:
    asked = {"fileReservedTime": "48", "pull_bytes_max": "2 MiB", "diskMaxUsedSpaceRatio": "70"}
    changes = with_changes({}, asked, BASE)
    assert changes == {
        "store.reserved_hours": "48",
        "pull_bytes_max": "2097152",
        "store.disk_delete_ratio": "0.7",
    }
    assert with_changes({}, {"reserved_hours": "48"}, BASE) == {"store.reserved_hours": "48"}
    now = effective(BASE, changes)
    assert (now.store.reserved_hours, now.pull_bytes_max) == (48, 2 * MIB)
    assert now.store.disk_delete_ratio == pytest.approx(0.7)


def test_an_empty_value_takes_a_change_back() -> None:
    changes = {"store.reserved_hours": "48", "limit.topic.a.bytes_per_s": "5"}
    asked = {"fileReservedTime": "", "limit.topic.a.bytes_per_s": "0"}
    assert with_changes(changes, asked, BASE) == {}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"fileReservedTim": "1"}, "did you mean fileReservedTime"),
        ({"x": "1"}, "store.reserved_hours, store.delete_when"),
        ({"flush": "sync"}, "fixed while the broker runs"),
        ({"flushDiskType": "SYNC_FLUSH"}, "fixed while the broker runs"),
        ({"reserved_hours": "-1"}, "0 to 1000000 hours"),
        ({"reserved_hours": "x"}, "0 to 1000000"),
        ({"deleteWhen": "25"}, "hours of the day"),
        ({"auto_create_topics": "maybe"}, "true or false"),
        ({"disk_delete_ratio": "0.95"}, "ratios must rise"),
        ({"diskMaxUsedSpaceRatio": "0"}, "1 to 100 percent"),
        ({"permission": "3"}, "2 = write, 4 = read, 6 = both"),
        ({"pull_bytes_max": "3 XiB"}, "1 to"),
        ({"limit.x": "1"}, "is no limit"),
        ({"limit.topic.a b.bytes_per_s": "1"}, "other characters"),
        ({"limit.group.g.bytes_per_s": "-1"}, "a whole number a second"),
    ],
)
def test_a_wrong_name_or_value_is_refused_with_what_is_possible(
    asked: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        with_changes({}, {"pull_records_max": "5", **asked}, BASE)


@pytest.mark.parametrize("name", SETTINGS)
def test_limits_that_are_told_are_those_that_hold(name: str) -> None:
    one = SETTINGS[name].known
    value = configured(BASE, name)
    assert with_changes({}, {name: told(value)}, BASE), "the default is possible"
    if one.low is None or one.high is None:
        return
    steps: tuple[Any, ...] = (one.low, one.high)
    if isinstance(value, float):
        return  # ratios depend on one another
    for edge in steps:
        assert with_changes({}, {name: str(edge)}, BASE) == {name: str(edge)}
    for beyond in (one.low - 1, one.high + 1):
        with pytest.raises(ConfigError):
            with_changes({}, {name: str(beyond)}, BASE)
        field = name.removeprefix("store.")
        with pytest.raises(ConfigError):
            (BASE.store if name.startswith("store.") else BASE).but(**{field: int(beyond)})


def test_properties_are_read_as_rocketmq_writes_them() -> None:
    assert parse_properties("# by\na=1\n\n b = x=y \n") == {"a": "1", "b": "x=y"}
    assert parse_properties(encode_properties({"a": "1", "b": ""})) == {"a": "1", "b": ""}
    with pytest.raises(ConfigError):
        parse_properties("nothing")
    with pytest.raises(ConfigError):
        encode_properties({"a": "1\nb=2"})
