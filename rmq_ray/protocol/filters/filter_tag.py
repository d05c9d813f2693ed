"""Filtering by tag: ``"a || b"`` becomes a set of tags and of their hash codes (protocol-behaviour
21.1).

Decides what an expression means and whether a tag or a code passes. Does not decide where it is
checked: the broker compares codes (the consume queue stores no more), the client compares the
strings again, because two tags may share a code.

Invariants: ``*``, an empty expression and None mean every message; an unknown code (None) passes; a
message without a tag passes only an expression that takes everything.
"""

from __future__ import annotations

from rmq_ray.errors import ClientError, SubscriptionInvalid
from rmq_ray.model.groups import SUBSCRIBE_ALL, TAG, Subscription
from rmq_ray.model.hashing import java_hash

SEPARATOR = "||"
TAGS_MAX = 1_024
"""Tags of one expression; ours, so that a heartbeat and every check on it stay bounded."""


def parse_tags(expression: str | None) -> frozenset[str]:
    """The tags of an expression; empty = every message. Parts are trimmed, empty ones skipped.

    ``SubscriptionInvalid`` when nothing is left (``"||"``) or more than ``TAGS_MAX`` are.

    >>> sorted(parse_tags(" paid ||refund|| "))
    ['paid', 'refund']
    >>> parse_tags("*")
    frozenset()
    """
    if expression is None or not expression.strip() or expression.strip() == SUBSCRIBE_ALL:
        return frozenset()
    tags = frozenset(part.strip() for part in expression.split(SEPARATOR) if part.strip())
    if not 0 < len(tags) <= TAGS_MAX:
        raise SubscriptionInvalid(
            f"expression {expression[:80]!r} has {len(tags)} tags; write 1 to {TAGS_MAX} "
            f"tags with '||' between them, or '*'",
            expression[:80],
        )
    return tags


def tags_of_rows(expression: object) -> tuple[str, ...] | None:
    """The tags that a bulk read wants, in order; None = every row. ``ClientError`` for what is no
    expression of tags, such as ``sql(...)``.

    >>> tags_of_rows("b || a"), tags_of_rows("*"), tags_of_rows(None)
    (('a', 'b'), None, None)
    """
    if expression is not None and not isinstance(expression, str):
        text = (
            f"tags must be an expression like 'paid || refund', not {expression!r:.80}; filter "
            f"properties behind the read"
        )
        raise ClientError(text, repr(expression)[:80])
    return tuple(sorted(parse_tags(expression))) or None


def tag_subscription(topic: str, expression: str | None, version_ms: int) -> Subscription:
    """The subscription of ``topic``; ``version_ms`` is its time of creation, newer wins at the
    broker.

    >>> tag_subscription("t", "TagA", 7).codes
    frozenset({2598919})
    """
    tags = parse_tags(expression)
    text = expression if tags and expression is not None else SUBSCRIBE_ALL
    return Subscription(topic, text, tags, frozenset(map(java_hash, tags)), version_ms, TAG)


def code_passes(subscription: Subscription, code: int | None) -> bool:
    """The broker's half: by hash code. None = the code is not known, which counts as a match."""
    return code is None or not subscription.codes or code in subscription.codes


def tag_passes(subscription: Subscription, tag: str | None) -> bool:
    """The client's half: by string."""
    return not subscription.tags or tag in subscription.tags
