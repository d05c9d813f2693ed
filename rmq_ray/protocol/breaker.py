"""When a listener's failures are not its messages' fault: a pure rule (no source upstream: RocketMQ
retries whatever the reason is).

    closed ── a call fails, and share of the last ``window`` calls did ──> open
      ^                                                                     │ every ``pause``
      └──────────────── the call succeeds ──── one call, the others wait <──┘

Decides from the outcomes of calls whether the next ones are made or wait. Does not decide what a
failure is, nor who waits: ``client.push.listener_breaker`` does. Not safe for threads; times are
any one clock's milliseconds.

Invariants: a message that fails among others that succeed opens nothing. What is known of the last
calls stays when it closes: as long as most of them failed, the next failure opens it again at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil

from rmq_ray.errors import ConfigError
from rmq_ray.setting import Group, require, within

WINDOW_MAX = 10_000
ROUNDING = 1e-9
PAUSE_S_MIN, PAUSE_S_MAX = 0.01, 3_600.0


class Breaker(Group, frozen=True):
    """The settings of a consumer's ``breaker=``; a mapping with these keys will do as well.

    ``share``: opens when so many of the last ``window`` calls of the listener failed, 0 < share
    <= 1. ``pause``: seconds between two calls while it is open.
    """

    share: float = within(0.5, 0, 1)
    window: int = within(20, 1, WINDOW_MAX)
    pause: float = within(5.0, PAUSE_S_MIN, PAUSE_S_MAX)

    def _check_together(self) -> None:
        require(self.share > 0, "share must be above 0", self.share)

    @classmethod
    def of(cls, value: object) -> Breaker | None:
        """The value itself, or one made of a mapping; True = as it comes, None or False = none.
        ``ConfigError`` for anything else.

        >>> Breaker.of({"pause": 1}).pause, Breaker.of(True).window, Breaker.of(None)
        (1, 20, None)
        """
        if value is None or value is False:
            return None
        if value is True:
            return cls()
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"breaker must be rmq.Breaker(...), a mapping of its fields or True, not "
                f"{value!r:.80}",
                repr(value)[:80],
            )
        try:
            return cls.from_mapping(value)
        except ConfigError as error:
            raise ConfigError(f"breaker: {error.message}", *error.args[1:]) from None


class BreakerState:
    """The rule with its memory."""

    def __init__(self, settings: Breaker) -> None:
        self._pause_ms = settings.pause * 1000
        self._outcomes: deque[bool] = deque(maxlen=settings.window)
        self._most = ceil(settings.share * settings.window - ROUNDING)
        self.open = False
        self._next_ms = 0.0

    def failed(self, now_ms: float) -> bool:
        """A call has failed; True when that opens it."""
        self._outcomes.append(True)
        self._next_ms = now_ms + self._pause_ms
        full = len(self._outcomes) == self._outcomes.maxlen
        if self.open or not full or sum(self._outcomes) < self._most:
            return False
        self.open = True
        return True

    def succeeded(self) -> bool:
        """A call has not failed; True when that closes it."""
        self._outcomes.append(False)
        closes, self.open = self.open, False
        return closes

    def wait_ms(self, now_ms: float) -> float:
        """How long the next call has to wait; 0 = it may be made, and the one after it waits."""
        if not self.open:
            return 0.0
        wait_ms = max(0.0, self._next_ms - now_ms)
        if not wait_ms:
            self._next_ms = now_ms + self._pause_ms  # also behind a call that never returns
        return wait_ms
