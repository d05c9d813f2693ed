"""The keyword arguments of push and pull consumers, checked and turned into settings.

Decides which values are legal and the defaults of each kind; every refusal is a ``ConfigError``
that names the value and the remedy.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypedDict

from rmq_ray.client.consumer.key_limits import KeyLimits
from rmq_ray.client.interceptors.consume_hooks import (
    ConsumeHook,
    Filter,
    check_filters,
    check_hooks,
)
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ConfigError
from rmq_ray.extras import named
from rmq_ray.model.groups import ConsumeFromWhere, MessageModel
from rmq_ray.model.moments import moment_ms, unless_seconds
from rmq_ray.model.namespaces import with_namespace
from rmq_ray.protocol.allocation.strategies import AllocationStrategy, as_strategy
from rmq_ray.protocol.breaker import Breaker
from rmq_ray.protocol.validators import check_group

MESSAGES_MAX = 1_024
"""Messages of one call, as in RocketMQ; rows may be more."""
ARROW_DEFAULTS: dict[str, Any] = {
    "concurrency": 4,
    "batch_size": 8_192,
    "pull_records": 8_192,
    "threshold_messages": 10_000,
    "max_span": 20_000,
}
"""Where ``batch="arrow"`` is given without a ``ConsumerConfig``: a page is a batch, and several of
them may wait. Each thread that works on columns has memory of its own: with 20 of them in turn a
message costs a third more."""

PAGE_RECORDS = 8_192
"""Records of one pull of a pull consumer, which hands out whole pages; bytes are limited too."""
PULL_DEFAULTS: dict[str, Any] = {"pull_records": PAGE_RECORDS, "flow_control_delay_ms": 1_000}
"""Of a pull consumer: a full queue is pulled again when messages are polled, not by the clock."""
AUTO_COMMIT_MIN_MS, AUTO_COMMIT_MAX_MS = 1_000, 86_400_000
PREFETCH_MESSAGES_MAX, PREFETCH_MIB_MAX = 10_000_000, 65_536
OVER_CONFIG = ("concurrency", "batch_size", "max_reconsume_times", "namespace")
"""Options that are settings of ``ConsumerConfig``."""
log = logging.getLogger("rmq_ray.client.rebalance")


class PushOptions(TypedDict, total=False):
    """What may be given to ``PushConsumer`` by keyword.

    ``orderly``: one message of a queue at a time. ``model``: "clustering", or "broadcasting" (every
    consumer of the group gets every message). ``concurrency``: consuming threads, or calls of a
    coroutine function at once. ``batch_size``: messages a call of the listener gets at most.
    ``start_from``: "last", "first" or "timestamp", where a group without stored offsets begins.
    ``start_at``: datetime or ms since 1970, alone or with "timestamp" (default 30 minutes ago).
    ``allocate``: "avg", "avg_by_circle", "consistent_hash", another registered strategy's name, or
    a strategy. ``max_reconsume_times``: retries before the dead-letter topic. ``batch``:
    "messages", or "arrow": the listener gets a ``pyarrow.RecordBatch`` of up to ``batch_size`` rows
    (8192 unless given) with the ``columns`` named, all of ``model.arrow`` unless given. ``hooks``:
    ``ConsumeHook`` objects that see each call. ``filters``: functions of a message that return
    False for what the listener shall not get. ``breaker``: True, or an ``rmq.Breaker``: while most
    calls fail it waits, and no message loses a try. ``key_limits``: ``rmq.KeyLimits``, how many
    messages of one key the listener has at once, or gets in a second. ``namespace``: put before the
    group and every topic, and taken off the topic of what the listener gets.
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
    columns: Sequence[str]
    hooks: Sequence[ConsumeHook]
    filters: Sequence[Filter]
    breaker: Breaker | Mapping[str, Any] | bool
    key_limits: KeyLimits | Mapping[str, Any]
    namespace: str


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
class ConsumerSettings:
    """Checked options of a push or a pull consumer."""

    config: ConsumerConfig
    start_from: ConsumeFromWhere
    strategy: AllocationStrategy
    model: MessageModel = MessageModel.CLUSTERING
    orderly: bool = False
    columns: tuple[str, ...] | None = None
    """Columns of the batches that the listener gets; None = it gets lists of messages."""
    hooks: tuple[ConsumeHook, ...] = ()
    filters: tuple[Filter, ...] = ()
    breaker: Breaker | None = None
    key_limits: KeyLimits | None = None
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    prefetch_messages: int = 10_000
    prefetch_mib: int = 128

    @property
    def broadcasting(self) -> bool:
        """Every consumer of the group gets every message."""
        return self.model is MessageModel.BROADCASTING


def push_settings(
    group: str, config: ConsumerConfig | None, options: Mapping[str, Any]
) -> ConsumerSettings:
    """``config`` with a push consumer's options put over it. ``ConfigError`` for unknown and
    illegal ones; ``ClientError`` for the group's name.
    """
    check_group(group)
    _check_names("PushConsumer", PushOptions, options)
    columns = _columns(options)
    base = config or ConsumerConfig(group, **({} if columns is None else ARROW_DEFAULTS))
    found = _common_settings(group, base, options)
    if columns is None and found.config.batch_size > MESSAGES_MAX:
        raise ConfigError(
            f"batch_size must be 1 to {MESSAGES_MAX} messages, not {found.config.batch_size}; "
            f"with batch='arrow' up to 8192 rows",
            found.config.batch_size,
        )
    orderly = _switch(options, "orderly", False)
    return replace(
        found,
        model=_model(options.get("model", "clustering")),
        orderly=orderly,
        columns=columns,
        hooks=check_hooks(options.get("hooks", ())),
        filters=check_filters(options.get("filters", ()), columns),
        breaker=Breaker.of(options.get("breaker")),
        key_limits=_key_limits(options, orderly, columns, found.config.batch_size),
    )


def pull_settings(
    group: str, config: ConsumerConfig | None, options: Mapping[str, Any]
) -> ConsumerSettings:
    """``config`` with a pull consumer's options put over it. Raises as ``push_settings``."""
    check_group(group)
    _check_names("PullConsumer", PullOptions, options)
    base = config or ConsumerConfig(group, **PULL_DEFAULTS)
    found = _common_settings(group, base, {"batch_size": PAGE_RECORDS, **options})
    return replace(
        found,
        auto_commit=_switch(options, "auto_commit", found.auto_commit),
        auto_commit_interval_ms=_number(
            options,
            "auto_commit_interval_ms",
            found.auto_commit_interval_ms,
            AUTO_COMMIT_MIN_MS,
            AUTO_COMMIT_MAX_MS,
        ),
        prefetch_messages=_number(
            options, "prefetch_messages", found.prefetch_messages, 1, PREFETCH_MESSAGES_MAX
        ),
        prefetch_mib=_number(options, "prefetch_mib", found.prefetch_mib, 1, PREFETCH_MIB_MAX),
    )


def _common_settings(
    group: str, config: ConsumerConfig, options: Mapping[str, Any]
) -> ConsumerSettings:
    """What both kinds of consumers may be given."""
    if not isinstance(config, ConsumerConfig):
        raise ConfigError(f"config must be a ConsumerConfig, not {config!r:.80}", repr(config)[:80])
    changes = {name: options[name] for name in OVER_CONFIG if name in options}
    if "start_at" in options:
        changes["consume_timestamp_ms"] = as_ms(options["start_at"])
    changed = config.but(**changes)
    changed = changed.but(group=with_namespace(changed.namespace, group))
    check_group(changed.group)
    strategy = as_strategy(options.get("allocate", "avg"))
    return ConsumerSettings(changed, _start_from(options), strategy)


def _check_names(kind: str, known: type[Any], options: Mapping[str, Any]) -> None:
    unknown = sorted(options.keys() - known.__annotations__.keys())
    if unknown:
        raise ConfigError(
            f"unknown option {unknown[0]!r} of {kind}; known are "
            f"{', '.join(sorted(known.__annotations__))}",
            unknown[0],
        )


def _switch(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r:.80}", repr(value)[:80])
    return value


def _number(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} must be {low} to {high}, not {value!r}", value)
    return value


def check_listener(listener: object) -> None:
    """A callable of two arguments, or a coroutine function of two."""
    if not callable(listener):
        raise ConfigError(
            f"listener {listener!r:.80} is not callable; give a function of (messages, ctx)",
            repr(listener)[:80],
        )
    if isinstance(listener, type):
        raise ConfigError(
            f"listener {listener.__name__} is a class: give an object of it, which is called "
            f"with (messages, ctx)",
            listener.__name__,
        )
    try:
        inspect.signature(listener).bind([], None)
    except TypeError as error:
        name = getattr(listener, "__name__", repr(listener))
        raise ConfigError(
            f"listener {name:.80} cannot be called with (messages, ctx): {error}; every "
            f"message would be a failed one",
            name[:80],
        ) from None
    except ValueError:
        pass  # of what is not written in Python nobody knows


def _model(name: object) -> MessageModel:
    for model in MessageModel:
        if model.value.lower() == name:
            return model
    raise ConfigError(
        f"model must be 'clustering' or 'broadcasting', not {name!r:.80}", repr(name)[:80]
    )


def _columns(options: Mapping[str, Any]) -> tuple[str, ...] | None:
    batch, names = options.get("batch", "messages"), options.get("columns")
    if batch not in ("messages", "arrow"):
        raise ConfigError(
            f"batch must be 'messages' or 'arrow', not {batch!r:.80}", repr(batch)[:80]
        )
    if batch == "messages":
        if names is not None:
            raise ConfigError(
                f"columns={names!r:.80} without batch='arrow': only Arrow batches have columns",
                repr(names)[:80],
            )
        return None
    with named():  # pyarrow takes 0.15 s to load: only those who want columns wait for it
        from rmq_ray.model.arrow import COLUMNS

    if names is None:
        return COLUMNS
    if not isinstance(names, str | list | tuple):
        raise ConfigError(
            f"columns must be a list of names, not {names!r:.80}; columns are {', '.join(COLUMNS)}",
            repr(names)[:80],
        )
    found = (names,) if isinstance(names, str) else tuple(names)
    for name in found:
        if name not in COLUMNS:
            raise ConfigError(
                f"there is no column {name!r:.80}; columns are {', '.join(COLUMNS)}",
                repr(name)[:80],
            )
    return found or COLUMNS


def _key_limits(
    options: Mapping[str, Any], orderly: bool, columns: tuple[str, ...] | None, batch_size: int
) -> KeyLimits | None:
    found = KeyLimits.of(options.get("key_limits"))
    if found is None or not (orderly or columns is not None or batch_size > 1):
        return found
    if orderly:
        raise ConfigError(
            "key_limits beside orderly=True: one message of a queue at a time is stricter; for "
            "fewer calls a second let the listener wait",
            "orderly",
        )
    raise ConfigError(
        f"key_limits counts calls for one message: give batch_size=1 and no batch='arrow', not "
        f"batch_size={batch_size}",
        batch_size,
    )


def _start_from(options: Mapping[str, Any]) -> ConsumeFromWhere:
    """A moment given as ``start_at`` says that it begins there; one that would be left unheeded is
    an error.
    """
    name = options.get("start_from", "timestamp" if "start_at" in options else "last")
    found = next((where for where in ConsumeFromWhere if where.value == name), None)
    if found is None:
        raise ConfigError(
            f"start_from must be 'last', 'first' or 'timestamp' (with the moment as "
            f"start_at), not {name!r}",
            name,
        )
    if "start_at" in options and found is not ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        raise ConfigError(
            f"start_at goes with start_from='timestamp', not with {name!r}: leave one of them out",
            name,
        )
    return found


def as_ms(moment: object) -> int:
    """A datetime, or ms since 1970, as ms. ``ConfigError`` for anything else, ``ClientError``
    for seconds.
    """
    found = moment
    if isinstance(moment, datetime):
        # local times at the ends of the calendar
        with contextlib.suppress(OverflowError, ValueError, OSError):
            found = moment_ms(moment)
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 63:
        return unless_seconds(found)
    raise ConfigError(
        f"a moment must be a datetime or ms since 1970, not {moment!r:.80}", repr(moment)[:80]
    )


def tell_beginning(group: str, topic: str, messages: int) -> None:
    """The group begins at the end of the topic, or of some of its queues: so many messages lie
    before that.
    """
    if messages:
        log.warning(
            "group %r begins at the end of %r: the %d messages that are there are not read; "
            "start_from='first' of a new group reads them, and `rmq-ray group seek %s %s --to "
            "first --execute` goes back to them",
            group,
            topic,
            messages,
            group,
            topic,
        )
