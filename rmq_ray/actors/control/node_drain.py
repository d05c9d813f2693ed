"""Everything of a cluster leaves a node of Ray before that goes: pre-empted, scaled away, rebooted.

    workers there finish and settle what they hold ──> others are made elsewhere
    copies of brokers there hand over, flush, stop  ──> they start where their disk is next

Decides the order and who gets how much of the time. How a group moves is decided by its fleet
(``actors.workers.fleet``), how a copy leaves and comes back by ``maintenance``. Name servers and
the controller stay until the end: the hand-over needs them, and they have nothing to lose.

Invariants: workers come first, since a broker that is gone takes no offsets; a listener that does
not end costs the brokers half of the time at most.
"""

from __future__ import annotations

from typing import Any

from rmq_ray.actors import gateway
from rmq_ray.clock import SYSTEM_CLOCK, seconds_to
from rmq_ray.errors import ClusterError, ConfigError, RmqError

DRAIN_S = 25.0
"""Clouds that take a host back give notice of 30 s, as Kubernetes does by default."""
MARGIN_S = 1.0
"""Between the end of what an actor does and the end of the wait for its answer."""
LEAST_S = 0.1
AGAIN_MS = 200
WITHIN_S_MIN, WITHIN_S_MAX = 1.0, 3_600.0


def drain_node(cluster: str, node: str | None, within_s: float) -> list[dict[str, Any]]:
    """A row for each part that was there: ``part`` ("broker-a/1", "workers of billing"), ``state``
    (what became of it), ``error`` (None). See ``Cluster.drain_node``.
    """
    if not WITHIN_S_MIN <= within_s <= WITHIN_S_MAX:
        raise ConfigError(
            f"within_s must be {WITHIN_S_MIN:g} to {WITHIN_S_MAX:g} seconds, not {within_s!r}",
            within_s,
        )
    begun_ms = SYSTEM_CLOCK.monotonic_ms()
    until_ms = begun_ms + within_s * 1000
    gateway.controller(cluster)
    here = _id_of(node)
    rows = _drain_workers(cluster, here, begun_ms + within_s * 500)
    return rows + _drain_copies(cluster, here, until_ms)


def _drain_copies(cluster: str, node: str, until_ms: float) -> list[dict[str, Any]]:
    """A controller that is started again meanwhile is asked again."""
    while True:  # ends: it has answered, or at the deadline
        left_s = _seconds_to(until_ms)
        try:
            left: list[dict[str, Any]] = gateway.call(
                gateway.controller(cluster),
                "leave_node",
                node,
                max(LEAST_S, left_s - MARGIN_S) * 1000,
                timeout_s=left_s,
            )
            return [_told(row) for row in left]
        except ClusterError as error:
            if SYSTEM_CLOCK.monotonic_ms() + AGAIN_MS >= until_ms:
                return [{"part": "brokers", "state": "not stopped", "error": str(error)}]
        SYSTEM_CLOCK.sleep_ms(AGAIN_MS)


def _drain_workers(cluster: str, node: str, until_ms: float) -> list[dict[str, Any]]:
    fleets = gateway.fleets_found(cluster)
    left_s = _seconds_to(until_ms)
    answers = gateway.call_each(
        fleets, "leave_node", node, max(LEAST_S, left_s - MARGIN_S), timeout_s=left_s
    )
    rows: list[dict[str, Any]] = []
    for name, answer in answers.items():
        if isinstance(answer, RmqError):
            rows.append({"part": f"workers {name}", "state": "not moved", "error": str(answer)})
        elif answer["moved"]:
            late = None if answer["ended"] else "some listeners did not end: messages come again"
            moved = f"{answer['moved']} moved"
            rows.append({"part": f"workers of {answer['group']}", "state": moved, "error": late})
    return rows


def _seconds_to(until_ms: float) -> float:
    return max(LEAST_S, seconds_to(SYSTEM_CLOCK, until_ms))


def _told(row: dict[str, Any]) -> dict[str, Any]:
    if row["error"] is not None:
        state = "not stopped"
    else:
        state = "stopped" if row["was"] == "running" else "was stopped"
        if row["master"] is not None:
            state += f", replica {row['master']} is master"
    return {"part": row["copy"], "state": state, "error": row["error"]}


def _id_of(node: str | None) -> str:
    """``ConfigError`` where no living node has this id or address, or several have it, or none is
    named where this process is on none.
    """
    if node is None:
        if gateway.by_ray_client():
            raise ConfigError("name the node: a driver of Ray Client (ray://) is not on one", node)
        return gateway.my_node()
    nodes = gateway.nodes()
    found = [one.id for one in nodes if node in (one.id, one.address)]
    if len(found) != 1:
        raise ConfigError(
            f"{len(found)} living nodes of Ray are {node!r}; there are "
            f"{', '.join(f'{one.address} ({one.id})' for one in nodes)}",
            node,
        )
    return found[0]
