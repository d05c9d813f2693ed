"""What heartbeats say about subscriptions, beyond who is there: SQL92 filters are taken in, members
that disagree are told.

Decides: when a filter is registered or dies (``FilterTable``), when a conflict is logged and
counted: once for each state of it. Does not decide which subscription counts. Called by: group
handlers, in the broker's loop.
"""

from __future__ import annotations

import logging

from rmq_ray.clock import Clock
from rmq_ray.model.groups import ConsumerData
from rmq_ray.protocol.consumer_group import ConsumerTable, GroupChange
from rmq_ray.protocol.filters.filter_table import FilterTable
from rmq_ray.protocol.filters.subscription_conflicts import describe
from rmq_ray.server.base.counters import Counters

TOLD_CHARS_MAX = 2_000

log = logging.getLogger("rmq_ray.server")


class SubscriptionWatch:
    """One broker's."""

    def __init__(
        self, consumers: ConsumerTable, filters: FilterTable, counters: Counters, clock: Clock
    ) -> None:
        self._consumers = consumers
        self._filters = filters
        self._counters = counters
        self._clock = clock
        self._told: dict[str, str] = {}

    def heard(self, data: ConsumerData) -> str:
        """A heartbeat was registered. Returns what is to be told to its sender: a conflict of the
        group, or nothing.
        """
        for fault in self._filters.register(data.group, data.subscriptions, self._clock.now_ms()):
            log.warning("%s", fault)
        group = self._consumers.find(data.group)
        if group is None or not group.declared.differ:
            self._told.pop(data.group, None)
            return ""
        text = describe(data.group, group.conflicts())[:TOLD_CHARS_MAX]
        if self._told.get(data.group) != text:
            self._told[data.group] = text
            self._counters.subscription_conflicts += 1
            log.warning("%s", text)
        return text

    def changed(self, change: GroupChange) -> None:
        """A group lost a member, maybe its last one."""
        if change.removed:
            self._told.pop(change.group, None)
            self._filters.unregister(change.group, self._clock.now_ms())
