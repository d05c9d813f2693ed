"""What ``backend.Rmq`` of TransferQueue's configuration says, checked.

Decides names and limits. Invariant: settings that were checked in one process mean the same cluster
and account in every other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rmq_ray.actors.access_keys import SecretKey, keywords
from rmq_ray.actors.discovery import account_of, discovery_for, meant_cluster
from rmq_ray.config import Tls
from rmq_ray.errors import ConfigError
from rmq_ray.ports import Discovery
from rmq_ray.protocol.validators import check_topic

LEDGER_SUFFIX = "_ledger"
THEIRS = frozenset({"client_name"})
"""Keys that TransferQueue itself puts beside ours."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """``topic``: of the values; what was put and cleared is in ``<topic>_ledger``. ``queues``: of
    the topic on each broker. ``retention_hours``: values go after so long, cleared or not; None =
    with the store's log. ``pickle``: values without a plain form are pickled, and unpickled by who
    reads them; trust them. ``timeout_s``: how long a broker that is away is waited for. The others
    as of ``rmq.Producer``. Raises ``ConfigError`` and ``ClientError``.
    """

    topic: str = "transfer_queue"
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
        check_topic(self.topic)
        check_topic(self.ledger)
        _check_number("queues", self.queues, 1, 1_024)
        _check_number("timeout_s", self.timeout_s, 0.1, 3_600)
        if type(self.pickle) is not bool:
            raise ConfigError(f"pickle must be True or False, not {self.pickle!r}", self.pickle)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> BackendSettings:
        """``ConfigError`` for keys that there are not."""
        known = [of.name for of in fields(cls)]
        own = {str(name): value for name, value in given.items() if name not in THEIRS}
        for name in own:
            if name not in known:
                raise ConfigError(
                    f"the back end has no setting {name!r}; there are {', '.join(known)}", name
                )
        servers = own.get("name_servers")
        if servers is not None and not isinstance(servers, str):
            own["name_servers"] = tuple(servers)
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
        return {"cluster": cluster} | keywords(account)


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} must be {least:g} to {most:g}, not {value!r}", value)
