"""What differs between a master and a slave in how requests are served (protocol-behaviour 5, 22).

Decides: how a slave refuses what only its master serves (``remoting.request_table``), how long an
answer waits. A slave serves reads: pulls, scans, queries, offsets, heartbeats (so that it knows the
subscriptions of those who read from it). Sends are refused by the topic gate with the topic's name;
the end of a transaction has an answer of its own.
"""

from __future__ import annotations

from rmq_ray.config import BrokerConfig, FlushMode, ReplicationMode
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.refusal import Refused


def refuse_as_slave(identity: Identity) -> None:
    """Raises ``Refused`` (16) while ``identity`` is a slave's: the request is its master's."""
    if identity.is_slave:
        raise Refused(
            f"broker {identity.name} at {identity.address} is a slave; ask the master",
            ResponseCode.NO_PERMISSION,
        )


def answer_wait_ms(config: BrokerConfig) -> int:
    """How long the answer to a send waits: for the disk (syncFlushTimeout), else for slaves
    (slaveTimeout).
    """
    waits_for_disk = (
        config.store.flush is FlushMode.SYNC_FLUSH
        or config.replication is ReplicationMode.ASYNC_MASTER
    )
    return config.store.sync_flush_timeout_ms if waits_for_disk else config.slave_timeout_ms
