"""A small store on disk with everything in it that inspection looks at: many segments, queues,
index files, frames, single messages.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path

from rmq_ray.clock import ManualClock
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.config import StoreConfig
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import SysFlag, encode_properties
from rmq_ray.model.topics import SCHEDULE_TOPIC
from rmq_ray.store.front.message_store import MessageStore, StoredMessage
from rmq_ray.store.queue.dispatcher import DispatchRules

SEGMENT_BYTES = 65_536
INDEX_SLOTS = 100
BORN = ("127.0.0.1", 40_000)
DELAYED = encode_properties(
    {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "D" * 32}
)


def config(path: Path, **changes: object) -> StoreConfig:
    """Small files, so that a few hundred messages need several."""
    base = StoreConfig(
        str(path),
        segment_bytes=SEGMENT_BYTES,
        consume_queue_entries=64,
        index_slots=INDEX_SLOTS,
        index_items=4 * INDEX_SLOTS,
    )
    return base.but(**changes)


def opened(path: Path, create: bool = False, **changes: object) -> MessageStore:
    """A store that takes messages."""
    store = MessageStore(
        config(path, **changes),
        ManualClock(),
        broker_name="broker-a",
        store_host=("127.0.0.1", 10_911),
        rules=DispatchRules({3: 10_000}.get),
    )
    store.open(create)
    store.recover()
    store.start(lambda _offset: None)
    return store


class Filler:
    """Puts frames and single messages into a store, the same for the same seed."""

    def __init__(self, store: MessageStore, seed: int = 1) -> None:
        self.store = store
        self._random = random.Random(seed)
        self._number = 0

    def frame(self, topic: str, queue_id: int, count: int, body_bytes: int = 120) -> int:
        """``count`` messages with keys and tags; returns the log offset of the first."""
        bodies = [self._random.randbytes(body_bytes) for _ in range(count)]
        properties = [self._properties() for _ in range(count)]
        records, sizes = encode_frame(
            topic, queue_id, bodies, properties, 1_700_000_000_000, FrameId(b"p" * 16, self._number)
        )
        return int(self.store.append_frame(bytearray(records), sizes, BORN).base_log_offset)

    def message(self, **changes: object) -> int:
        """One message by the single path; returns its log offset."""
        message = StoredMessage(
            "orders", 1, b"single", self._properties(), 0, 0, 1_700_000_000_000, BORN
        )
        return int(self.store.append_message(message._replace(**changes)).base_log_offset)  # type: ignore[arg-type]

    def _properties(self) -> str:
        self._number += 1
        tag = ("paid", "refund", "")[self._number % 3]
        named = {"KEYS": f"o-{self._number} all", "region": "eu"} | ({"TAGS": tag} if tag else {})
        return encode_properties(named | {"UNIQ_KEY": f"{self._number:032X}"})


def fill(path: Path) -> None:
    """About 700 messages of three topics in 4 segments; stopped cleanly."""
    store = opened(path, create=True)
    filler = Filler(store)
    for round_ in range(10):
        filler.frame("orders", round_ % 2, 40)
        filler.frame("refunds", 0, 1, 3_000)
        filler.frame("orders", 0, 20)
        filler.message()
        filler.message(topic=SCHEDULE_TOPIC, queue_id=2, properties=DELAYED)
        filler.message(sys_flag=SysFlag.TRANSACTION_PREPARED)
        filler.message(body=zlib.compress(b"zipped " * 20), sys_flag=SysFlag.COMPRESSED)
        filler.message(topic="ipv6", queue_id=0, born_host=("::1", 40_000))
    filler.frame("orders", 1, 5)
    store.shutdown()


def log_at(path: Path, log_offset: int) -> tuple[Path, int]:
    """(segment file, position in it) of a byte of the log."""
    start = log_offset - log_offset % SEGMENT_BYTES
    return path / "commitlog" / f"{start:020d}", log_offset - start


def overwrite(file: Path, position: int, data: bytes) -> bytes:
    """Change bytes of a file in place; returns what was there."""
    with file.open("r+b") as target:
        target.seek(position)
        before = target.read(len(data))
        target.seek(position)
        target.write(data)
    return before


def flip(file: Path, position: int, bit: int = 0) -> None:
    """Change one bit."""
    with file.open("rb") as source:
        source.seek(position)
        value = source.read(1)[0]
    overwrite(file, position, bytes([value ^ (1 << bit)]))
