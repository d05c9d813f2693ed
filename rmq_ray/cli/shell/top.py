"""``top``: which topics and groups are busy now, and which lag, again and again.

    stored a second    of a topic: what its brokers counted between two looks
    settled a second   of a group: what was stored, less what its lag grew by

Decides how rates are made of two looks. One request a broker and look (``BROKER_OVERVIEW``).
Invariant: what a broker did not tell in both looks has no rate, instead of 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.shell.watch import watch_rounds
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.remoting.wire.overview import GROUP, LAG, TOPIC, named

FIRST_MS = 1_000
TOPIC_COLUMNS = ["topic", "stored_per_s", "bytes_per_s", "messages"]
GROUP_COLUMNS = ["group", "topic", "lag", "settled_per_s", "oldest_s", "members"]


@dataclass(frozen=True, slots=True)
class Overview:
    """What all brokers told at one moment. ``topics``: name -> (stored, bytes, messages there);
    ``groups``: (group, topic) -> (lag, age of the oldest in ms or None); ``members``: of a group.
    """

    at_ms: float
    topics: Mapping[str, tuple[int, int, int]]
    groups: Mapping[tuple[str, str], tuple[int, int | None]]
    members: Mapping[str, int]


def look_of(overviews: Sequence[Mapping[str, Any]], at_ms: float) -> Overview:
    """The answers of all brokers, put together; the system's own topics are left out."""
    topics: dict[str, tuple[int, int, int]] = {}
    groups: dict[tuple[str, str], tuple[int, int | None]] = {}
    members: dict[str, int] = {}
    for overview in overviews:
        there = overview.get("messages") or {}
        for row in named(TOPIC, overview.get("topics") or ()):
            if not row["system"]:
                name = row["topic"]
                stored, size, messages = topics.get(name, (0, 0, 0))
                topics[name] = (
                    stored + row["stored_messages"],
                    size + row["stored_bytes"],
                    messages + there.get(name, 0),
                )
        for row in named(LAG, overview.get("lags") or ()):
            key = (row["group"], row["topic"])
            lag, age_ms = groups.get(key, (0, None))
            ages = [one for one in (age_ms, row["age_ms"]) if one is not None]
            groups[key] = (lag + row["lag"], max(ages, default=None))
        for row in named(GROUP, overview.get("groups") or ()):
            members[row["group"]] = max(members.get(row["group"], 0), row["members"] or 0)
    return Overview(at_ms, topics, groups, members)


def topic_rows(before: Overview, now: Overview) -> list[dict[str, Any]]:
    """The busiest first."""
    seconds = max(0.001, (now.at_ms - before.at_ms) / 1_000)
    found = []
    for name, (stored, size, messages) in now.topics.items():
        was = before.topics.get(name)
        known = was is not None and stored >= was[0]  # else a broker began anew
        found.append(
            {
                "topic": name,
                "stored_per_s": round((stored - was[0]) / seconds, 1) if was and known else None,
                "bytes_per_s": round((size - was[1]) / seconds) if was and known else None,
                "messages": messages,
            }
        )
    return sorted(found, key=lambda row: (-(row["stored_per_s"] or 0), row["topic"]))


def group_rows(before: Overview, now: Overview) -> list[dict[str, Any]]:
    """Those that lag most first."""
    seconds = max(0.001, (now.at_ms - before.at_ms) / 1_000)
    found = []
    for (group, topic), (lag, age_ms) in now.groups.items():
        was, stored = before.groups.get((group, topic)), now.topics.get(topic)
        first = before.topics.get(topic)
        rate = None
        if was is not None and stored is not None and first is not None and stored[0] >= first[0]:
            rate = round(max(0, stored[0] - first[0] - (lag - was[0])) / seconds, 1)
        found.append(
            {
                "group": group,
                "topic": topic,
                "lag": lag,
                "settled_per_s": rate,
                "oldest_s": None if age_ms is None else round(age_ms / 1_000, 1),
                "members": now.members.get(group),
            }
        )
    return sorted(found, key=lambda row: (-row["lag"], row["group"], row["topic"]))


@click.command()
@click.option(
    "--every",
    "every_s",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.1, 86_400),
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Two looks a second apart, then end.")
@click.option(
    "--rows",
    "most",
    default=20,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Of topics and of groups.",
)
@pass_options
@told
def top(options: Options, every_s: float, once: bool, most: int) -> None:
    """The busiest topics and the groups that lag most, again and again until Ctrl-C."""
    last = _look(options)
    SYSTEM_CLOCK.sleep_ms(min(FIRST_MS, every_s * 1_000))

    @told
    def show() -> None:
        nonlocal last
        before, last = last, _look(options)
        topics, groups = topic_rows(before, last)[:most], group_rows(before, last)[:most]
        if options.style == "json":
            output.record({"topics": topics, "groups": groups}, options.style)
            return
        output.rows(topics, TOPIC_COLUMNS, options.style)
        click.echo()
        output.rows(groups, GROUP_COLUMNS, options.style)

    if once:
        show()
        return
    watch_rounds(options, every_s, show)


def _look(options: Options) -> Overview:
    found = options.admin.overviews(("groups", "topics"))
    return look_of(list(found.values()), SYSTEM_CLOCK.monotonic_ms())
