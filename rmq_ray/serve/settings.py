"""What ``TaskProcessorConfig`` says to the adapter, checked, and the topics of a queue of tasks.

    <queue>                tasks, popped by the group of the same name
    rmq_ordered_<queue>    tasks with a message_group, consumed in order by the group of that name
    rmq_results_<queue>    what became of each task, by its id
    rmq_revoked_<queue>    ids of tasks that are cancelled

Decides names and limits. Invariant: a config object carries no secret key, only what proves the
account to its cluster, and means the cluster that was meant where it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from rmq_ray.actors.access_keys import SecretKey, keywords
from rmq_ray.actors.discovery import account_of, discovery_for, meant_cluster
from rmq_ray.client.consumer.key_limits import KeyLimits
from rmq_ray.config import Tls
from rmq_ray.errors import ConfigError
from rmq_ray.ports import Discovery
from rmq_ray.protocol.breaker import Breaker
from rmq_ray.protocol.validators import check_group, check_topic

PREFIXES = RESULTS, REVOKED, ORDERED = "rmq_results_", "rmq_revoked_", "rmq_ordered_"
QUEUE_NAME_MAX = 100
"""Letters; retry and dead-letter topics put more before it."""


@dataclass(frozen=True, slots=True)
class RmqAdapterConfig:
    """``adapter_config`` of ``RmqTaskProcessorAdapter``; a mapping with the same keys serves as
    well, and is read where the adapter is made.

    ``cluster``, ``name_servers``, ``secret``, ``tls``, ``access_key``, ``secret_key``: as of
    ``rmq.Producer``. ``result_ttl_s``: how long results are kept, 0 = not at all. ``lease_s``: a
    task whose replica died comes to another one after it, at the latest. ``task_timeout_s``: how
    long a handler may run. ``retry_backoff_s``: before the first retry, twice as long before each
    further one, up to ``retry_backoff_max_s``. ``pickle``: values that have no plain form are
    pickled, and unpickled by who reads them; trust them. ``queues``: of each topic, on each broker.
    ``send_timeout_s``: how long a send is tried. ``breaker``: True, an ``rmq.Breaker`` or a mapping
    of its fields: while most tasks of a replica fail they wait, and none loses a try.
    ``key_limits``: an ``rmq.KeyLimits`` or a mapping of its fields: how many tasks of one key a
    replica runs at once, or begins in a second. Raises ``ConfigError`` for impossible values.
    """

    cluster: str | None = None
    name_servers: tuple[str, ...] | str | None = None
    secret: bytes = b""
    tls: Tls | None = None
    access_key: str = ""
    secret_key: SecretKey = ""
    result_ttl_s: float = 86_400.0  # Celery's, too
    lease_s: float = 30.0
    task_timeout_s: float = 3_600.0
    retry_backoff_s: float = 1.0  # as Serve's adapter for Celery does
    retry_backoff_max_s: float = 60.0
    pickle: bool = False
    queues: int = 4
    send_timeout_s: float = 15.0  # a killed broker is back by then
    breaker: Breaker | Mapping[str, Any] | bool | None = None
    key_limits: KeyLimits | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.name_servers is not None and not isinstance(self.name_servers, str):
            object.__setattr__(self, "name_servers", tuple(self.name_servers))
        for name, least, most in (
            ("result_ttl_s", 0, 10 * 365 * 86_400),
            ("lease_s", 0.5, 43_200),
            ("task_timeout_s", 0.01, inf),
            ("retry_backoff_s", 0, 43_200),
            ("retry_backoff_max_s", 0, 43_200),
            ("queues", 1, 1_024),
            ("send_timeout_s", 0.1, 3_600),
        ):
            _check_number(name, getattr(self, name), least, most)
        if type(self.pickle) is not bool:
            raise ConfigError(f"pickle must be True or False, not {self.pickle!r}", self.pickle)
        object.__setattr__(self, "breaker", Breaker.of(self.breaker))
        object.__setattr__(self, "key_limits", KeyLimits.of(self.key_limits))
        self._bind()

    def _bind(self) -> None:
        """What this process means and who it is, so that a replica means and is the same."""
        cluster = meant_cluster(self.cluster, self.name_servers)
        account = account_of(
            cluster, self.name_servers, self.secret, self.access_key, self.secret_key
        )
        object.__setattr__(self, "cluster", cluster)
        for name, value in keywords(account).items():
            object.__setattr__(self, name, value)

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

    @classmethod
    def of(cls, given: object) -> RmqAdapterConfig:
        """``given`` itself, or made of a mapping; None = as it is by default. ``ConfigError`` for
        keys that there are not.
        """
        if isinstance(given, cls):
            return given
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"adapter_config must be an RmqAdapterConfig or a mapping, not "
                f"{type(given).__name__}",
                type(given).__name__,
            )
        known = [of.name for of in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"adapter_config has no key {name!r}; there are {', '.join(known)}", name
                )
        return cls(**given)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """All that one queue of tasks is: its names, and what ``TaskProcessorConfig`` says of tries.

    ``retries_max``: after the first try. ``failed``, ``unprocessable``: groups whose dead letters
    such tasks are.
    """

    queue: str
    retries_max: float
    failed: str
    unprocessable: str
    adapter: RmqAdapterConfig

    @classmethod
    def of(cls, config: Any) -> TaskSettings:
        """Of Serve's ``TaskProcessorConfig``. Raises ``ConfigError`` or ``ClientError``."""
        queue, retries = config.queue_name, config.max_retries
        for name in (queue, config.failed_task_queue_name, config.unprocessable_task_queue_name):
            if name is not None:
                check_topic(name)
                check_group(name)
        if len(queue) > QUEUE_NAME_MAX or queue.startswith(PREFIXES):
            raise ConfigError(
                f"queue_name {queue!r} is over {QUEUE_NAME_MAX} letters, or begins with one of "
                f"{', '.join(PREFIXES)}: give another one",
                queue,
            )
        if retries is not None and retries < 0:
            raise ConfigError(f"max_retries must be 0 or more, not {retries!r}", retries)
        return cls(
            queue,
            inf if retries is None else retries,
            config.failed_task_queue_name or queue,
            config.unprocessable_task_queue_name or queue,
            RmqAdapterConfig.of(config.adapter_config),
        )

    @property
    def breaker(self) -> Breaker | None:
        """When tasks wait since most of them fail; None: they never do."""
        return Breaker.of(self.adapter.breaker)

    @property
    def key_limits(self) -> KeyLimits | None:
        """How many tasks of one key run; None: any number."""
        return KeyLimits.of(self.adapter.key_limits)

    @property
    def results(self) -> str:
        """Topic of results."""
        return RESULTS + self.queue

    @property
    def revoked(self) -> str:
        """Topic of cancelled ids."""
        return REVOKED + self.queue

    @property
    def ordered(self) -> str:
        """Topic, and group, of tasks in order."""
        return ORDERED + self.queue

    def backoff_s(self, tries: int) -> float:
        """The pause behind try number ``tries``, from 1 on."""
        adapter = self.adapter
        doubled: float = adapter.retry_backoff_s * 2 ** min(tries - 1, 32)
        return min(adapter.retry_backoff_max_s, doubled)


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} must be {least:g} to {most:g}, not {value!r}", value)
