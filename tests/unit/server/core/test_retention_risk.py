"""Groups that fall behind retention and disks that fill up are told early, and once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rmq_ray.config import StoreConfig
from rmq_ray.files import DiskSpace
from rmq_ray.server.core.retention_risk import HOUR_MS, RetentionRisk
from rmq_ray.server.core.upkeep import CLEAN_MS, RISK_CYCLES
from tests.support.brokers.broker_bench import Bench

TERABYTE = 1 << 40


def cycles(bench: Bench, count: int = RISK_CYCLES) -> None:
    for _ in range(count):
        bench.clock.advance_ms(CLEAN_MS)
        bench.core.upkeep.clean()
        bench.offload.run()
        bench.offload.drain()


def test_a_group_is_warned_of_before_retention_takes_what_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path).open()
    bench.send("orders", bodies_=[b"x"] * 10)
    offsets = bench.core.tables.offsets
    offsets.load({("orders", "slow"): {0: 4}, ("orders", "quick"): {0: 10}})
    bench.clock.advance_ms(40 * HOUR_MS)
    with caplog.at_level(logging.INFO, "rmq_ray.server"):
        cycles(bench)
        assert bench.core.status()["falling_behind"] == []
        bench.clock.advance_ms(20 * HOUR_MS)
        cycles(bench, 2 * RISK_CYCLES)
        (row,) = bench.core.status()["falling_behind"]
        assert (row["group"], row["messages"], row["kept_ms"]) == ("slow", 6, 72 * HOUR_MS)
        said = [one.message for one in caplog.records if "falls behind" in one.message]
        assert len(said) == 1 and "group slow" in said[0] and "6 messages" in said[0]
        offsets.load({("orders", "slow"): {0: 10}})
        cycles(bench)
        assert bench.core.status()["falling_behind_groups"] == 0
        assert "does not fall behind" in caplog.text
    bench.close()


def test_each_watermark_of_the_disk_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    risk, config = RetentionRisk(), StoreConfig("/s")

    def used(share: float, plenty: bool = False) -> None:
        risk.tell_disk(DiskSpace(share, TERABYTE), config, plenty=plenty, told=False)

    with caplog.at_level(logging.INFO, "rmq_ray.server"):
        used(0.99, plenty=True)
        assert risk.watermark == 90 and not caplog.records, "free bytes are plenty"
        for share in (0.5, 0.76, 0.77, 0.86, 0.91, 0.88, 0.92, 0.5):
            used(share)
    said = [one.message for one in caplog.records]
    found = [word for line in said for word in line.split() if word in ("75", "85", "90")]
    assert found == ["75", "85", "90", "90"] and risk.watermark == 0
