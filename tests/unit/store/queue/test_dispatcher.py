"""Dispatch: what is queued and indexed of which records, with which codes, and that doing it twice
changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.record_batch import CheckedFrame
from rmq_ray.codec.store_files import ENTRY
from rmq_ray.files import FileSystem
from rmq_ray.model.hashing import tags_code
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import SysFlag
from rmq_ray.store.frames.frame_check import check_frame
from rmq_ray.store.queue.dispatcher import Dispatcher, DispatchRules
from rmq_ray.store.queue.index_service import IndexService
from rmq_ray.store.queue.queue_table import QueueTable

STORE_MS = 1_700_000_000_000
FOREVER = 1 << 62
FRAME = FrameId(bytes(16), 1)
LEVELS_MS = {1: 1_000, 2: 5_000, 3: 10_000}


class Rig:
    """Queues and index over a real directory; geometry of 7 slots and 300 items."""

    def __init__(self, path: Path, indexed: bool = True) -> None:
        self.queues = QueueTable(str(path / "q"), 16, FileSystem())
        self.index = IndexService(str(path / "i"), 7, 300, FileSystem(), ManualClock())
        self.dispatcher = Dispatcher(
            self.queues, self.index if indexed else None, DispatchRules(LEVELS_MS.get, 3)
        )

    def entries(self, topic: str = "T", queue_id: int = 1) -> list[tuple[int, int, int]]:
        queue = self.queues.find(topic, queue_id)
        return list(ENTRY.iter_unpack(queue.read(0, 1000))) if queue is not None else []

    def items(self) -> int:
        """How many items the index has."""
        self.index.flush()
        return int(self.index.state()["header"][5]) - 1

    def query(self, key: str, topic: str = "T") -> list[int]:
        return list(self.index.query(topic, key, 0, FOREVER))


def unique(n: int) -> str:
    return f"C0A8000A3E5418B4AAC20001E240{n:04X}"


def a_frame(count: int, head: str = "") -> CheckedFrame:
    """As the broker's check hands it over. ``head``: properties before the unique key, ``#`` is the
    record's number.
    """
    texts = [
        head.replace("#", str(n)) + ("\x02" if head else "") + f"UNIQ_KEY\x01{unique(n)}"
        for n in range(count)
    ]
    data, sizes = encode_frame("T", 1, [b"body"] * count, texts, STORE_MS, FRAME)
    return check_frame(bytearray(data), sizes, 1 << 20)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 31, 32, 33, 100])
def test_every_record_gets_an_entry_and_an_item_for_every_key(tmp_path: Path, count: int) -> None:
    rig, frame = Rig(tmp_path), a_frame(count, "KEYS\x01k# all\x02TAGS\x01t#")
    assert rig.dispatcher.dispatch(frame, 0, 5_000, STORE_MS) == count
    starts = [5_000 + int(start) for start in frame.starts]
    assert rig.entries() == [
        (start, int(size), tags_code(f"t{n}"))
        for n, (start, size) in enumerate(zip(starts, frame.sizes, strict=True))
    ]
    for n, start in enumerate(starts):
        assert rig.query(f"k{n}") == rig.query(unique(n)) == [start]
    assert rig.query("all") == starts[::-1]
    assert rig.dispatcher.store_ms == STORE_MS


@pytest.mark.parametrize("count", [3, 40])
def test_items_are_in_the_order_of_the_records_and_the_unique_key_first(
    tmp_path: Path, count: int
) -> None:
    rig = Rig(tmp_path)
    rig.dispatcher.dispatch(a_frame(count, "KEYS\x01k#"), 0, 0, STORE_MS)
    one_by_one = Rig(tmp_path / "other")
    frame = a_frame(count, "KEYS\x01k#")
    for n in range(count):
        one_by_one.index.put("T", (unique(n), f"k{n}"), int(frame.starts[n]), STORE_MS)
    contents = []
    for path, index in ((tmp_path, rig.index), (tmp_path / "other", one_by_one.index)):
        index.close()
        (file,) = (path / "i").iterdir()
        contents.append(file.read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize("count", [2, 40])
def test_dispatching_again_or_from_earlier_on_changes_nothing(tmp_path: Path, count: int) -> None:
    rig, frame = Rig(tmp_path), a_frame(count, "KEYS\x01k#")
    rig.dispatcher.dispatch(frame, 0, 0, STORE_MS)
    rig.dispatcher.dispatch(frame, count, frame.length, STORE_MS)
    before, items = rig.entries(), rig.items()
    assert rig.dispatcher.dispatch(frame, 0, 0, STORE_MS) == 0
    assert rig.dispatcher.dispatch(frame, count, frame.length, STORE_MS) == 0
    assert rig.entries() == before
    assert (
        rig.items() == items + 2
    )  # RocketMQ's rule: the very last record counts as new; queries name it once
    assert rig.query("k0") == [frame.length, 0] and rig.query(unique(1)) == [
        frame.length + int(frame.starts[1]),
        int(frame.starts[1]),
    ]


@pytest.mark.parametrize(
    ("kind", "queued", "indexed"),
    [
        (SysFlag.TRANSACTION_NOT, True, True),
        (SysFlag.TRANSACTION_PREPARED, False, True),
        (SysFlag.TRANSACTION_COMMIT, True, True),
        (SysFlag.TRANSACTION_ROLLBACK, False, False),
    ],
)
@pytest.mark.parametrize("count", [1, 40])
def test_transaction_types_decide_who_is_queued_and_indexed(
    tmp_path: Path, count: int, kind: int, queued: bool, indexed: bool
) -> None:
    rig, frame = Rig(tmp_path), a_frame(count, "TAGS\x01a")
    assert rig.dispatcher.dispatch(frame, 0, 0, STORE_MS, kind | SysFlag.COMPRESSED) == (
        count if queued else 0
    )
    assert [code for _, _, code in rig.entries()] == ([tags_code("a")] * count if queued else [])
    assert rig.query(unique(0)) == ([0] if indexed else [])


def test_in_the_schedule_topic_the_code_is_the_time_of_delivery() -> None:
    dispatcher = Dispatcher(
        QueueTable("/q", 16, FileSystem()), None, DispatchRules(LEVELS_MS.get, 18)
    )
    assert dispatcher.delay_tags_code("2", STORE_MS) == STORE_MS + 5_000
    assert dispatcher.delay_tags_code("7", STORE_MS) == STORE_MS + 1_000  # a level without a delay
    assert [
        dispatcher.delay_tags_code(text, STORE_MS) for text in ("0", "-1", "", "x", "1.5", "²")
    ] == [0] * 6
    assert (
        Dispatcher(
            QueueTable("/q", 16, FileSystem()), None, DispatchRules(LEVELS_MS.get, 3)
        ).delay_tags_code("99", STORE_MS)
        == STORE_MS + 10_000
    )


def test_without_an_index_records_are_queued_all_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path, indexed=False)
    assert rig.dispatcher.dispatch(a_frame(40), 0, 0, STORE_MS) == 40
    assert len(rig.entries()) == 40 and rig.query(unique(0)) == []


def test_records_without_any_key_are_queued_only(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    data, sizes = encode_frame("T", 1, [b"x"] * 40, [""] * 40, STORE_MS, FRAME)
    rig.dispatcher.dispatch(check_frame(bytearray(data), sizes, 1 << 20), 0, 0, STORE_MS)
    assert len(rig.entries()) == 40 and rig.index.end_offset == 0


def test_keys_of_some_records_only_belong_to_those(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    texts = [
        f"UNIQ_KEY\x01{unique(n)}" if n % 2 else ("KEYS\x01odd" if n == 4 else "")
        for n in range(40)
    ]
    data, sizes = encode_frame("T", 1, [b"x"] * 40, texts, STORE_MS, FRAME)
    frame = check_frame(bytearray(data), sizes, 1 << 20)
    rig.dispatcher.dispatch(frame, 0, 0, STORE_MS)
    starts = np.asarray(frame.starts).tolist()
    assert (
        rig.query("odd") == [starts[4]]
        and rig.query(unique(5)) == [starts[5]]
        and rig.query(unique(4)) == []
    )
