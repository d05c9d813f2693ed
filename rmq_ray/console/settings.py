"""What a console is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_ray.config import DEFAULT_CLUSTER
from rmq_ray.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
PORT = 8092


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """``ConfigError`` for what cannot be."""

    cluster: str = DEFAULT_CLUSTER
    host: str = "127.0.0.1"
    """What it listens on."""
    port: int = PORT
    """0 = any free one."""
    allow_write: bool = False
    """Without it nothing can be changed here, whoever asks."""
    token: str = field(default="", repr=False)
    """Who has it may see all; needed where ``accounts`` is off."""
    accounts: bool = False
    """People sign in with an access key and its secret; requests are made as that account."""
    names: tuple[str, ...] = ()
    """Under which names browsers reach it, beside ``host`` and loopback; others are refused."""
    deadline_ms: int = 2_000
    """A page waits no longer for brokers; what has not answered then is said to be missing."""
    live_ms: int = 3_000
    """How often a live table is sent anew."""
    session_ms: int = 12 * 3_600_000
    """After that one signs in again."""

    def __post_init__(self) -> None:
        if not self.accounts and not self.token:
            raise ConfigError("a console needs a token, or the accounts of its cluster")
        if self.host in ("", "0.0.0.0", "::") and not self.names:
            raise ConfigError(
                f"a console on {self.host or 'all addresses'} must know its names: give "
                f"--name for each that browsers reach it by, or listen on one address",
                self.host,
            )

    @property
    def known_names(self) -> frozenset[str]:
        """Those that may stand in a request's Host."""
        return frozenset(name.lower() for name in (*LOOPBACK, self.host, *self.names))
