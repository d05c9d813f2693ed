"""Traffic of a broker over the last minute, hour and day, by topic and group, and its totals of
days: what RocketMQ's tools ask with VIEW_BROKER_STATS_DATA 315 and GET_BROKER_RUNTIME_INFO 28.

    window    a sample each    samples kept
    minute    10 s             7
    hour      10 min           7
    day       1 h              25

    sum = count now - count in the oldest sample;  tps = sum / the time between them

Decides: names and keys of statistics (Apache RocketMQ's), and when a day begins: at midnight of
the machine's zone. Does not count: ``Counters`` do. Nothing survives a restart, as in RocketMQ.

Invariant: what was never counted has no statistics, instead of zeros.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from rmq_ray.clock import local_day
from rmq_ray.server.base.counters import Counters, PutRate

SECOND_MS = 1_000
WINDOWS = ((10 * SECOND_MS, 7), (600 * SECOND_MS, 7), (3_600 * SECOND_MS, 25))


@dataclass(frozen=True, slots=True)
class StatisticWindow:
    """Of one statistic: how much, and how much a second."""

    sum: int = 0
    tps: float = 0.0


@dataclass(frozen=True, slots=True)
class Windows:
    """Of one statistic: the last minute, hour and day, as far as the process is that old."""

    minute: StatisticWindow
    hour: StatisticWindow
    day: StatisticWindow


@dataclass(slots=True)
class DayTotals:
    """Of one count: as it stood when this day began, and the day before."""

    today: int = 0
    yesterday: int = 0


class _Samples:
    """Copies of the counts, the oldest first."""

    def __init__(self, every_ms: int, kept: int) -> None:
        self.every_ms = every_ms
        self.taken: deque[tuple[int, dict[Hashable, tuple[int, int]]]] = deque(maxlen=kept)

    def due(self, now_ms: int) -> bool:
        return not self.taken or now_ms - self.taken[-1][0] >= self.every_ms


class Statistics:
    """Of one broker; loop only. ``cluster``: the key of its own totals."""

    def __init__(self, counters: Counters, cluster: str) -> None:
        self._counters = counters
        self._cluster = cluster
        self.rate = PutRate(counters)
        """Of the last seconds; sampled by itself."""
        self._samples = tuple(_Samples(*window) for window in WINDOWS)
        self._day = 0
        self.put_days = DayTotals()
        """Messages stored."""
        self.got_days = DayTotals()
        """Messages handed out."""

    def sample(self, now_ms: int) -> None:
        """Called each second, and once at the start."""
        due = [samples for samples in self._samples if samples.due(now_ms)]
        if not due:
            return
        copied = self._copied()
        for samples in due:
            samples.taken.append((now_ms, copied))
        day = local_day(now_ms)
        if day != self._day:
            for days, count in (
                (self.put_days, self._counters.put_messages),
                (self.got_days, self._counters.got_messages),
            ):
                days.yesterday = days.today
                days.today = count if self._day else 0
            self._day = day

    def view(self, name: str, key: str, now_ms: int) -> Windows | None:
        """A statistic by RocketMQ's name (``TOPIC_PUT_NUMS``) and key (a topic, ``topic@group`` or
        the cluster); None when nothing was counted under it.
        """
        found = self._found(name, key)
        if found is None:
            return None
        table_key, column, current = found
        minute, hour, day = (
            _window(samples, table_key, column, current, now_ms) for samples in self._samples
        )
        return Windows(minute, hour, day)

    def group_tps(self, topic: str, group: str, now_ms: int) -> float:
        """Messages a second that a group was handed out of a topic in the last minute."""
        found = self.view("GROUP_GET_NUMS", f"{topic}@{group}", now_ms)
        return 0.0 if found is None else found.minute.tps

    def _found(self, name: str, key: str) -> tuple[Hashable, int, int] | None:
        """(key in a sample, which of its two numbers, that number now)."""
        counters = self._counters
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            column = int(name == "BROKER_GET_NUMS")
            counts = counters.put_messages, counters.got_messages
            return (None, column, counts[column]) if key == self._cluster else None
        topic, _, group = key.partition("@")
        traffic = {
            "TOPIC_PUT": counters.stored.get(key),
            "GROUP_GET": counters.handed_out.get((topic, group)),
            "SNDBCK_PUT": counters.returned.get((topic, group)),
        }.get(name.removesuffix("_NUMS").removesuffix("_SIZE"))
        if traffic is None:
            return None
        kind: Hashable = key if name.startswith("TOPIC") else (name[:5], topic, group)
        column = int(name.endswith("_SIZE"))
        return kind, column, (traffic.messages, traffic.bytes)[column]

    def _copied(self) -> dict[Hashable, tuple[int, int]]:
        counters = self._counters
        copied: dict[Hashable, tuple[int, int]] = {
            None: (counters.put_messages, counters.got_messages)
        }
        for topic, stored in counters.stored.items():
            copied[topic] = stored.messages, stored.bytes
        for kind, table in (("GROUP", counters.handed_out), ("SNDBC", counters.returned)):
            for (topic, group), traffic in table.items():
                copied[kind, topic, group] = traffic.messages, traffic.bytes
        return copied


def _window(
    samples: _Samples, key: Hashable, column: int, current: int, now_ms: int
) -> StatisticWindow:
    if not samples.taken:
        return StatisticWindow()
    then_ms, counts = samples.taken[0]
    total = current - counts.get(key, (0, 0))[column]
    return StatisticWindow(
        total, total * SECOND_MS / (now_ms - then_ms) if now_ms > then_ms else 0.0
    )
