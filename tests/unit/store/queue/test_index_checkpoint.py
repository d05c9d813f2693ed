"""What RocketMQ's checkpoint says of the index is on disk: after any stop Apache RocketMQ finds
every key or indexes it again.
"""

from __future__ import annotations

from rmq_ray.store.queue.index_file import IndexFile
from rmq_ray.store.recovery.checkpoint import load_store_checkpoint
from tests.support.brokers.store_rig import ROOT, StoreRig


def index_on_disk(rig: StoreRig) -> IndexFile:
    names = rig.disk.list_dir(f"{ROOT}/index")
    return IndexFile.load(
        f"{ROOT}/index/{names[-1]}", rig.config.index_slots, rig.config.index_items, rig.disk
    )


def test_a_clean_stop_leaves_header_slots_and_checkpoint_of_one_moment() -> None:
    rig = StoreRig()
    for number in range(5):
        rig.clock.advance_ms(1_000)
        rig.send([b"a", b"b"], sequence=number)
    rig.store.shutdown()
    file = index_on_disk(rig)
    assert file.header.next_item == 11
    assert (
        load_store_checkpoint(rig.disk, f"{ROOT}/checkpoint").index_ms
        == file.header.end_ms
        == rig.clock.now_ms()
    )


def test_while_the_store_runs_the_header_on_disk_ends_where_the_checkpoint_says() -> None:
    rig = StoreRig()
    rig.send([b"a"], sequence=0)
    assert rig.store._checkpointer is not None and rig.store._checkpointer.write(
        thorough=True
    )  # both checkpoints
    noted_ms = load_store_checkpoint(rig.disk, f"{ROOT}/checkpoint").index_ms
    assert index_on_disk(rig).header.end_ms == noted_ms == rig.clock.now_ms()
    rig.clock.advance_ms(1_000)
    rig.send([b"a"], sequence=2)
    rig.store.flush()  # writes ours only
    assert index_on_disk(rig).header.end_ms == noted_ms
