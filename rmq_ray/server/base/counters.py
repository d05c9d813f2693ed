"""Counts of one broker since its start: what status, runtime info and tests read. Plain integers,
one attribute each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Messages and bytes count records, frames count requests."""

    put_messages: int = 0
    put_bytes: int = 0
    put_frames: int = 0
    put_repeats: int = 0
    got_messages: int = 0
    got_bytes: int = 0
    pulls: int = 0
    pulls_parked: int = 0
    pulls_missed: int = 0
    offset_moved: int = 0
    sent_back: int = 0
    dead_letters: int = 0
    delayed_delivered: int = 0
    delayed_dropped: int = 0
    timed_delivered: int = 0
    timed_dropped: int = 0
    timed_rolled: int = 0
    timed_recalled: int = 0
    half_committed: int = 0
    half_rolled_back: int = 0
    half_unknown: int = 0
    half_checks: int = 0
    half_discarded: int = 0
    replies: int = 0
    replies_failed: int = 0
    refused_busy: int = 0
    scans: int = 0
    notices: int = 0
    subscription_conflicts: int = 0
    topics_refused: int = 0

    def as_dict(self) -> dict[str, int]:
        """Name -> count."""
        return asdict(self)
