"""The keyword arguments of a pull consumer, checked and turned into settings (protocol-behaviour
24).

Decides which values are legal and the defaults that differ from a push consumer's; every refusal is
a ``ConfigError`` that names the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from rmq_ray.client.consumer.consumer_options import push_settings
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ConfigError
from rmq_ray.model.groups import ConsumeFromWhere
from rmq_ray.protocol.allocation.strategies import AllocationStrategy

PAGE_RECORDS = 8_192  # of one pull, whose bytes are limited too
CALL = {"batch": "arrow"}  # whole pages, not batches of messages
HELD_BACK_MS = 1_000  # a full queue is pulled again when messages are polled, not by the clock
AUTO_COMMIT_MIN_MS = 1_000
PASSED_ON = ("start_from", "start_at", "allocate", "namespace")


class PullOptions(TypedDict, total=False):
    """What may be given to ``PullConsumer`` by keyword.

    ``auto_commit``: commit by itself what earlier polls returned. ``auto_commit_interval_ms``: how
    often. ``start_from``: "last", "first" or "timestamp", where a group without stored offsets
    begins; ``start_at``: datetime or ms since 1970 for "timestamp". ``allocate``: how ``subscribe``
    divides queues. ``prefetch_messages``, ``prefetch_mib``: what may lie polled by nobody, all
    queues together; those of one queue are in ``config``. ``namespace``: put before the group and
    every topic, taken off the topics of messages.
    """

    auto_commit: bool
    auto_commit_interval_ms: int
    start_from: str
    start_at: datetime | int
    allocate: str | AllocationStrategy
    prefetch_messages: int
    prefetch_mib: int
    namespace: str


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Checked options."""

    config: ConsumerConfig
    start_from: ConsumeFromWhere
    strategy: AllocationStrategy
    auto_commit: bool
    auto_commit_interval_ms: int
    prefetch_messages: int
    prefetch_mib: int


def pull_settings(
    group: str, config: ConsumerConfig | None, options: Mapping[str, Any]
) -> PullSettings:
    """``config`` with the options put over it. ``ConfigError`` for unknown and illegal ones;
    ``ClientError`` for the group's name.
    """
    unknown = sorted(options.keys() - PullOptions.__annotations__.keys())
    if unknown:
        raise ConfigError(
            f"unknown option {unknown[0]!r} of PullConsumer; known are "
            f"{', '.join(sorted(PullOptions.__annotations__))}",
            unknown[0],
        )
    base = config or ConsumerConfig(
        group, pull_records=PAGE_RECORDS, flow_control_delay_ms=HELD_BACK_MS
    )
    common = push_settings(
        group,
        base.but(batch_size=PAGE_RECORDS),
        CALL | {name: options[name] for name in PASSED_ON if name in options},
    )
    auto_commit = options.get("auto_commit", True)
    if not isinstance(auto_commit, bool):
        raise ConfigError(
            f"auto_commit must be True or False, not {auto_commit!r:.80}", repr(auto_commit)[:80]
        )
    interval_ms = _number(options, "auto_commit_interval_ms", 5_000, AUTO_COMMIT_MIN_MS, 86_400_000)
    messages = _number(options, "prefetch_messages", 10_000, 1, 10_000_000)
    mib = _number(options, "prefetch_mib", 128, 1, 65_536)
    return PullSettings(
        common.config, common.start_from, common.strategy, auto_commit, interval_ms, messages, mib
    )


def _number(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} must be {low} to {high}, not {value!r}", value)
    return value
