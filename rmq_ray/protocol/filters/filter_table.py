"""The SQL92 filters of a broker's consumer groups: RocketMQ's ConsumerFilterManager
(protocol-behaviour 21.1; store-format 12).

    topic -> group -> FilterData  registered by heartbeats, marked dead when the group leaves or
                                  gives the topic up, forgotten 24 h later

Decides: which heartbeat replaces a filter (a higher version), from when on a filter has been live,
which are forgotten, the values of ``consumerFilter.json``. Does not decide where filters are
evaluated. Called by the broker's loop; times are wall clock milliseconds.

Invariants: every filter here compiles; at most ``FILTERS_MAX`` of them. ``dirty``: something
changed since it was last set to False.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.model.groups import SQL92, Subscription
from rmq_ray.protocol.filters.bloom_filter import BloomData, filter_for, is_hit
from rmq_ray.protocol.filters.filter_sql92 import SqlFilter, compile_filter

FILTERS_MAX = 10_000
KEPT_AFTER_DEATH_MS = 24 * 3_600_000  # filterDataCleanTimeSpan


@dataclass(slots=True)
class FilterData:
    """One group's filter on one topic. ``born_ms``: messages stored later have this filter's bit in
    their bit maps; ``dead_ms``: 0 = alive.
    """

    group: str
    topic: str
    compiled: SqlFilter
    bloom: BloomData
    born_ms: int
    client_version: int
    dead_ms: int = 0

    @property
    def expression(self) -> str:
        """As the consumer wrote it."""
        return self.compiled.expression

    def may_match(self, store_ms: int, bit_map: bytes) -> bool:
        """False when the bit map of a message that was stored while this filter lived rules it out.
        Dead filters are kept up as well.
        """
        return store_ms <= self.born_ms or is_hit(self.bloom, bit_map)


class FilterTable:
    """See the module."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, FilterData]] = {}
        self._of_group: dict[str, set[str]] = {}
        self._bloom = filter_for()
        self._count = 0
        # of the messages that have bit maps; a filter is born after them, also by a clock that was
        # set back
        self._newest_ms = 0
        self.dirty = False

    def __len__(self) -> int:
        return self._count

    def find(self, topic: str, group: str) -> FilterData | None:
        """The filter, a dead one too."""
        return self._topics.get(topic, {}).get(group)

    def of_topic(self, topic: str) -> list[FilterData]:
        """All filters on a topic: what a message's bit map is made of."""
        return list(self._topics.get(topic, {}).values())

    def has_filters(self, topic: str) -> bool:
        """Whether any group filters the topic."""
        return topic in self._topics

    def bit_map(self, topic: str, properties: bytes, store_ms: int) -> bytes:
        """The bit map of a message with these properties that was stored at ``store_ms``."""
        self._newest_ms = max(self._newest_ms, store_ms)
        return self._bloom.bit_map(
            [data.bloom for data in self.of_topic(topic) if data.compiled.matches(properties)]
        )

    def register(self, group: str, subscriptions: Iterable[Subscription], now_ms: int) -> list[str]:
        """A heartbeat of the group: SQL filters are taken in, those it no longer names die. Returns
        what is wrong with those that are left out.
        """
        named = {
            subscription.topic: subscription
            for subscription in subscriptions
            if subscription.expression_type == SQL92
        }
        faults = [
            fault
            for fault in [self._put(group, subscription, now_ms) for subscription in named.values()]
            if fault
        ]
        for topic in self._of_group.get(group, set()) - named.keys():
            known = self._topics[topic][group]
            if not known.dead_ms:
                known.dead_ms, self.dirty = now_ms, True
        return faults

    def unregister(self, group: str, now_ms: int) -> None:
        """The group has no members left: its filters are dead from now on."""
        self.register(group, (), now_ms)

    def clean(self, now_ms: int) -> None:
        """Forget what has been dead for a day."""
        for topic in list(self._topics):
            groups = self._topics[topic]
            for group in [
                group
                for group, data in groups.items()
                if data.dead_ms and now_ms - data.dead_ms >= KEPT_AFTER_DEATH_MS
            ]:
                self._remove(topic, group)

    def encode(self) -> dict[str, Any]:
        """``filterDataByTopic`` of consumerFilter.json."""
        return {
            topic: {
                "groupFilterData": {group: _encode(data) for group, data in groups.items()},
                "topic": topic,
            }
            for topic, groups in self._topics.items()
        }

    def load(self, table: Mapping[str, Any], now_ms: int) -> list[str]:
        """Take in what the file said; all are dead until their groups come back. Returns what is
        wrong with entries that are left out.
        """
        faults = []
        for topic, value in table.items():
            for group, entry in value["groupFilterData"].items():
                try:
                    data = self._decode(str(topic), str(group), entry, now_ms)
                except (SubscriptionInvalid, LookupError, TypeError, ValueError) as error:
                    faults.append(
                        f"the filter of group {group} on {topic} in consumerFilter.json is "
                        f"left out: {error}"
                    )
                    continue
                self._insert(data)
        return faults

    def _put(self, group: str, subscription: Subscription, now_ms: int) -> str:
        """What is wrong with it, nothing where it was taken in."""
        known = self.find(subscription.topic, group)
        if known is not None and self._kept(known, subscription):
            return ""
        if known is None and self._count >= FILTERS_MAX:
            return (
                f"this broker has {FILTERS_MAX} SQL filters; the one of group {group} on "
                f"{subscription.topic} is not taken in"
            )
        try:
            compiled = compile_filter(subscription.expression)
        except SubscriptionInvalid as error:
            self._remove(subscription.topic, group)
            return f"the filter of group {group} on {subscription.topic} is refused: {error}"
        bloom, born_ms = (
            self._bloom.data_of(group, subscription.topic),
            max(now_ms, self._newest_ms),
        )
        data = FilterData(group, subscription.topic, compiled, bloom, born_ms, subscription.version)
        self._insert(data)
        return ""

    def _kept(self, known: FilterData, told: Subscription) -> bool:
        """True when the filter that is known stays; what the heartbeat says of its version and life
        is noted.
        """
        if told.version < known.client_version:
            return True
        if told.expression != known.expression:
            return told.version == known.client_version
        if told.version != known.client_version or known.dead_ms:
            known.client_version, known.dead_ms, self.dirty = told.version, 0, True
        return True

    def _insert(self, data: FilterData) -> None:
        groups = self._topics.setdefault(data.topic, {})
        self._count += data.group not in groups
        groups[data.group] = data
        self._of_group.setdefault(data.group, set()).add(data.topic)
        self.dirty = True

    def _remove(self, topic: str, group: str) -> None:
        groups = self._topics.get(topic, {})
        if groups.pop(group, None) is not None:
            self._count -= 1
            self.dirty = True
            if not groups:
                del self._topics[topic]
            self._of_group[group].discard(topic)
            if not self._of_group[group]:
                del self._of_group[group]

    def _decode(self, topic: str, group: str, entry: Mapping[str, Any], now_ms: int) -> FilterData:
        if entry.get("expressionType") != SQL92:
            raise ValueError(f"expression type {entry.get('expressionType')!r}")
        bloom, wanted = entry.get("bloomFilterData") or {}, self._bloom.data_of(group, topic)
        same = (tuple(bloom.get("bitPos") or ()), bloom.get("bitNum")) == (
            wanted.positions,
            wanted.bits,
        )
        born_ms = (
            int(entry["bornTime"]) if same else now_ms
        )  # other bits: what is in the bit maps says nothing about this filter
        dead_ms = int(entry.get("deadTime") or 0) or now_ms
        return FilterData(
            group,
            topic,
            compile_filter(entry["expression"]),
            wanted,
            born_ms,
            int(entry["clientVersion"]),
            dead_ms,
        )


def _encode(data: FilterData) -> dict[str, Any]:
    return {
        "bloomFilterData": {"bitNum": data.bloom.bits, "bitPos": list(data.bloom.positions)},
        "bornTime": data.born_ms,
        "clientVersion": data.client_version,
        "consumerGroup": data.group,
        "deadTime": data.dead_ms,
        "expression": data.expression,
        "expressionType": SQL92,
        "topic": data.topic,
    }
