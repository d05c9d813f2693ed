"""Makes the controller of a cluster from a plan (``create_controller``), and carries out what a
changed topology file makes of a cluster that runs (``changes``), for which it may be replaced.

    refusals?  ─> nothing is done
    set        each copy takes its settings while it runs
    take over  a controller with the new plan replaces the old one, and creates what is new; once
               for each broker that gets its first slave, which is stopped just before
    restart    one copy at a time, slaves first; a master with slaves hands over before

Decides the order, and what is awaited between two steps. Does not decide what changes.

Invariants: one broker at most is away at a time, and counts as restarting: clients wait for it. A
run that was cut short is completed by the next: what a copy was made with is asked of the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rmq_ray.actors import gateway, names, placement
from rmq_ray.actors.control import replica_status
from rmq_ray.actors.control.changes import How, to_lead, to_restart, to_set
from rmq_ray.actors.control.plan import CONTROLLER, ClusterPlan, plan_of
from rmq_ray.actors.control.start_waits import await_controller
from rmq_ray.actors.control.survey import Survey
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ReplicationMode
from rmq_ray.errors import ClusterError, RmqError
from rmq_ray.protocol.access.changes import ChangeAuthor
from rmq_ray.topology import known_stores
from rmq_ray.topology.rules import Topology

log = logging.getLogger("rmq_ray.cluster")
POLL_MS = 100
GONE_POLL_MS = 20
STATUS_S = 5.0


def apply_changes(topology: Topology, found: Survey, timeout_s: float) -> None:
    """All of it; ``timeout_s`` for each step. ``ClusterError`` before anything is done for what
    cannot be done while the cluster runs.
    """
    running = found.plan
    assert running is not None
    refused = [str(change) for change in found.changes if change.how is How.REFUSE]
    if refused:
        raise ClusterError(
            f"cluster {topology.cluster!r} cannot be changed so while it runs: "
            f"{'; '.join(refused)}",
            topology.cluster,
        )
    author = ChangeAuthor(gateway.user_and_host(), gateway.process_id())
    for key, settings in to_set(found.changes).items():
        actor = gateway.find(_actor_of(running, key))
        if actor is not None:  # else it is stopped, and made anew with them
            gateway.call(actor, "configure", settings, author, timeout_s=timeout_s)
            log.warning("%s: %s", key, settings)
    made = _wanted_plan(topology, running)
    added = tuple(change.part for change in found.changes if change.how is How.CREATE)
    led = to_lead(made, running)
    for number, name in enumerate(led, 1):
        _take_over(_with_slaves_of(made, running, led[:number]), added, timeout_s, away=name)
    if not led:
        _take_over(made, added, timeout_s)
    for broker, replica in to_restart(found.changes, made, running):
        _restart(made, broker, replica, timeout_s)


def create_controller(name: str, arguments: tuple[Any, ...], resource: str | None) -> Any:
    """The controller's actor, made or found under this name. Its class is the whole server: loaded
    by who starts a cluster, not by who only asks it.
    """
    from rmq_ray.actors.control.controller import ControllerShell

    return gateway.create(ControllerShell, name, arguments, resource=resource)


def place_of_controller(plan: ClusterPlan) -> str:
    """On the head, where no resource says otherwise: it may have a disk, and the head goes last."""
    return plan.resources.get(CONTROLLER) or placement.HEAD


def _wanted_plan(topology: Topology, running: ClusterPlan) -> ClusterPlan:
    """Of the file, with the secret, the addresses and the stores of the cluster that runs."""
    controller = gateway.controller(topology.cluster)
    known = {
        key: str(identity)
        for key, _ in running.all_copies()
        if (identity := gateway.call(controller, "store_identity", key)) is not None
    }
    made = plan_of(
        topology,
        running.secret,
        one_node=gateway.nodes_alive() == 1,
        identities={**known_stores.read(topology), **known},
    )
    return replace(made, name_servers=running.name_servers)


def _with_slaves_of(made: ClusterPlan, running: ClusterPlan, led: list[str]) -> ClusterPlan:
    """The plan, without the first slaves of brokers whose turn has not come."""
    having = {*running.replicas, *led}
    having |= made.replicas.keys() - {one.broker_name for one in running.brokers}
    kept = {name: copies for name, copies in made.replicas.items() if name in having}
    return replace(made, replicas=kept)


def _take_over(plan: ClusterPlan, added: tuple[str, ...], timeout_s: float, away: str = "") -> None:
    """Replace the controller; it serves on return, and so does everything that the plan has.
    ``away``: this broker is stopped before and made anew by it.
    """
    name = names.controller(plan.cluster)
    old = gateway.find(name)
    assert old is not None
    plan_before, resource = gateway.call(old, "plan"), place_of_controller(plan)
    if away:
        gateway.call(old, "remove_copy", away, timeout_s=timeout_s)
    try:
        _end_controller(name, timeout_s)
        made = create_controller(name, (plan, added), resource)
    except BaseException:  # a cluster without a controller would be started anew by the next `up`
        create_controller(name, (plan_before, ()), resource)
        raise
    await_controller(plan.cluster, made, timeout_s)


def _end_controller(name: str, timeout_s: float) -> None:
    gateway.kill(name, for_good=True)
    deadline = SYSTEM_CLOCK.monotonic_ms() + timeout_s * 1000
    while gateway.find(name) is not None:
        if SYSTEM_CLOCK.monotonic_ms() > deadline:
            raise ClusterError(f"Ray does not let {name} go: try again", name)
        SYSTEM_CLOCK.sleep_ms(GONE_POLL_MS)


def _restart(plan: ClusterPlan, broker: str, replica: int, timeout_s: float) -> None:
    """One copy; of a broker with slaves the next one may follow when this returns."""
    copies = plan.copies(broker)
    needs_all = copies[0].replication is ReplicationMode.SYNC_MASTER and (
        copies[0].copies_min >= len(copies)
    )
    gateway.call(
        gateway.controller(plan.cluster),
        "restart_copy",
        broker,
        replica,
        len(copies) == 1 or needs_all,
        timeout_s=timeout_s,
    )
    deadline = SYSTEM_CLOCK.monotonic_ms() + timeout_s * 1000
    while len(copies) > 1 and (why := _why_weak(plan, broker)):
        if SYSTEM_CLOCK.monotonic_ms() > deadline:
            raise ClusterError(
                f"{broker} has too few copies in sync ({why}): the rest of the changes waits; run "
                f"this again when `rmq-ray status` shows them",
                broker,
            )
        SYSTEM_CLOCK.sleep_ms(POLL_MS)


def _why_weak(plan: ClusterPlan, broker: str) -> str | None:
    """What keeps a broker with slaves from having all of its copies in sync."""
    copies = [(key, one) for key, one in plan.all_copies() if one.broker_name == broker]
    try:
        elections = gateway.call(gateway.controller(plan.cluster), "elections")
        handles = {
            f"{broker}/{one.broker_id}": gateway.find(
                names.broker(plan.cluster, broker, one.broker_id)
            )
            for _, one in copies
        }
        told: Mapping[str, Any] = gateway.call_each(handles, "status", timeout_s=STATUS_S)
    except RmqError as error:
        return str(error)
    statuses = {name: {} if isinstance(one, RmqError) else one for name, one in told.items()}
    rows = replica_status.rows(copies, statuses, elections)
    away = [str(row["replica"]) for row in rows if not row["in_sync"]]
    if away or not any(row["role"] == replica_status.MASTER for row in rows):
        return f"copies {', '.join(away)} are not in sync" if away else "no master"
    return None


def _actor_of(plan: ClusterPlan, key: str) -> str:
    config = dict(plan.all_copies())[key]
    return names.broker(plan.cluster, config.broker_name, config.broker_id)
