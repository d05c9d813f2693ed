"""Extension units and bit maps: ours byte for byte those of Apache RocketMQ's own ConsumeQueueExt
and BloomFilter, in files and through its store.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.config import StoreConfig
from rmq_ray.files import FileCache, FileSystem
from rmq_ray.model.groups import SQL92, Subscription
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.ids import FrameId
from rmq_ray.protocol.filters.bloom_filter import filter_for
from rmq_ray.protocol.filters.filter_table import FilterTable
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.queue.consume_queue_ext import ConsumeQueueExt, ExtUnit
from rmq_ray.store.queue.dispatcher import DispatchRules
from tests.support.stores.interop_store import (
    GEOMETRY,
    INDEX_ITEMS,
    INDEX_SLOTS,
    QUEUE_ENTRIES,
    SEGMENT_BYTES,
    STORE_HOST,
)
from tools import interop

FILE_BYTES = 65_536
UNITS = 4_000

pytestmark = pytest.mark.interop


def made_units() -> list[ExtUnit]:
    chance = random.Random(7)
    lengths = (0, 0, 14, 14, 1, 200, 2_000)
    return [
        ExtUnit(
            chance.randrange(-(1 << 31), 1 << 31),
            1_700_000_000_000 + at,
            chance.randbytes(chance.choice(lengths)),
        )
        for at in range(UNITS)
    ]


def opened(path: Path) -> ConsumeQueueExt:
    files = FileSystem()
    return ConsumeQueueExt(str(path), FILE_BYTES, files, FileCache(files))


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@pytest.mark.seed("S4-096", "S4-141")
def test_units_are_written_byte_for_byte_alike_and_read_by_both(tmp_path: Path) -> None:
    units = made_units()
    cases = tmp_path / "units.jsonl"
    cases.write_text(
        "".join(
            json.dumps({"code": u.code, "store_ms": u.store_ms, "bit_map": u.bit_map.hex()}) + "\n"
            for u in units
        )
    )
    theirs = list(
        map(int, interop.run("ExtUnits", "put", tmp_path / "theirs", FILE_BYTES, cases).split())
    )
    mine = opened(tmp_path / "ours" / "T" / "0")
    mine.open_behind(None)
    addresses = [address for unit in units for address in mine.put([unit])]
    assert addresses == theirs
    ours_files, their_files = (
        contents(tmp_path / "ours" / "T" / "0"),
        contents(tmp_path / "theirs" / "T" / "0"),
    )
    assert ours_files == their_files and len(ours_files) > 10
    assert opened(tmp_path / "theirs" / "T" / "0").get_many(theirs) == units
    asked = theirs[::37]
    told = interop.run(
        "ExtUnits", "get", tmp_path / "ours", FILE_BYTES, ",".join(map(str, asked))
    ).splitlines()
    assert told == [f"{u.code} {u.store_ms} {u.bit_map.hex()}" for u in units[::37]]


def test_bit_positions_and_maps_are_those_of_their_bloom_filter(tmp_path: Path) -> None:
    chance = random.Random(8)
    keys = ["G#T", "标签#主题"] + [
        "".join(chance.choices("abcXYZ#%_-09", k=chance.randrange(1, 60))) for _ in range(400)
    ]
    path = tmp_path / "keys"
    path.write_text("\n".join(keys))
    *positions, bit_map = interop.run("ExtUnits", "bloom", path).splitlines()
    bloom = filter_for()
    assert [json.loads(line) for line in positions] == [list(bloom.positions(key)) for key in keys]
    joined = bytearray(bloom.bits // 8)
    for key in keys:
        for bit in bloom.positions(key):
            joined[bit >> 3] |= 1 << (bit & 7)
    assert joined.hex() == bit_map


@pytest.mark.seed("S4-096")
def test_their_store_reads_the_units_that_our_store_wrote(tmp_path: Path) -> None:
    config = StoreConfig(
        str(tmp_path / "store"),
        segment_bytes=SEGMENT_BYTES,
        consume_queue_entries=QUEUE_ENTRIES,
        index_slots=INDEX_SLOTS,
        index_items=INDEX_ITEMS,
        consume_queue_ext=True,
        consume_queue_ext_bytes=FILE_BYTES,
        filter_bit_maps=True,
        preallocate=False,
    )
    filters = FilterTable()
    filters.register(
        "billing", [Subscription("orders", "amount > 100", version=1, expression_type=SQL92)], 1
    )
    store = MessageStore(
        config,
        SYSTEM_CLOCK,
        broker_name="broker-a",
        store_host=STORE_HOST,
        rules=DispatchRules(bit_mapper=filters),
    )
    store.open(create=True)
    store.recover()
    store.start(lambda _offset: None)
    wanted = []
    for at in range(300):
        tag = ("paid", "sent")[at % 2]
        properties = f"TAGS\x01{tag}\x02amount\x01{at}\x02UNIQ_KEY\x01{at:032d}"
        records, sizes = encode_frame(
            "orders",
            0,
            [b"x" * 50],
            [properties],
            SYSTEM_CLOCK.now_ms(),
            FrameId(bytes(16), at + 1),
        )
        stored = store.append_frame(bytearray(records), sizes, STORE_HOST)
        wanted.append(
            f"{java_hash(tag)} {stored.store_ms} "
            f"{filters.bit_map('orders', properties.encode(), 0).hex()}"
        )
    assert store.shutdown()
    told = interop.run(
        "ExtUnits", "store", tmp_path / "store", f"{GEOMETRY},{FILE_BYTES}", "orders"
    ).splitlines()
    assert told == wanted
    assert len({line.rpartition(" ")[2] for line in told}) == 2, "the bit maps tell who passes"
