"""The keyword arguments of a push consumer, checked and turned into settings.

Decides which values are legal and what is not built yet; every refusal is a ``ConfigError`` that names the value and the remedy.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ConfigError
from rmq_ray.model.filters import Expression, Sql
from rmq_ray.model.groups import ConsumeFromWhere, MessageModel
from rmq_ray.protocol.allocation import AllocationStrategy, as_strategy
from rmq_ray.protocol.subscriptions import parse_subscription
from rmq_ray.protocol.validators import check_group, check_topic

NEXT_VERSION = "0.2.0"
SUBSCRIPTIONS_MAX = 1_000


class PushOptions(TypedDict, total=False):
    """What may be given to ``PushConsumer`` by keyword.

    ``orderly``: one message of a queue at a time. ``model``: "clustering". ``concurrency``: consuming threads. ``batch_size``:
    messages a call of the listener gets at most. ``start_from``: "last", "first" or "timestamp", where a group without stored
    offsets begins. ``start_at``: datetime or ms since 1970 for "timestamp" (default 30 minutes ago). ``allocate``: "avg",
    "avg_by_circle", "consistent_hash", another registered strategy's name, or a strategy. ``max_reconsume_times``: retries before the
    dead-letter topic. ``batch``: "messages".
    """

    orderly: bool
    model: str
    concurrency: int
    batch_size: int
    start_from: str
    start_at: datetime | int
    allocate: str | AllocationStrategy
    max_reconsume_times: int
    batch: str


@dataclass(frozen=True, slots=True)
class PushSettings:
    """Checked options."""

    config: ConsumerConfig
    model: MessageModel
    start_from: ConsumeFromWhere
    strategy: AllocationStrategy
    orderly: bool = False


def push_settings(group: str, config: ConsumerConfig | None, options: Mapping[str, Any]) -> PushSettings:
    """``config`` with the options put over it. ``ConfigError`` for unknown, illegal and not yet built ones; ``ClientError`` for the group's name."""
    check_group(group)
    unknown = sorted(options.keys() - PushOptions.__annotations__.keys())
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r} of PushConsumer; known are {', '.join(sorted(PushOptions.__annotations__))}", unknown[0])
    _refuse_unbuilt(options)
    changes = {name: options[name] for name in ("concurrency", "batch_size", "max_reconsume_times") if name in options}
    if "start_at" in options:
        changes["consume_timestamp_ms"] = _as_ms(options["start_at"])
    settings = (config or ConsumerConfig(group)).but(group=group, **changes)
    if settings.max_reconsume_times < -1:
        raise ConfigError(
            f"max_reconsume_times must be -1 (16 times; without end when orderly) or more, not {settings.max_reconsume_times}", settings.max_reconsume_times
        )
    strategy = as_strategy(options.get("allocate", "avg"))
    orderly = options.get("orderly", False)
    if not isinstance(orderly, bool):
        raise ConfigError(f"orderly must be True or False, not {orderly!r:.80}", repr(orderly)[:80])
    return PushSettings(settings, MessageModel.CLUSTERING, _start_from(options.get("start_from", "last")), strategy, orderly)


def check_listener(listener: object) -> None:
    """A plain callable of two arguments."""
    if not callable(listener):
        raise ConfigError(f"listener {listener!r:.80} is not callable; give a function of (messages, ctx)", repr(listener)[:80])
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None)):  # noqa: B004 - the method itself is asked for
        raise ConfigError(f"listener {listener!r:.80} is a coroutine function; consuming threads call plain functions of (messages, ctx)", repr(listener)[:80])


def check_subscriptions(subscriptions: Mapping[str, object]) -> dict[str, Expression]:
    """Topic -> expression, each one checked. ``ConfigError`` for none at all and for what is no expression, ``SubscriptionInvalid`` for a malformed one."""
    if not 0 < len(subscriptions) <= SUBSCRIPTIONS_MAX:
        raise ConfigError(f"subscriptions must name 1 to {SUBSCRIPTIONS_MAX} topics, like {{'orders': '*'}}; got {len(subscriptions)}", len(subscriptions))
    checked: dict[str, Expression] = {}
    for topic, given in subscriptions.items():
        check_topic(topic)
        if given is not None and not isinstance(given, str | Sql):
            raise ConfigError(f"subscription {given!r:.80} to {topic!r} is no expression; write 'a || b', '*' or rmq_ray.sql(\"amount > 100\")", topic)
        parse_subscription(topic, given)
        checked[topic] = given
    return checked


def _refuse_unbuilt(options: Mapping[str, Any]) -> None:
    model = options.get("model", "clustering")
    if model == "broadcasting":
        raise ConfigError(f"model='broadcasting' comes with version {NEXT_VERSION}; until then use model='clustering' with a group for each consumer", model)
    if model != "clustering":
        raise ConfigError(f"model must be 'clustering' or 'broadcasting', not {model!r}", model)
    batch = options.get("batch", "messages")
    if batch == "arrow":
        raise ConfigError(f"batch='arrow' comes with version {NEXT_VERSION}; until then the listener gets a list of messages", batch)
    if batch != "messages":
        raise ConfigError(f"batch must be 'messages' or 'arrow', not {batch!r}", batch)


def _start_from(name: object) -> ConsumeFromWhere:
    for where in ConsumeFromWhere:
        if where.value == name:
            return where
    raise ConfigError(f"start_from must be 'last', 'first' or 'timestamp', not {name!r}", name)


def _as_ms(moment: object) -> int:
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000)
    if isinstance(moment, int) and not isinstance(moment, bool) and moment >= 0:
        return moment
    raise ConfigError(f"start_at must be a datetime or ms since 1970, not {moment!r}", moment)
