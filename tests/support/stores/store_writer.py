"""Writes a store with our code in a process of its own, which the test lets end or kills: ``python
-m tests.support.stores.store_writer``.

Arguments: directory, flush mode (``async``/``sync``), number of frames, seed, ``create`` or
``append``, ``clean`` or ``hang``. Prints each acknowledgement as a JSON line, flushed; then
``{"kind": "ready"}``. Frames of one to many records, long bodies that roll segments, keys, tags and
properties beyond ASCII, single messages with every field.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rmq_ray.client.outgoing.producer_identity import UniqueKeys
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.config import FlushMode
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import SysFlag, encode_properties
from rmq_ray.model.topics import SCHEDULE_TOPIC
from rmq_ray.store.front.message_store import AppendResult, MessageStore, StoredMessage
from tests.support.stores.interop_store import open_ours

TOPICS = ("OursA", "OursB", "Ours-%RETRY%-with_a_long_name_of_many_characters")
TAGS = ("TagA", "TagB", "標籤", None)
QUEUES = 4
BORN_HOST = ("127.0.0.1", 40_000)
HANG_S = 120
CHECKPOINT_S = 1.3  # long enough for a checkpoint in the middle of the work


class Writer:
    """Frames and single messages from a seed."""

    def __init__(self, store: MessageStore, durable: threading.Event, seed: int) -> None:
        self._store = store
        self._durable = durable
        self._random = random.Random(seed)
        self._producer = self._random.randbytes(16)
        self._keys = UniqueKeys("127.0.0.1", seed, 0x18B4AAC2)
        self._sequence = 0

    def frame(self, number: int) -> None:
        """One frame of one topic and queue, and what the store said."""
        count = self._random.choice((1, 1, 2, 7, 40, 100))
        uniform = number % 4 == 3
        bodies = [
            self._random.randbytes(100 if uniform else self._body_bytes(count))
            for _ in range(count)
        ]
        properties = [self._properties(number * 1000 + i, plain=uniform) for i in range(count)]
        frame_id = FrameId(self._producer, self._sequence) if number % 5 or count > 1 else None
        self._sequence += 1
        records, sizes = encode_frame(
            TOPICS[number % len(TOPICS)],
            self._random.randrange(QUEUES),
            bodies,
            properties,
            SYSTEM_CLOCK.now_ms(),
            frame_id,
            flags=None if uniform else [number] * count,
        )
        self._acknowledge(self._store.append_frame(bytearray(records), sizes, BORN_HOST))

    def message(self, number: int) -> None:
        """One message by the single path: repeated, delayed, half, of an IPv6 client, or a batch of
        RocketMQ's form.
        """
        message = StoredMessage(
            TOPICS[0],
            number % QUEUES,
            self._random.randbytes(200),
            self._properties(number * 1000, plain=False),
            number,
            0,
            SYSTEM_CLOCK.now_ms(),
            BORN_HOST,
        )
        kind = number % 5
        if kind == 1:
            message = message._replace(reconsume_times=3)
        elif kind == 2:
            delayed = (
                f"DELAY\x0118\x02REAL_TOPIC\x01{TOPICS[0]}\x02REAL_QID\x010\x02{message.properties}"
            )
            message = message._replace(topic=SCHEDULE_TOPIC, queue_id=17, properties=delayed)
        elif kind == 3:
            message = message._replace(sys_flag=SysFlag.TRANSACTION_PREPARED)
        elif kind == 4:
            message = message._replace(born_host=("::1", 40_000))
        else:
            self._acknowledge(
                self._store.append_batch_body(
                    message._replace(body=self._batch(number), properties="")
                )
            )
            return
        self._acknowledge(self._store.append_message(message), queued=kind != 3)

    def _batch(self, number: int) -> bytes:
        parts = []
        for i in range(5):
            body, properties = (
                self._random.randbytes(50 + i),
                self._properties(number * 1000 + i, plain=False).encode(),
            )
            size = 22 + len(body) + len(properties)
            parts.append(
                struct.pack(">iiiii", size, 0, 0, number, len(body))
                + body
                + struct.pack(">h", len(properties))
                + properties
            )
        return b"".join(parts)

    def _acknowledge(self, result: AppendResult, queued: bool = True) -> None:
        """Waits as a broker does until it is durable and visible, then says so."""
        while self._store.durable_offset < result.end_log_offset:
            self._durable.wait(1)
            self._durable.clear()
        self._store.dispatch_durable()
        log, offset = int(result.base_log_offset), int(result.base_queue_offset)
        say(
            kind="ack",
            log=log,
            offset=offset,
            topic=result.topic,
            queue=result.queue_id,
            count=result.count if queued else 0,
        )

    def _body_bytes(self, count: int) -> int:
        return (
            9_000 if count < 5 and self._random.random() < 0.2 else self._random.randrange(1, 300)
        )

    def _properties(self, number: int, plain: bool) -> str:
        properties: dict[str, str] = {}
        if not plain and number % 3:
            properties["KEYS"] = (
                f"order-{number} both-{number % 31}" if number % 5 == 0 else f"order-{number}"
            )
        tag = "TagA" if plain else self._random.choice(TAGS)
        if tag:
            properties["TAGS"] = tag
        if not plain and number % 2:
            properties |= {"number": str(number), "über": "größe 標"}
        return encode_properties(properties | {"UNIQ_KEY": self._keys.next(SYSTEM_CLOCK.now_ms())})


def say(**line: Any) -> None:
    """One JSON line that the test can read at once."""
    print(json.dumps(line), flush=True)


def main() -> None:
    """See the module's docstring."""
    path, flush, frames, seed, begin, end = sys.argv[1:]
    durable = threading.Event()
    store = open_ours(
        Path(path), begin == "create", FlushMode(flush), lambda _offset: durable.set()
    )
    writer = Writer(store, durable, int(seed))
    for number in range(int(frames)):
        if end == "hang" and number == int(frames) // 4:
            time.sleep(CHECKPOINT_S)
        writer.frame(number)
        if number % 3 == 0:
            writer.message(number)
    say(kind="ready")
    if end == "hang":
        time.sleep(HANG_S)
        raise SystemExit(3)
    store.shutdown()


if __name__ == "__main__":
    main()
