"""What a broker relays to a running consumer from operators: 220, 221, 307, 309 (protocol-behaviour
23; remoting 4).

    220 reset     queues that are held go on at the given offsets
                  (push: they are dropped at once, and go on about 10 s later, when listeners are
                  through; pull: at once, and the group's commits with them)
    221 status    where this member is in each queue of a topic (pull: what was committed)
    307 info      what this member is and how its queues stand
    309 directly  the listener gets one message, in a thread of its own; what it did is told, and
                  nothing is committed. Refused by a consumer without a listener.

Runs in a reader thread: returns at once, later answers go through ``client.link``. Invariant: one
message is consumed directly at a time, a second request is refused.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rmq_ray.client.consumer.assigned_queue import AssignedQueue
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.consumer.offset_store import ReadOffset
from rmq_ray.client.messages.listener import (
    COMMIT,
    ROLLBACK,
    ConsumeContext,
    Listener,
    OrderlyContext,
    OrderlyStep,
    Reject,
    judge,
    judge_orderly,
)
from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.codec.record import decode_record
from rmq_ray.errors import RmqError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.remoting.wire import bodies_groups
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.group_headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    RunningInfoHeader,
)

REMARK_CHARS_MAX = 2_000
STACK_FRAMES_MAX = 20
CLIENT_VERSION = "V4_9_7"
ORDERLY = "PROP_CONSUMEORDERLY"

log = logging.getLogger("rmq_ray.client.consumer")


class OperatorRequests:
    """Of one started consumer. ``name``: as remarks call it; ``properties``: what 307 tells of this
    kind; ``reset(work, offset)``: the group is moved on a held queue.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        name: str,
        properties: Mapping[str, str],
        reset: Callable[[AssignedQueue, int], None],
        listener: Listener | None = None,
    ) -> None:
        self._parts = parts
        self._name = name
        self._properties = properties
        self._orderly = properties[ORDERLY] == "true"
        self._reset_to = reset
        self._listener = listener
        self._direct = threading.Lock()
        self._asked: tuple[float, dict[str, tuple[int, int, int]]] = (
            parts.clock.monotonic_ms(),
            {},
        )
        """When 307 was answered last, and what was consumed, failed and pulled by then, by
        topic.
        """
        self._handlers: dict[int, Callable[[Command, Address], Command | None]] = {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._info,
        }
        if listener is not None:
            self._handlers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume_directly

    def handle(self, command: Command, address: Address) -> Command | None:
        """The answer; None where it comes later or there is none."""
        handler = self._handlers.get(command.code)
        if handler is not None:
            return handler(command, address)
        if command.is_oneway:
            return None
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"request code {command.code} is not known to this {self._name}",
        )

    def _reset(self, command: Command, address: Address) -> None:
        offsets = bodies_groups.decode_offsets(command.body_bytes())
        held = self._parts.assigned.snapshot()
        for queue in offsets.keys() & held.keys():
            log.info(
                "an operator moves group %s on %s to offset %d",
                self._parts.group,
                queue,
                offsets[queue],
            )
            self._reset_to(held[queue], offsets[queue])

    def _status(self, command: Command, address: Address) -> Command:
        topic = ConsumerStatusHeader.from_fields(command.fields).topic
        return command.answer(
            fields={}, body=bodies_groups.encode_client_status(self._parts.offsets.clone(topic))
        )

    def _info(self, command: Command, address: Address) -> Command:
        parts = self._parts
        servers = ";".join(map(str, parts.client.link.name_server_addresses))
        properties = {
            "PROP_NAMESERVER_ADDR": servers,
            "PROP_CLIENT_VERSION": CLIENT_VERSION,
            **self._properties,
        }
        queues: dict[MessageQueue, dict[str, Any]] = {}
        for queue, work in parts.assigned.snapshot().items():
            process, committed = work.process, parts.offsets.read(queue, ReadOffset.MEMORY)
            queues[queue] = {
                "cachedMsgCount": process.count,
                "cachedMsgMaxOffset": max(0, process.next_offset - 1),
                "cachedMsgMinOffset": process.commit_offset,
                "cachedMsgSizeInMiB": process.body_bytes >> 20,
                "commitOffset": max(0, committed),
                "droped": process.dropped,
                "lastConsumeTimestamp": process.last_consume_ms,
                "lastPullTimestamp": process.last_pull_ms,
                "locked": work.lease is not None,
            }
            if work.lease is not None:
                age_ms = parts.clock.monotonic_ms() - work.lease.asked_ms
                queues[queue]["lastLockTimestamp"] = int(parts.clock.now_ms() - age_ms)
        stacks = None
        if RunningInfoHeader.from_fields(command.fields).jstack_enable:
            stacks = _stacks()
        body = bodies_groups.encode_running_info(
            properties, queues, self._rates(), parts.subscriptions.all(), stacks
        )
        return command.answer(fields={}, body=body)

    def _rates(self) -> dict[str, dict[str, float]]:
        """By topic, of the queues that are held: messages a second since somebody asked last."""
        counts: dict[str, tuple[int, int, int]] = {}
        for queue, work in self._parts.assigned.snapshot().items():
            done, failed, pulled = counts.get(queue.topic, (0, 0, 0))
            counter = work.counters
            counts[queue.topic] = (
                done + counter.consumed_ok,
                failed + counter.consumed_failed,
                pulled + counter.pulled,
            )
        now_ms = self._parts.clock.monotonic_ms()
        (then_ms, before), self._asked = self._asked, (now_ms, counts)
        elapsed_s = max(1.0, now_ms - then_ms) / 1_000
        found = {}
        for topic, (done, failed, pulled) in counts.items():
            done_then, failed_then, pulled_then = before.get(topic, (0, 0, 0))
            found[topic] = {
                "consumeOKTPS": max(0, done - done_then) / elapsed_s,
                "consumeFailedTPS": max(0, failed - failed_then) / elapsed_s,
                "pullTPS": max(0, pulled - pulled_then) / elapsed_s,
                "consumeFailedMsgs": failed,
            }
        return found

    def _consume_directly(self, command: Command, address: Address) -> Command | None:
        broker = ConsumeDirectlyHeader.from_fields(command.fields).broker_name or ""
        message = _message(command.body_bytes(), broker, self._parts.config.namespace)
        if not self._direct.acquire(blocking=False):
            return command.answer(
                ResponseCode.SYSTEM_BUSY,
                remark="this consumer is consuming another message directly; ask again later",
            )
        later = Command(
            command.code, command.opaque, command.flag, command.fields, serialize=command.serialize
        )
        threading.Thread(
            target=self._run_directly,
            args=(later, address, message),
            name="rmq-consume-directly",
            daemon=True,
        ).start()
        return None

    def _run_directly(self, command: Command, address: Address, message: MessageExt) -> None:
        clock, group = self._parts.clock, self._parts.group
        ctx = (
            OrderlyContext(group, message.queue)
            if self._orderly
            else ConsumeContext(group, message.queue)
        )
        began_ms, remark = clock.monotonic_ms(), None
        assert self._listener is not None
        try:
            answer = self._listener([message], ctx)
        except Reject as rejection:
            answer = rejection
        except BaseException as error:  # noqa: BLE001
            answer, remark = error, traceback.format_exc()[-REMARK_CHARS_MAX:]
        finally:
            self._direct.release()
        outcome, fault = _outcome(answer, ctx)
        body = bodies_groups.encode_direct_result(
            outcome,
            int(clock.monotonic_ms() - began_ms),
            remark or fault,
            order=self._orderly,
            auto_commit=bool(getattr(ctx, "auto_commit", True)),
        )
        try:
            self._parts.client.link.answer(address, command.answer(fields={}, body=body))
        except RmqError as error:
            log.warning(
                "what became of message %s, consumed directly, was not told: %s",
                message.message_id,
                error,
            )


def _stacks() -> str:
    """Where every thread of this process stands now, as ``jstack`` would tell."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        lines = traceback.format_stack(frame, STACK_FRAMES_MAX)
        found.append(f"{names.get(ident, ident)} TID: {ident} STATE: RUNNABLE\n{''.join(lines)}")
    return "\n".join(found)


def _outcome(answer: object, ctx: ConsumeContext | OrderlyContext) -> tuple[str, str | None]:
    """RocketMQ's name of what the listener answered, and what was wrong with it."""
    if isinstance(answer, BaseException) and not isinstance(answer, Reject):
        return "CR_THROW_EXCEPTION", None
    if isinstance(ctx, ConsumeContext):
        verdict = judge(answer, ctx, 1)
        return (
            "CR_SUCCESS" if verdict.done else "CR_LATER"
        ), None if verdict.fault is None else str(verdict.fault)
    if answer is COMMIT or answer is ROLLBACK:
        return ("CR_COMMIT" if answer is COMMIT else "CR_ROLLBACK"), None
    found = judge_orderly(answer, ctx)
    return (
        "CR_SUCCESS" if found.step in (OrderlyStep.COMMIT, OrderlyStep.KEEP) else "CR_LATER"
    ), None if found.fault is None else str(found.fault)


def _message(raw: bytes, broker_name: str, namespace: str) -> MessageExt:
    record = decode_record(raw)
    queue = MessageQueue(record.topic, broker_name, record.queue_id)
    page = PulledPage(queue, raw, np.array([len(raw)], ">i4"))
    page.namespace = namespace
    return page.messages()[0]
