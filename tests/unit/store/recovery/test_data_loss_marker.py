"""When a log says of itself that it may lack what was acknowledged of it."""

from __future__ import annotations

from rmq_ray.config import FlushMode
from tests.support.brokers.store_rig import StoreRig, small_config
from tests.support.faults.crash_fs import keep_none


def test_a_fresh_log_is_sound() -> None:
    rig = StoreRig()
    assert rig.report.sound
    rig.store.shutdown()
    assert rig.next_life(rig.disk).report.sound


def test_a_log_that_lost_all_it_had_with_its_hosts_power_in_its_first_second_is_not_sound() -> None:
    rig = StoreRig()
    rig.send([b"acknowledged"], 0)
    after = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
    assert after.bodies() == [] and not after.report.sound


def test_a_process_that_died_in_its_first_second_left_a_sound_log() -> None:
    rig = StoreRig()
    rig.send([b"acknowledged"], 0)
    after = rig.next_life(rig.disk.after_kill())
    assert after.bodies() == [b"acknowledged"] and after.report.sound


def test_where_acknowledged_means_on_disk_a_loss_of_power_takes_nothing_that_counts() -> None:
    rig = StoreRig(config=small_config(flush=FlushMode.SYNC_FLUSH))
    rig.send([b"synced"], 0)
    rig.settle()
    rig.send([b"never acknowledged"], 1)
    after = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
    assert after.bodies() == [b"synced"] and after.report.sound
