"""Which records a pull wants: everything, some tags, or what an SQL92 condition lets pass
(protocol-behaviour 10.2, 21.1).

Decides: whether the expression comes with the pull or from the group's heartbeat, and every refusal
about subscriptions and filters: 23, 24, 25, 27, 28, and 1 where SQL filters are switched off. Does
not decide what passes (``protocol.filters.filter_tag``, ``protocol.filters.filter_sql92``) nor
whether the group may consume. SQL filters of groups are told by heartbeats (``FilterTable``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.model.groups import SQL92, SUBSCRIBE_ALL, MessageModel, Subscription
from rmq_ray.model.topics import GroupConfig
from rmq_ray.protocol.filters.filter_sql92 import FilterCache
from rmq_ray.protocol.filters.filter_table import FilterTable
from rmq_ray.protocol.filters.filter_tag import tag_subscription
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.records import PullRecords
from rmq_ray.server.base.responses import Refused
from rmq_ray.server.groups.membership import GroupMembership


@dataclass(frozen=True, slots=True)
class Wanted:
    """``codes``: tag codes, None = all. ``matches``: a condition over property strings, None =
    none; it rules out records, codes rule out entries, and ``hit(store time, bit map)`` does so
    where bit maps are kept."""

    codes: frozenset[int] | None = None
    matches: Callable[[bytes], bool] | None = None
    hit: Callable[[int, bytes], bool] | None = None


EVERYTHING = Wanted()


class PullFilters:
    """``enabled``: SQL92 filters may be used (enablePropertyFilter)."""

    def __init__(self, members: GroupMembership, filters: FilterTable, enabled: bool) -> None:
        self._members = members
        self._filters = filters
        self.enabled = enabled
        self._inline = FilterCache()

    def inline(self, topic: str, expression: str | None, expression_type: str) -> Wanted:
        """An expression that came with the pull."""
        if expression_type != SQL92 and (expression is None or expression == SUBSCRIBE_ALL):
            return EVERYTHING
        try:
            if expression_type == SQL92:
                compiled = self._inline.get(expression or "")
                self._require_enabled()
                return Wanted(matches=compiled.matches)
            codes = tag_subscription(topic, expression, 0).codes
            return Wanted(codes) if codes else EVERYTHING
        except SubscriptionInvalid as error:
            raise Refused(
                f"parse the consumer's subscription failed: {error.message}",
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            ) from error

    def subscribed(self, asked: PullRecords, group: GroupConfig) -> Wanted:
        """What the group's heartbeats say about the topic."""
        found = self._members.consumers.find(asked.group)
        if found is None:
            raise Refused(
                f"the consumer's group info not exist: {asked.group}; send a heartbeat first",
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if found.model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            raise Refused(
                f"the consumer group[{asked.group}] can not consume by broadcast way",
                ResponseCode.NO_PERMISSION,
            )
        subscription = found.subscriptions.get(asked.topic)
        if subscription is None:
            raise Refused(
                f"the consumer's subscription not exist: {asked.group} does not subscribe to "
                f"{asked.topic}",
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if subscription.version < asked.sub_version:
            raise Refused(
                f"the consumer's subscription of {asked.topic} is not the latest; send a "
                f"heartbeat first",
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
            )
        if subscription.expression_type == SQL92:
            return self._registered(asked, subscription)
        return Wanted(subscription.codes) if subscription.codes else EVERYTHING

    def check(self, subscription: Subscription | None) -> None:
        """CHECK_CLIENT_CONFIG: ``Refused`` when the subscription cannot be served here."""
        if subscription is not None and subscription.expression_type == SQL92:
            self._require_enabled()
            self.inline(subscription.topic, subscription.expression, SQL92)

    def _registered(self, asked: PullRecords, subscription: Subscription) -> Wanted:
        data = self._filters.find(asked.topic, asked.group)
        if data is None:
            why = self._fault(subscription.expression)
            raise Refused(
                f"the filter of {asked.group} on {asked.topic} is not known here, {why}",
                ResponseCode.FILTER_DATA_NOT_EXIST,
            )
        if data.client_version < asked.sub_version:
            raise Refused(
                f"the filter of {asked.group} on {asked.topic} is not the latest; send a "
                f"heartbeat first",
                ResponseCode.FILTER_DATA_NOT_LATEST,
            )
        self._require_enabled()
        return Wanted(matches=data.compiled.matches, hit=data.may_match)

    def _fault(self, expression: str) -> str:
        try:
            self._inline.get(expression)
        except SubscriptionInvalid as error:
            return f"the expression may be wrong: {error.message}"
        return "send a heartbeat first"

    def _require_enabled(self) -> None:
        if not self.enabled:
            raise Refused(
                "The broker does not support consumer to filter message by SQL92; set "
                "property_filter=True there or subscribe by tags",
                ResponseCode.SYSTEM_ERROR,
            )
