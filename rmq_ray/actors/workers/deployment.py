"""From one decorator to a scaled group of Ray actors.

    @rmq.consumer("orders", group="billing", tags="paid")
    def bill(msg):
        ...

    workers = bill.deploy(num_actors=2, num_cpus=0.5)

Decides what a handler may look like and what of it becomes a listener: ``handler(message)`` and
``handler(message, ctx)`` for one message at a time, the same with a list or an Arrow batch where
``batch_size`` or ``batch`` say so. Everything is checked where it is written, before any actor
starts. ``actors.workers.fleet`` runs the actors.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmq_ray.actors import gateway, names, placement
from rmq_ray.actors.access_keys import SecretKey, keywords
from rmq_ray.actors.discovery import account_of, meant_cluster
from rmq_ray.actors.workers.fleet import FleetShell, FleetSpec, Workers
from rmq_ray.client.consumer.consumer_options import push_settings
from rmq_ray.client.consumer.subscriptions import check_subscriptions
from rmq_ray.errors import ClusterError, ConfigError
from rmq_ray.protocol.actor_resources import ActorResources
from rmq_ray.protocol.autoscale import Autoscale, check_actors

log = logging.getLogger("rmq_ray.fleet")
START_TIMEOUT_S = 60.0


class OneByOne:
    """A listener that gives its handler one message, or what the consumer hands over as a whole.
    Lives in the worker.

    ``handler``: function, or a class of which an object is made with ``arguments``; then it keeps
    state in its worker.
    """

    def __init__(self, handler: Any, arguments: Sequence[Any], single: bool) -> None:
        self.handler = handler(*arguments) if isinstance(handler, type) else handler
        self._single = single
        self._with_context = _takes_context(self.handler)

    def __call__(self, messages: Any, ctx: Any) -> Any:
        """Called by the consuming threads."""
        first = messages[0] if self._single else messages
        return self.handler(first, ctx) if self._with_context else self.handler(first)

    def __getattr__(self, name: str) -> Any:
        """Public methods of the handler object, for ``ask``."""
        if name.startswith("_") or name == "handler":
            raise AttributeError(name)
        return getattr(self.handler, name)


class AsyncOneByOne(OneByOne):
    """The same for coroutine functions."""

    async def __call__(self, messages: Any, ctx: Any) -> Any:
        """Awaited on the consumer's own loop."""
        first = messages[0] if self._single else messages
        return await (self.handler(first, ctx) if self._with_context else self.handler(first))


class ConsumerApp:
    """A handler with all that its consumers need. Calling it calls the handler: unit tests need
    nothing else.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        group: str,
        subscriptions: dict[str, Any],
        settings: dict[str, Any],
        single: bool,
    ) -> None:
        self.handler = handler
        self.single = single
        self.group = group
        self.subscriptions = subscriptions
        self.settings = settings
        self.__doc__ = handler.__doc__
        self.__name__ = getattr(handler, "__name__", type(handler).__name__)

    def __repr__(self) -> str:
        return (
            f"<consumer {self.__name__} of group {self.group!r} for "
            f"{', '.join(sorted(self.subscriptions))}>"
        )

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The handler itself (of a class: a new object of it)."""
        return self.handler(*arguments, **keywords)

    def deploy(  # noqa: PLR0913 - Ray's own options by their own names
        self,
        num_actors: int = 1,
        *,
        cluster: str | None = None,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        autoscale: Autoscale | Mapping[str, Any] | None = None,
        args: Sequence[Any] = (),
        name: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        timeout_s: float = START_TIMEOUT_S,
        wait_for_nodes: bool = False,
        access_key: str = "",
        secret_key: SecretKey = "",
    ) -> Workers:
        """Start ``num_actors`` consumer actors and wait until they have joined the group.

        ``num_cpus``, ``num_gpus``, ``resources``, ``runtime_env``: of each actor, as Ray means
        them. ``autoscale``: more and fewer actors by the group's lag (``rmq.Autoscale``). ``args``:
        for a handler that is a class. ``name``: the group outlives this program, and
        ``rmq.workers(name)`` finds it again. ``wait_for_nodes``: Ray adds nodes on demand.
        ``access_key``, ``secret_key``: the account that the actors are, as of ``Producer``.

        Raises ``ConfigError``; ``TooFewResources`` at once, before any actor is created, where the
        nodes that there are could never run all (not with ``wait_for_nodes``); ``ClusterError``
        where there is no such cluster, or what is in use now was not free within ``timeout_s``.
        """
        check_actors(num_actors)
        scale = None if autoscale is None else Autoscale.of(autoscale)
        self._check(args, scale)
        cluster = meant_cluster(cluster)
        gateway.cluster_address(cluster)  # typed error where it does not run
        kind = AsyncOneByOne if _is_async(self.handler) else OneByOne
        options = {
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": dict(resources or {}),
            "runtime_env": dict(runtime_env) if runtime_env else None,
        }
        account = account_of(cluster, access_key=access_key, secret_key=secret_key)
        settings = {
            **self.settings,
            **keywords(account),
            "listener_args": (self.handler, tuple(args), self.single),
        }
        self._look_for_room(num_actors, options, timeout_s, wait_for_nodes)
        spec = FleetSpec(
            cluster,
            self.group,
            kind,
            self.subscriptions,
            settings,
            num_actors,
            options,
            scale,
            wait_for_nodes,
        )
        return _started(spec, name, timeout_s)

    def _look_for_room(
        self, actors: int, options: Mapping[str, Any], timeout_s: float, wait_for_nodes: bool
    ) -> None:
        demand = ActorResources.of(options)
        nodes, free = gateway.resources()
        if not wait_for_nodes:
            demand.require_room(actors, nodes, free, self.group)
        shortage = demand.shortage(actors, nodes, free)
        if shortage is not None:
            log.warning(
                "group %s waits up to %.0f s for resources: %s", self.group, timeout_s, shortage
            )

    def _check(self, args: Sequence[Any], scale: Autoscale | None) -> None:
        if args and not isinstance(self.handler, type):
            raise ConfigError(
                f"args are for handlers that are classes; {self.__name__} is a function",
                self.__name__,
            )
        if scale is not None and self.settings.get("model") == "broadcasting":
            raise ConfigError(
                "broadcasting consumers have no common lag to scale by: every actor gets "
                "every message; leave autoscale out",
                self.group,
            )


def consumer(
    topic: str | Mapping[str, Any], *, group: str, tags: Any = "*", **settings: Any
) -> Callable[[Callable[..., Any]], ConsumerApp]:
    """Make a function or class the handler of a consumer group.

    ``topic``: a topic, filtered by ``tags`` (``"paid || refund"`` or ``rmq.sql(...)``), or a
    mapping topic -> filter. Further keywords are those of ``PushConsumer``. With its ``batch_size``
    of 1 the handler gets one message; with more a list; with ``batch="arrow"`` an Arrow batch. What
    the handler returns or raises means what it means for a listener: None = done, an exception =
    again later, ``rmq.Reject`` = dead letter. Raises ``ConfigError`` for settings that no consumer
    could have.
    """
    subscriptions = dict(topic) if isinstance(topic, Mapping) else {topic: tags}
    check_subscriptions(subscriptions)
    checked = push_settings(
        group,
        settings.get("config"),
        {key: value for key, value in settings.items() if key != "config"},
    )
    single = checked.config.batch_size == 1 and checked.columns is None

    def decorate(handler: Callable[..., Any]) -> ConsumerApp:
        if not callable(handler):
            raise ConfigError(
                f"@consumer decorates a function or a class, not {handler!r:.80}",
                repr(handler)[:80],
            )
        _takes_context(handler)
        return ConsumerApp(handler, group, subscriptions, settings, single)

    return decorate


def workers(name: str, cluster: str | None = None) -> Workers:
    """The group that was deployed under ``name``; ``ClusterError`` where there is none."""
    cluster = meant_cluster(cluster)
    handle = gateway.find(names.fleet(cluster, name))
    if handle is None:
        raise ClusterError(
            f"no workers are deployed under the name {name!r} in cluster {cluster!r}; "
            f"deploy(name={name!r}) does it",
            name,
        )
    return Workers(handle, str(gateway.call(handle, "ping")))


def _started(spec: FleetSpec, name: str | None, timeout_s: float) -> Workers:
    options: dict[str, Any] = {"num_cpus": 0, "resources": {placement.HEAD: 0.001}}
    if name is None:
        options |= {"name": names.fleet_of_program(spec.cluster), "namespace": names.NAMESPACE}
    fleet = gateway.create_worker(
        FleetShell,
        (gateway.pack(spec),),
        {},
        options,
        name=None if name is None else names.fleet(spec.cluster, name),
    )
    try:
        gateway.call(
            fleet, "start", timeout_s, timeout_s=timeout_s + gateway.CALL_TIMEOUT_S
        )  # the fleet has a process of its own to start
    except ClusterError:
        gateway.kill_worker(fleet)
        raise
    return Workers(fleet, spec.group)


def _is_async(handler: Any) -> bool:
    called = handler.__call__ if isinstance(handler, type) else handler
    method = getattr(called, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(method)


def _takes_context(handler: Any) -> bool:
    """Whether it has a second parameter for the context. ``ConfigError`` for none, or for more than
    two without defaults.
    """
    if isinstance(handler, type):
        parameters = list(inspect.signature(handler.__call__).parameters.values())[1:]
    else:
        parameters = list(inspect.signature(handler).parameters.values())
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty] + [
        p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    ]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    if not places or len(needed) > 2:
        raise ConfigError(
            f"handler {getattr(handler, '__name__', handler)!r:.80} must take a message, or "
            f"a message and a context",
            repr(handler)[:80],
        )
    return len(needed) == 2 or (len(places) >= 2 and places[1].name in ("ctx", "context"))
