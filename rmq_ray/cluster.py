"""Starts, finds and stops clusters: what a script calls first.

``start`` makes the plan, lets the controller actor build it and waits until every broker takes
sends; a second call with the same name attaches. ``connect`` only attaches. ``start_from`` does the
same from a topology file, ``plan`` says what it would do. The returned ``Cluster`` is a small
handle that can be made anywhere.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_ray.actors import gateway, names
from rmq_ray.actors.access_keys import AccountProof, SecretKey, given_account, keywords
from rmq_ray.actors.cluster_clients import ClusterClients
from rmq_ray.actors.control import replica_status
from rmq_ray.actors.control.apply_changes import apply_changes as carry_out
from rmq_ray.actors.control.apply_changes import create_controller, place_of_controller
from rmq_ray.actors.control.audit import newest_lines
from rmq_ray.actors.control.cluster_state import ClusterState
from rmq_ray.actors.control.node_drain import DRAIN_S, drain_node
from rmq_ray.actors.control.plan import ClusterPlan, StartOptions, make_plan, not_used, plan_of
from rmq_ray.actors.control.start_waits import (
    await_brokers,
    await_controller,
    await_registrations,
    store_identities,
)
from rmq_ray.actors.control.survey import Survey, survey
from rmq_ray.actors.discovery import (
    RayDiscovery,
    account_of,
    forget_cluster,
    meant_cluster,
    use_cluster,
)
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import DEFAULT_CLUSTER, TlsSettings
from rmq_ray.errors import ClusterError, ConfigError, RmqError
from rmq_ray.server.security.audit_log import AuditQuestion
from rmq_ray.table.registry import TableRegistry
from rmq_ray.topology import known_stores
from rmq_ray.topology.reader import read_topology
from rmq_ray.topology.rules import Topology

if TYPE_CHECKING:
    from rmq_ray.table.tables import Tables

log = logging.getLogger("rmq_ray.cluster")
START_TIMEOUT_S = 180.0
NODES_POLL_MS = 500
STATUS_S = 5.0
PROMOTE_S = 60.0
SECRET_BYTES = 32


class Cluster(ClusterClients):
    """Handle of a running cluster of this Ray cluster. ``account``: who its clients are that are
    given no other; None = members.
    """

    def __init__(self, name: str, account: AccountProof | None = None) -> None:
        super().__init__(name, RayDiscovery(name, account), keywords(account))
        self._stopped = False

    @cached_property
    def tables(self) -> Tables:
        """Topics as tables in an object store (docs/tables.md)."""
        from rmq_ray.table.tables import Tables  # pyarrow's writers are for those who ask

        return Tables(self.name)

    def status(self) -> dict[str, Any]:
        """State of every actor: name -> what its ``status`` says, or the error that kept it from
        answering; ``replicas``: see there.
        """
        controller = self._controller()
        plan: ClusterPlan = gateway.call(controller, "plan")
        found: dict[str, Any] = {
            "controller": gateway.call(controller, "state")[0],
            "supervision": gateway.call(controller, "members"),
        }
        found["elections"] = gateway.call(controller, "elections") if plan.ledger else {}
        if plan.has_accounts:
            found["accounts"] = gateway.call(controller, "accounts_status")
        holds = [key for key, config in plan.all_copies() if config.hold_link]
        members = plan.listeners() + [names.hold_service(self.name, key) for key in holds]
        handles = {member: gateway.find(member) for member in members}
        for member, answer in gateway.call_each(handles, "status", timeout_s=STATUS_S).items():
            history = found["supervision"].get(member, {})
            found[member.partition("/")[2]] = (
                {"state": state, "since_ms": history["since_ms"]}
                if (state := _state_of_absent(history)) is not None
                else _state_of(handles[member], answer)
            )
        found["replicas"] = replica_status.rows(tuple(plan.all_copies()), found, found["elections"])
        return found

    def metrics(self, *, host: str = "", port: int = 5557) -> str:
        """The address to scrape (docs/metrics.md); starts the exporter where none runs."""
        from rmq_ray.actors import exporter

        return exporter.find_or_start(self.name, host, port)

    def audit(
        self,
        *,
        lines: int = 100,
        since: str = "",
        who: str = "",
        refused: bool = False,
        request: str = "",
    ) -> list[dict[str, Any]]:
        """The newest lines of the audit logs of all servers, oldest first (docs/security.md); one
        that does not answer has a line with ``event`` "unknown". ``since``: a time as the lines
        have it, ``2026-11-22T10:00``. ``who``: a part of the account's name or of the address.
        ``request``: a part of the request's name, or its code.
        """
        plan: ClusterPlan = gateway.call(self._controller(), "plan")
        servers = [*plan.listeners(), *([names.controller(self.name)] * plan.has_accounts)]
        return newest_lines(servers, AuditQuestion(lines, since, who, refused, request))

    def replicas(self) -> list[dict[str, Any]]:
        """A row for each copy of each broker: broker, replica, id (0 = master), role, address,
        epoch, in_sync, lag_bytes, lag_ms, state, error.
        """
        found: list[dict[str, Any]] = self.status()["replicas"]
        return found

    def weak_brokers(self, status: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Brokers with slaves that have no master or too few copies in sync: name -> what is wrong.
        Empty where any one copy may be lost.

        ``status``: what ``status()`` said, None = ask.
        """
        plan: ClusterPlan = gateway.call(self._controller(), "plan")
        return dict(
            replica_status.too_few(tuple(plan.all_copies()), (status or self.status())["replicas"])
        )

    def promote(
        self,
        broker_name: str,
        replica: int | None = None,
        *,
        force: bool = False,
        timeout_s: float = PROMOTE_S,
    ) -> dict[str, Any]:
        """Make another copy of a broker the master: this replica, or the one with the most. Returns
        what was decided.

        Without ``force`` only a copy that has everything acknowledged; with it any that answers,
        and what it lacks is lost. ``PromotionRefused`` says why not, ``ConfigError`` where there is
        no such broker or replica.
        """
        controller = self._controller()
        numbers = self._numbers(controller, broker_name, replica)
        if len(numbers) < 2:
            plan: ClusterPlan = gateway.call(controller, "plan")
            having = ", ".join(sorted(plan.replicas)) or "none"
            raise ConfigError(
                f"broker {broker_name!r} has no slaves here; those that have: {having}", broker_name
            )
        return dict(
            gateway.call(controller, "promote", broker_name, replica, force, timeout_s=timeout_s)
        )

    def stop_broker(
        self,
        broker_name: str,
        replica: int | None = None,
        *,
        force: bool = False,
        timeout_s: float = START_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Stop one copy of a broker gracefully until ``start_broker``; its data stay. A master with
        slaves hands over first: no send fails.

        ``replica`` may be left out where there are no slaves. Without ``force``, ``ClusterError``
        for the last broker that serves, ``PromotionRefused`` where nobody could take over, or where
        too few copies would be left for an acknowledgement. Returns ``broker``, ``replica``,
        ``was`` ("running", "stopped"), ``master`` (the replica that is master now).
        """
        if not force and replica_status.is_last(self.replicas(), broker_name, replica):
            raise ClusterError(
                f"{broker_name} is the last broker that serves: every send and consumer waits "
                f"until `rmq-ray broker start {broker_name}`; say force=True (--force) if that is "
                f"meant",
                broker_name,
            )
        return self._copy("stop_copy", broker_name, replica, timeout_s, force)

    def start_broker(
        self, broker_name: str, replica: int | None = None, *, timeout_s: float = START_TIMEOUT_S
    ) -> dict[str, Any]:
        """The end of ``stop_broker``, on the same store or not at all; returns when it serves:
        ``broker``, ``replica``, ``was``, ``address``.
        """
        return self._copy("start_copy", broker_name, replica, timeout_s)

    def start_stopped(self, *, timeout_s: float = START_TIMEOUT_S) -> list[str]:
        """``start_broker`` for every copy that is stopped, all at once; their actors. What does not
        serve is told at the end, when the others do. Workers are made again on nodes that were
        drained and stay.
        """
        controller = self._controller()
        gateway.call_each(gateway.fleets_found(self.name), "keep_nodes", timeout_s=STATUS_S)
        return list(gateway.call(controller, "start_copies", timeout_s=timeout_s))

    def drain_node(
        self, node: str | None = None, *, within_s: float = DRAIN_S
    ) -> list[dict[str, Any]]:
        """Take everything of this cluster off a node of Ray that goes, within so many seconds;
        ``node``: its id or address, None = the one that this process runs on.

        Workers (``ConsumerApp.deploy``) finish and settle what they hold, half of the time at most,
        and others are made elsewhere. Masters hand over to a slave, and every broker flushes,
        closes its store and leaves; it starts again by itself where its disk is next, once the node
        is gone. Nothing is refused. Returns a row for each part that was there (``part``,
        ``state``, ``error``), none where nothing was; a second call completes the first one.
        ``ConfigError`` where there is no such node, without one by Ray Client, and for less than a
        second or more than an hour. If the node stays after all: ``start_stopped``.
        """
        return drain_node(self.name, node, within_s)

    def stop(self) -> None:
        """Stop all actors gracefully, stores cleanly closed. Data stay on disk; ``start`` with the
        same path finds them. A second call does nothing.
        """
        if self._stopped and gateway.find(names.controller(self.name)) is None:
            return
        forget_cluster(self.name)
        if "admin" in self.__dict__:
            self.admin.close()
            del self.__dict__["admin"]
        controller = self._controller()
        for actor in gateway.archivists(self.name):
            gateway.kill(actor, for_good=True)
        gateway.call(controller, "stop", timeout_s=START_TIMEOUT_S)
        for named in (names.exporter, names.console, names.controller):
            actor = named(self.name)
            gateway.kill(actor, for_good=True)
        self._stopped = True

    def _copy(
        self, method: str, broker_name: str, replica: int | None, timeout_s: float, *arguments: Any
    ) -> dict[str, Any]:
        controller = self._controller()
        numbers = self._numbers(controller, broker_name, replica)
        if replica is None and len(numbers) > 1:
            raise ConfigError(
                f"{broker_name} has the replicas {', '.join(map(str, numbers))}: say which "
                f"one is meant (--replica)",
                broker_name,
            )
        number = numbers[0] if replica is None else replica
        return {
            "broker": broker_name,
            "replica": number,
            **gateway.call(
                controller, method, broker_name, number, *arguments, timeout_s=timeout_s
            ),
        }

    def _numbers(self, controller: Any, broker_name: str, replica: int | None) -> list[int]:
        """Of the broker's copies. ``ConfigError`` where there is no such broker, or none of this
        number.
        """
        plan: ClusterPlan = gateway.call(controller, "plan")
        numbers = [
            config.broker_id for _, config in plan.all_copies() if config.broker_name == broker_name
        ]
        if not numbers:
            raise ConfigError(
                f"there is no broker {broker_name!r} here: there are "
                f"{', '.join(broker.broker_name for broker in plan.brokers)}",
                broker_name,
            )
        if replica is not None and replica not in numbers:
            raise ConfigError(
                f"{broker_name} has the replicas {', '.join(map(str, numbers))}, not {replica!r}",
                replica,
            )
        return numbers

    def _controller(self) -> Any:
        return gateway.controller(self.name)


def start(  # noqa: PLR0913 - the settings of the outermost call
    name: str = DEFAULT_CLUSTER,
    *,
    brokers: int = 1,
    replicas: int = 0,
    store_path: str | PathLike[str] = "rmq-data",
    flush: str = "async",
    replication: str = "async",
    foreign: str = "closed",
    name_servers: int = 1,
    name_server_port: int = 0,
    broker_port: int = 0,
    host: str | None = None,
    resources: Mapping[str, str] | None = None,
    broker_settings: Mapping[str, Any] | None = None,
    store_settings: Mapping[str, Any] | None = None,
    failover_settings: Mapping[str, Any] | None = None,
    tls: TlsSettings | None = None,
    accounts: str | PathLike[str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> Cluster:
    """Start a cluster of named detached actors, or attach to the one that runs under this name; its
    settings count then (a warning tells which differ), and copies of it that were stopped stay so.
    ``store_path``: directory below which each broker keeps its store; relative = below the current
    directory of this process. ``flush``: "async" (kernel has it) or "sync" (fdatasync returned)
    before a send is acknowledged. ``host``: None = loopback on a Ray cluster of one node, else the
    node's address. ``resources``: broker name -> custom Ray resource of the node that holds its
    disk ("broker-a/1": of its first slave's); needed where the Ray cluster has several nodes.
    ``replicas``: slaves of each broker, one of which takes over when the master is gone.
    ``replication``: "async", or "sync" = a send is acknowledged when every slave in sync has it,
    too. ``broker_settings``, ``store_settings``, ``failover_settings``: fields of
    ``config.BrokerConfig``, ``config.StoreConfig`` and ``config.FailoverConfig``.

    ``brokers``: masters, each with its own queues of a topic. ``foreign``: "open" lets Apache
    RocketMQ's own clients in, "acl" only who has an account (docs/security.md), at
    ``name_server_port`` and ``broker_port`` (0 = any free one, kept). ``accounts``: with "acl" a
    ``plain_acl.yml`` on the controller's node; None = ``admin.acl``. ``tls``: of all ports; files
    of each node. ``timeout_s``: until all serve. Raises ``ConfigError`` for wrong arguments,
    ``ClusterError`` where Ray cannot do it, and the store's own typed error (``StoreInUse``,
    ``StoreForeign``, ``StoreUnwritable``...) where a broker cannot open its disk; nothing is left
    running then.
    """
    asked = StartOptions(
        brokers=brokers,
        name_servers=name_servers,
        store_path=store_path,
        flush=flush,
        foreign=foreign,
        replicas=replicas,
        replication=replication,
        resources=resources,
        broker_settings=broker_settings,
        store_settings=store_settings,
        failover_settings=failover_settings,
        tls=tls,
        accounts=accounts,
    )
    _start_or_attach(name, asked, host, (name_server_port, broker_port), timeout_s)
    return attach(name)


def plan(config: str | Path) -> Survey:
    """What ``start_from`` would do with a topology file, without doing it. ``ConfigError`` names
    the line of what is wrong in the file itself.
    """
    return survey(read_topology(config))


def start_from(
    config: str | Path,
    *,
    timeout_s: float = START_TIMEOUT_S,
    wait_s: float = 0.0,
    start_stopped: bool = False,
    apply_changes: bool = False,
) -> Cluster:
    """Start the cluster that a topology file (``rmq.toml``) describes, or attach to it; returns
    when every broker takes sends.

    ``wait_s``: so long are nodes awaited that have not joined Ray yet, as after `ray up`.
    ``start_stopped``: also start copies that `broker stop` stopped in a cluster that runs; else
    they stay so, and are not awaited. ``apply_changes``: what the file says otherwise than the
    cluster that runs is carried out (docs/settings.md): brokers and slaves are added, settings
    are set, or copies are restarted for them, one after the other; ``ClusterError`` before anything
    is done for what needs a stop. A broker's first start makes its store, later ones want that
    store back: ``rmq.stores.json`` beside the file knows it. Raises before anything is started:
    ``ConfigError`` with the line of what is wrong, ``StoreMissing``, ``StoreForeign``,
    ``StoreUnwritable`` for a disk that is not what is expected, and ``ClusterError`` where a
    cluster of the name runs with other settings.
    """
    topology = read_topology(config)
    found = _surveyed(topology, wait_s)
    if found.changes and apply_changes:
        carry_out(topology, found, timeout_s)
    elif found.changes:
        said = "; ".join(f"{change.part}: {change.what}" for change in found.changes)
        raise ClusterError(
            f"cluster {topology.cluster!r} runs with other settings ({said}): carry them out with "
            f"`rmq-ray up --config` (apply_changes=True), or stop it with `rmq-ray down`, then "
            f"start it again",
            topology.cluster,
        )
    if (handle := gateway.find(names.controller(topology.cluster))) is None:
        known = known_stores.read(topology)
        made = plan_of(
            topology,
            secrets.token_bytes(SECRET_BYTES),
            one_node=gateway.nodes_alive() == 1,
            identities=known,
        )
        handle = create_controller(
            names.controller(topology.cluster),
            (made,),
            place_of_controller(made),
        )
        _caution(made)
    deadline = SYSTEM_CLOCK.monotonic_ms() + timeout_s * 1000
    _wait_until_serving(topology.cluster, handle, timeout_s, fresh=not found.running)
    if not found.running:
        _start_tables(topology.cluster)
    if start_stopped:
        Cluster(topology.cluster).start_stopped(timeout_s=timeout_s)
    await_brokers(topology, handle, found, known_stores.read(topology), deadline)
    known_stores.remember(topology, store_identities(topology, handle, found))
    return _used(topology.cluster)


def _surveyed(topology: Topology, wait_s: float) -> Survey:
    """What is there, once the nodes are that the file names, or the time is over; raises what keeps
    the file from being started.
    """
    deadline = SYSTEM_CLOCK.monotonic_ms() + wait_s * 1000
    found = survey(topology)
    while any(step.awaited for step in found.steps) and SYSTEM_CLOCK.monotonic_ms() < deadline:
        SYSTEM_CLOCK.sleep_ms(NODES_POLL_MS)
        found = survey(topology)
    _check(topology, found)
    return found


def attach(name: str | None = None, *, access_key: str = "", secret_key: SecretKey = "") -> Cluster:
    """``rmq.connect`` in a process that has Ray."""
    name = meant_cluster(name)
    gateway.cluster_address(name)
    return _used(name, given_account(access_key, secret_key, name))


def _used(name: str, account: AccountProof | None = None) -> Cluster:
    """Its handle; this process means it from now on."""
    use_cluster(name, account)
    return Cluster(name, account or account_of(name))


def _start_or_attach(
    name: str, asked: StartOptions, host: str | None, ports: tuple[int, int], timeout_s: float
) -> None:
    if (running := gateway.find(names.controller(name))) is None:
        _start_new(name, asked, host, ports, timeout_s)
    else:
        _wait_until_serving(name, running, timeout_s)
        _tell_what_is_not_used(name, gateway.call(running, "plan"), asked)


def _start_new(
    name: str, asked: StartOptions, host: str | None, ports: tuple[int, int], timeout_s: float
) -> None:
    """Make the controller of a cluster that does not run, and wait until the cluster serves."""
    if gateway.by_ray_client():
        for what, path in (("store_path", asked.store_path), ("accounts", asked.accounts)):
            if path is not None and not Path(path).expanduser().is_absolute():
                raise ConfigError(
                    f"{what} {str(path)!r} is relative, and this process, joined by Ray Client, "
                    f"may be on another machine: give the path on the node that keeps it",
                    str(path),
                )
    one_node = gateway.nodes_alive() == 1
    plan = make_plan(
        name,
        asked,
        host=host if host is not None else ("127.0.0.1" if one_node else ""),
        ports=ports,
        secret=secrets.token_bytes(SECRET_BYTES),
    )
    _check_homes(plan, one_node)
    handle = create_controller(names.controller(name), (plan,), place_of_controller(plan))
    _caution(plan)
    _wait_until_serving(name, handle, timeout_s)
    await_registrations(
        names.broker(name, copy.broker_name, copy.broker_id)
        for _, copy in plan.all_copies()
        if plan.ledger
    )
    _start_tables(name)


def _start_tables(name: str) -> None:
    """A cluster that starts goes on with the tables that it had; they never keep it from that."""
    try:
        if TableRegistry(RayDiscovery(name)).all():
            Cluster(name).tables.start_all()
    except RmqError as error:
        log.warning("tables of cluster %r were not started: %s", name, error)


def _caution(plan: ClusterPlan) -> None:
    """A warning for each broker of a new cluster that needs all of its copies."""
    for said in replica_status.cautions(
        (broker, len(plan.replicas.get(broker.broker_name, ()))) for broker in plan.brokers
    ):
        log.warning("%s", said)


def _check_homes(plan: ClusterPlan, one_node: bool) -> None:
    """``ClusterError`` where Ray could start a broker away from its disk."""
    if not one_node and (
        homeless := [key for key, _ in plan.all_copies() if key not in plan.resources]
    ):
        said = ", ".join(f"{key!r}: 'custom_resource'" for key in homeless)
        raise ClusterError(
            f"this Ray cluster has several nodes: say which node holds each broker's disk "
            f"with resources={{{said}}}",
            homeless,
        )


def _tell_what_is_not_used(name: str, running: ClusterPlan, asked: StartOptions) -> None:
    """A warning where a call that only attaches asks for what the cluster does not have."""
    defaults = {key: one.default for key, one in inspect.signature(start).parameters.items()}
    if differing := not_used(running, asked, defaults):
        log.warning(
            "cluster %r runs already and keeps its settings: %s; to change them stop it first",
            name,
            "; ".join(differing),
        )


def _check(topology: Topology, found: Survey) -> None:
    """Raise what keeps a file from being started. In a running cluster a copy whose node is away is
    no fault where its broker has others.
    """
    if topology.relative and gateway.by_ray_client() and (not found.running or found.changes):
        key = topology.relative[0]
        raise topology.source.wrong(
            key,
            f"{'.'.join(part for part in key if isinstance(part, str))} lies beside this file, and "
            f"this process, joined by Ray Client, may be on another machine: give an absolute path",
        )
    replicated = {
        copy.actor for spec in topology.brokers if spec.replicas for copy in (spec, *spec.replicas)
    }
    for step in found.steps:
        if step.error is not None and not (
            found.running and step.awaited and step.actor in replicated
        ):
            raise step.error


def _wait_until_serving(name: str, handle: Any, timeout_s: float, fresh: bool = True) -> None:
    """``fresh``: this process made the controller; then nothing is left where it fails."""
    try:
        await_controller(name, handle, timeout_s)
    except RmqError:
        if fresh and gateway.call(handle, "state")[0] == ClusterState.FAILED.value:
            _remove(name, handle)
        raise


def _remove(name: str, handle: Any) -> None:
    try:
        gateway.call(handle, "stop")
    except RmqError as error:
        log.warning("removing the actors of a cluster that did not start: %s", error)
    gateway.kill(names.controller(name), for_good=True)


def _state_of_absent(history: Mapping[str, int]) -> str | None:
    """Of a copy that the controller has stopped; None for any other."""
    if history.get("restarting"):
        return replica_status.RESTARTING
    if history.get("left"):
        return replica_status.AWAY
    return replica_status.STOPPED if history.get("stopped") else None


def _state_of(handle: Any | None, answer: Any) -> Any:
    if handle is None:
        return {"state": "missing"}
    return (
        {"state": "not answering", "error": str(answer)} if isinstance(answer, RmqError) else answer
    )
