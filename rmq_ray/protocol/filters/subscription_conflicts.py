"""Members of one group that do not agree on what they consume (protocol-behaviour 12: the newest
heartbeat overwrites the group's picture).

Decides: when a group is in conflict and how that is told. Does not decide whose subscription
counts: the newest one, as in RocketMQ, which says nothing about it; messages are then filtered for
one member by what another one asked. Pure.

Costs a heartbeat that repeats what its member said before two look-ups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from rmq_ray.model.groups import SUBSCRIBE_ALL, Subscription

NOT_SUBSCRIBED = "(not subscribed)"
CONFLICT_FIELD = "rmqConflict"
"""Ours: ext field of a heartbeat's answer; a text for the member's log."""
SHOWN_MAX = 8
Declared = frozenset[tuple[str, str, str]]
Conflicts = dict[str, dict[str, list[str]]]
"""Topic -> expression -> the client ids that say so."""


class Declarations:
    """What each member of one group said last."""

    def __init__(self) -> None:
        self._said: dict[Hashable, Declared] = {}
        self._variants: Counter[Declared] = Counter()

    def hear(self, member: Hashable, subscriptions: Iterable[Subscription]) -> None:
        """A heartbeat of a member."""
        said = frozenset((s.topic, s.expression_type, _canonical(s)) for s in subscriptions)
        if self._said.get(member) != said:
            self.forget(member)
            self._said[member] = said
            self._variants[said] += 1

    def forget(self, member: Hashable) -> None:
        """The member has left."""
        said = self._said.pop(member, None)
        if said is not None:
            self._variants[said] -= 1
            if not self._variants[said]:
                del self._variants[said]

    @property
    def differ(self) -> bool:
        """Whether two members disagree."""
        return len(self._variants) > 1

    def conflicts(self, client_ids: Mapping[Hashable, str]) -> Conflicts:
        """Who says what about every topic that members disagree on; empty where all agree."""
        if not self.differ:
            return {}
        topics = sorted({topic for said in self._variants for topic, _, _ in said})
        found: Conflicts = {}
        for topic in topics:
            by_text: dict[str, list[str]] = {}
            for member, said in self._said.items():
                text = next(
                    (f"{kind} {text}" for named, kind, text in said if named == topic),
                    NOT_SUBSCRIBED,
                )
                by_text.setdefault(text, []).append(client_ids.get(member, "?"))
            if len(by_text) > 1:
                found[topic] = by_text
        return found


def describe(group: str, conflicts: Conflicts) -> str:
    """One line for logs; the first ``SHOWN_MAX`` topics and clients."""
    parts = [
        f"{topic}: "
        + ", ".join(
            f"{text!r:.80} by {' '.join(clients[:SHOWN_MAX])}"
            for text, clients in list(by_text.items())[:SHOWN_MAX]
        )
        for topic, by_text in list(conflicts.items())[:SHOWN_MAX]
    ]
    return (
        f"members of group {group} subscribe differently, the newest heartbeat counts for all "
        f"({'; '.join(parts)}); use a group for each subscription"
    )


def _canonical(subscription: Subscription) -> str:
    if subscription.tags:
        return " || ".join(sorted(subscription.tags))
    return subscription.expression.strip() or SUBSCRIBE_ALL
