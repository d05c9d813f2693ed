"""Everything that asks Ray for something: finding, creating, pinging and killing actors. The only
place that awaits ObjectRefs.

Errors of Ray become ours here; no other module names ``ray.exceptions``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import ray
import ray.exceptions
import ray.util.client

from rmq_ray.actors import names, placement, ray_versions
from rmq_ray.actors.placement import Node
from rmq_ray.actors.ray_client import client_connected
from rmq_ray.actors.shell import exit_hard
from rmq_ray.errors import BrokerBusy, ClusterError, ConfigError, RmqError
from rmq_ray.ports import ClusterAddress
from rmq_ray.server.base.offload import ThreadOffload

log = logging.getLogger("rmq_ray.actors")
T = TypeVar("T")
CALL_TIMEOUT_S = 30.0
FOUND_TIMEOUT_S = 15.0
LOOK_UP_TIMEOUT_S = 10.0
IDENTITY_TIMEOUT_S = 0.3  # of a restart that takes a second in all
TASKS_AT_ONCE = 4  # on one node
_control_plane: ThreadOffload | None = None  # of this process
_context: Any | None = None
"""Ray's context of this process, as of its first fork: a forked child asks it, as the way to it
leads through a lock that nobody may be left to give back.
"""
_by_client: tuple[Any, str] | None = None
"""Ray Client's connection of this process, and its worker id: asking again would be a call to the
server, which a forked child cannot make.
"""
_worker_at_fork: str | None = None
_parents_worker: str | None = None
"""In a forked child: the worker id of its parent, whose threads are not here, so that no call to
Ray would ever be answered.
"""
_known: dict[str, tuple[ClusterAddress, tuple[str, ...]]] = {}
"""Of the clusters that were looked up in this process: what a forked child of it can still
reach.
"""


def require_ray() -> None:
    """``ClusterError`` where this process has no Ray connection, or only its parent's, or Ray is
    too old.
    """
    ray_versions.require_window()
    if not ray.is_initialized():
        raise ClusterError(
            "Ray is not initialised in this process: call ray.init() first; producers and "
            "consumers can do without it: name_servers=... and secret=..."
        )
    if _is_inherited():
        raise ClusterError(
            "this process was forked from one that uses Ray, which does not work in it: "
            "start it with multiprocessing's 'spawn' or as a Ray task, "
            "or connect to the cluster before the fork: new producers and consumers of it work then"
        )


def by_ray_client() -> bool:
    """Whether this process has joined Ray by Ray Client (``ray://``): it may be anywhere."""
    return bool(ray.util.client.ray.is_connected())  # type: ignore[no-untyped-call]


def require_driver(what: str) -> None:
    """``require_ray``, and ``ClusterError`` in a driver of Ray Client, from which Ray has no way to
    do that.
    """
    require_ray()
    if by_ray_client():
        raise ClusterError(
            f"{what} does not work in a driver of Ray Client (ray://): run the program on a node "
            f"of the cluster, as `ray job submit` does, or this part of it in a task",
            what,
        )


def _worker_id() -> str:
    global _context, _by_client
    client = ray.util.client.ray.get_context()  # type: ignore[no-untyped-call]
    connection = client.client_worker
    if connection is not None:
        if _by_client is None or _by_client[0] is not connection:
            _by_client = connection, str(ray.get_runtime_context().get_worker_id())
        return _by_client[1]
    if _context is None:
        _context = ray.get_runtime_context()
    return str(_context.get_worker_id())


def _before_fork() -> None:
    """In the parent, all of whose threads go on: what it waits for comes."""
    global _worker_at_fork
    _worker_at_fork = None
    try:
        _worker_at_fork = _worker_id() if ray.is_initialized() else None
    except Exception:
        log.debug("forked while Ray was left", exc_info=True)


def _after_fork() -> None:
    """In the child, which holds for ever whatever another thread of the parent held: it must take
    no lock.
    """
    global _parents_worker
    _parents_worker = _worker_at_fork


def _is_inherited() -> bool:
    """Whether what this process has of Ray is its parent's; no more once it has called
    ``ray.shutdown`` and ``ray.init`` itself.
    """
    return _parents_worker is not None and ray.is_initialized() and _worker_id() == _parents_worker


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


@client_connected()
def find(name: str) -> Any | None:
    """Handle of a system actor, or None where there is none."""
    require_ray()
    try:
        return ray.get_actor(name, namespace=names.NAMESPACE)
    except ValueError:
        return None
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"Ray's control plane does not say where {name} is: {error}", name
        ) from error


@client_connected()
def create(
    shell: type,
    name: str,
    arguments: tuple[Any, ...],
    *,
    resource: str | None = None,
    near: str | None = None,
    group: int = 1000,
) -> Any:
    """Create a named detached actor, or attach to the one that has the name. Never retries a call
    by itself. ``near``: a resource whose node it is on while that lives; Ray restarts it elsewhere.
    """
    options: dict[str, Any] = {
        "name": name,
        "namespace": names.NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": group,
    }
    return ray.remote(shell).options(**options, **_place(resource, near)).remote(*arguments)


def _place(resource: str | None, near: str | None) -> dict[str, Any]:
    if resource is None and near is not None:
        return placement.near(near, nodes())
    return placement.at(resource)


@client_connected()
def create_worker(
    shell: type,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    options: dict[str, Any],
    *,
    name: str | None = None,
) -> Any:
    """Create an actor that ends with its owner, or with ``name`` a detached one; Ray restarts its
    process. ``ClusterError`` where the name is taken.
    """
    require_ray()
    settings: dict[str, Any] = {
        "max_restarts": -1,
        "max_task_retries": 0,
        **{key: value for key, value in options.items() if value is not None},
    }
    if name is not None:
        settings |= {"name": name, "namespace": names.NAMESPACE, "lifetime": "detached"}
    try:
        return ray.remote(shell).options(**settings).remote(*arguments, **keywords)
    except ValueError as error:
        if name is not None and find(name) is not None:
            raise ClusterError(
                f"an actor {name!r} runs already: attach to it, or stop it first", name
            ) from None
        raise ConfigError(
            f"Ray refuses the options of the actor: {error}", str(settings)
        ) from error


@client_connected()
def pack(value: object) -> bytes:
    """For an actor's constructor: Ray forgets arguments that hold handles or references once the
    actor runs, and could not restart it. With Ray Client a task does it: handles of this process
    mean nothing elsewhere.
    """
    if by_ray_client():
        task = ray.remote(_packed).options(num_cpus=0, max_retries=0)
        return bytes(_result(task.remote(value), "pack", CALL_TIMEOUT_S))
    return _packed(value)


def _packed(value: object) -> bytes:
    return bytes(ray.cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def unpack(data: bytes) -> Any:
    """The value that ``pack`` was given."""
    return ray.cloudpickle.loads(data)


@client_connected()
def kill_worker(handle: Any) -> None:
    """End an actor for good."""
    ray.kill(handle, no_restart=True)


@client_connected()
def resources() -> tuple[list[dict[str, float]], dict[str, float]]:
    """(what each living node offers, what nobody uses now of all that). A resource that is used up
    is missing in the second one.
    """
    require_ray()
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in found if node.get("Alive")], free


async def resources_beside() -> tuple[list[dict[str, float]], dict[str, float]]:
    """The same on an actor's own loop. ``ClusterError`` while Ray's control plane cannot say."""
    return await _beside(resources, LOOK_UP_TIMEOUT_S, "resources of the nodes")


@client_connected()
def call(handle: Any, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """One actor call from a driver or a thread; our errors come through as they are, Ray's as
    ``ClusterError``.
    """
    return _result(getattr(handle, method).remote(*arguments), method, timeout_s)


@client_connected()
def has_ended(handle: Any) -> bool:
    """Whether this actor has ended for good: one that is silent, or starts again, has not."""
    try:
        ray.get(handle.ping.remote(), timeout=LOOK_UP_TIMEOUT_S)
    except ray.exceptions.ActorDiedError:
        return True
    except ray.exceptions.RayError as error:
        log.info("an actor does not answer now: %s", error)
    return False


@client_connected()
def value_of(reference: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """What an object of Ray's store holds. ``ClusterError`` where it does not come in time."""
    return _result(reference, "an object of Ray's store", timeout_s)


def _result(reference: Any, method: str, timeout_s: float) -> Any:
    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        late = f"actor call {method} was not answered within {timeout_s:.0f} s"
        said = f"{late}; is the cluster out of CPU or the actor stopped?"
        raise ClusterError(said, method) from None
    except ray.exceptions.RayError as error:
        raise _ours(error, method) from None


def _ours(error: ray.exceptions.RayError, method: str) -> RmqError:
    """What a failed actor call is here: an ``RmqError`` always. What is none of ours stands in the
    log with the traceback of that process.
    """
    if isinstance(error, ray.exceptions.RayTaskError):
        if isinstance(error.cause, RmqError):
            return error.cause
        log.error("actor call %s failed: %s", method, error)
        return ClusterError(
            f"actor call {method} failed: {error.cause!r}; the log has its traceback", method
        )
    if isinstance(error, ray.exceptions.RayActorError):
        return ClusterError(
            f"actor call {method} failed because the actor died or restarts: {error}", method
        )
    return ClusterError(
        f"Ray did not carry out the actor call {method}: {type(error).__name__}: {error}", method
    )


@client_connected()
def call_each(
    found: Mapping[str, Any | None], method: str, *arguments: Any, timeout_s: float
) -> dict[str, Any]:
    """The same call of many actors at once: name -> its answer, or the ``RmqError`` that kept it
    from answering (no actor: ``ClusterError``).
    """
    references = {
        name: getattr(handle, method).remote(*arguments)
        for name, handle in found.items()
        if handle is not None
    }
    answered: set[Any] = set()
    if references:
        answered = set(
            ray.wait(list(references.values()), num_returns=len(references), timeout=timeout_s)[0]
        )
    answers: dict[str, Any] = {}
    for name in found:
        if name not in references:
            answers[name] = ClusterError(f"there is no actor {name}", name)
        elif references[name] not in answered:
            answers[name] = ClusterError(
                f"{name} did not answer {method} within {timeout_s:.0f} s", name
            )
        else:
            try:
                answers[name] = _result(references[name], method, timeout_s)
            except RmqError as error:
                answers[name] = error
    return answers


async def call_async(
    handle: Any, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S
) -> Any:
    """The same on an actor's own loop."""
    try:
        async with asyncio.timeout(timeout_s):
            return await getattr(handle, method).remote(*arguments)
    except TimeoutError:
        raise ClusterError(
            f"actor call {method} was not answered within {timeout_s:.0f} s", method
        ) from None
    except ray.exceptions.RayError as error:
        raise _ours(error, method) from None


async def expected_identity(cluster: str, key: str) -> str | None:
    """The store that the controller knows under this key (``names.replica_key``); None where it
    cannot say in time (it restarts, too, and learns it again).
    """
    handle = find(names.controller(cluster))
    if handle is None:
        return None
    try:
        found = await call_async(handle, "store_identity", key, timeout_s=IDENTITY_TIMEOUT_S)
    except ClusterError:
        return None
    return None if found is None else str(found)


class Ping(Enum):
    """Outcome of one ping."""

    ANSWERED = "answered"
    UNAVAILABLE = "unavailable"
    SILENT = "silent"
    MISSING = "missing"


async def ping(name: str, timeout_s: float) -> Ping:
    """Ask one system actor whether it lives."""
    handle = find(name)
    return Ping.MISSING if handle is None else await ping_handle(handle, timeout_s)


async def ping_handle(handle: Any, timeout_s: float) -> Ping:
    """The same for an actor without a name."""
    try:
        async with asyncio.timeout(timeout_s):
            await handle.ping.remote()
    except TimeoutError:
        return Ping.SILENT
    except ray.exceptions.ActorUnavailableError:
        return Ping.UNAVAILABLE
    except ray.exceptions.ActorDiedError:
        return Ping.MISSING
    except ray.exceptions.RayError as error:
        log.warning("a ping failed, which counts as silence: %s", error)
        return Ping.SILENT
    return Ping.ANSWERED


async def find_again(name: str) -> Any | None:
    """For an actor that Ray calls dead: the handle of one that has its name now, None where there
    is none. ``ClusterError`` while Ray cannot say.
    """
    return await _beside(lambda: find(name), LOOK_UP_TIMEOUT_S, f"look-up of {name}")


async def create_in_thread(
    shell: type, name: str, arguments: tuple[Any, ...], *, resource: str | None = None
) -> Any:
    """``create`` beside the loop: Ray's control plane may not answer. ``ClusterError`` then."""
    return await _beside(
        lambda: create(shell, name, arguments, resource=resource),
        CALL_TIMEOUT_S,
        f"creation of {name}",
    )


async def dead_nodes() -> frozenset[str]:
    """Ids of nodes that Ray has declared dead. ``ClusterError`` while its control plane
    cannot say.
    """
    found: list[dict[str, Any]] = await _beside(ray.nodes, LOOK_UP_TIMEOUT_S, "list of nodes")
    return frozenset(str(node["NodeID"]) for node in found if not node.get("Alive"))


async def _beside(work: Callable[[], T], timeout_s: float, what: str) -> T:
    """Ask Ray's control plane in one of two threads of its own: while it is dead they hang, and
    nothing else does.
    """
    global _control_plane
    if _control_plane is None:
        _control_plane = ThreadOffload("control-plane", exit_hard, threads=2, waiting_max=64)
    try:
        async with asyncio.timeout(timeout_s):
            return await _control_plane.run(work)
    except TimeoutError:
        raise ClusterError(
            f"Ray's control plane did not answer within {timeout_s:.0f} s: {what}", what
        ) from None
    except (ray.exceptions.RayError, OSError, RuntimeError, BrokerBusy) as error:
        raise ClusterError(f"Ray's control plane does not answer: {what}: {error}", what) from None


def my_node() -> str:
    """Id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def my_handle() -> Any:
    """Handle of the actor that this process is: others keep it and need no look-up."""
    return ray.get_runtime_context().current_actor


def kill_handle(handle: Any) -> None:
    """End an actor's process; Ray starts it again."""
    ray.kill(handle, no_restart=False)


@client_connected()
def kill(name: str, *, for_good: bool) -> bool:
    """End an actor's process; Ray restarts it unless ``for_good``. False where there is no such
    actor.
    """
    handle = find(name)
    if handle is None:
        return False
    ray.kill(handle, no_restart=for_good)
    return True


def cluster_address(cluster: str) -> ClusterAddress:
    """Name servers and secret of a cluster, from its controller; in a forked child as its parent
    knew them. ``ClusterError`` where it does not run.
    """
    if cluster not in _known or not _is_inherited():
        handle = controller(cluster)
        address = call(handle, "connection", timeout_s=FOUND_TIMEOUT_S)
        plan = call(handle, "plan", timeout_s=FOUND_TIMEOUT_S)
        _known[cluster] = address, tuple(broker.broker_name for broker in plan.brokers)
    return _known[cluster][0]


def broker_names(cluster: str) -> tuple[str, ...]:
    """The brokers that a cluster consists of, those included that are down; in a forked child as
    its parent knew them. ``ClusterError`` where it does not run.
    """
    cluster_address(cluster)
    return _known[cluster][1]


def stopped_brokers(cluster: str) -> dict[str, bool]:
    """Broker -> whether every copy of it was stopped on purpose. ``ClusterError`` where the cluster
    does not run.
    """
    handle = controller(cluster)
    known = call(handle, "members", timeout_s=FOUND_TIMEOUT_S)
    found: dict[str, bool] = {}
    for _, config in call(handle, "plan", timeout_s=FOUND_TIMEOUT_S).all_copies():
        actor = names.broker(cluster, config.broker_name, config.broker_id)
        is_stopped = bool(known.get(actor, {}).get("stopped"))
        found[config.broker_name] = found.get(config.broker_name, True) and is_stopped
    return found


def archivists(cluster: str) -> list[str]:
    """Names of the actors that keep a cluster's tables."""
    return _named(names.archivists(cluster))


def fleets(cluster: str) -> list[str]:
    """Names of the actors that look after deployed groups of consumers."""
    return _named(names.fleets(cluster))


def fleets_found(cluster: str) -> dict[str, Any]:
    """Name of each of them -> its handle."""
    found = {name: find(name) for name in fleets(cluster)}
    return {name: handle for name, handle in found.items() if handle is not None}


@client_connected()
def _named(prefix: str) -> list[str]:
    require_ray()
    return sorted(
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == names.NAMESPACE and actor["name"].startswith(prefix)
    )


async def archivists_beside(cluster: str) -> list[str]:
    """The same on an actor's own loop. ``ClusterError`` while Ray's control plane cannot say."""
    return await _beside(lambda: archivists(cluster), LOOK_UP_TIMEOUT_S, "list of archivists")


@client_connected()
def clusters() -> list[str]:
    """Names of the message clusters that run in this Ray cluster."""
    require_ray()
    found = ray.util.list_named_actors(all_namespaces=True)
    return sorted(
        cluster
        for actor in found
        if actor["namespace"] == names.NAMESPACE
        and (cluster := names.cluster_of_controller(actor["name"]))
    )


@client_connected()
def gcs_address() -> str:
    """``host:port`` of the Ray cluster that this process has joined."""
    require_ray()
    return str(ray.get_runtime_context().gcs_address)


def session() -> str:
    """What tells this process's connection to Ray from an earlier one; empty without any."""
    return _worker_id() if ray.is_initialized() else ""


def leave_ray() -> None:
    """Give this process's connection to Ray back; detached actors go on."""
    ray.shutdown()


@client_connected()
def nodes_alive() -> int:
    """How many nodes the Ray cluster has."""
    require_ray()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return len([node for node in nodes if node.get("Alive")])


@client_connected()
def nodes() -> list[Node]:
    """The living nodes, by address."""
    require_ray()
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    alive = [Node.of(row) for row in found if row.get("Alive")]
    return sorted(alive, key=lambda node: node.address)


async def nodes_beside() -> list[Node]:
    """The same on an actor's own loop. ``ClusterError`` while Ray's control plane cannot say."""
    return await _beside(nodes, LOOK_UP_TIMEOUT_S, "list of nodes")


@client_connected()
def run_on(
    resource: str | None,
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    *,
    near: str | None = None,
    timeout_s: float,
) -> T:
    """Call a function once, on the node that offers this resource (None = any; ``near``: as of
    ``create``); our errors come through, Ray's as ``ClusterError``.
    """
    options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, **_place(resource, near)}
    what = f"{function.__name__} on the node with {resource or near!r}"
    reference = ray.remote(function).options(**options).remote(*arguments)
    try:
        found: T = ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        late = f"{what} did not end within {timeout_s:.0f} s; does the node live, and its disk?"
        raise ClusterError(late, what) from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RmqError):
            raise error.cause from None
        said = f"{what} failed: {error.cause}; is rmq_ray of this version installed there?"
        raise ClusterError(said, what) from None
    except ray.exceptions.RayError as error:
        raise ClusterError(f"{what} failed: {error}", what) from None
    return found


@client_connected()
def run_each(
    function: Callable[..., T],
    each: Sequence[tuple[Any, ...]],
    *,
    resource: str | None = None,
    timeout_s: float,
) -> list[T]:
    """Call a function once for each of these arguments, as tasks of one CPU; at this resource
    (None = anywhere), whose node may offer none, ``TASKS_AT_ONCE`` at a time. The results in their
    order; our errors come through, Ray's as ``ClusterError``.
    """
    cpus, at_once = (1, len(each) or 1) if resource is None else (0, TASKS_AT_ONCE)
    options = {"num_cpus": cpus, "max_retries": 0, **placement.at(resource)}
    task, found = ray.remote(function).options(**options), list[T]()
    for first in range(0, len(each), at_once):
        references = [task.remote(*arguments) for arguments in each[first : first + at_once]]
        found += [_result(one, function.__name__, timeout_s) for one in references]
    return found


def node_address() -> str:
    """This node's address as Ray names it."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def user_and_host() -> str:
    """Who runs this process, and where: ``root@10.0.0.7``."""
    number = os.getuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:
        user = str(number)
    return f"{user}@{node_address()}"


def process_id() -> int:
    """Of this process."""
    return os.getpid()


def controller(cluster: str) -> Any:
    """The controller of a cluster that runs; ``ClusterError`` that lists those that do."""
    handle = find(names.controller(cluster))
    if handle is None:
        raise ClusterError(
            f"no cluster {cluster!r} runs here (here run: {', '.join(clusters()) or 'none'}): name "
            f"another one, or start it with rmq_ray.start({cluster!r}) or `rmq-ray up`",
            cluster,
        )
    return handle
