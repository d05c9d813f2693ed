"""What a start waits for: the controller, then the master of every broker, then the other copies.

Decides which fault ends the wait and which one may pass. Does not decide what is started. Every
wait has the caller's deadline (ms of the monotonic clock).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rmq_ray.actors import gateway, names
from rmq_ray.actors.control.cluster_state import ClusterState
from rmq_ray.actors.control.survey import Survey
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ClusterError, RmqError, StoreMissing
from rmq_ray.topology.rules import BrokerSpec, Topology

POLL_MS = 50
CALL_S = 5.0
REGISTERED_S = 5.0
IDENTITY_MS = 5_000

log = logging.getLogger("rmq_ray.cluster")


def await_controller(name: str, handle: Any, timeout_s: float) -> None:
    """Until the cluster serves; what made it FAILED otherwise."""
    deadline, error = SYSTEM_CLOCK.monotonic_ms() + timeout_s * 1000, None
    while SYSTEM_CLOCK.monotonic_ms() < deadline:
        state, error = gateway.call(handle, "state", timeout_s=timeout_s)
        if state == ClusterState.SERVING.value:
            return
        if state == ClusterState.FAILED.value:
            raise error or ClusterError(f"cluster {name!r} did not start", name)
        SYSTEM_CLOCK.sleep_ms(POLL_MS)
    raise ClusterError(
        f"cluster {name!r} did not serve within {timeout_s:.0f} s"
        f"{'' if error is None else f' ({error})'}; it goes on starting: see `rmq-ray status` and "
        f"`ray logs`",
        name,
    )


def await_brokers(
    topology: Topology, handle: Any, found: Survey, known: Mapping[str, str], deadline: float
) -> None:
    """Until every broker of the file takes sends and its other copies are there, those excepted
    whose nodes are not, that were stopped on purpose, or that have left their nodes.

    ``known``: stores that must be there; a slave that finds its directory empty and is not named in
    it gets a new one.
    """
    absent = {step.actor for step in found.steps if step.awaited}
    stopped = {
        actor
        for actor, history in gateway.call(handle, "members").items()
        if history["stopped"] or history["left"]
    }
    for spec in topology.brokers:
        in_service = [
            copy
            for copy in (spec, *spec.replicas)
            if not _is_stopped(_actor_of(topology, copy), stopped)
        ]
        if not in_service:
            continue
        if not spec.replicas:
            _await_copy(_actor_of(topology, spec), deadline)
            continue
        _await_master(topology, handle, spec.config.broker_name, deadline)
        for copy in in_service:
            if copy.actor in absent:
                log.warning("%s is not there: no node offers %s", copy.actor, copy.resource)
                continue
            try:
                _await_copy(_actor_of(topology, copy), deadline)
            except StoreMissing:
                if copy.actor in known:
                    raise
                log.warning("%s begins with an empty store and copies its master's log", copy.actor)
                gateway.call(handle, "renew_store", copy.actor)
                _await_copy(_actor_of(topology, copy), deadline)
        await_registrations(
            _actor_of(topology, copy) for copy in in_service if copy.actor not in absent
        )


def await_registrations(actors: Iterable[str]) -> None:
    """Until the name servers know these copies by their roles, so that addresses are complete;
    those that take longer are left to themselves.
    """
    for actor in actors:
        handle = gateway.find(actor)
        deadline = SYSTEM_CLOCK.monotonic_ms() + REGISTERED_S * 1000
        try:
            while handle is not None and SYSTEM_CLOCK.monotonic_ms() < deadline:
                # before it is told its role, it has no id
                if gateway.call(handle, "status", timeout_s=CALL_S)["broker_id"] >= 0:
                    gateway.call(handle, "registered", REGISTERED_S, timeout_s=REGISTERED_S + 1)
                    break
                SYSTEM_CLOCK.sleep_ms(POLL_MS)
        except RmqError as error:
            log.info("%s is not registered yet: %s", actor, error)


def store_identities(topology: Topology, handle: Any, found: Survey) -> dict[str, str]:
    """Copy -> its store, of those that are there: the controller hears it from each within a
    moment.
    """
    absent = {step.actor for step in found.steps if step.awaited}
    wanted = [copy.actor for copy in topology.copies if copy.actor not in absent]
    learnt: dict[str, str] = {}
    deadline = SYSTEM_CLOCK.monotonic_ms() + IDENTITY_MS
    while True:  # ends: all known, or at the deadline
        learnt |= {
            actor: str(identity)
            for actor in wanted
            if actor not in learnt and (identity := gateway.call(handle, "store_identity", actor))
        }
        if len(learnt) == len(wanted) or SYSTEM_CLOCK.monotonic_ms() > deadline:
            return learnt
        SYSTEM_CLOCK.sleep_ms(POLL_MS)


def _is_stopped(actor: str, stopped: Collection[str]) -> bool:
    if actor in stopped:
        log.warning("%s is stopped and stays so: `rmq-ray broker start` or `up` start it", actor)
    return actor in stopped


def _actor_of(topology: Topology, spec: BrokerSpec) -> str:
    return names.broker(topology.cluster, spec.config.broker_name, spec.config.broker_id)


def _await_master(topology: Topology, handle: Any, broker: str, deadline: float) -> None:
    """Until somebody is elected and serves."""
    election: Mapping[str, Any] = {}
    while SYSTEM_CLOCK.monotonic_ms() < deadline:
        election = gateway.call(handle, "elections").get(broker, {})
        if election.get("master") is not None and election.get("serving", True):
            _await_copy(names.broker(topology.cluster, broker, int(election["master"])), deadline)
            return
        SYSTEM_CLOCK.sleep_ms(POLL_MS)
    raise ClusterError(
        f"{broker} has no master: {election.get('why') or 'no election ended'}; see `rmq-ray "
        f"status` and `rmq-ray broker list`",
        broker,
    )


def _await_copy(actor: str, deadline: float) -> None:
    """Until it serves; its own typed error where it never will."""
    why: object = "no such actor"
    while SYSTEM_CLOCK.monotonic_ms() < deadline:
        handle = gateway.find(actor)
        try:
            if handle is not None and gateway.call(handle, "serving", timeout_s=CALL_S) is not None:
                return
        except ClusterError as error:
            why = error
        SYSTEM_CLOCK.sleep_ms(POLL_MS)
    raise ClusterError(
        f"{actor} does not serve ({why}): does its node live? See `rmq-ray status` and `ray "
        f"status`",
        actor,
    )
