"""Copies that consumers send back count against the bytes that may wait for the disk, like every
send.
"""

from __future__ import annotations

from pathlib import Path

from rmq_ray.config import FlushMode
from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.headers import SendBackHeader
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer


def test_more_than_the_disk_can_take_is_refused_and_the_consumer_keeps_the_message(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH, in_flight_bytes_max=2_500).open()
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    bench.core.tables.groups.put(GroupConfig("billing"))
    peer = FakePeer()
    bench.core.handle(
        bench.command(Code.SEND_RECORDS, None, bench.frame("orders", 0, [b"x" * 1_000])), peer
    )
    bench.offload.run_until(lambda: bool(peer.sent))
    peer.take()
    header = SendBackHeader(0, "billing", 0, "UNIQUE", "orders", False, None).to_fields()
    answers = [
        bench.core.handle(bench.command(Code.CONSUMER_SEND_MSG_BACK, header), peer)
        for _ in range(3)
    ]
    assert (
        answers[:2] == [None, None]
        and answers[2] is not None
        and answers[2].code == ResponseCode.SYSTEM_BUSY
    )
    bench.offload.run_until(lambda: len(peer.sent) == 2)
    assert [answer.code for answer in peer.take()] == [0, 0]
    bench.close()
