"""Which settings of a broker change while it runs, how their values are written, and what a change
comes to.

    asked           {"fileReservedTime": "48", "pull_bytes_max": "2 MiB", "deleteWhen": ""}
    changes         {"store.reserved_hours": "48", "pull_bytes_max": "2097152"}
    effective       the configured settings with the changes in them, checked as at a start

A name is that of the topology file, ``store.`` before those of the store; RocketMQ's name means the
same setting. An empty value takes the change back: the configured value holds again. Names that
begin with ``limit.`` are rate limits (``rate_limit``).

Decides how a value is written, and that a change is taken whole or not at all. What may be changed,
and the limits of each value, the groups say (``rmq_ray.config``); where changes are kept and who is
told of them, ``server.tables``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.errors import ConfigError
from rmq_ray.protocol.rate_limit import LIMIT, limits_of, number, rate_of, split_key
from rmq_ray.setting import AT_ONCE, Group, Known, known

STORE = "store."
CHANGES_MAX = 100_000
"""Of one broker: settings are few, limits are one a topic, group or account."""
SWITCH = "true or false"
_SWITCHES = {"true": True, "false": False, "yes": True, "no": False}
_UNIT_WORDS = {"bytes", "ms", "hours", "files", "pages", "queues", "pulls", "ratio"}
_UNITS = {
    "delete_when": "hours of the day, like 04;16",
    "permission": "2 = write, 4 = read, 6 = both",
    "pop_in_flight_max": "messages",
    "pull_records_max": "messages",
    "transaction_check_max": "times",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """``name``: in the topology file. ``kind``: of its value, as the group has it."""

    name: str
    kind: str
    known: Known

    @property
    def unit(self) -> str:
        """For people."""
        if self.kind == "bool":
            return SWITCH
        own = self.name.removeprefix(STORE)
        return _UNITS.get(own) or next((w for w in own.split("_") if w in _UNIT_WORDS), "")

    @property
    def limits(self) -> str:
        """For people."""
        return self.unit if self.known.choices else self.known.limits or self.unit

    @property
    def possible(self) -> str:
        """Limits with their unit."""
        return self.unit if self.limits == self.unit else f"{self.limits} {self.unit}"

    @property
    def live(self) -> bool:
        """Whether a change takes effect at once, else from the broker's next start."""
        return self.known.changes == AT_ONCE

    @property
    def rocketmq(self) -> str:
        """Its name there; "" where it has none."""
        return self.known.apache

    @property
    def percent(self) -> bool:
        """Whether RocketMQ has a percentage of what is a ratio here."""
        return self.name.endswith("_ratio")


def _settings(group: type[Group], prefix: str) -> dict[str, Setting]:
    kinds = group.__annotations__
    names = group.__struct_fields__
    found = (Setting(prefix + name, kinds[name], known(group, name)) for name in names)
    return {one.name: one for one in found}


EVERY = _settings(StoreConfig, STORE) | _settings(BrokerConfig, "")
SETTINGS = {name: one for name, one in EVERY.items() if one.known.changes}
"""Those that may be changed."""
_ROCKETMQ = {one.rocketmq: one for one in SETTINGS.values() if one.rocketmq}
_FIXED_THERE = {one.rocketmq for one in EVERY.values() if one.rocketmq} | {
    *("brokerName", "brokerId", "brokerClusterName", "brokerRole", "flushDiskType", "listenPort"),
    *("storePathRootDir", "storePathCommitLog", "namesrvAddr", "messageDelayLevel"),
    *("brokerIP1", "brokerIP2", "haListenPort"),
}


def setting(name: str) -> Setting:
    """By its name here or in RocketMQ. ``ConfigError`` for one that cannot be changed, which says
    which can.
    """
    found = SETTINGS.get(name) or _ROCKETMQ.get(name) or SETTINGS.get(f"{STORE}{name}")
    if found is not None:
        return found
    if name in EVERY or f"{STORE}{name}" in EVERY or name in _FIXED_THERE:
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


def _read(one: Setting, name: str, text: str) -> Any:
    """The value of a text. ``ConfigError`` for one that is none, with the limits."""
    try:
        if one.kind == "str":
            return text
        if one.kind == "bool":
            return _SWITCHES[text.lower()]
        value: float = float(text) if one.kind == "float" else number(text)
    except (ValueError, KeyError):
        raise ConfigError(f"{name}={text!r:.80}: {one.possible} is possible", text) from None
    if one.percent and (value > 1 or name == one.rocketmq):
        value /= 100
    if not one.known.allows(value):
        raise ConfigError(
            f"{name}={text}: {one.possible} are possible"
            + (", or 1 to 100 percent" if one.percent else ""),
            text,
        )
    return value
