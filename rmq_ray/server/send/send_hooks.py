"""Hooks of a broker around every send that it takes, whoever sent it (protocol-behaviour 9, 25):
accounting, audit, tracing on the server's side.

    BrokerConfig(store, send_hooks=(Audit(),))

The hooks are objects with ``before(ctx)`` and ``after(ctx)``, pickled with the configuration.

Decides what a hook sees. Hooks run in the broker's loop: they must not block. One that raises is
logged, also where it exits; the send goes on. A broker without hooks has its handlers as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_ray.codec.record import decode_record
from rmq_ray.errors import RmqError
from rmq_ray.guard import guarded
from rmq_ray.ports import Peer
from rmq_ray.remoting.request_table import Handler, Row
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.halves import unpack_halves_header
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.remoting.wire.records import unpack_send

LONG_NAMES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)

log = logging.getLogger("rmq_ray.server")


@dataclass(slots=True)
class BrokerSendContext:
    """One send request. ``count``: records of a frame, 1 else. ``code``: how it was answered, None
    before and for answers that wait for the disk.

    ``group``: the producer group, empty for frames, whose records do not name it. ``carried``: the
    hooks' own.
    """

    request_code: int
    topic: str
    queue_id: int
    group: str
    host: str
    body_bytes: int
    count: int = 1
    code: int | None = None
    carried: dict[str, Any] = field(default_factory=dict)


def hooked(
    requests: Mapping[int, tuple[Row, Handler]], hooks: Sequence[Any]
) -> dict[int, tuple[Row, Handler]]:
    """What is served, with the hooks around the handlers of rows that say so."""
    return {
        code: (row, _around(handler, hooks) if hooks and row.hooked else handler)
        for code, (row, handler) in requests.items()
    }


def _around(handler: Handler, hooks: Sequence[Any]) -> Handler:
    def handle(command: Command, peer: Peer) -> Command | None:
        ctx = _context(command, peer)
        if ctx is None:
            return handler(command, peer)
        for hook in hooks:
            _call(hook, "before", ctx)
        try:
            answer = handler(command, peer)
            ctx.code = None if answer is None else answer.code
        except Exception as error:
            ctx.code = getattr(error, "code", 1)
            raise
        finally:
            for hook in reversed(hooks):
                _call(hook, "after", ctx)
        return answer

    return handle


def _context(command: Command, peer: Peer) -> BrokerSendContext | None:
    """None for a request that cannot be read: the handler says what is wrong with it."""
    try:
        if command.code == RequestCode.SEND_HALVES:
            halves, (records, sizes) = (
                unpack_halves_header(command.fields),
                unpack_send(command.body),
            )
            return BrokerSendContext(
                command.code,
                halves.topic,
                halves.queue_id,
                halves.group,
                peer.host,
                len(records),
                len(sizes),
            )
        if command.code == RequestCode.SEND_RECORDS:
            records, sizes = unpack_send(command.body)
            first = decode_record(records, 0)
            return BrokerSendContext(
                command.code, first.topic, first.queue_id, "", peer.host, len(records), len(sizes)
            )
        header = (
            SendHeader.from_fields(command.fields)
            if command.code in LONG_NAMES
            else SendHeader.from_v2(command.fields)
        )
    except (RmqError, ValueError):
        return None
    return BrokerSendContext(
        command.code,
        header.topic,
        header.queue_id,
        header.producer_group,
        peer.host,
        len(command.body),
    )


def _call(hook: Any, method: str, ctx: BrokerSendContext) -> None:
    kind = f"{type(hook).__name__}.{method}"
    guarded(log, kind, getattr(hook, method), ctx, then="the send goes on")
