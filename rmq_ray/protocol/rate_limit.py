"""Limits of topics, groups and accounts: messages and bytes a second on one broker.

    limit.topic.orders.bytes_per_s = 10485760      what producers send to it
    limit.group.audit.messages_per_s = 500         what its consumers are handed
    limit.account.batch.bytes_per_s = 1048576      what it sends, and beside that what it is handed

A bucket holds one second of its rate. What comes is let through while there is something in it, and
may take it below nothing: a frame of any size passes a limit of any size, and whatever follows
waits until the debt is paid, ten seconds at most.

Decides who waits how long. Takes the time as an argument (monotonic, ms). Of one broker: a topic on
three brokers takes three times its limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_ray.errors import ConfigError, RmqError
from rmq_ray.protocol.validators import check_group, check_topic

LIMIT = "limit."
KINDS = ("topic", "group", "account")
BYTES, MESSAGES = "bytes_per_s", "messages_per_s"
RATE_MAX = 1 << 40
DEBT_S = 10
ACCOUNT_NAME_MAX = 256
SEND, HAND_OUT = "send", "hand out"
UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


class TokenBucket:
    """``rate``: tokens a second; so many it holds, and so it begins.

    >>> bucket = TokenBucket(100)
    >>> bucket.take(150, 0), bucket.wait_ms(0), bucket.wait_ms(600)
    (None, 500.0, 0.0)
    """

    __slots__ = ("_at_ms", "_left", "rate")

    def __init__(self, rate: int, now_ms: float = 0.0) -> None:
        self.rate = rate
        self._left = float(rate)
        self._at_ms = now_ms

    def wait_ms(self, now_ms: float) -> float:
        """How long what comes now has to wait; 0 = not at all."""
        self._fill(now_ms)
        return 0.0 if self._left > 0 else max(1.0, -self._left * 1e3 / self.rate)

    def take(self, tokens: int, now_ms: float) -> None:
        """So many went through."""
        self._fill(now_ms)
        self._left = max(self._left - tokens, -float(DEBT_S * self.rate))

    def _fill(self, now_ms: float) -> None:
        if now_ms > self._at_ms:
            grown = self._left + (now_ms - self._at_ms) * self.rate / 1e3
            self._left = min(grown, float(self.rate))
            self._at_ms = now_ms


@dataclass(frozen=True, slots=True)
class Limit:
    """A second, of each broker; 0 = none."""

    bytes_per_s: int = 0
    messages_per_s: int = 0


Limits = dict[tuple[str, str], Limit]
"""(kind, name) -> its limit."""


def number(text: str) -> int:
    """A whole number, also ``10 MiB``. ``ValueError`` for another text."""
    digits = text.rstrip("KMGTkmgtIiBb ")
    unit = text[len(digits) :].strip().lower()
    if unit and unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}")
    return int(digits) * UNITS.get(unit, 1)


def split_key(key: str) -> tuple[str, str, str]:
    """(kind, name, measure) of ``limit.kind.name.measure``. ``ConfigError`` for another key."""
    kind, _, rest = key.removeprefix(LIMIT).partition(".")
    name, _, measure = rest.rpartition(".")
    if kind not in KINDS or not name or measure not in (BYTES, MESSAGES):
        raise ConfigError(
            f"{key!r:.120} is no limit: limit.topic|group|account.NAME.{BYTES}|{MESSAGES}", key
        )
    try:
        if kind == "topic":
            check_topic(name)
        elif kind == "group":
            check_group(name)
    except RmqError as error:
        raise ConfigError(f"{key!r:.120}: {error.message}", key) from None
    if len(name) > ACCOUNT_NAME_MAX:
        raise ConfigError(f"{key!r:.120}: a name of more than {ACCOUNT_NAME_MAX} letters", key)
    return kind, name, measure


def limit_key(kind: str, name: str, measure: str) -> str:
    """The setting's name."""
    return f"{LIMIT}{kind}.{name}.{measure}"


def rate_of(key: str, text: str) -> int:
    """The value of a limit; 0 = none. ``ConfigError`` for a text that is none."""
    try:
        rate = number(text)
    except ValueError:
        rate = -1
    if not 0 <= rate <= RATE_MAX:
        raise ConfigError(
            f"{key}={text:.40}: a whole number a second, 1 to {RATE_MAX}, like 500 or 10 MiB; 0 or "
            f"nothing = no limit",
            text,
        )
    return rate


def limits_of(changes: Mapping[str, str]) -> Limits:
    """The limits among a broker's changed settings."""
    found: Limits = {}
    for key, text in changes.items():
        if key.startswith(LIMIT):
            kind, name, measure = split_key(key)
            known = found.get((kind, name), Limit())
            rates = {BYTES: known.bytes_per_s, MESSAGES: known.messages_per_s}
            rates[measure] = rate_of(key, text)
            found[kind, name] = Limit(**rates)
    return {key: limit for key, limit in found.items() if limit != Limit()}


class RateLimiter:
    """The limits of one broker and what is left of them. ``active``: whether there are any; the
    only thing that is looked at where there are none.
    """

    def __init__(self) -> None:
        self.active = False
        self.limits: Limits = {}
        self.refused_sends = 0
        self.delayed_pulls = 0
        self._buckets: dict[tuple[str, str, str], tuple[TokenBucket | None, ...]] = {}

    def set(self, limits: Limits, now_ms: float) -> None:
        """These are the limits now; buckets of limits that stay go on as they are."""
        gone = {key for key, limit in self.limits.items() if limits.get(key) != limit}
        for key in list(self._buckets):
            if (key[1], key[2]) in gone:
                del self._buckets[key]
        for (kind, name), limit in limits.items():
            for way in (SEND, HAND_OUT):
                self._buckets.setdefault(
                    (way, kind, name),
                    tuple(
                        TokenBucket(rate, now_ms) if rate else None
                        for rate in (limit.bytes_per_s, limit.messages_per_s)
                    ),
                )
        self.limits, self.active = limits, bool(limits)

    def send(
        self, topic: str, account: str, size: int, count: int, now_ms: float
    ) -> tuple[float, str]:
        """``(0, "")``: the frame goes through and is counted. Else how many ms it has to wait, and
        for which limit, as ``topic orders``; nothing is counted.
        """
        keys = ((SEND, "topic", topic), (SEND, "account", account))
        wait_ms, whose = self._wait(keys, now_ms)
        if wait_ms:
            self.refused_sends += 1
        else:
            self._take(keys, size, count, now_ms)
        return wait_ms, whose

    def hand_out_wait_ms(self, group: str, account: str, now_ms: float) -> float:
        """How many ms a pull has to wait before it is served."""
        wait_ms = self._wait(_handing_out(group, account), now_ms)[0]
        self.delayed_pulls += wait_ms > 0
        return wait_ms

    def page(self, group: str, account: str, count: int, size: int) -> tuple[int, int]:
        """How many messages and bytes a pull may take at once: a second's worth at most."""
        for key in _handing_out(group, account):
            bytes_bucket, messages_bucket = self._buckets.get(key, (None, None))
            if bytes_bucket is not None:
                size = min(size, bytes_bucket.rate)
            if messages_bucket is not None:
                count = min(count, messages_bucket.rate)
        return count, size

    def handed_out(self, group: str, account: str, size: int, count: int, now_ms: float) -> None:
        """A pull was served."""
        self._take(_handing_out(group, account), size, count, now_ms)

    def status(self) -> dict[str, Any]:
        """For people: the limits, and how often they were felt."""
        return {
            "limits": [
                {
                    "kind": kind,
                    "name": name,
                    BYTES: limit.bytes_per_s or None,
                    MESSAGES: limit.messages_per_s or None,
                }
                for (kind, name), limit in sorted(self.limits.items())
            ],
            "limited_sends": self.refused_sends,
            "limited_pulls": self.delayed_pulls,
        }

    def _wait(self, keys: Iterable[tuple[str, str, str]], now_ms: float) -> tuple[float, str]:
        longest, whose = 0.0, ""
        for key in keys:
            for bucket in self._buckets.get(key, ()):
                wait_ms = 0.0 if bucket is None else bucket.wait_ms(now_ms)
                if wait_ms > longest:
                    longest, whose = wait_ms, f"{key[1]} {key[2]}"
        return longest, whose

    def _take(
        self, keys: Iterable[tuple[str, str, str]], size: int, count: int, now_ms: float
    ) -> None:
        for key in keys:
            for bucket, tokens in zip(self._buckets.get(key, ()), (size, count), strict=False):
                if bucket is not None:
                    bucket.take(tokens, now_ms)


def _handing_out(group: str, account: str) -> tuple[tuple[str, str, str], ...]:
    return ((HAND_OUT, "group", group), (HAND_OUT, "account", account))
