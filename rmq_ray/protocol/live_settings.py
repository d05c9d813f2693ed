"""Which settings of a broker change while it runs, how their values are written, and what a change
comes to.

    asked           {"fileReservedTime": "48", "pull_bytes_max": "2 MiB", "deleteWhen": ""}
    changes         {"store.reserved_hours": "48", "pull_bytes_max": "2097152"}
    effective       the configured settings with the changes in them, checked as at a start

A name is that of the topology file, ``store.`` before those of the store; RocketMQ's name means the
same setting. An empty value takes the change back: the configured value holds again. Names that
begin with ``limit.`` are rate limits (``rate_limit``).

Decides what may be changed, the limits of each value, and that a change is taken whole or not at
all. Does not decide where changes are kept nor who is told of them (``server.tables``).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rmq_ray.config import BODY_BYTES_MAX, DAY_MS, MIB, BrokerConfig, StoreConfig
from rmq_ray.errors import ConfigError
from rmq_ray.protocol.rate_limit import LIMIT, limits_of, number, rate_of, split_key

STORE = "store."
CHANGES_MAX = 100_000
"""Of one broker: settings are few, limits are one a topic, group or account."""
_SWITCHES = {"true": True, "false": False, "yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One that may be changed. ``low``, ``high``: its limits, both included; None = other limits,
    which ``unit`` tells. ``live``: at once, else from the broker's next start. ``rocketmq``: its
    name there; ``percent``: there it is a percentage of what is a ratio here.
    """

    name: str
    unit: str
    low: float | None = None
    high: float | None = None
    live: bool = True
    rocketmq: str = ""
    percent: bool = False

    @property
    def limits(self) -> str:
        """For people."""
        if self.low is None or self.high is None:
            return self.unit
        return f"{self.low:g} to {self.high:g}" if self.high < 1 else f"{self.low} to {self.high}"


def _later(name: str, unit: str, low: float, high: float, rocketmq: str = "") -> Setting:
    return Setting(name, unit, low, high, False, rocketmq)


SWITCH = "true or false"
SETTINGS = {
    one.name: one
    for one in (
        Setting("store.reserved_hours", "hours", 0, 1_000_000, rocketmq="fileReservedTime"),
        Setting("store.delete_when", "hours of the day, like 04;16", rocketmq="deleteWhen"),
        Setting("store.disk_delete_ratio", "ratio", 0.01, 1.0, True, "diskMaxUsedSpaceRatio", True),
        Setting(
            "store.disk_force_ratio", "ratio", 0.01, 1.0, True, "diskSpaceCleanForciblyRatio", True
        ),
        Setting(
            "store.disk_full_ratio", "ratio", 0.01, 1.0, True, "diskSpaceWarningLevelRatio", True
        ),
        Setting("store.disk_free_bytes_min", "bytes", 0, 1 << 60),
        Setting("store.delete_files_max", "files", 1, 10_000, rocketmq="deleteFileBatchMax"),
        Setting("store.body_bytes_max", "bytes", 1, BODY_BYTES_MAX, rocketmq="maxMessageSize"),
        Setting("permission", "2 = write, 4 = read, 6 = both", 2, 6, rocketmq="brokerPermission"),
        Setting("auto_create_topics", SWITCH, rocketmq="autoCreateTopicEnable"),
        Setting("auto_create_groups", SWITCH, rocketmq="autoCreateSubscriptionGroup"),
        Setting("reject_transactions", SWITCH, rocketmq="rejectTransactionMessage"),
        Setting("store_replies", SWITCH, rocketmq="storeReplyMessageEnable"),
        Setting("slave_reads", SWITCH, rocketmq="slaveReadEnable"),
        Setting("property_filter", SWITCH, rocketmq="enablePropertyFilter"),
        Setting("short_polling_ms", "ms", 1, DAY_MS, rocketmq="shortPollingTimeMills"),
        Setting("pull_records_max", "messages", 1, 65_536),
        Setting("pull_bytes_max", "bytes", 1, 15 * MIB),
        Setting("pop_in_flight_max", "messages", 1, 1 << 30, True, "popInflightMessageThreshold"),
        Setting("in_flight_bytes_max", "bytes", 1, 1 << 40),
        Setting("stale_send_ms", "ms", 0, DAY_MS, rocketmq="waitTimeMillsInSendQueue"),
        Setting("disk_busy_ms", "ms", 0, DAY_MS, rocketmq="osPageCacheBusyTimeOutMills"),
        Setting("transaction_timeout_ms", "ms", 0, DAY_MS, rocketmq="transactionTimeOut"),
        Setting(
            "transaction_check_interval_ms", "ms", 1, DAY_MS, rocketmq="transactionCheckInterval"
        ),
        Setting("transaction_check_max", "times", 0, 10_000, rocketmq="transactionCheckMax"),
        Setting("channel_expiry_ms", "ms", 1, DAY_MS),
        _later("default_topic_queues", "queues", 1, 4_096, "defaultTopicQueueNums"),
        Setting("long_polling", SWITCH, live=False, rocketmq="longPollingEnable"),
        _later("parked_pulls_max", "pulls", 1, 1 << 30),
        _later("offset_persist_ms", "ms", 1, DAY_MS, "flushConsumerOffsetInterval"),
        _later("delay_persist_ms", "ms", 1, DAY_MS, "flushDelayOffsetInterval"),
        _later("timer_max_delay_hours", "hours", 1, 24 * 3_660),
        _later("store.flush_interval_ms", "ms", 1, DAY_MS, "flushIntervalCommitLog"),
        _later("store.flush_least_pages", "pages", 0, 4_096, "flushCommitLogLeastPages"),
        _later(
            "store.flush_thorough_interval_ms", "ms", 1, DAY_MS, "flushCommitLogThoroughInterval"
        ),
        _later("store.checkpoint_interval_ms", "ms", 1, DAY_MS),
    )
}
_ROCKETMQ = {one.rocketmq: one for one in SETTINGS.values() if one.rocketmq}
_FIXED = {one.name for one in fields(BrokerConfig)} | {
    f"{STORE}{one.name}" for one in fields(StoreConfig)
}
_FIXED_THERE = frozenset(
    {"brokerName", "brokerId", "brokerClusterName", "brokerRole", "flushDiskType", "listenPort"}
    | {"storePathRootDir", "storePathCommitLog", "mappedFileSizeCommitLog", "namesrvAddr"}
    | {"messageDelayLevel", "brokerIP1", "brokerIP2", "haListenPort"}
)


def setting(name: str) -> Setting:
    """By its name here or in RocketMQ. ``ConfigError`` for one that cannot be changed, which says
    which can.
    """
    found = SETTINGS.get(name) or _ROCKETMQ.get(name) or SETTINGS.get(f"{STORE}{name}")
    if found is not None:
        return found
    if name in _FIXED or f"{STORE}{name}" in _FIXED or name in _FIXED_THERE:
        raise ConfigError(
            f"{name} is fixed while the broker runs: change it in the topology file, then "
            f"`rmq-ray up`; {_that_can()}",
            name,
        )
    near = difflib.get_close_matches(name, [*SETTINGS, *_ROCKETMQ], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"there is no setting {name!r:.80}{hint}; {_that_can()}", name)


def _that_can() -> str:
    return (
        f"what can be changed: {', '.join(SETTINGS)}; RocketMQ's names {', '.join(_ROCKETMQ)}; "
        f"limit.topic|group|account.NAME.bytes_per_s|messages_per_s"
    )


def parse_properties(text: str) -> dict[str, str]:
    """RocketMQ's ``name=value`` lines; ``#`` begins a comment. ``ConfigError`` for another line."""
    found = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{stripped!r:.120} is no name=value", stripped[:120])
        found[name.strip()] = value.strip()
    return found


def encode_properties(settings: Mapping[str, str]) -> str:
    """The reverse. ``ConfigError`` for a name or value of several lines."""
    for name, value in settings.items():
        if not name.strip() or any(sign in name + value for sign in "\r\n") or "=" in name:
            raise ConfigError(f"{name!r:.80}={value!r:.80} is no name=value of one line", name)
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def with_changes(
    changes: Mapping[str, str], asked: Mapping[str, str], base: BrokerConfig
) -> dict[str, str]:
    """The changes after ``asked``, under their names here. ``ConfigError`` for a name or a value
    that cannot be, or for values that do not go together; nothing is taken then.
    """
    found = dict(changes)
    for name, text in asked.items():
        if name.startswith(LIMIT):
            split_key(name)
            key, value = name, str(rate_of(name, text or "0"))
            value = "" if value == "0" else value
        else:
            one = setting(name)
            key = one.name
            value = str(_read(one, name, text)) if text else ""
        if value:
            found[key] = value
        else:
            found.pop(key, None)
    if len(found) > CHANGES_MAX:
        raise ConfigError(f"a broker has at most {CHANGES_MAX} changed settings", len(found))
    limits_of(found)
    effective(base, found)
    return found


def effective(base: BrokerConfig, changes: Mapping[str, str], *, live: bool = False) -> Any:
    """The settings with the changes in them; ``live``: only with those that take effect at once.
    ``ConfigError`` where they are none.
    """
    own: dict[str, Any] = {}
    of_store: dict[str, Any] = {}
    for name, text in changes.items():
        one = SETTINGS.get(name)
        if one is None or (live and not one.live):
            continue
        where = of_store if name.startswith(STORE) else own
        where[name.removeprefix(STORE)] = _read(one, name, text)
    if of_store:
        own["store"] = base.store.but(**of_store)
    return base.but(**own) if own else base


def configured(config: BrokerConfig, name: str) -> Any:
    """The value of a setting by its name here."""
    if name.startswith(STORE):
        return getattr(config.store, name.removeprefix(STORE))
    return getattr(config, name)


def told(value: object) -> str:
    """As it is written and read."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(one: Setting) -> str:
    group, name = (
        (StoreConfig, one.name.removeprefix(STORE))
        if one.name.startswith(STORE)
        else (BrokerConfig, one.name)
    )
    return next(str(entry.type) for entry in fields(group) if entry.name == name)


def _read(one: Setting, name: str, text: str) -> Any:
    """The value of a text. ``ConfigError`` for one that is none, with the limits."""
    kind = _kind(one)
    try:
        if kind == "str":
            return text
        if kind == "bool":
            return _SWITCHES[text.lower()]
        value: float = float(text) if kind == "float" else number(text)
    except (ValueError, KeyError):
        raise ConfigError(
            f"{name}={text!r:.80}: {one.limits if kind != 'bool' else SWITCH} is possible", text
        ) from None
    if one.percent and (value > 1 or name == one.rocketmq):
        value /= 100
    if one.low is not None and one.high is not None and not one.low <= value <= one.high:
        raise ConfigError(
            f"{name}={text}: {one.limits} {one.unit} are possible"
            + (", or 1 to 100 percent" if one.percent else ""),
            text,
        )
    return value
