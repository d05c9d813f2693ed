"""Who is about to lose messages to retention, and how full the disk is: told early, once.

    oldest message that a group lacks    from 80 % of what is kept on: the group falls behind
    share of the disk in use             over delete, force and full ratio: three watermarks

Decides when something is said, and that it is said once until it ends. Does not decide what
retention takes (``store.reading.retention``). ``groups_at_risk`` reads the log: in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_ray.config import HOUR_MS, StoreConfig
from rmq_ray.files import DiskSpace
from rmq_ray.model.groups import is_system_group
from rmq_ray.protocol.transaction import SYSTEM_GROUP
from rmq_ray.server.groups.consume_stats import store_ms_at
from rmq_ray.store.front.message_store import MessageStore

log = logging.getLogger("rmq_ray.server")
RISK_SHARE = 0.8
TOLD = 20
Committed = Mapping[tuple[str, str], Mapping[int, int]]
"""(topic, group) -> queue -> next offset."""


@dataclass(frozen=True, slots=True)
class AtRisk:
    """A group that lacks messages which retention takes soon. ``share``: the age of the oldest, of
    what is kept.
    """

    topic: str
    group: str
    messages: int
    age_ms: int
    kept_ms: int

    @property
    def share(self) -> float:
        """1 = it goes with the next cycle that deletes."""
        return self.age_ms / self.kept_ms

    def row(self) -> dict[str, Any]:
        """For the status."""
        return {
            "group": self.group,
            "topic": self.topic,
            "messages": self.messages,
            "oldest_age_ms": self.age_ms,
            "kept_ms": self.kept_ms,
        }


def by_topic(queues: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """
    >>> by_topic([("a", 0), ("b", 0), ("a", 1)])
    {'a': [0, 1], 'b': [0]}
    """
    found: dict[str, list[int]] = {}
    for topic, queue_id in queues:
        found.setdefault(topic, []).append(queue_id)
    return found


def groups_at_risk(
    store: MessageStore,
    committed: Committed,
    hours: Mapping[str, int],
    reserved_hours: int,
    now_ms: int,
) -> list[AtRisk]:
    """In a thread. ``hours``: of topics that keep less long than the store."""
    found = []
    queue_ids = by_topic(store.queues())
    for (topic, group), offsets in committed.items():
        kept_ms = min(hours.get(topic) or reserved_hours, reserved_hours) * HOUR_MS
        if not kept_ms or group == SYSTEM_GROUP or is_system_group(group):
            continue
        messages, oldest_ms = 0, now_ms
        for queue_id in queue_ids.get(topic, ()):  # one that is new to the group is all unread
            low, high = store.bounds(topic, queue_id)
            at = max(low, offsets.get(queue_id, 0))
            if at < high:
                messages += high - at
                stored_ms = store_ms_at(store, topic, queue_id, at)
                oldest_ms = min(oldest_ms, stored_ms) if stored_ms >= 0 else oldest_ms
        one = AtRisk(topic, group, messages, now_ms - oldest_ms, kept_ms)
        if messages and one.share >= RISK_SHARE:
            found.append(one)
    return sorted(found, key=lambda one: -one.share)


class RetentionRisk:
    """Of one broker; loop only."""

    def __init__(self) -> None:
        self.groups: list[AtRisk] = []
        self._told = 0
        self.watermark = 0
        """The highest ratio that the disk is over, in percent; 0 = under all."""

    def tell_groups(self, found: list[AtRisk]) -> None:
        """One line for a group when it begins to fall behind, one when that ends."""
        before = {(one.topic, one.group) for one in self.groups}
        now = {(one.topic, one.group) for one in found}
        self.groups = found
        for one in [one for one in found if (one.topic, one.group) not in before][:TOLD]:
            log.warning(
                "group %s falls behind: its oldest of %d messages of %s is %.1f hours old, after "
                "%.1f hours retention takes it; add consumers, or keep messages longer "
                "(rmq-ray broker set, topic alter)",
                one.group,
                one.messages,
                one.topic,
                one.age_ms / HOUR_MS,
                one.kept_ms / HOUR_MS,
            )
        for topic, group in sorted(before - now)[:TOLD]:
            log.info("group %s does not fall behind in %s any more", group, topic)

    def tell_disk(self, disk: DiskSpace, config: StoreConfig, *, plenty: bool, told: bool) -> None:
        """One line for each watermark that the disk rises over, unless the free bytes are
        ``plenty`` for all that, or the room that is left has been ``told`` just now.
        """
        ratios = (config.disk_delete_ratio, config.disk_force_ratio, config.disk_full_ratio)
        over = max((round(100 * one) for one in ratios if disk.used_ratio > one), default=0)
        self.watermark = over
        before, self._told = self._told, 0 if plenty else over
        if over > before and not plenty and not told:
            log.warning(
                "the disk of %s is over its watermark of %d %% (%s): free space, shorten retention "
                "(rmq-ray broker set) or add a larger disk",
                config.path,
                over,
                disk,
            )

    def status(self) -> dict[str, Any]:
        """``falling_behind``, the worst groups first, and ``disk_watermark``."""
        return {
            "falling_behind": [one.row() for one in self.groups[:TOLD]],
            "falling_behind_groups": len(self.groups),
            "disk_watermark": self.watermark,
        }
