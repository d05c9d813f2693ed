"""Records at known offsets, from the files of a broker on this machine: without the way through it,
and in memory of their own.

    STORE_INFO of a broker ──another host, or may not be asked──> nothing, from now on
        └─ where its store is, what of it is visible ─> ``LocalSplitReader`` ─> records

Decides which brokers are asked where their files are. Does not decide what to do about a record
that the files do not give: it is left out, and the caller asks the broker, who waits for it, has a
copy mend it, or tells that it is gone. Invariants: what comes was visible at the broker after it
was asked for, and is whole (``split_reader``); no file stays open, for one that retention removed
would keep its disk space.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import ask_for_map, passes
from rmq_ray.client.scan.blocks import Blocks
from rmq_ray.client.scan.scan_plan import split_of
from rmq_ray.client.scan.split_reader import LocalSplitReader
from rmq_ray.codec.record_layout import RecordLayout
from rmq_ray.codec.store_files import OURS
from rmq_ray.errors import RmqError, StoreError
from rmq_ray.files import host_id
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import SysFlag, decode_properties
from rmq_ray.remoting.wire.codes import RequestCode

log = logging.getLogger("rmq_ray.scan")
CHUNK_BYTES = 64 << 20  # of one block of memory, which lives as long as any record of it
CALL_TIMEOUT_MS = 5_000


class StoredRecord(NamedTuple):
    """``body``: as it was sent; its memory may be written to, nobody else has it."""

    properties: Mapping[str, str]
    body: Any


class PointReader:
    """With the connections of ``instance``, which has to run. Any thread may call it. ``blocks``:
    where records are put.
    """

    def __init__(self, instance: ClientInstance, blocks: Blocks) -> None:
        self._instance = instance
        self._blocks = blocks
        self._elsewhere: set[Address] = set()

    def read(
        self, queue: MessageQueue, ranges: Iterable[tuple[int, int]], store: Mapping[str, Any]
    ) -> Iterator[tuple[int, StoredRecord]]:
        """Yields (queue offset, record) of what the files of ``store`` give of these [first, end).
        Raises nothing: where something is wrong there is less.
        """
        reader = LocalSplitReader()
        try:
            for first, end in ranges:
                split = split_of(queue, first, end, store, ())
                try:
                    for at, layout in reader.read_apart(split, CHUNK_BYTES, self._blocks):
                        yield from _records(at, layout)
                except StoreError as error:
                    log.debug("records of %s are read through its broker: %s", queue, error)
        finally:
            reader.close()

    def store(self, broker_name: str) -> Mapping[str, Any] | None:
        """Where the files of a broker are and what of them is visible now; None: not here."""
        address = self._instance.reading_address(broker_name)
        if address is None or address in self._elsewhere:
            return None
        try:
            asked = RequestCode.STORE_INFO
            store = ask_for_map(self._instance, address, asked, [], CALL_TIMEOUT_MS)
        except RmqError as error:
            if not passes(error):
                self._elsewhere.add(address)
            return None
        there = f"{store['path']}/{OURS}/identity"
        # containers of one host have its id, too, and other users may not read the files
        if store["host_id"] == host_id() and os.access(there, os.R_OK):
            return store
        self._elsewhere.add(address)
        return None


def _records(first: int, layout: RecordLayout) -> Iterator[tuple[int, StoredRecord]]:
    """All but compressed ones."""
    buffer, flags = layout.buffer, (layout.sys_flags & int(SysFlag.COMPRESSED)).tolist()
    bodies = zip(layout.body_begins.tolist(), layout.body_ends.tolist(), strict=True)
    texts = zip(layout.text_begins.tolist(), layout.ends.tolist(), strict=True)
    for row, ((begin, end), (text, stop)) in enumerate(zip(bodies, texts, strict=True)):
        if not flags[row]:
            properties = decode_properties(str(buffer[text:stop], "utf-8", "replace"))
            yield first + row, StoredRecord(properties, buffer[begin:end])
