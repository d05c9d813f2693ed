"""What is derived from the log, alone: ``python benchmarks/bench_derived.py [directory]``. One
process, one thread.

Every figure stands beside a floor taken in the same run: the bare system call, or the copy, that
the same bytes need whatever the code around it does. Best of several rounds: other processes on the
machine can only make it worse.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.arrow.arrow_reader import to_batch
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.store_files import ENTRIES, ENTRY
from rmq_ray.files import FileSystem
from rmq_ray.model.ids import FrameId
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.index_service import IndexService, hash_unique_keys
from rmq_ray.store.queue.queue_table import QueueTable

BATCH = 1_000
FOREVER = 1 << 62


def best_us(
    action: Callable[[], object],
    rounds: int = 7,
    calls: int = 50,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Microseconds a call, best round."""
    best = float("inf")
    for _ in range(rounds):
        started = clock()
        for _ in range(calls):
            action()
        best = min(best, (clock() - started) / calls)
    return best * 1e6


def show(
    what: str, value: float, unit: str, floor: float | None = None, floor_is: str = ""
) -> None:
    """One line; ``floor`` in the same unit."""
    beside = f"   floor {floor:7.3f} ({floor_is}), x {value / floor:.1f}" if floor else ""
    print(f"{what:<52}{value:9.3f} {unit}{beside}")


def bench_index(directory: Path) -> None:
    """Keys a batch of 1,000, single keys, queries, flush."""
    index = IndexService(
        str(directory / "index"), 5_000_000, 20_000_000, FileSystem(), SYSTEM_CLOCK
    )
    chance = np.random.default_rng(1)
    keys = [
        np.frombuffer(chance.bytes(BATCH * 16).hex().upper().encode(), np.uint8).reshape(BATCH, 32)
        for _ in range(64)
    ]
    hashes = [hash_unique_keys("BenchTopic", matrix) for matrix in keys]
    offsets = np.arange(BATCH, dtype=np.int64) * 200
    for values in hashes:
        index.put_many(values, offsets, 1)  # the slots' pages are there now
    turn = iter(range(1 << 30))
    floor = bare_pwrite_us(directory, BATCH * 20) / BATCH
    show(
        "hash of unique keys",
        best_us(lambda: hash_unique_keys("BenchTopic", keys[next(turn) % 64])) / BATCH,
        "us/key",
    )
    show(
        "put_many, 1,000 keys",
        best_us(lambda: index.put_many(hashes[next(turn) % 64], offsets, 1)) / BATCH,
        "us/key",
        floor,
        "pwrite of the items",
    )
    texts = [bytes(row).decode() for matrix in keys for row in matrix]
    show(
        "put, single keys",
        best_us(lambda: index.put("BenchTopic", (texts[next(turn) % 64_000],), 1, 1), calls=5_000),
        "us/key",
    )
    show(
        "query of one key",
        best_us(
            lambda: index.query("BenchTopic", texts[next(turn) % 64_000], 32, 0, FOREVER), calls=500
        ),
        "us",
    )
    started = time.perf_counter()
    index.flush()
    show("flush of the items", (time.perf_counter() - started) * 1e3, "ms")
    started = time.perf_counter()
    index.flush_slots()
    show("flush of 20 MB of slots", (time.perf_counter() - started) * 1e3, "ms")


def bench_queue(directory: Path) -> None:
    """Entries a batch of 1,000, single entries, reads of 32; loading 10,000 queues."""
    queue = ConsumeQueue(str(directory / "queue"), 300_000, FileSystem())
    entries = np.zeros(BATCH, ENTRIES)
    entries["size"] = 200
    turn = iter(range(1 << 30))

    def append_batch() -> None:
        first = queue.max_offset
        entries["log_offset"] = np.arange(first * 200, (first + BATCH) * 200, 200)
        queue.append(first, entries.tobytes())

    def append_one() -> None:
        first = queue.max_offset
        queue.append(first, ENTRY.pack(first * 200, 200, 7))

    batch_floor, one_floor = (
        bare_pwrite_us(directory, BATCH * 20) / BATCH,
        bare_pwrite_us(directory, 20),
    )
    show(
        "consume queue append, 1,000 entries",
        best_us(append_batch) / BATCH,
        "us/entry",
        batch_floor,
        "pwrite",
    )
    show(
        "consume queue append, 1 entry", best_us(append_one, calls=2_000), "us", one_floor, "pwrite"
    )
    show(
        "consume queue read, 32 entries",
        best_us(lambda: queue.read(next(turn) % 300_000, 32), calls=2_000),
        "us",
        bare_pread_us(directory, 640),
        "pread",
    )
    table = QueueTable(str(directory / "queues"), 300_000, FileSystem())
    for number in range(10_000):
        table.get_or_create(f"topic-{number // 4}", number % 4).append(0, ENTRY.pack(0, 200, 7))
    again = QueueTable(str(directory / "queues"), 300_000, FileSystem())
    started = time.perf_counter()
    again.load_all()
    show("loading 10,000 queues", time.perf_counter() - started, "s")
    assert len(again.all()) == 10_000


def bench_arrow(body_bytes: int) -> None:
    """Rows of 1,000-record chunks; the floor copies the bodies once and makes one array of
    numbers.
    """
    bodies = [os.urandom(body_bytes) for _ in range(BATCH)]
    unique = [f"UNIQ_KEY\x01C0A8000A3E5418B4AAC20001E240{n:04X}" for n in range(BATCH)]
    kinds = {
        "no properties": unique,
        "tag": [f"TAGS\x01t{n % 5}\x02{key}" for n, key in enumerate(unique)],
        "key, tag, 2 properties": [
            f"KEYS\x01order-{n}\x02TAGS\x01t{n % 5}\x02region\x01eu\x02user\x01{n * 77}\x02{key}"
            for n, key in enumerate(unique)
        ],
    }
    floor = best_us(lambda: (b"".join(bodies), np.arange(BATCH))) / BATCH
    for name, texts in kinds.items():
        records, sizes = encode_frame("BenchTopic", 0, bodies, texts, 1, FrameId(bytes(16), 1))
        columns = ["queue_offset", "store_ts", "body"]
        few = best_us(partial(to_batch, "BenchTopic", "b", records, sizes, columns)) / BATCH
        whole = best_us(partial(to_batch, "BenchTopic", "b", records, sizes)) / BATCH
        show(
            f"to_batch {body_bytes:4} B, {name}: offset, time, body",
            few,
            "us/row",
            floor,
            "join of the bodies",
        )
        show(
            f"to_batch {body_bytes:4} B, {name}: all columns ({1 / whole:.2f} M rows/s)",
            whole,
            "us/row",
        )


def bare_pwrite_us(directory: Path, count: int) -> float:
    """One ``os.pwrite`` of ``count`` bytes behind the last one."""
    data, at = bytes(count), iter(range(0, 1 << 40, count))
    descriptor = os.open(directory / "floor", os.O_RDWR | os.O_CREAT)
    try:
        return best_us(lambda: os.pwrite(descriptor, data, next(at) % (1 << 26)), calls=500)
    finally:
        os.close(descriptor)


def bare_pread_us(directory: Path, count: int) -> float:
    """One ``os.pread`` of ``count`` bytes from the page cache."""
    descriptor = os.open(directory / "floor", os.O_RDWR | os.O_CREAT)
    try:
        return best_us(lambda: os.pread(descriptor, count, 4096), calls=2_000)
    finally:
        os.close(descriptor)


def main() -> None:
    """Run all."""
    parent = sys.argv[1] if len(sys.argv) > 1 else None
    directory = Path(tempfile.mkdtemp(dir=parent))
    try:
        bench_index(directory)
        bench_queue(directory)
        bench_arrow(100)
        bench_arrow(1024)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
