"""Hooks of a broker around the sends that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.model.ids import FrameId
from rmq_ray.remoting.request_table import Party, rows_of
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.remoting.wire.records import pack_send
from rmq_ray.server.send.send_hooks import BrokerSendContext, hooked
from tests.support.brokers.broker_bench import Bench


class Audit:
    """Keeps what it saw; ``fail`` raises in both."""

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail
        self.seen: list[tuple[str, BrokerSendContext, int | None]] = []

    def before(self, ctx: BrokerSendContext) -> None:
        self.seen.append(("before", ctx, ctx.code))
        if self.fail:
            raise RuntimeError("a hook's own fault")

    def after(self, ctx: BrokerSendContext) -> None:
        self.seen.append(("after", ctx, ctx.code))
        if self.fail:
            raise RuntimeError("a hook's own fault")


def frame(count: int) -> Any:
    texts = [f"UNIQ_KEY\x01{n:032X}" for n in range(count)]
    return pack_send(*encode_frame("orders", 0, [b"x"] * count, texts, 1, FrameId(b"p" * 16, 0)))


@pytest.mark.seed("S3-084")
def test_every_kind_of_send_is_seen_before_and_after(tmp_path: Path) -> None:
    audit, broken = Audit(), Audit(fail=True)
    bench = Bench(tmp_path, send_hooks=(broken, audit)).open()
    try:
        header = SendHeader(
            producer_group="web", topic="orders", queue_id=0, sys_flag=0, born_ms=1, flag=0
        )
        bench.ask(RequestCode.SEND_MESSAGE_V2, header.to_v2(), b"body")
        bench.offload.drain()
        audit.seen.clear()
        assert bench.ask(RequestCode.SEND_MESSAGE, header.to_fields(), b"body").code == 0
        assert (
            bench.ask(RequestCode.SEND_MESSAGE_V2, header.to_v2() | {"e": "99"}, b"body").code == 1
        )
        assert bench.ask(RequestCode.SEND_RECORDS, None, frame(3)).code == 0
        assert bench.ask(RequestCode.SEND_RECORDS, None, b"junk").code != 0
        assert bench.ask(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}).code == 0
    finally:
        bench.close()
    assert [(what, code) for what, _, code in audit.seen] == [
        ("before", None),
        ("after", 0),
        ("before", None),
        ("after", 1),
        ("before", None),
        ("after", 0),
    ]
    first, _, records = (audit.seen[at][1] for at in (0, 2, 4))
    assert (first.topic, first.queue_id, first.group, first.body_bytes, first.count) == (
        "orders",
        0,
        "web",
        4,
        1,
    )
    assert (records.topic, records.count, records.group) == ("orders", 3, "")
    assert len(broken.seen) >= len(audit.seen), (
        "a hook that raises stops neither the send nor the others"
    )


def test_hooks_run_around_sends_alone_and_without_hooks_handlers_are_what_they_were() -> None:
    rows = rows_of(Party.BROKER)
    handlers: dict[int, Any] = {
        code: (rows[code], print) for code in (RequestCode.SEND_RECORDS, RequestCode.PULL_MESSAGE)
    }
    assert hooked(handlers, ()) == handlers
    around = hooked(handlers, (Audit(),))
    assert around[RequestCode.PULL_MESSAGE][1] is print
    assert around[RequestCode.SEND_RECORDS][1] is not print
