"""What people are told of a SYNC_MASTER with too few copies: by its log, ``status``, ``health``,
and before it starts. Words only; who is in sync is decided by ``protocol.election.replication``.
"""

from __future__ import annotations


def not_delivered(copies: int) -> str:
    """Of a broker that has so many copies in sync, the master's counted, and needs more.

    >>> not_delivered(1)
    'sends are stored, not acknowledged, not delivered: no slave in sync'
    """
    who = "no slave" if copies < 2 else f"only {copies} copies"
    return f"sends are stored, not acknowledged, not delivered: {who} in sync"


def needs_all(broker: str, copies: int, copies_min: int) -> str | None:
    """What it means that a broker with SYNC_MASTER has no copy more than an acknowledgement needs;
    None where it has. ``copies``: the master's counted.
    """
    if copies > copies_min:
        return None
    slaves = "one slave" if copies == 2 else f"{copies - 1} slaves"
    return (
        f"{broker} has replication='sync', {slaves} and copies_min={copies_min}: while any copy is "
        f"away, after a fail-over until the old master is back, sends raise SendUnconfirmed and "
        f"nothing is delivered. With replicas={copies} any one may be away; with copies_min=1 the "
        f"master goes on alone while no slave is in sync, on one disk then"
    )
