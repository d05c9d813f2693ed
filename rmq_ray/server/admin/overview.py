"""BROKER_OVERVIEW: all that a page about a whole cluster asks of one broker, in one answer.

    {"parts": [status, groups, topics, clients], "group": name, "topic": name}
        -> {part: rows}; ``group`` and ``topic`` add one of them in detail

Decides: what each part tells. Does not decide what a page shows. Rows are lists, because there are
thousands; ``rmq_ray.remoting.wire.overview`` names their columns. What a store does not tell now is
nil and never 0. An account that is no administrator is told of what it has a right on, and nothing
of the broker itself. ``_Tables`` is a copy made in the loop; the store is read beside it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, cast

import msgpack

from rmq_ray.errors import MalformedFrame, NotAuthorized, RmqError
from rmq_ray.model.topics import DLQ_PREFIX, TopicConfig
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.accounts import Account, ResourceKind, Right
from rmq_ray.remoting.wire.frame import Command, language
from rmq_ray.remoting.wire.overview import DELAYED, PARTS, UNCOMMITTED
from rmq_ray.server.admin.clients import Clients
from rmq_ray.server.admin.timers import Timers
from rmq_ray.server.base.responses import Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.consume_stats import store_ms_at
from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.security.touched import topic as resource_of
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore

AGES_MAX = 100
"""Of so many (group, topic) with the greatest lag the age is told: it costs a read of the log."""
PRODUCER = "PRODUCER"
"""The kind of a client that sends; the others are RocketMQ's ways to consume."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """What the broker's loop changes, copied."""

    parts: frozenset[str]
    group: str
    topic: str
    offsets: dict[tuple[str, str], dict[int, int]]
    queues: dict[str, int]
    in_flight: Counter[tuple[str, str]]
    now_ms: int


@dataclass(frozen=True, slots=True)
class _Sight:
    """What an account that is no administrator is told: of topics that it may send to or read, and
    of groups that it may consume with.
    """

    account: Account

    def topic(self, name: str) -> bool:
        """A retry or dead letter topic is its group."""
        kind, named = resource_of(name)
        wanted = Right.SUB if kind is ResourceKind.GROUP else Right.PUB | Right.SUB
        return self.account.may(kind, named, wanted)

    def group(self, name: str) -> bool:
        """Whether it may consume with it."""
        return self.account.may(ResourceKind.GROUP, name, Right.SUB)

    def check(self, group: str, topic: str) -> None:
        """``NotAuthorized`` for one that it may not see."""
        for kind, name, seen in (("group", group, self.group), ("topic", topic, self.topic)):
            if name and not seen(name):
                raise NotAuthorized(
                    f"the account {self.account.access_key} has no right on {kind} {name:.127}; an "
                    f"administrator can grant it (rmq-ray acl grant)",
                    self.account.access_key,
                )

    def limited(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The answer without everything else; ``limited`` says so."""
        told = dict(found) | {"limited": True}
        for part in ("groups", "lags", "dead_letters", "topic_lags"):
            if part in told:
                told[part] = [row for row in told[part] if self.group(row[0])]
        if "topics" in told:
            told["topics"] = [row for row in told["topics"] if self.topic(row[0])]
        for part in ("messages", DELAYED, UNCOMMITTED):
            if part in told:
                counts = told[part].items()
                told[part] = {topic: count for topic, count in counts if self.topic(topic)}
        if "clients" in told:
            told["clients"] = [
                row for row in told["clients"] if row[1] != PRODUCER and self.group(row[0])
            ]
        return told


class OverviewHandlers:
    """``status()``: the broker's. ``access``: its copy of the accounts, where it has one."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        timers: Timers,
        clients: Clients,
        responder: Responder,
        *,
        status: Callable[[], dict[str, Any]],
        access: AccessCopy | None,
    ) -> None:
        self._clock, self._counters = runtime.clock, runtime.counters
        self._keeper, self._tables = storage.keeper, storage.tables
        self._members, self._popped = clients.members, clients.pops.ledger.table
        self._waiting = timers.waiting
        self._later = responder.answer_from
        self._status = status
        self._access = access

    def overview(self, command: Command, peer: Peer) -> None:
        """See the module."""
        parts, group, topic = _asked(command)
        sight = self._sight(peer)
        if sight is not None:
            sight.check(group, topic)
            parts -= {"status"}
        store = self._keeper.store
        found: dict[str, Any] = {}
        if "status" in parts:
            found["status"] = self._status()
        if "groups" in parts:
            found["groups"] = self._groups()
        if "topics" in parts:
            found["topics"] = self._topics()
        if "clients" in parts:
            found["clients"] = self._clients()
        if group:
            found["group"] = self._one_group(group)
        if topic:
            config = self._tables.topics.get(topic)
            found["topic"] = None if config is None else self._topic(config)
        copied = self._copied(parts, group, topic)
        wanted = group or topic or not parts or parts & {"groups", "topics"}
        waiting = self._waiting.look(store if wanted else None)

        def read() -> None:
            found.update(waiting())
            if store is not None:
                # A store that fails or closes meanwhile is unknown, not empty.
                with contextlib.suppress(RmqError):
                    found.update(_of_store(store, copied))

        self._later(
            command,
            peer,
            read,
            lambda _: command.answer(
                body=cast(
                    bytes, msgpack.packb(sight.limited(found) if sight else found, default=str)
                )
            ),
        )

    def _sight(self, peer: Peer) -> _Sight | None:
        """None = all of it."""
        if peer.member or self._access is None:
            return None
        rules = self._access.rules
        account = None if rules is None else rules.find(peer.account)
        if account is None:  # its address lets it in: that gives it no sight of others
            account = Account("anybody", "not asked for")
        return None if account.admin else _Sight(account)

    def _copied(self, parts: frozenset[str], group: str, topic: str) -> _Tables:
        in_flight: Counter[tuple[str, str]] = Counter()
        for (name, its_topic, _), queue in self._popped.queues.items():
            in_flight[its_topic, name] += queue.in_flight
        return _Tables(
            parts,
            group,
            topic,
            self._tables.offsets.tables(),
            {
                name: max(config.read_queues, config.write_queues)
                for name, config in self._tables.topics.snapshot()[0].items()
            },
            in_flight,
            self._clock.now_ms(),
        )

    def _groups(self) -> list[list[Any]]:
        """Those with settings here, and those with members."""
        consumers = self._members.consumers
        rows = []
        for name in sorted({*self._tables.groups.snapshot()[0], *consumers.groups()}):
            running = consumers.find(name)
            members = 0 if running is None else len(running.client_ids)
            kind = "" if running is None else running.consume_type.value
            model = "" if running is None else running.model.value
            conflicts = 0 if running is None else len(running.conflicts())
            rows.append([name, members, kind, model, conflicts])
        return rows

    def _topics(self) -> list[list[Any]]:
        configs = self._tables.topics.snapshot()[0]
        return [self._topic(config) for _, config in sorted(configs.items())]

    def _topic(self, config: TopicConfig) -> list[Any]:
        traffic = self._counters.stored.get(config.name)
        return [
            config.name,
            config.read_queues,
            config.write_queues,
            config.permission,
            config.order,
            config.retention_hours,
            self._tables.topics.is_system(config.name),
            0 if traffic is None else traffic.messages,
            0 if traffic is None else traffic.bytes,
        ]

    def _clients(self) -> list[list[Any]]:
        rows = []
        for name in self._members.consumers.groups():
            group = self._members.consumers.find(name)
            if group is not None:
                mode = group.consume_type.value
                rows += [_client(name, mode, *member) for member in group.channels.items()]
        for name, channels in self._members.producers.groups().items():
            rows += [_client(name, PRODUCER, *member) for member in channels.items()]
        return rows

    def _one_group(self, name: str) -> dict[str, Any]:
        running, config = self._members.consumers.find(name), self._tables.groups.snapshot()[0]
        settings = config.get(name)
        found: dict[str, Any] = {
            "known": settings is not None or running is not None,
            "retry_max_times": None if settings is None else settings.retry_max_times,
            "enabled": None if settings is None else settings.consume_enable,
            "ages": {
                topic: {
                    queue_id: self._tables.offsets.committed_age_ms(topic, name, queue_id)
                    for queue_id in queues
                }
                for topic, queues in self._tables.offsets.of_group(name).items()
            },
        }
        if running is not None:
            found |= {
                "members": [
                    _client(name, running.consume_type.value, *one)
                    for one in running.channels.items()
                ],
                "model": running.model.value,
                "from": running.from_where.value,
                "subscriptions": [
                    [one.topic, one.expression, one.expression_type]
                    for one in running.subscriptions.values()
                ],
                "conflicts": [
                    [topic, text, clients]
                    for topic, texts in running.conflicts().items()
                    for text, clients in texts.items()
                ],
            }
        return found


def _asked(command: Command) -> tuple[frozenset[str], str, str]:
    try:
        asked = msgpack.unpackb(command.body_bytes() or b"\x80")
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"body of BROKER_OVERVIEW is no msgpack: {error}") from None
    if not isinstance(asked, dict):
        raise MalformedFrame("body of BROKER_OVERVIEW must be a map: parts, group, topic")
    parts, group, topic = asked.get("parts", []), asked.get("group", ""), asked.get("topic", "")
    if not isinstance(parts, list) or not set(map(str, parts)) <= set(PARTS):
        raise MalformedFrame(f"parts of BROKER_OVERVIEW must be a list out of {', '.join(PARTS)}")
    if not isinstance(group, str) or not isinstance(topic, str):
        raise MalformedFrame("group and topic of BROKER_OVERVIEW must be names")
    return frozenset(parts), group, topic


def _client(group: str, mode: str, channel: object, client: Any) -> list[Any]:
    peer = cast(Peer, channel)
    return [
        group,
        mode,
        client.client_id,
        f"{peer.host}:{peer.port}",
        language(client.language),
        client.version,
        client.heard_ms,
    ]


def _of_store(store: MessageStore, tables: _Tables) -> dict[str, Any]:
    """Beside the loop. Bounds are read once: all in one pass, or those of what is asked for."""
    bounds = _bounds(store, tables)
    found: dict[str, Any] = {}
    if "groups" in tables.parts:
        found["lags"] = _lags(store, tables, bounds)
        found["dead_letters"] = [
            [topic.removeprefix(DLQ_PREFIX), sum(high - low for low, high in queues)]
            for topic, queues in bounds.items()
            if topic.startswith(DLQ_PREFIX)
        ]
    if "topics" in tables.parts:
        found["messages"] = {
            topic: sum(high - low for low, high in queues) for topic, queues in bounds.items()
        }
    if tables.topic:
        found["topic_queues"] = [
            [number, low, high, *_span(store, tables.topic, number, low, high)]
            for number, (low, high) in enumerate(bounds.get(tables.topic, ()))
        ]
        found["topic_lags"] = _lags(store, tables, bounds, topic=tables.topic)
    if tables.group:
        found["group_queues"] = _progress(store, tables, bounds)
    return found


def _bounds(store: MessageStore, tables: _Tables) -> dict[str, list[tuple[int, int]]]:
    if tables.parts & {"groups", "topics"}:
        there, none = store.queues(), (0, 0)
        return {
            topic: [there.get((topic, queue_id), none) for queue_id in range(count)]
            for topic, count in tables.queues.items()
        }
    wanted = {tables.topic, *(name for name, group in tables.offsets if group == tables.group)}
    return {
        topic: [store.bounds(topic, queue_id) for queue_id in range(count)]
        for topic, count in tables.queues.items()
        if topic in wanted
    }


def _lags(
    store: MessageStore,
    tables: _Tables,
    bounds: Mapping[str, list[tuple[int, int]]],
    topic: str = "",
) -> list[list[Any]]:
    """[group, topic, lag, in flight, age of the oldest that waits in ms or nil]."""
    rows: list[list[Any]] = []
    for (name, group), committed in tables.offsets.items():
        if name not in bounds or (topic and name != topic):
            continue
        lag = 0
        for queue_id, (low, high) in enumerate(bounds[name]):
            at = committed.get(queue_id, 0)
            lag += max(0, high - (at if at > low else low))
        rows.append([group, name, lag, tables.in_flight.get((name, group), 0), None])
    for row in nlargest(AGES_MAX, rows, key=lambda row: row[2]):
        if row[2]:
            group, name = row[0], row[1]
            row[4] = _age_ms(store, tables, name, group, bounds[name])
    return rows


def _age_ms(
    store: MessageStore, tables: _Tables, topic: str, group: str, bounds: list[tuple[int, int]]
) -> int | None:
    """How long the oldest message waits that the group has not settled."""
    committed = tables.offsets[topic, group]
    ages = [
        _queue_age_ms(store, tables, topic, queue_id, max(low, committed.get(queue_id, 0)), high)
        for queue_id, (low, high) in enumerate(bounds)
    ]
    return max((age for age in ages if age is not None), default=None)


def _queue_age_ms(
    store: MessageStore, tables: _Tables, topic: str, queue_id: int, at: int, high: int
) -> int | None:
    if at >= high:
        return None
    stored_ms = store_ms_at(store, topic, queue_id, at)
    return max(0, tables.now_ms - stored_ms) if stored_ms >= 0 else None


def _span(
    store: MessageStore, topic: str, queue_id: int, low: int, high: int
) -> tuple[int | None, int | None]:
    """Store times of the first and the last message; nil where there is none."""
    if high <= low:
        return None, None
    first, last = (store_ms_at(store, topic, queue_id, offset) for offset in (low, high - 1))
    return (first if first >= 0 else None), (last if last >= 0 else None)


def _progress(
    store: MessageStore, tables: _Tables, bounds: Mapping[str, list[tuple[int, int]]]
) -> list[list[Any]]:
    """[topic, queue, low, high, committed or nil, age of the oldest that waits in ms or nil]."""
    rows = []
    for (topic, group), committed in sorted(tables.offsets.items()):
        if group != tables.group or topic not in bounds:
            continue
        for queue_id, (low, high) in enumerate(bounds[topic]):
            at = max(low, committed.get(queue_id, 0))
            age = _queue_age_ms(store, tables, topic, queue_id, at, high)
            rows.append([topic, queue_id, low, high, committed.get(queue_id), age])
    return rows
