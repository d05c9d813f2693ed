"""A message store on a ``CrashFileSystem``, frames to put into it, and what a reader sees of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from rmq_ray.arrays import Array
from rmq_ray.client.outgoing.producer_identity import UniqueKeys
from rmq_ray.clock import ManualClock
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.record import Record, decode_record
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.model.ids import FrameId
from rmq_ray.setting import known
from rmq_ray.store.front.message_store import AppendResult, MessageStore
from tests.support.faults.crash_fs import CrashFileSystem

ROOT = "/store"
BORN = ("10.1.2.3", 40000)
HOST = ("10.0.0.1", 10911)
KEYS = UniqueKeys("10.1.2.3", 4711, 0x1234ABCD)


def allow_short_memory(monkeypatch: pytest.MonkeyPatch, frames: int) -> None:
    """A store may remember fewer frames than a broker may, so that frames fall out of the window in
    lives as short as a test's.
    """
    name = "deduplication_frames"
    monkeypatch.setitem(StoreConfig.__known__, name, replace(known(StoreConfig, name), low=frames))


def small_config(**changes: object) -> StoreConfig:
    """64 KiB segments, tiny queues and indexes, threads that would never wake by themselves."""
    values: dict[str, object] = {
        "path": ROOT,
        "segment_bytes": 65_536,
        "consume_queue_entries": 50,
        "index_slots": 100,
        "index_items": 400,
        "flush_interval_ms": 3_600_000,
        "checkpoint_interval_ms": 3_600_000,
        "preallocate": False,
    }
    return StoreConfig(**(values | changes))  # type: ignore[arg-type]


def make_frame(
    bodies: Sequence[bytes],
    producer: int = 1,
    sequence: int | None = 0,
    topic: str = "TopicTest",
    queue_id: int = 0,
    head: str = "",
    now_ms: int = 1_700_000_000_000,
) -> tuple[bytearray, Array]:
    """A frame as a producer sends it; ``head``: properties before the unique key."""
    keys = KEYS.take(now_ms, len(bodies))
    prefix = f"{head}\x02" if head else ""
    properties = [f"{prefix}UNIQ_KEY\x01{key}" for key in keys]
    frame_id = None if sequence is None else FrameId(producer.to_bytes(16, "big"), sequence)
    records, sizes = encode_frame(topic, queue_id, bodies, properties, now_ms, frame_id)
    return bytearray(records), sizes


def delete_topic(store: MessageStore, topic: str) -> int:
    """As a broker does it; how many queues went."""
    store.end_topic(topic)
    store.lives.save(store.lives.snapshot())
    return store.delete_topic(topic)


@dataclass
class StoreRig:
    """One life of a store. ``disk`` outlives it."""

    disk: CrashFileSystem = field(default_factory=CrashFileSystem)
    config: StoreConfig = field(default_factory=small_config)
    clock: ManualClock = field(default_factory=ManualClock)
    create: bool = True

    def __post_init__(self) -> None:
        self.durable: list[int] = []
        self.arrivals: list[tuple[str, int, int, list[int]]] = []
        self.store = MessageStore(
            self.config, self.clock, broker_name="broker-a", store_host=HOST, files=self.disk
        )
        self.store.open(self.create)
        self.report = self.store.recover()
        self.store.set_arrival_listener(
            lambda topic, queue_id, maximum, codes: self.arrivals.append(
                (topic, queue_id, maximum, list(codes))
            )
        )
        self.store.start(self.durable.append, threads=False)

    @property
    def is_sync(self) -> bool:
        return self.config.flush is FlushMode.SYNC_FLUSH

    def send(
        self,
        bodies: Sequence[bytes],
        sequence: int | None = 0,
        queue_id: int = 0,
        **options: object,
    ) -> AppendResult:
        """Append one frame."""
        records, sizes = make_frame(bodies, sequence=sequence, queue_id=queue_id, **options)  # type: ignore[arg-type]
        return self.store.append_frame(records, sizes, BORN)

    def delete(self, topic: str = "TopicTest") -> int:
        """What a broker does when a topic is deleted; how many queues went."""
        return delete_topic(self.store, topic)

    def settle(self) -> None:
        """SYNC_FLUSH: what the flush thread and the broker's loop do after an append."""
        self.store.flush_step()
        self.store.dispatch_durable()

    def records(self, queue_id: int = 0, topic: str = "TopicTest") -> list[Record]:
        """Everything a reader can read of a queue, in order."""
        offset, high = self.store.bounds(topic, queue_id)
        found: list[Record] = []
        while offset < high:
            result = self.store.get_messages(topic, queue_id, offset, 1000, 1 << 24, None)
            data, at = b"".join(bytes(part) for part in result.parts), 0
            for size in result.sizes.tolist():
                found.append(decode_record(data, at))
                at += size
            assert at == len(data) and result.next_offset > offset
            offset = result.next_offset
        return found

    def bodies(self, queue_id: int = 0, topic: str = "TopicTest") -> list[bytes]:
        """Their bodies."""
        return [record.body for record in self.records(queue_id, topic)]

    def next_life(self, disk: CrashFileSystem, **changes: object) -> StoreRig:
        """The same configuration on another disk, after a second."""
        clock = ManualClock(self.clock.now_ms() + 1_000)
        return StoreRig(disk, self.config.but(**changes), clock)
