"""What a broker tells of itself: BROKER_STATUS (operations: status). Decides: the names. Called by
``BrokerCore.status``, in the loop.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_ray.server.core.broker_core import BrokerCore

FALL_BEHIND_TOLD = 20


def broker_status(core: BrokerCore) -> dict[str, Any]:
    """States and counts of ``core``; plain values."""
    store, keeper, identity, tables = core.keeper.store, core.keeper, core.identity, core.tables
    found: dict[str, Any] = {
        "state": keeper.state.value,
        "error": None if keeper.error is None else f"{type(keeper.error).__name__}: {keeper.error}",
        "reopened": keeper.reopened,
        "pid": os.getpid(),
        "broker_name": identity.name,
        "broker_id": identity.broker_id,
        "cluster": identity.cluster,
        "address": identity.address,
        "boot_ms": identity.boot_ms,
        "draining": identity.draining,
        "flush": core.config.store.flush.value,
        "topics": len(tables.topics),
        "consumer_groups": core.members.consumers.groups(),
        "parked_pulls": len(core.pulls.parked),
        "late_pulls": core.pulls.parked.late,
        "hold_alive": core.pulls.parked.hold.alive,
        "waiting_acks": len(core.acks),
        "in_flight_bytes": core.acks.in_flight_bytes,
        "flush_timeouts": core.acks.timeouts,
        "slave_timeouts": core.acks.slave_timeouts,
        "offsets_lowered": tables.offsets.lowered,
        "offsets_refused": tables.offsets.refused,
        "offsets_clamped": tables.offsets.clamped,
        "commits_fenced": tables.offsets.fenced,
        "queue_locks": len(core.members.locks),
        "delay_offsets": core.delays.offsets(),
        "fall_behind": tables.offsets.behind.worst(FALL_BEHIND_TOLD),
        "half_messages": core.transactions.pending,
        "timing_messages": core.timed.waiting,
        "pop": core.pops.status(),
        "replication": core.replication.status(),
        "identity": None,
        "epoch": 0,
        **core.upkeep.status(),
        **core.counters.as_dict(),
    }
    if store is not None:
        found |= {
            "identity": store.identity,
            "epoch": store.epoch,
            "visible_offset": store.visible_offset,
            "durable_offset": store.durable_offset,
            "store": store.status(),
        }
    if core.replica_status is not None:
        found["replica"] = core.replica_status()
    return found
