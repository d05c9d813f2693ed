"""What pages show, made of what brokers answered: rows of a whole cluster from rows of each broker.

Decides how an answer that is missing shows in a sum: a sum of some brokers is "at least", and one
of none is unknown (None). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_ray.console.source import NAME_SERVER, Answers
from rmq_ray.model.groups import is_system_group
from rmq_ray.model.ids import MASTER_ID
from rmq_ray.model.topics import DLQ_PREFIX, RETRY_PREFIX, retry_topic
from rmq_ray.protocol.redelivery import group_of_retry_topic
from rmq_ray.remoting.wire.overview import (
    CLIENT,
    DELAYED,
    LAG,
    TOPIC,
    UNCOMMITTED,
    named,
    waiting_for,
)

RETRIES = "retries wait"
BEHIND_MS = 10_000
"""A message that waits so long is worth a look; below that a group is at work."""


@dataclass(slots=True)
class GroupRow:
    """A consumer group. ``lag``: of all its topics; None = nobody told, or it has committed nothing
    yet. ``at_least``: brokers are missing.
    """

    group: str
    lag: int | None = None
    at_least: bool = False
    age_ms: int | None = None
    """Of the oldest message that waits, where it is known."""
    in_flight: int = 0
    members: int = 0
    kinds: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    conflicts: int = 0
    dead_letters: int | None = None
    retries: int | None = None
    """Messages that it failed on and that wait for their retry; None = unknown."""
    retries_at_least: bool = False

    @property
    def state(self) -> str:
        """In a word: what is wrong first."""
        if self.lag is None and (self.at_least or not self.retries):
            return "unknown" if self.at_least else "not begun"
        if self.conflicts:
            return "subscriptions differ"
        if (self.lag or self.retries) and not self.members:
            return "nobody consumes"
        if self.lag and (self.age_ms is None or self.age_ms >= BEHIND_MS):
            return "behind"
        return RETRIES if self.retries else "ok"


@dataclass(slots=True)
class TopicRow:
    """A topic. ``messages``: those that are there; None = nobody told."""

    topic: str
    queues: int = 0
    messages: int | None = None
    at_least: bool = False
    stored_messages: int = 0
    stored_bytes: int = 0
    delayed: int | None = None
    """Messages that wait for a delay before they are in it; None = unknown."""
    delayed_at_least: bool = False
    uncommitted: int | None = None
    """Half messages for it; None = unknown."""
    uncommitted_at_least: bool = False
    permission: int = 0
    retention_hours: int = 0
    system: bool = False
    brokers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class BrokerRow:
    """A broker name: its master, and its copies as the master and the name servers see them.
    Numbers are None where the master did not answer.
    """

    broker: str
    state: str
    address: str = ""
    why: str = ""
    epoch: int | None = None
    leads: bool | None = None
    slaves: list[dict[str, Any]] = field(default_factory=list)
    disk_used_ratio: float | None = None
    disk_free_bytes: int | None = None
    disk_full: bool = False
    quarantined: int | None = None
    put_messages: int | None = None
    got_messages: int | None = None
    draining: bool = False
    topics: int | None = None

    @property
    def well(self) -> bool:
        """Whether nobody has to look at it."""
        return (
            self.state == "serving"
            and not self.disk_full
            and not self.quarantined
            and all(slave.get("in_sync") for slave in self.slaves)
        )


class _GroupRows(dict[str, GroupRow]):
    """By name; one that is asked for is there."""

    def __missing__(self, name: str) -> GroupRow:
        self[name] = GroupRow(name)
        return self[name]


def group_rows(answers: Answers, *, system: bool = False) -> list[GroupRow]:
    """The greatest lag first; what is unknown before that."""
    rows = _GroupRows()
    told_all = not answers.missing
    for overview in answers.found.values():
        for name, members, kind, _, conflicts in overview.get("groups", ()):
            known = rows[name]
            known.members = max(known.members, members)
            known.conflicts = max(known.conflicts, conflicts)
            if kind:
                known.kinds.add(kind)
        lags = overview.get("lags")
        told_all = told_all and lags is not None
        for group, topic, lag, in_flight, age_ms in lags or ():
            known = rows[group]
            known.lag = (known.lag or 0) + lag
            known.in_flight += in_flight
            known.topics.add(topic)
            if age_ms is not None:
                known.age_ms = max(known.age_ms or 0, age_ms)
        for group, count in overview.get("dead_letters", ()):
            known = rows[group]
            known.dead_letters = (known.dead_letters or 0) + count
        for group in filter(None, map(group_of_retry_topic, overview.get(DELAYED, ()))):
            rows.setdefault(group, GroupRow(group))
    for known in rows.values():
        known.at_least = not told_all
        known.retries, known.retries_at_least = waits(answers, DELAYED, retry_topic(known.group))
        if told_all:
            known.dead_letters = known.dead_letters or 0
        elif not known.lag:  # nothing found is not nothing there
            known.lag = None
    found = [one for one in rows.values() if system or not is_system_group(one.group)]
    return sorted(found, key=_urgency)


def _urgency(row: GroupRow) -> tuple[bool, int, int, bool, str]:
    """Unknown first, then by lag and retries; groups that have not begun last."""
    waiting = (-(row.lag or 0), -(row.retries or 0))
    return row.state != "unknown", *waiting, row.lag is None, row.group


def waits(answers: Answers, part: str, topic: str) -> tuple[int | None, bool]:
    """(messages that wait for a topic, whether there may be more); None = unknown."""
    count, complete = waiting_for(answers.found.values(), part, topic)
    at_least = not complete or bool(answers.missing)
    return (count or None if at_least else count), at_least


def topic_rows(answers: Answers, *, system: bool = False) -> list[TopicRow]:
    """By name."""
    rows: dict[str, TopicRow] = {}
    told_all = not answers.missing
    for broker, overview in answers.found.items():
        messages = overview.get("messages")
        told_all = told_all and messages is not None
        for one in named(TOPIC, overview.get("topics", ())):
            name = one["topic"]
            row = rows.setdefault(name, TopicRow(name))
            row.queues += max(one["read_queues"], one["write_queues"])
            row.permission |= one["permission"]
            row.retention_hours = max(row.retention_hours, one["retention_hours"])
            row.stored_messages += one["stored_messages"]
            row.stored_bytes += one["stored_bytes"]
            row.system = row.system or one["system"] or is_internal(name, broker)
            row.brokers.append(broker)
            if messages is not None:
                row.messages = (row.messages or 0) + messages.get(name, 0)
    for row in rows.values():
        row.at_least = not told_all
        if row.at_least and not row.messages:
            row.messages = None
        row.delayed, row.delayed_at_least = waits(answers, DELAYED, row.topic)
        row.uncommitted, row.uncommitted_at_least = waits(answers, UNCOMMITTED, row.topic)
    return [row for _, row in sorted(rows.items()) if system or not row.system]


def is_internal(topic: str, broker: str) -> bool:
    """Topics that people did not create."""
    return topic == broker or topic.startswith((RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_"))


def client_rows(answers: Answers) -> list[dict[str, Any]]:
    """A row for each client and group, with the brokers that it is connected to."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for broker, overview in answers.found.items():
        for one in named(CLIENT, overview.get("clients", ())):
            key = (one["group"], one["kind"], one["client_id"])
            row = rows.setdefault(key, {**one, "brokers": []})
            row["heard_ms"] = max(row["heard_ms"], one["heard_ms"])
            if broker not in row["brokers"]:
                row["brokers"].append(broker)
    return [row for _, row in sorted(rows.items())]


def lag_rows(answers: Answers, part: str) -> list[dict[str, Any]]:
    """LAG rows of all brokers, added up by group and topic; the greatest first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for overview in answers.found.values():
        for one in named(LAG, overview.get(part, ())):
            row = rows.setdefault((one["group"], one["topic"]), {**one, "lag": 0, "in_flight": 0})
            row["lag"] += one["lag"]
            row["in_flight"] += one["in_flight"]
            row["age_ms"] = _oldest(row["age_ms"], one["age_ms"])
    return sorted(rows.values(), key=lambda row: (-row["lag"], row["group"]))


def broker_rows(answers: Answers) -> list[BrokerRow]:
    """Every broker that a name server knows, and those that answered."""
    addresses = {data.broker_name: dict(data.addresses) for data in answers.brokers}
    rows = []
    absent = answers.missing.keys() - {NAME_SERVER}
    for name in sorted({*addresses, *answers.found, *absent}):
        where = addresses.get(name, {})
        status = answers.found.get(name, {}).get("status")
        if status is None:
            why = answers.missing.get(name)
            state = "not told to this account" if why is None else "did not answer"
            row = BrokerRow(name, state, where.get(MASTER_ID, ""), why or "")
            row.slaves = _slaves({}, where)
        else:
            row = _told(name, status, where)
        rows.append(row)
    return rows


def _told(name: str, status: Mapping[str, Any], where: Mapping[int, str]) -> BrokerRow:
    store, copies = status.get("store") or {}, status.get("replication") or {}
    return BrokerRow(
        name,
        status["state"],
        where.get(MASTER_ID, status.get("address", "")),
        str(status.get("error") or ""),
        copies.get("master_epoch") or status.get("epoch"),
        copies.get("leads"),
        _slaves(copies.get("slaves", {}), where),
        store.get("disk_used_ratio"),
        store.get("disk_free_bytes"),
        bool(store.get("disk_full")),
        store.get("quarantined"),
        status.get("put_messages"),
        status.get("got_messages"),
        bool(status.get("draining")),
        status.get("topics"),
    )


def _slaves(told: Mapping[Any, Any], where: Mapping[int, str]) -> list[dict[str, Any]]:
    """What the master says of its slaves, and those that only a name server knows: their gap is
    unknown.
    """
    found = {int(number): dict(row) for number, row in told.items()}
    for number in where:
        if number != MASTER_ID:
            found.setdefault(int(number), {})
    return [
        {"in_sync": None, "lag_bytes": None, "lag_ms": None, **row, "id": number}
        | {"address": where.get(number, "")}
        for number, row in sorted(found.items())
    ]


def _oldest(one: int | None, other: int | None) -> int | None:
    known: Iterable[int] = [age for age in (one, other) if age is not None]
    return max(known, default=None)
