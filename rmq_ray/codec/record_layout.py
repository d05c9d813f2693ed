"""Where the parts of many records lie that stand in one buffer, mostly back to back, found with
numpy for all of them at once.

Decides nothing; it is the layout of ``record`` (store-format 2.1) for arrays: of the log as
recovery and slaves read it (``log_scan``), of what a pull or a bulk read brought (``received``,
``split_reader``), of Arrow columns. Each part is computed when it is first asked for. Positions are
bytes of the buffer, int64. Lengths inside the records are believed, but positions stay inside the
buffer, so that damaged records can be looked at; ``fits`` says for which ones they are right.
"""

from __future__ import annotations

from functools import cached_property

import rmq_ray.arrays as np
from rmq_ray.arrays import Array
from rmq_ray.codec.record import HEADER_BYTES, headers_at
from rmq_ray.codec.record_batch import UNIQUE_KEY_CHARS, UNIQUE_KEY_PREFIX, UNIQUE_TAIL_BYTES
from rmq_ray.model.message import SysFlag

_V6 = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)  # plain: an enum costs numpy 2 us
_V6_EXTRA = 12
_TAIL_NAME = int.from_bytes(UNIQUE_KEY_PREFIX[:8], "big")


class RecordLayout:
    """``sizes``: int64, one a record, no record is shorter than its fixed part. ``starts``: where
    each of them begins; None = they stand back to back and fill the buffer.
    """

    def __init__(
        self,
        records: bytes | bytearray | memoryview,
        sizes: Array,
        starts: Array | None = None,
    ) -> None:
        self.count = len(sizes)
        self.buffer = memoryview(records)
        self.data: Array = np.frombuffer(self.buffer, np.uint8)
        self.starts: Array = np.cumsum(sizes) - sizes if starts is None else starts
        self.ends: Array = self.starts + sizes

    def field(self, kind: str, at: Array) -> Array:
        """Big-endian numbers of one kind (``>i4``) that begin at any bytes."""
        reach = len(self.data) - int(kind[-1])
        every: Array = np.ndarray((max(0, reach + 1),), kind, self.data, 0, (1,))
        found: Array = every[np.minimum(at, reach)]
        return found

    def bytes_at(self, at: Array, width: int) -> Array:
        """uint8[n, width] from any bytes."""
        reach = len(self.data) - width
        every: Array = np.ndarray((max(0, reach + 1),), f"V{width}", self.data, 0, (1,))
        found: Array = every[np.clip(at, 0, reach)].view(np.uint8).reshape(len(at), width)
        return found

    @cached_property
    def heads(self) -> Array:
        """The fixed parts (``record_header``); what stands behind BORNHOST is right without IPv6
        hosts only.
        """
        return headers_at(self.buffer, self.starts)

    @cached_property
    def sys_flags(self) -> Array:
        """SYSFLAG."""
        return self.heads["sys_flag"].astype(np.int64)

    @cached_property
    def body_lengths(self) -> Array:
        """BODYLENGTH as it stands in the record."""
        lengths = (
            self.field(">i4", self.after_store + 84) if self.has_v6 else self.heads["body_len"]
        )
        return lengths.astype(np.int64)

    @cached_property
    def has_v6(self) -> bool:
        """Whether any record has a host of 16 bytes."""
        return bool((self.sys_flags & _V6).any())

    @cached_property
    def after_born(self) -> Array:
        """Add a field's offset behind BORNHOST to this: it lies 12 bytes further behind an IPv6
        address.
        """
        return (
            self.starts + _V6_EXTRA * ((self.sys_flags & SysFlag.BORN_HOST_V6) != 0)
            if self.has_v6
            else self.starts
        )

    @cached_property
    def after_store(self) -> Array:
        """The same for fields behind STOREHOST."""
        return (
            self.after_born + _V6_EXTRA * ((self.sys_flags & SysFlag.STORE_HOST_V6) != 0)
            if self.has_v6
            else self.starts
        )

    @cached_property
    def body_begins(self) -> Array:
        """First byte of the body."""
        return self.after_store + HEADER_BYTES

    @cached_property
    def body_ends(self) -> Array:
        """Behind the body, where TOPICLEN is."""
        ends: Array = np.maximum(self.body_begins + self.body_lengths, self.body_begins)
        np.minimum(ends, self.ends - 1, out=ends)
        return ends

    @cached_property
    def topic_lengths(self) -> Array:
        """TOPICLEN, uint8."""
        lengths: Array = self.data[self.body_ends]
        return lengths

    @cached_property
    def text_begins(self) -> Array:
        """First byte of the property string."""
        begins: Array = np.minimum(self.body_ends + 3 + self.topic_lengths, self.ends)
        return begins

    @cached_property
    def fits(self) -> Array:
        """Which records have a body, a topic and a property string that end where the record
        ends.
        """
        lengths = self.body_lengths
        found: Array = (lengths >= 0) & (lengths == self.body_ends - self.body_begins)
        found &= self.body_ends + 3 + self.topic_lengths <= self.ends
        found &= self.field(">i2", self.text_begins - 2) == self.ends - self.text_begins
        return found

    @cached_property
    def unique_keys(self) -> tuple[Array, Array]:
        """(which property strings end with a unique key of 32 visible characters, those keys as
        uint8[n, 32]).
        """
        lengths = self.ends - self.text_begins
        at = np.maximum(self.ends - UNIQUE_TAIL_BYTES, 0)
        has: Array = (
            (lengths >= UNIQUE_TAIL_BYTES)
            & (self.field(">u8", at) == _TAIL_NAME)
            & (self.data[at + 8] == 1)
        )
        has &= (lengths == UNIQUE_TAIL_BYTES) | (self.data[at - 1] == 2)
        keys = self.bytes_at(self.ends - UNIQUE_KEY_CHARS, UNIQUE_KEY_CHARS)
        if keys.min() <= 0x20 or keys.max() >= 0x7F:
            has &= (keys > 0x20).all(axis=1) & (keys < 0x7F).all(axis=1)
        return has, keys
