"""Consumer groups of a broker."""

from __future__ import annotations

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClientError
from rmq_ray.model.topics import GroupConfig
from rmq_ray.server.tables.group_table import GroupTable


def no_blanks(name: str) -> None:
    if " " in name:
        raise ClientError(f"{name!r} has a blank")


def table(auto_create: bool = True) -> tuple[GroupTable, list[int]]:
    changes: list[int] = []
    return GroupTable(ManualClock(), auto_create, no_blanks, lambda: changes.append(1)), changes


@pytest.mark.seed("S4-193", "S4-194", "S4-195", "S4-196", "S4-197")
def test_a_new_group_has_rocketmqs_defaults() -> None:
    groups, changes = table()
    made = groups.find("billing")
    assert made == GroupConfig("billing", True, True, True, 1, 16, 0, 1, True)
    assert changes == [1] and groups.version.counter == 1


@pytest.mark.seed("S4-198", "S4-199", "S4-200")
def test_slow_consumers_are_sent_to_broker_one_and_members_are_notified_by_default() -> None:
    made = table()[0].find("billing")
    assert made is not None
    assert (made.broker_id, made.broker_when_slow, made.notify_ids_changed) == (0, 1, True)


@pytest.mark.seed("S4-201")
def test_without_automatic_creation_only_system_groups_appear() -> None:
    groups, _ = table(auto_create=False)
    assert groups.find("billing") is None
    assert (
        groups.find("TOOLS_CONSUMER") is not None and groups.find("CID_RMQ_SYS_TRANS") is not None
    )


def test_an_unlawful_name_is_no_group() -> None:
    groups, changes = table()
    assert groups.find("two words") is None
    with pytest.raises(ClientError):
        groups.put(GroupConfig("two words"))
    assert changes == []


def test_deleting_raises_the_version_once() -> None:
    groups, changes = table()
    groups.put(GroupConfig("billing"))
    assert groups.delete("billing") and not groups.delete("billing")
    assert "billing" not in groups and groups.version.counter == 2 and len(changes) == 2
