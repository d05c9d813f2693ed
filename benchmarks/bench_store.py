"""The store alone, without network: ``python benchmarks/bench_store.py [directory]``. One process,
one thread and the store's own.

Every figure stands beside a floor taken in the same run on the same disk: a bare ``pwrite`` (or
``pread``) of the same bytes. us/msg is the best of several rounds: other processes on the machine
can only make it worse.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmq_ray.client.outgoing.producer_identity import UniqueKeys
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.config import MIB, StoreConfig
from rmq_ray.model.ids import FrameId
from rmq_ray.store.front.message_store import MessageStore

KEYS = UniqueKeys("127.0.0.1", os.getpid(), 0x5EED)
PRODUCER = os.urandom(16)
BORN = ("127.0.0.1", 40000)


def best_us(action: Callable[[int], None], rounds: int, calls: int) -> float:
    """Microseconds a call, best round."""
    best = float("inf")
    for turn in range(rounds):
        started = time.perf_counter()
        for call in range(calls):
            action(turn * calls + call)
        best = min(best, (time.perf_counter() - started) / calls)
    return best * 1e6


def open_store(directory: Path, **changes: object) -> MessageStore:
    """A store as a broker has it, ready."""
    config = StoreConfig(str(directory), segment_bytes=256 * MIB).but(**changes)
    store = MessageStore(config, SYSTEM_CLOCK, broker_name="bench", store_host=("127.0.0.1", 10911))
    store.open(True)
    store.recover()
    store.start(lambda _position: None)
    return store


def frames(
    count: int, body_bytes: int, number: int, head: str = "TAGS\x01TagA"
) -> list[tuple[bytearray, Any]]:
    """Frames with different bodies and sequence numbers. ``head``: properties of each record;
    ``{}`` in it becomes a number of five digits.
    """
    made = []
    for _ in range(number):
        now_ms = SYSTEM_CLOCK.now_ms()
        bodies = [os.urandom(body_bytes) for _ in range(count)]
        properties = [
            f"{head.format(10_000 + n)}\x02UNIQ_KEY\x01{key}"
            for n, key in enumerate(KEYS.take(now_ms, count))
        ]
        records, sizes = encode_frame(
            "BenchTopic", 0, bodies, properties, now_ms, FrameId(PRODUCER, next(SEQUENCE))
        )
        made.append((bytearray(records), sizes))
    return made


SEQUENCE = iter(range(1 << 62))


def bench_append(directory: Path) -> None:
    """append_frame against one pwrite of the frame."""
    tag, keyed = "TAGS\x01TagA", "KEYS\x01o-{}\x02TAGS\x01TagA"
    for count, body_bytes, number, head in (
        (1000, 100, 40, tag),
        (400, 1024, 40, tag),
        (1000, 100, 40, keyed),
        (850, 1024, 20, keyed),
        (1, 100, 3000, tag),
    ):
        best, floor = float("inf"), float("inf")
        store = open_store(directory / f"append-{count}-{len(head)}")
        fd = os.open(directory / "floor", os.O_CREAT | os.O_RDWR)
        os.posix_fallocate(fd, 0, 128 * MIB)
        at = 0
        for _ in range(5):
            batch = frames(count, body_bytes, number, head)
            started = time.perf_counter()
            for records, _ in batch:
                os.pwrite(fd, records, at)
                at = (at + len(records)) % (64 * MIB)
            floor = min(floor, time.perf_counter() - started)
            started = time.perf_counter()
            for records, sizes in batch:
                store.append_frame(records, sizes, BORN)
            best = min(best, time.perf_counter() - started)
        os.close(fd)
        store.shutdown()
        per = 1e6 / (number * count)
        print(
            f"append_frame {count} x {body_bytes} B{', keyed' * (head is keyed)}: "
            f"{best * per:.3f} us/msg, floor {floor * per:.3f}, ratio {best / floor:.1f}",
            flush=True,
        )


def bench_read(directory: Path) -> None:
    """get_messages of contiguous records against one pread of the same span."""
    for count, body_bytes in ((256, 100), (1000, 100), (256, 1024), (1, 100)):
        store = open_store(directory / f"read-{count}-{body_bytes}")
        for records, sizes in frames(1000, body_bytes, 10):
            store.append_frame(records, sizes, BORN)
        length = store.end_offset // 10_000 * count
        path = next((directory / f"read-{count}-{body_bytes}" / "commitlog").iterdir())
        fd = os.open(path, os.O_RDONLY)
        floor = best_us(
            lambda turn, fd=fd, length=length: os.pread(fd, length, turn % 100) and None, 5, 50
        )
        taken = best_us(
            lambda turn, store=store, count=count: check(store, turn % 50 * 100, count), 5, 50
        )
        os.close(fd)
        store.shutdown()
        print(
            f"get_messages {count} x {body_bytes} B: {taken:.1f} us, floor {floor:.1f}, "
            f"ratio {taken / floor:.1f}",
            flush=True,
        )


def check(store: MessageStore, offset: int, count: int) -> None:
    """One read that must find everything."""
    assert store.get_messages("BenchTopic", 0, offset, count, 1 << 24, None).count == count


def bench_recovery(directory: Path) -> None:
    """Seconds a GB without our checkpoint (everything is read, checked, queued and indexed), and
    with it.
    """
    for count, body_bytes, number in ((1000, 100, 400), (400, 1024, 250), (1, 100, 60_000)):
        path = directory / f"recover-{count}-{body_bytes}"
        store = open_store(path)
        for records, sizes in frames(count, body_bytes, number):
            store.append_frame(records, sizes, BORN)
        total = store.end_offset
        store.shutdown()
        with_checkpoint = reopen_s(path)
        (path / "rmq_ray" / "checkpoint").unlink()
        (path / "checkpoint").unlink()
        (path / "abort").touch()
        shutil.rmtree(path / "consumequeue")
        without = reopen_s(path)
        started = time.perf_counter()
        data = (path / "commitlog" / f"{0:020d}").read_bytes()[:total]
        floor = time.perf_counter() - started
        gb = total / 1e9
        what = f"recovery of {count} x {body_bytes} B frames ({total / 1e6:.0f} MB)"
        print(
            f"{what}: {without / gb:.2f} s/GB, floor {floor / gb:.2f}, ratio "
            f"{without / floor:.1f}; with our checkpoint {with_checkpoint:.3f} s",
            flush=True,
        )
        del data


def reopen_s(path: Path) -> float:
    """Seconds of one recovery."""
    config = StoreConfig(str(path), segment_bytes=256 * MIB)
    store = MessageStore(config, SYSTEM_CLOCK, broker_name="bench", store_host=("127.0.0.1", 10911))
    store.open(False)
    started = time.perf_counter()
    store.recover()
    taken = time.perf_counter() - started
    store.shutdown()
    return taken


def main() -> None:
    """All of it, in a directory that is removed."""
    root = Path(
        tempfile.mkdtemp(prefix="bench-store-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    )
    try:
        bench_append(root)
        bench_read(root)
        bench_recovery(root)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
