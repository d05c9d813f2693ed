"""What an SQL92 filter costs a broker for each message that it goes through. ``python
benchmarks/bench_filter.py``.

A store of 100-byte messages with three properties, read as a broker's pulls read it: all of it
without a filter, then with a condition of two terms that lets nothing, a quarter or everything
pass. The difference is the filter's cost, CPU of this process. Amounts rise, so that no verdict is
remembered ("fresh"), or repeat ("repeated").
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.config import StoreConfig
from rmq_ray.model.ids import FrameId
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.protocol.filters.filter_sql92 import SqlFilter
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.filtered_reading import Condition
from rmq_ray.store.reading.log_reader import GetResult

if TYPE_CHECKING:
    from benchmarks.scene import Scene

MESSAGES = 100_000
A_FRAME = 500
PULL_RECORDS, PULL_BYTES = 256, 1 << 20
LIMIT_US = 3.0
ROUNDS = 3
CONDITIONS = {
    "nothing passes": "amount > 1000000000 AND region IN ('eu','us')",
    "a quarter passes": "amount > -1 AND region IN ('eu','us')",
    "everything passes": "amount > -1 AND region IN ('eu','us','cn','jp','in','br','za','au')",
}
REGIONS = ("eu", "us", "cn", "jp", "in", "br", "za", "au")


@contextmanager
def filled_store(directory: str, messages: int, repeated: bool) -> Iterator[MessageStore]:
    """A store with one queue."""
    config = StoreConfig(directory, segment_bytes=64 << 20, index_enabled=False, preallocate=False)
    store = MessageStore(
        config, SYSTEM_CLOCK, broker_name="broker-a", store_host=("127.0.0.1", 10_911)
    )
    store.open(create=True)
    store.recover()
    store.start(lambda _offset: None)
    for first in range(0, messages, A_FRAME):
        rows = range(first, first + A_FRAME)
        texts = [
            f"TAGS\x01paid\x02amount\x01{at % 50 if repeated else at}\x02"
            f"region\x01{REGIONS[at % 8]}\x02UNIQ_KEY\x01{at:032d}"
            for at in rows
        ]
        records, sizes = encode_frame(
            "orders",
            0,
            [b"x" * 100] * A_FRAME,
            texts,
            SYSTEM_CLOCK.now_ms(),
            FrameId(bytes(16), first + 1),
        )
        store.append_frame(bytearray(records), sizes, ("127.0.0.1", 1))
    try:
        yield store
    finally:
        store.shutdown()


def read_all(read: Callable[[int], GetResult]) -> tuple[float, int]:
    """(CPU seconds, records handed out) of pulls from the first message to the last."""
    offset = found = 0
    started = time.process_time()
    while True:  # ends: the offset rises up to the queue's end
        result = read(offset)
        if result.status not in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE):
            return time.process_time() - started, found
        offset, found = result.next_offset, found + result.count


def costs(store: MessageStore, messages: int) -> dict[str, float]:
    """Microseconds a message, by condition."""
    plain = min(
        read_all(lambda at: store.get_messages("orders", 0, at, PULL_RECORDS, PULL_BYTES, None))[0]
        for _ in range(ROUNDS)
    )
    found = {"without a filter": plain / messages * 1e6}
    for name, condition in CONDITIONS.items():
        seconds = []
        for _ in range(ROUNDS):
            matches = SqlFilter(condition).matches
            took, _count = read_all(
                lambda at, matches=matches: store.get_matching(
                    "orders", 0, at, PULL_RECORDS, PULL_BYTES, Condition(matches)
                )
            )  # type: ignore[misc]
            seconds.append(took)
        found[name] = (min(seconds) - plain) / messages * 1e6
    return found


def measured(messages: int) -> dict[str, float]:
    """Microseconds by "values, condition"."""
    found = {}
    for repeated in (False, True):
        with (
            tempfile.TemporaryDirectory(prefix="rmq-ray-filter-") as directory,
            filled_store(f"{directory}/store", messages, repeated) as store,
        ):
            for name, cost in costs(store, messages).items():
                found[f"{'repeated' if repeated else 'fresh'} values, {name}"] = cost
    return found


def run(scene: Scene) -> None:
    """As a part of ``python -m benchmarks``."""
    from benchmarks.report import Figure

    for name, cost in measured(scene.count(MESSAGES, 10 * A_FRAME) // A_FRAME * A_FRAME).items():
        if name.endswith("without a filter"):
            scene.report.tell(f"read by pulls, {name}", cost, "us a message")
        else:
            scene.report.add(
                Figure(
                    f"SQL filter of two terms, {name}",
                    cost,
                    "us a message",
                    "limit",
                    LIMIT_US,
                    1.0,
                    True,
                )
            )


def main() -> None:
    """All conditions, best of three rounds."""
    for name, cost in measured(MESSAGES).items():
        print(f"{name:<40}{cost:7.3f} us a message")


if __name__ == "__main__":
    main()
