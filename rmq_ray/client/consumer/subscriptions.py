"""The topics of a consumer and their filters: checked here, and SQL92 ones by a broker, too.

Decides what an expression may be, what a subscription's version is, and what a broker's refusal of
a filter means for the user (CHECK_CLIENT_CONFIG 46; protocol-behaviour 21.1): it is too old, it has
filters switched off, or it reads the expression differently. A broker that cannot be asked now
refuses nothing: it checks every pull. Tags need no check by a broker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.errors import ConfigError, RemotingError, SubscriptionInvalid
from rmq_ray.model.groups import SQL92, Subscription
from rmq_ray.model.ids import Address
from rmq_ray.model.pulling import Expression, Sql
from rmq_ray.protocol.filters.subscriptions import parse_subscription
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.bodies import encode_client_check
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

SUBSCRIPTIONS_MAX = 1_000
FIRST_VERSION_WITH_FILTERS = 232
"""V4_1_0_SNAPSHOT in the numbers that frames carry."""
_PASSING = frozenset(
    (ResponseCode.SUCCESS, ResponseCode.STILL_RECOVERING, ResponseCode.SYSTEM_BUSY)
)

log = logging.getLogger("rmq_ray.client.consumer")


class SubscriptionTable:
    """The topics of one consumer and their filters, the group's retry topic among them. Any
    thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: dict[str, Subscription] = {}

    def put(self, topic: str, expression: Expression, now_ms: int) -> Subscription:
        """Subscribe, or change the filter. ``SubscriptionInvalid`` when the expression means
        nothing.
        """
        found = parse_subscription(topic, expression, now_ms)
        with self._lock:
            self._table[topic] = found
        return found

    def remove(self, topic: str) -> bool:
        """Unsubscribe; False when the topic was not subscribed."""
        with self._lock:
            return self._table.pop(topic, None) is not None

    def get(self, topic: str) -> Subscription | None:
        """The topic's filter."""
        return self._table.get(topic)

    def touch(self, topic: str, now_ms: int) -> None:
        """The queues of ``topic`` changed: its subscription counts as newer (protocol-behaviour
        13).
        """
        with self._lock:
            known = self._table.get(topic)
            if known is not None:
                self._table[topic] = replace(known, version=max(now_ms, known.version + 1))

    def all(self) -> tuple[Subscription, ...]:
        """Every subscription, by topic."""
        with self._lock:
            return tuple(self._table[topic] for topic in sorted(self._table))

    def topics(self) -> frozenset[str]:
        """Every subscribed topic."""
        return frozenset(self._table.copy())


def check_subscriptions(subscriptions: Mapping[str, object]) -> dict[str, Expression]:
    """Topic -> expression, each one checked. ``ConfigError`` for none at all and for what is no
    expression, ``SubscriptionInvalid`` for a malformed one.
    """
    if not isinstance(subscriptions, Mapping):
        raise ConfigError(
            f"subscriptions must map topics to expressions, like {{'orders': '*'}}; got "
            f"{subscriptions!r:.80}",
            repr(subscriptions)[:80],
        )
    if not 0 < len(subscriptions) <= SUBSCRIPTIONS_MAX:
        raise ConfigError(
            f"subscriptions must name 1 to {SUBSCRIPTIONS_MAX} topics, like {{'orders': "
            f"'*'}}; got {len(subscriptions)}",
            len(subscriptions),
        )
    checked: dict[str, Expression] = {}
    for topic, given in subscriptions.items():
        check_topic(topic)
        if given is not None and not isinstance(given, str | Sql):
            raise ConfigError(
                f"subscription {given!r:.80} to {topic!r} is no expression; write 'a || b', "
                f"'*' or rmq_ray.sql(\"amount > 100\")",
                topic,
            )
        parse_subscription(topic, given)
        checked[topic] = given
    return checked


def check_sql_filters(
    client: ClientInstance, group: str, subscriptions: Iterable[Subscription]
) -> None:
    """Have one broker of each topic check its SQL92 filter. ``SubscriptionInvalid`` when one is
    refused.
    """
    for subscription in subscriptions:
        if subscription.expression_type == SQL92:
            address = client.broker_for_topic(subscription.topic)
            if address is not None:
                _check(client, address, group, subscription)


def _check(
    client: ClientInstance, address: Address, group: str, subscription: Subscription
) -> None:
    command = Command(
        RequestCode.CHECK_CLIENT_CONFIG,
        body=encode_client_check(client.client_id, group, subscription),
    )
    try:
        answer = client.invoke(address, command)
    except RemotingError as error:
        log.warning(
            "filter of %s on %s was not checked, broker %s does not answer: %s",
            group,
            subscription.topic,
            address,
            error,
        )
        return
    if (
        answer.version < FIRST_VERSION_WITH_FILTERS
        or answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    ):
        raise SubscriptionInvalid(
            f"broker {address} is too old for SQL filters (4.1.0 is the first with them); "
            f"subscribe by tags",
            subscription.expression,
        )
    if answer.code not in _PASSING:
        refused = (
            f"broker {address} refuses the SQL filter of group {group!r} on {subscription.topic!r}"
        )
        raise SubscriptionInvalid(
            f"{refused}: {answer.remark or f'code {answer.code}'}", subscription.expression
        )
