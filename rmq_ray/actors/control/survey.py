"""What ``up`` would do with a topology: looked up in Ray, in the running cluster and on the disks
of the nodes, without changing anything.

Decides: which node a broker belongs to, whether its store is made, found or missing, whether a
running cluster differs from the file. Does not decide: what a file may say (``topology``), and
starts nothing (``cluster``).

A disk is looked at by ``look``, on the node that has it (Ray calls it there); ``judge`` says, where
somebody plans a start, whether the broker could serve from what lies there. A store that is opened
is asked the same questions again, under its lock (``store.tables.store_lock``).

Invariants: nothing is written, made or locked; every fault is a typed error that names the line,
the value and the remedy, and all of them are found, not only the first.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from rmq_ray.actors import gateway, names
from rmq_ray.actors.control.changes import PlannedChange, changes_of
from rmq_ray.actors.control.plan import ClusterPlan
from rmq_ray.actors.placement import HEAD, Node
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import (
    ClusterError,
    ConfigError,
    RmqError,
    StoreCorrupt,
    StoreForeign,
    StoreMissing,
    StoreUnwritable,
)
from rmq_ray.files import FileSystem
from rmq_ray.topology import known_stores
from rmq_ray.topology.rules import BrokerSpec, ControllerSpec, NameServerSpec, Topology, same_node
from rmq_ray.topology.source import Key

_HARMLESS = {"lost+found"}
LOOK_TIMEOUT_S = 30.0
RAY_WORKER_PORTS = range(10_002, 20_000)
ASKED_S = 5.0
log = logging.getLogger("rmq_ray.cluster")


@dataclass(frozen=True, slots=True)
class Disk:
    """What lies in a directory. ``owner`` and ``identity`` where there is a store; ``others``:
    names of files that are none of a store's.
    """

    exists: bool
    writable: bool
    identity: str | None = None
    owner: str | None = None
    damaged: str | None = None
    has_log: bool = False
    others: tuple[str, ...] = ()
    free_bytes: int = 0


def look(path: str) -> Disk:
    """What lies in this directory of this machine: runs on the node that has the disk."""
    root = Path(path)
    if not root.is_dir():
        above = next((parent for parent in root.parents if parent.exists()), root)
        return Disk(
            False,
            above.is_dir() and os.access(above, os.W_OK | os.X_OK),
            free_bytes=FileSystem().disk_space(str(above)).free_bytes,
        )
    entries = {entry.name for entry in root.iterdir()}
    identity = owner = damaged = None
    file = root / "rmq_ray" / "identity"
    if file.is_file():
        try:
            values = json.loads(file.read_bytes())
            identity, owner = str(values["identity"]), str(values["broker_name"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged = f"{file} is no identity: {error}"
    has_log = (root / "commitlog").is_dir()
    others = () if identity or damaged or has_log else tuple(sorted(entries - _HARMLESS))[:3]
    return Disk(
        True,
        os.access(root, os.W_OK | os.X_OK),
        identity,
        owner,
        damaged,
        has_log,
        others,
        FileSystem().disk_space(str(root)).free_bytes,
    )


def judge(
    disk: Disk,
    broker: str,
    path: str,
    known: str | None,
    known_file: str = "rmq.stores.json",
    *,
    copied: bool = False,
) -> str:
    """What a broker would find there, in words; the typed error where it could not serve from it.
    ``known``: the store that it had.

    ``broker``: its name, for a slave "broker-a/1". ``copied``: there are other copies of its log,
    from which an empty directory is filled.
    """
    owner = broker.partition("/")[0]
    if disk.damaged:
        raise StoreCorrupt(f"{disk.damaged}; restore it from a copy", path, 0)
    if disk.identity is None and known is not None:
        found = "is empty" if disk.exists else "does not exist"
        begin = "to copy them from its master" if copied else "to begin with an empty store"
        remedy = (
            f"mount its disk; if its data are lost for good, remove {broker} from {known_file} "
            f"{begin}"
        )
        raise StoreMissing(f"{path} {found}, expected is store {known} of {broker}: {remedy}", path)
    if disk.identity is not None and known not in (None, disk.identity):
        raise StoreForeign(
            f"{path} is store {disk.identity}, expected is {known} of {broker}: mount the "
            f"right disk",
            path,
        )
    if disk.owner not in (None, owner):
        raise StoreForeign(
            f"{path} belongs to broker {disk.owner!r}, not {owner!r}: give each broker a "
            f"directory of its own",
            path,
        )
    if disk.others:
        raise StoreForeign(
            f"{path} holds files that are no store ({', '.join(disk.others)}): give {broker} "
            f"an empty directory",
            path,
        )
    if not disk.writable:
        raise StoreUnwritable(
            f"{path} cannot be written by the user that runs Ray: change its owner, or "
            f"choose another directory",
            path,
        )
    if disk.identity:
        return f"found {disk.identity}"
    return "log of Apache RocketMQ, taken over" if disk.has_log else "made new"


def judge_ledger(disk: Disk, path: str) -> str:
    """The same for the directory in which the controller keeps who is master."""
    if disk.identity or disk.has_log or disk.damaged:
        raise StoreForeign(
            f"{path} is a broker's store: give the controller a directory of its own, "
            f"[controller] store = ...",
            path,
        )
    if not disk.writable:
        raise StoreUnwritable(
            f"{path} cannot be written by the user that runs Ray: change its owner, or "
            f"choose another, [controller] store = ...",
            path,
        )
    return "found" if disk.others else "made new"


@dataclass(frozen=True, slots=True)
class PlannedActor:
    """What becomes of one actor. ``action``: "create", "attach" or "refuse"; ``store``: what is on
    its disk; ``error``: why it is refused, ``awaited``: because its node has not joined, or its old
    one is not declared dead yet.
    """

    actor: str
    action: str
    node: str
    resource: str
    port: int
    path: str
    store: str
    error: RmqError | None = None
    note: str = ""
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    """All steps; ``running``: a cluster of this name runs; ``changes``: what the file makes of that
    cluster; ``plan``: what it consists of, each copy as it runs now.
    """

    steps: tuple[PlannedActor, ...]
    running: bool
    changes: tuple[PlannedChange, ...]
    plan: ClusterPlan | None = None

    def check(self) -> None:
        """Raise the first step's error."""
        for step in self.steps:
            if step.error is not None:
                raise step.error


def survey(topology: Topology) -> Survey:
    """Look everything up. Raises only where Ray cannot be asked, or ``rmq.stores.json`` is
    damaged.
    """
    known = known_stores.read(topology)
    controller = gateway.find(names.controller(topology.cluster))
    running = None if controller is None else _as_it_runs(gateway.call(controller, "plan"))
    nodes = gateway.nodes()
    begun = running is not None
    steps = [
        _step(topology, f"name-server-{index}", server, nodes, begun)
        for index, server in enumerate(topology.name_servers)
    ]
    if topology.has_slaves:
        steps.append(_controller_step(topology, nodes, begun))
    taken: list[tuple[BrokerSpec, PlannedActor]] = []
    for spec in topology.brokers:
        for copy in (spec, *spec.replicas):
            step = _step(topology, copy.actor, copy, nodes, begun)
            if (
                step.error is None
                and (error := _clash(topology, spec, copy, step, taken)) is not None
            ):
                step = _refused(step, error)
            taken.append((copy, step))
            if running is not None and copy.actor not in dict(running.all_copies()):
                step = replace(step, action="create" if step.error is None else step.action)
            if step.error is None and step.action == "create":
                step = _with_disk(
                    topology, copy, step, known.get(copy.actor), copied=bool(spec.replicas)
                )
            steps.append(step)
    changes = () if running is None else tuple(changes_of(topology, running))
    return Survey(tuple(steps), begun, changes, running)


def _as_it_runs(plan: ClusterPlan) -> ClusterPlan:
    """The plan with what each copy goes by: a run that applied it may have been cut short. Who does
    not answer is taken to be as the plan says.
    """

    def asked(config: BrokerConfig) -> BrokerConfig:
        actor = gateway.find(names.broker(plan.cluster, config.broker_name, config.broker_id))
        try:
            found = actor and gateway.call(actor, "configured", timeout_s=ASKED_S)
        except RmqError as error:
            log.warning("settings of %s are not known: %s", config.broker_name, error)
            return config
        return found or config

    return replace(
        plan,
        brokers=tuple(asked(config) for config in plan.brokers),
        replicas={name: tuple(map(asked, copies)) for name, copies in plan.replicas.items()},
    )


def _clash(
    topology: Topology,
    broker: BrokerSpec,
    copy: BrokerSpec,
    step: PlannedActor,
    taken: list[tuple[BrokerSpec, PlannedActor]],
) -> ConfigError | None:
    """What only shows once the nodes are known: one directory twice, two copies of a broker on one
    node.
    """
    here = [(other, its) for other, its in taken if its.node == step.node]
    for other, its in here:
        if its.path == step.path:
            line = topology.source.line_of((*other.key, "store"))
            return topology.source.wrong(
                (*copy.key, "store"),
                f"store {step.path} on {step.node} is that of line {line}: choose another",
                step.path,
            )
        if other.config.broker_name == copy.config.broker_name and not broker.allow_same_node:
            return topology.source.wrong(
                (*copy.key, "resource"), same_node(topology, copy, other), copy.resource
            )
    return None


def _step(
    topology: Topology,
    actor: str,
    spec: BrokerSpec | NameServerSpec,
    nodes: list[Node],
    running: bool,
) -> PlannedActor:
    config = spec.config
    path = config.store.path if isinstance(config, BrokerConfig) else config.directory
    note = ""
    if config.port in RAY_WORKER_PORTS:
        note = (
            f"port {config.port} lies among those of Ray's workers, 10002 to 19999: one of them "
            f"may take it first"
        )
    step = PlannedActor(
        actor,
        "attach" if running else "create",
        "",
        spec.resource or "",
        config.port,
        path,
        "",
        note=note,
    )
    try:
        node = _node_of(topology, actor, spec, nodes)
    except ConfigError as error:
        return replace(_refused(step, error), awaited=spec.resource is not None)
    return replace(step, node=node.address)


def _controller_step(topology: Topology, nodes: list[Node], running: bool) -> PlannedActor:
    """Its directory says who is master: no slave without it."""
    spec = topology.controller
    head = next((node.address for node in nodes if node.head), "")
    step = PlannedActor(
        "controller",
        "attach" if running else "create",
        head,
        spec.resource or "",
        0,
        spec.ledger,
        "",
    )
    if spec.resource is not None:
        try:
            step = replace(step, node=_node_of(topology, "controller", spec, nodes).address)
        except ConfigError as error:
            return replace(_refused(step, error), awaited=True)
    if running:
        return step
    try:
        disk = gateway.run_on(spec.resource or HEAD, look, (spec.ledger,), timeout_s=LOOK_TIMEOUT_S)
        return replace(
            step, store=f"{judge_ledger(disk, spec.ledger)}, {disk.free_bytes >> 30} GiB free"
        )
    except ClusterError as error:
        return _refused(step, error)
    except RmqError as error:
        return _refused(step, _with_line(topology, (*spec.key, "store"), step, error))


def _node_of(
    topology: Topology,
    actor: str,
    spec: BrokerSpec | NameServerSpec | ControllerSpec,
    nodes: list[Node],
) -> Node:
    if spec.resource is None:
        if len(nodes) > 1:
            message = (
                f"{actor} has no resource, and this Ray cluster has {len(nodes)} nodes: name the "
                f"one that has its disk, {_offered(nodes)}"
            )
            raise topology.source.wrong((*spec.key, "resource"), message, actor)
        return nodes[0]
    having = [node for node in nodes if node.offers(spec.resource)]
    if not having:
        message = (
            f"no node of this Ray cluster offers the resource {spec.resource!r}: "
            f"{_offered(nodes)}; start Ray there with --resources "
            f"or --labels"
        )
        raise topology.source.wrong((*spec.key, "resource"), message, spec.resource)
    if len(having) > 1:
        places = ", ".join(node.address for node in having)
        raise topology.source.wrong(
            (*spec.key, "resource"),
            f"{len(having)} nodes offer {spec.resource!r} ({places}): only the one with the "
            f"disk may",
            spec.resource,
        )
    return having[0]


def _offered(nodes: list[Node]) -> str:
    offered = sorted({name for node in nodes for name in node.resources})
    return f"offered are {', '.join(offered)}" if offered else "none is offered"


def _with_disk(
    topology: Topology, spec: BrokerSpec, step: PlannedActor, known: str | None, *, copied: bool
) -> PlannedActor:
    try:
        disk = gateway.run_on(spec.resource, look, (step.path,), timeout_s=LOOK_TIMEOUT_S)
        found = judge(
            disk, spec.actor, step.path, known, str(known_stores.file_of(topology)), copied=copied
        )
    except ClusterError as error:
        return _refused(step, error)
    except RmqError as error:
        return _refused(step, _with_line(topology, (*spec.key, "store"), step, error))
    return replace(step, store=f"{found}, {disk.free_bytes >> 30} GiB free")


def _with_line(topology: Topology, key: Key, step: PlannedActor, error: RmqError) -> RmqError:
    return type(error)(
        f"{topology.source.path}, line {topology.source.line_of(key)}, on {step.node}: "
        f"{error.args[0]}",
        *error.args[1:],
    )


def _refused(step: PlannedActor, error: RmqError) -> PlannedActor:
    return replace(step, action="refuse", error=error)
