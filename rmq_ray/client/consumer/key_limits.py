"""How many messages of one key a consumer's listener has at once, and how many it gets a second: a
pure rule (no source upstream). Of tasks of Ray Serve the same.

    message ── its key is free? ─┬─ yes ──> listener ── ended ──┐
                                 └─ no ───> behind those of its key that wait
                                                  │ one ended, or the time of the next has come
                                                  └──> free again: the first of them

Decides which message may begin now. Does not hand anything out: ``client.push.key_limiter`` does,
and ``serve.task_limiter``.
Not safe for threads; times are any one clock's milliseconds.

Invariants: messages of a key begin in the order in which they asked; those of other keys wait for
none of them. What is known of a key is forgotten once nothing of it runs or waits and the time of
its next call has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Generic, TypeVar

from rmq_ray.errors import ConfigError
from rmq_ray.setting import Group, require, setting, within

KEYS = "keys"
CONCURRENCY_MAX, RATE_MAX = 100_000, 1_000_000.0
RATE_MIN = 1 / 3_600
KEPT_MIN = 1_024
"""So many keys are kept before it is looked which of them are idle."""

T = TypeVar("T")


class KeyLimits(Group, frozen=True):
    """The settings of ``key_limits=`` of a consumer, and of Ray Serve's tasks; a mapping with these
    keys will do as well.

    ``concurrency``: so many messages of one key at a time, 0 = any number. ``rate``: so many calls
    a second for one key, evenly, 1/3600 or more; 0 = any number. ``by``: "keys", the message's
    business keys as a whole (of a task its handler's name), or the name of a property. Messages
    without it are not limited.
    """

    concurrency: int = within(0, 0, CONCURRENCY_MAX)
    rate: float = within(0.0, 0, RATE_MAX)
    by: str = setting(KEYS)

    def _check_together(self) -> None:
        require(bool(self.by), 'by must be "keys" or the name of a property', self.by)
        require(not 0 < self.rate < RATE_MIN, "rate must be 0, or 1/3600 or more", self.rate)
        require(
            bool(self.concurrency or self.rate), "one of concurrency and rate must be over 0", self
        )

    @classmethod
    def of(cls, value: object) -> KeyLimits | None:
        """The value itself, or one made of a mapping; None = none. ``ConfigError`` for anything
        else.

        >>> KeyLimits.of({"concurrency": 2}).by, KeyLimits.of(None)
        ('keys', None)
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"key_limits must be rmq.KeyLimits(...) or a mapping of its fields, not "
                f"{value!r:.80}",
                repr(value)[:80],
            )
        try:
            return cls.from_mapping(value)
        except ConfigError as error:
            raise ConfigError(f"key_limits: {error.message}", *error.args[1:]) from None


class _Key(Generic[T]):
    __slots__ = ("asked", "next_ms", "running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.next_ms = -inf
        self.waiting: deque[T] = deque()
        self.asked = False
        """Somebody was told when to ask again."""


class KeyTable(Generic[T]):
    """The rule with its memory. ``over(item)``: nobody would be called with it any more."""

    def __init__(self, limits: KeyLimits, over: Callable[[T], bool]) -> None:
        self._most = limits.concurrency or inf
        self._gap_ms = 1_000 / limits.rate if limits.rate else 0.0
        self._over = over
        self._keys: dict[str, _Key[T]] = {}
        self._look_at = KEPT_MIN
        self.waiting = 0
        """Items that wait."""

    def __len__(self) -> int:
        return len(self._keys)

    def begin(self, key: str, item: T, now_ms: float) -> bool:
        """True: it begins now, and ``end`` follows. False: it waits; ``ready`` returns it."""
        of = self._keys.get(key)
        if of is None:
            self._forget_idle(now_ms)
            of = self._keys[key] = _Key()
        if not of.waiting and self._take(of, now_ms):
            return True
        of.waiting.append(item)
        self.waiting += 1
        return False

    def end(self, key: str) -> None:
        """One of the key that had begun has ended; ``ready`` says which are next."""
        self._keys[key].running -= 1

    def asking(self, key: str) -> None:
        """Whoever was told when to ask again does it now."""
        if key in self._keys:
            self._keys[key].asked = False

    def ready(self, key: str, now_ms: float) -> tuple[list[T], float | None]:
        """Items of the key that begin now, ``end`` follows for each; and in how many ms the next
        one could: ask again then. None: there is none, or an ``end`` comes before, or somebody was
        told already.
        """
        found: list[T] = []
        of = self._keys.get(key)
        if of is None:
            return found, None
        while of.waiting:
            over = self._over(of.waiting[0])
            if not over and not self._take(of, now_ms):
                break
            item = of.waiting.popleft()
            self.waiting -= 1
            if not over:
                found.append(item)
        if not of.waiting:
            if not of.running and of.next_ms <= now_ms:
                del self._keys[key]
            return found, None
        if of.asked or of.running >= self._most:
            return found, None
        of.asked = True
        return found, of.next_ms - now_ms

    def _take(self, of: _Key[T], now_ms: float) -> bool:
        if of.running >= self._most or of.next_ms > now_ms:
            return False
        of.running += 1
        of.next_ms = now_ms + self._gap_ms
        return True

    def _forget_idle(self, now_ms: float) -> None:
        if len(self._keys) < self._look_at:
            return
        for key, of in list(self._keys.items()):
            if not of.running and not of.waiting and of.next_ms <= now_ms:
                del self._keys[key]
        self._look_at = max(KEPT_MIN, 2 * len(self._keys))
