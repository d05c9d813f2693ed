"""What differs between a master and a slave in how requests are served (protocol-behaviour 5, 22).

Decides: which requests only a master serves, how long an answer waits. A slave serves reads: pulls,
scans, queries, offsets, heartbeats (so that it knows the subscriptions of those who read from it).
Sends are refused by the topic gate with the topic's name. Called by the broker's core.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_ray.config import BrokerConfig, FlushMode, ReplicationMode
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.refusal import Refused

Handler = Callable[[Command, Peer], Command | None]

MASTER_ONLY = frozenset(
    (
        Code.CONSUMER_SEND_MSG_BACK,
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.DELETE_SUBSCRIPTIONGROUP,
        Code.LOCK_BATCH_MQ,
        Code.UNLOCK_BATCH_MQ,
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.CLONE_GROUP_OFFSET,
        Code.POP_RECORDS,
        Code.SETTLE_POPPED,
        Code.RECALL_MESSAGE,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
        Code.BUNDLE,
        Code.UPDATE_CONSUMER_OFFSET,
    )
)
"""Requests that write, or that hand out what only one broker may hand out. Not END_TRANSACTION:
RocketMQ has an answer of its own to it.
"""


def at_master(handlers: dict[int, Handler], identity: Identity) -> dict[int, Handler]:
    """``handlers``, of which those in ``MASTER_ONLY`` refuse (16) while ``identity`` is a
    slave's.
    """

    def guarded(serve: Handler) -> Handler:
        def handle(command: Command, peer: Peer) -> Command | None:
            if identity.is_slave:
                raise Refused(
                    f"broker {identity.name} at {identity.address} is a slave; ask the master",
                    ResponseCode.NO_PERMISSION,
                )
            return serve(command, peer)

        return handle

    return {
        code: guarded(serve) if code in MASTER_ONLY else serve for code, serve in handlers.items()
    }


def answer_wait_ms(config: BrokerConfig) -> int:
    """How long the answer to a send waits: for the disk (syncFlushTimeout), else for slaves
    (slaveTimeout).
    """
    waits_for_disk = (
        config.store.flush is FlushMode.SYNC_FLUSH
        or config.replication is ReplicationMode.ASYNC_MASTER
    )
    return config.store.sync_flush_timeout_ms if waits_for_disk else config.slave_timeout_ms
