"""Which topics somebody may have meant who wrote one that does not exist.

Decides how alike two names must be. What is done about an unknown topic is decided elsewhere. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rmq_ray.model.topics import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_TOPICS

SIMILAR_MAX = 3
SIMILARITY_MIN = 0.7  # 'reminders' is not meant for 'orders'
NAMES_MAX = 10_000  # compared for one answer: a hundredth of a second each thousand


def similar_topics(topic: str, names: Iterable[str], servers: Collection[str] = ()) -> list[str]:
    """At most three of the users' topics among ``names``, the most similar first. ``servers``:
    names of the cluster and of brokers, which have topics of their own.

    >>> similar_topics("ordres", ["payments", "orders", "Orders", "%RETRY%orders", "TBW102"])
    ['Orders', 'orders']
    >>> similar_topics("reminders", ["orders"]), similar_topics("n", ["nb"], ["nb"])
    ([], [])
    """
    users = sorted(
        name for name in names if name != topic and name not in servers and not is_own_topic(name)
    )[:NAMES_MAX]
    folded: dict[str, list[str]] = {}
    for name in users:
        folded.setdefault(name.lower(), []).append(name)
    from difflib import get_close_matches  # only who misspells a topic needs it

    close = get_close_matches(topic.lower(), folded, SIMILAR_MAX, SIMILARITY_MIN)
    return [name for one in close for name in folded[one]][:SIMILAR_MAX]


def did_you_mean(similar: Iterable[str]) -> str:
    """The end of a sentence about an unknown topic.

    >>> did_you_mean(["orders", "order"]), did_you_mean([])
    ("; did you mean 'orders' or 'order'?", '')
    """
    names = " or ".join(repr(name) for name in similar)
    return f"; did you mean {names}?" if names else ""


def is_own_topic(name: str) -> bool:
    """One that the queue makes for itself: nobody misspells it."""
    return (
        name in SYSTEM_TOPICS
        or name.startswith((RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_"))
        or name.endswith(REPLY_SUFFIX)
    )
