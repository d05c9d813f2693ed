"""What both producers are around their sending: settings, name, state, pickling (protocol-behaviour
8, 27).

Decides which settings count, and that a pickled producer carries them and nothing else. Does not
decide how anything is sent: ``Producer`` (threads) and ``AsyncProducer`` (one event loop) are made
of it. Invariant: no connection and no producer id crosses a process boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.interceptors.send_hooks import SendCheck, SendHook, checked_hooks
from rmq_ray.client.outgoing.send_request import timeout_in_ms
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.send_steps import SendSteps
from rmq_ray.client.transaction.transaction import check_checker, engine_of, watch_ends
from rmq_ray.client.transaction.transaction_checks import Checker
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ProducerConfig, RemotingLimits
from rmq_ray.errors import ConfigError
from rmq_ray.model.metrics import Family
from rmq_ray.model.namespaces import with_namespace
from rmq_ray.ports import Discovery
from rmq_ray.protocol.validators import check_group


class ProducerBase:
    """See ``Producer`` for the settings."""

    def __init__(  # noqa: PLR0913 - the public signature
        self,
        group: str | None = None,
        *,
        discovery: Discovery,
        config: ProducerConfig | None = None,
        limits: RemotingLimits | None = None,
        clock: Clock = SYSTEM_CLOCK,
        client_id: str | None = None,
        hooks: Sequence[SendHook] = (),
        checks: Sequence[SendCheck] = (),
        checker: Checker | None = None,
        **settings: Any,
    ) -> None:
        if config is not None and not isinstance(config, ProducerConfig):
            raise ConfigError(
                f"config must be a ProducerConfig, not {config!r:.80}", repr(config)[:80]
            )
        base = (config or ProducerConfig()).but(**settings)
        base = base if group is None else base.but(group=group)
        base = base.but(group=with_namespace(base.namespace, base.group))
        check_group(base.group)
        self._hooks, self._checks = checked_hooks(hooks, checks)
        check_checker(checker)
        self._checker = checker
        self._configure(discovery, base, limits, clock, client_id)

    def _configure(
        self,
        discovery: Discovery,
        config: ProducerConfig,
        limits: RemotingLimits | None,
        clock: Clock,
        client_id: str | None,
    ) -> None:
        """A producer that was not started yet."""
        self._discovery = discovery
        self._config = config
        self._limits = limits
        self._clock = clock
        self._client_id = client_id
        self._timeout_ms = float(config.send_timeout_ms)
        self._steps = SendSteps.of(config, self._hooks, self._checks, clock)
        self._state = ServiceState.CREATE_JUST
        self._core: ProducerCore | None = None

    @property
    def group(self) -> str:
        """The producer group."""
        return self._config.group

    @property
    def state(self) -> ServiceState:
        """Where in its life the producer is."""
        return self._state

    def __getstate__(self) -> dict[str, Any]:
        return {
            "discovery": self._discovery,
            "config": self._config,
            "limits": self._limits,
            "hooks": self._hooks,
            "checks": self._checks,
            "checker": self._checker,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._hooks, self._checks = state["hooks"], state["checks"]
        self._checker = state["checker"]
        self._configure(state["discovery"], state["config"], state["limits"], SYSTEM_CLOCK, None)

    def _make_core(self) -> ProducerCore:
        """Connect. Raises ``ClientError`` when the group is taken."""
        instance = ClientInstance.get_or_create(
            self._discovery, self._client_id, limits=self._limits, clock=self._clock
        )
        core = ProducerCore(instance, self._config)
        engine_of(core, self._checker)  # it answers brokers even if it has no checker
        core.start()
        return core

    def _watch(self, core: ProducerCore) -> None:
        """Trace the sends of a core that has started, and the ends of transactions, if that was
        asked for.
        """
        if self._steps is not None:
            self._steps.watch(core)
            watch_ends(engine_of(core, None), self._steps)

    def metrics(self) -> list[Family]:
        """What it counts since its start (docs/metrics.md); nothing before it."""
        core = self._core
        if core is None:
            return []
        return core.engine.counters.families(core.async_sender.waiting, core.window.bytes)

    def _time(self, timeout: float | None) -> float:
        """A call's time-out in ms."""
        return self._timeout_ms if timeout is None else timeout_in_ms(timeout)
