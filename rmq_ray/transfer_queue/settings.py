"""What ``backend.Rmq`` of TransferQueue's configuration says, checked.

Decides names and limits, and what another process is told: plain values in mappings, as OmegaConf
takes them. Invariants: settings that were checked in one process mean the same cluster and account
in every other; TransferQueue logs all that it was told, and no secret is shown there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rmq_ray.actors.access_keys import AccountProof, SecretKey, keywords
from rmq_ray.actors.discovery import account_of, discovery_for, meant_cluster
from rmq_ray.config import Tls
from rmq_ray.errors import ConfigError
from rmq_ray.model.topics import RETENTION_HOURS_MAX
from rmq_ray.ports import Discovery
from rmq_ray.protocol.validators import check_topic

LEDGER_SUFFIX = "_ledger"
THEIRS = frozenset({"client_name"})
"""Keys that TransferQueue itself puts beside ours."""


class HiddenBytes(bytes):
    """A secret inside what is logged."""

    def __repr__(self) -> str:
        return "<hidden>"


class HiddenText(str):
    """The same of a text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<hidden>"


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """``topic``: of the values, for each job its own: keys of two jobs are the same, and one would
    clear what the other put; what was put and cleared is in ``<topic>_ledger``. ``queues``: of the
    topic on each broker. ``retention_hours``: values go after so long, cleared or not; None =
    with the store's log. ``pickle``: values without a plain form are pickled, and unpickled by who
    reads them; trust them. ``timeout_s``: how long a broker that is away is waited for. The others
    as of ``rmq.Producer``. Raises ``ConfigError`` and ``ClientError``.
    """

    topic: str = ""
    queues: int = 4
    retention_hours: int | None = None
    pickle: bool = False
    timeout_s: float = 30.0  # a killed broker is back by then
    cluster: str | None = None
    name_servers: tuple[str, ...] | str | None = None
    secret: bytes = b""
    tls: Tls | None = None
    access_key: str = ""
    secret_key: SecretKey = ""

    def __post_init__(self) -> None:
        if self.topic in ("", None):
            raise ConfigError(
                "backend.Rmq needs a topic: name one for each job, since jobs that share a topic "
                "clear each other's values"
            )
        check_topic(self.topic)
        check_topic(self.ledger)
        _check_number("queues", self.queues, 1, 1_024, int)
        if self.retention_hours is not None:
            hours = self.retention_hours
            _check_number("retention_hours", hours, 0, RETENTION_HOURS_MAX, int)
        _check_number("timeout_s", self.timeout_s, 0.1, 3_600)
        if type(self.pickle) is not bool:
            raise ConfigError(f"pickle must be True or False, not {self.pickle!r}", self.pickle)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> BackendSettings:
        """``ConfigError`` for keys that there are not. ``tls`` and what proves an account as
        ``secret_key`` may be mappings of their fields.
        """
        known = [of.name for of in fields(cls)]
        own = {str(name): value for name, value in given.items() if name not in THEIRS}
        for name in own:
            if name not in known:
                raise ConfigError(
                    f"the back end has no setting {name!r}; there are {', '.join(known)}", name
                )
        servers = own.get("name_servers")
        if isinstance(servers, Sequence) and not isinstance(servers, str | bytes):
            own["name_servers"] = tuple(servers)
        elif not isinstance(servers, str | None):
            raise ConfigError(f"name_servers must be texts, not {servers!r:.80}", "name_servers")
        for name, kind in (("tls", Tls), ("secret_key", AccountProof)):
            if isinstance(own.get(name), Mapping):
                own[name] = _made(name, kind, own[name])
        return cls(**own)

    @property
    def ledger(self) -> str:
        """Topic of what was put and cleared."""
        return self.topic + LEDGER_SUFFIX

    @property
    def discovery(self) -> Discovery:
        """Where the cluster is, for clients of this process."""
        return discovery_for(
            self.cluster,
            self.name_servers,
            self.secret,
            self.tls,
            self.access_key,
            self.secret_key,
        )

    def bound(self) -> dict[str, Any]:
        """What another process needs to mean the same cluster, and to be the same account."""
        cluster = meant_cluster(self.cluster, self.name_servers)
        account = account_of(
            cluster, self.name_servers, self.secret, self.access_key, self.secret_key
        )
        told: dict[str, Any] = {"cluster": cluster} | keywords(account)
        if self.secret:
            told["secret"] = HiddenBytes(self.secret)
        if account is not None:
            told["secret_key"] = asdict(account) | {"key": HiddenBytes(account.key)}
        if self.tls is not None:
            tls = asdict(self.tls)
            told["tls"] = tls | {name: HiddenText(tls[name]) for name in ("key", "key_password")}
        return told


def _made(name: str, kind: type[Any], given: Mapping[str, Any]) -> Any:
    """Of what ``bound`` told, or a user wrote."""
    try:
        return kind(**given)
    except TypeError as error:
        raise ConfigError(f"{name} is no {kind.__name__}: {error}", name) from error


def _check_number(
    name: str, value: object, least: float, most: float, kind: Any = int | float
) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        whole = "a whole number, " if kind is int else ""
        raise ConfigError(f"{name} must be {whole}{least:g} to {most:g}, not {value!r}", value)
