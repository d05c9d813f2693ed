"""Extension units through random stops of the store: an entry refers to its own record's unit, or
to none that can be read, never to another's.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.codec.record import tag_of
from rmq_ray.codec.store_files import ENTRY
from rmq_ray.config import FlushMode
from rmq_ray.model.hashing import java_hash
from rmq_ray.store.queue.consume_queue_ext import ExtendedQueue, is_address
from tests.support.brokers import store_rig
from tests.support.brokers.store_rig import StoreRig, allow_short_memory, make_frame
from tests.unit.store.recovery.test_crash_simulation import LIVES, QUEUES, STEPS, Simulation


class ExtSimulation(Simulation):
    """Every frame has a tag of its own."""

    def __init__(self, seed: int, mode: FlushMode) -> None:
        super().__init__(seed, mode)
        self.rig = StoreRig(
            config=self.rig.config.but(consume_queue_ext=True, consume_queue_ext_bytes=65_536)
        )
        self.units = self.lost = 0

    def check(self, must: int) -> None:
        super().check(must)
        for queue_id in range(QUEUES):
            queue = self.rig.store.opened.queues.find("TopicTest", queue_id)
            if queue is None:
                continue
            assert isinstance(queue, ExtendedQueue)
            for record in self.rig.records(queue_id):
                address = ENTRY.unpack(queue.read(record.queue_offset, 1))[2]
                assert is_address(address)
                unit = queue.ext.get(address)
                self.units += 1
                self.lost += unit is None
                tag = tag_of(record.properties)
                assert unit is None or (unit.code, unit.store_ms) == (
                    java_hash(tag or ""),
                    record.store_ms,
                )


@pytest.mark.parametrize("mode", list(FlushMode))
@pytest.mark.parametrize("seed", range(3))
def test_after_any_stop_units_are_those_of_their_records(
    seed: int, mode: FlushMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tagged(bodies: Any, sequence: int = 0, **options: Any) -> Any:
        return make_frame(bodies, sequence=sequence, **(options | {"head": f"TAGS\x01t{sequence}"}))

    monkeypatch.setattr(store_rig, "make_frame", tagged)
    allow_short_memory(monkeypatch, 64)
    simulation = ExtSimulation(seed, mode)
    for life in range(LIVES):
        for _ in range(STEPS):
            simulation.step()
        if life % 3 == 1:
            simulation.fail()
        simulation.die()
    assert simulation.units > 50 and simulation.lost < simulation.units / 2
