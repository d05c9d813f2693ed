"""What a broker relays to a running pull consumer from operators: 220, 221, 307 (protocol-behaviour
23; remoting 4).

    220 reset     queues that are held go on at the given offsets at once, and the group's commits with them
    221 status    what was committed in each queue of a topic
    307 info      what this member is and how its queues stand

Called in a reader thread: nothing waits there, a reset is done by the thread of delayed calls.
Consuming one message directly (309) needs a listener and is refused.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from rmq_ray.client.consumer.offset_store import ReadOffset
from rmq_ray.client.pull.pull_engine import PullEngine
from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire import bodies_groups
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers_groups import ConsumerStatusHeader

log = logging.getLogger("rmq_ray.client.consumer")


class PullOperations:
    """Of one started pull consumer."""

    def __init__(self, engine: PullEngine) -> None:
        self._engine = engine

    def handle(self, command: Command) -> Command | None:
        """The answer; None for a one-way request."""
        engine = self._engine
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            offsets = bodies_groups.decode_offsets(command.body_bytes())
            engine.parts.delayed.after(0, partial(self._reset, offsets))
            return None
        if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            topic = ConsumerStatusHeader.from_fields(command.fields).topic
            return command.answer(
                fields={}, body=bodies_groups.encode_client_status(engine.offsets.clone(topic))
            )
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return command.answer(
                fields={},
                body=bodies_groups.encode_running_info(self._properties(), self._queues(), {}),
            )
        if command.is_oneway:
            return None
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"request code {command.code} is not known to this pull consumer",
        )

    def _reset(self, offsets: dict[MessageQueue, int]) -> None:
        for queue in offsets.keys() & self._engine.parts.assigned.snapshot().keys():
            log.info(
                "an operator moves group %s on %s to offset %d",
                self._engine.parts.group,
                queue,
                offsets[queue],
            )
            self._engine.seek(queue, offsets[queue])
            self._engine.offsets.commit(queue, offsets[queue])

    def _properties(self) -> dict[str, str]:
        servers = ";".join(map(str, self._engine.client.link.name_server_addresses))
        return {
            "PROP_NAMESERVER_ADDR": servers,
            "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CLIENT_VERSION": "V4_9_7",
        }

    def _queues(self) -> dict[MessageQueue, dict[str, Any]]:
        found: dict[MessageQueue, dict[str, Any]] = {}
        for queue, work in self._engine.parts.assigned.snapshot().items():
            process, committed = work.process, self._engine.offsets.read(queue, ReadOffset.MEMORY)
            found[queue] = {
                "cachedMsgCount": process.count,
                "cachedMsgMaxOffset": max(0, process.next_offset - 1),
                "cachedMsgMinOffset": work.position,
                "cachedMsgSizeInMiB": process.body_bytes >> 20,
                "commitOffset": max(0, committed),
                "droped": process.dropped,
                "lastConsumeTimestamp": 0,
                "lastLockTimestamp": 0,
                "lastPullTimestamp": process.last_pull_ms,
                "locked": False,
                "transactionMsgCount": 0,
                "transactionMsgMaxOffset": 0,
                "transactionMsgMinOffset": 0,
                "tryUnlockTimes": 0,
            }
        return found
