"""One place that understands subscription expressions of both kinds, tags and SQL92
(protocol-behaviour 21).

Decides: what a user's expression means as a ``Subscription``. Called by: every consumer, before
anything is sent, and by tools.
"""

from __future__ import annotations

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.model.groups import SQL92, Subscription
from rmq_ray.model.pulling import Expression, Sql
from rmq_ray.protocol.filters.filter_sql92 import compile_filter
from rmq_ray.protocol.filters.filter_tag import tag_subscription


def sql(expression: str) -> Sql:
    """A condition over properties as a subscription: ``{"orders": rmq.sql("amount > 100 AND region
    IN ('eu','us')")}``.

    Texts in single quotes, ``''`` for a quote; ``= <> > >= < <=``, ``[NOT] BETWEEN x AND y``,
    ``[NOT] IN ('a', 'b')``, ``IS [NOT] NULL``, AND, OR, NOT, parentheses. Names are properties,
    ``TAGS`` and ``KEYS`` among them. Evaluated by the broker; absent properties make a comparison
    unknown.

    Raises ``SubscriptionInvalid`` for a malformed expression: the message shows the place,
    ``args[2]`` is its position counted from 0.

    >>> sql("a BETWEEN 0 AND 5")
    Sql(expression='a BETWEEN 0 AND 5')
    """
    return Sql(compile_filter(expression).expression)


def parse_subscription(topic: str, expression: Expression, version_ms: int = 0) -> Subscription:
    """The subscription of ``topic``; ``version_ms`` is its time of creation, newer wins at the
    broker.

    Raises ``SubscriptionInvalid`` for an expression that is neither text, None nor ``Sql``, or is
    malformed.

    >>> parse_subscription("orders", Sql("a > 1"), 7).expression_type
    'SQL92'
    """
    if isinstance(expression, Sql):
        return Subscription(
            topic,
            compile_filter(expression.expression).expression,
            version=version_ms,
            expression_type=SQL92,
        )
    if expression is not None and not isinstance(expression, str):
        raise SubscriptionInvalid(
            f"subscription {expression!r:.80} to {topic!r} is no expression; write 'a || b', "
            f"'*' or rmq_ray.sql(\"amount > 100\")",
            repr(expression)[:80],
        )
    return tag_subscription(topic, expression, version_ms)
