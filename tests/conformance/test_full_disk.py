"""A disk without room under a real broker: typed refusals, reads go on, and it recovers by itself
(tmpfs; skipped where the test may not mount).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import FlushMode
from rmq_ray.errors import BrokerBusy, SendUnknown
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.faults.chaos import Acknowledged, check_log, place_of, read_log
from tests.support.waiting import eventually

DISK_BYTES = 12 << 20
BODY_BYTES = 20_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("preallocate", [True, False])
@pytest.mark.parametrize("flush", list(FlushMode))
def test_sends_are_refused_while_the_disk_is_full_reads_go_on_and_it_recovers_by_itself(
    disk: Path, flush: FlushMode, preallocate: bool
) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(6 << 20))
    acknowledged, collector = Acknowledged(), Collector()
    with LiveCluster(disk, flush=flush, preallocate=preallocate) as cluster:
        admin = Admin(cluster)
        admin.create_topic("orders", queues=1)
        with (
            Producer("web", discovery=cluster, send_timeout_ms=2_000) as producer,
            PushConsumer(
                "g",
                listener=collector,
                subscriptions={"orders": "*"},
                discovery=cluster,
                start_from="first",
            ),
        ):

            def send(number: int) -> None:
                body = b"%d " % number + bytes(BODY_BYTES)
                acknowledged.places[body] = place_of(producer.send("orders", body))

            refused = unknown = 0
            for number in range(1_000):
                try:
                    send(number)
                except BrokerBusy:
                    refused += 1
                    if refused == 3:
                        break
                except SendUnknown:
                    # a slow machine: an attempt ran out of its time, and after that no refusal
                    # makes the send a definite failure
                    unknown += 1
                    assert unknown < 10
            assert refused == 3 and 50 < len(acknowledged.places) < 1_000
            # what the index has no room for is seen once there is
            visible = sum(stats.max_offset for stats in admin.topic_stats("orders").values())
            assert visible > 50
            collector.wait_for(visible)
            assert cluster.brokers[0].status()["state"] == "serving"
            ballast.unlink()
            eventually(lambda: sendable(producer), 10)
            for number in range(1_000, 1_020):
                send(number)
            ends = {queue: stats.max_offset for queue, stats in admin.topic_stats("orders").items()}
            collector.wait_for(sum(ends.values()))
        check_log(read_log(cluster, "orders"), acknowledged, ends)
        (stored,) = ends.values()
        assert len(acknowledged.places) + 1 <= stored <= len(acknowledged.places) + 1 + unknown
        assert sorted(set(collector.places)) == [
            ("broker-a", 0, offset) for offset in range(stored)
        ]
        admin.close()


def sendable(producer: Producer) -> bool:
    try:
        producer.send("orders", b"again")
    except BrokerBusy:
        return False
    return True


def fill(disk: Path, ratio: float) -> None:
    """Somebody else's file, so that ``ratio`` of the disk is used."""
    ballast, stat = disk / "ballast", os.statvfs(disk)
    ballast.touch()
    own = ballast.stat().st_size
    used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    ballast.write_bytes(bytes(max(0, own + int(stat.f_blocks * stat.f_frsize * ratio) - used)))


def test_a_disk_that_fills_up_loses_expired_segments_then_any_then_refuses_writes_and_recovers(
    disk: Path,
) -> None:
    """75, 85 and 90 % of a real file system, each crossed from below; the cycles of retention are
    called instead of waited for.
    """
    with (
        LiveCluster(disk, preallocate=False, delete_when="") as cluster,
        Producer("web", discovery=cluster, send_timeout_ms=3_000) as producer,
    ):
        for number in range(50):
            producer.send("orders", b"%d " % number + bytes(BODY_BYTES))
        store = cluster.store()

        def begin_after(ratio: float) -> int:
            store.flush()
            fill(disk, ratio)
            return store.clean(SYSTEM_CLOCK.now_ms()).begin

        segments = store.opened.chain.segments()
        os.utime(segments[0].path, (1, 1))
        assert begin_after(0.74) == 0
        assert begin_after(0.80) == segments[0].end, "expired, whatever the hour"
        assert begin_after(0.80) == segments[0].end, "the others are young"
        forced = begin_after(0.88)
        assert forced >= segments[1].end and not store.status()["disk_full"]
        begin_after(0.95)
        with pytest.raises(BrokerBusy, match="is full: 9.% used, 0.0 GiB free"):
            producer.send("orders", b"refused")
        assert read_log(cluster, "orders"), "reads go on"
        begin_after(0.3)
        producer.send("orders", b"again")
        assert cluster.brokers[0].status()["state"] == "serving"
