"""Bodies made smaller by the sender and restored by readers (store-format 2.3): zlib, LZ4 frames,
Zstandard.

    SYSFLAG  0x1 = compressed  bits 8-10: 1 LZ4, 2 ZSTD, 3 ZLIB; 0 = zlib too, from clients before 5

Apache RocketMQ's consumers of 4.9 read zlib only, those of 5 all three. Decides bytes and flags.
Does not decide which bodies are worth it (``client.outgoing.compressing``) or what follows when one
cannot be read. Pure. Called by producers, consumers, ``arrow_reader``, ``record_row``.

Invariant: ``decompress`` of what ``compress`` made is the body; of anything else it raises
``BodyUnreadable`` and holds ``bytes_max`` bytes at most. LZ4 and Zstandard are pyarrow's, which is
loaded when one of them is first used.
"""

from __future__ import annotations

import zlib

from rmq_ray.errors import BodyUnreadable
from rmq_ray.extras import load
from rmq_ray.model.message import SysFlag

CODECS = ("zlib", "lz4", "zstd")
ZLIB_LEVEL = 5  # RocketMQ's
_TYPE_BITS = {"lz4": 1 << 8, "zstd": 2 << 8, "zlib": 3 << 8}
_TYPE_MASK = 7 << 8
_STREAMS = {1 << 8: "lz4", 2 << 8: "zstd"}
_ZLIB_TYPES = (0, 3 << 8)


def sys_flag_of(codec: str) -> int:
    """The bits of SYSFLAG that say how a body was compressed.

    >>> hex(sys_flag_of("zlib"))
    '0x301'
    """
    return SysFlag.COMPRESSED | _TYPE_BITS[codec]


def compress(body: bytes, codec: str, level: int | None = None) -> bytes:
    """The body in the codec's own framing; ``level`` None = 5 for zlib, else the codec's default.
    LZ4 has no levels here.
    """
    if codec == "zlib":
        return zlib.compress(body, ZLIB_LEVEL if level is None else level)
    pa = load("pyarrow")

    made = (
        pa.Codec(codec)
        if level is None or codec == "lz4"
        else pa.Codec(codec, compression_level=level)
    )
    packed: bytes = made.compress(body, asbytes=True)
    return packed


def decompress(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """The body as it was sent. ``BodyUnreadable``: other bytes than the flag says, cut short, of an
    unknown type, or longer than ``bytes_max``.
    """
    kind = sys_flag & _TYPE_MASK
    if kind in _ZLIB_TYPES:
        return _inflated(body, bytes_max)
    if kind not in _STREAMS:
        raise BodyUnreadable(
            f"a body of {len(body)} bytes is compressed by type {kind >> 8}, which is none "
            f"of 1 LZ4, 2 ZSTD, 3 ZLIB; upgrade this reader"
        )
    pa = load("pyarrow")

    codec = _STREAMS[kind]
    if not body:
        raise _unreadable(body, codec, "it is empty")
    try:
        with pa.input_stream(pa.py_buffer(body), compression=codec) as stream:
            opened: bytes = stream.read(bytes_max + 1)
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(body, codec, str(error)) from error
    return _within(opened, bytes_max, body, codec)


def _inflated(body: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        opened = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise _unreadable(body, "zlib", str(error)) from error
    if not inflater.eof and len(opened) <= bytes_max:
        raise _unreadable(body, "zlib", "it is cut short")
    return _within(opened, bytes_max, body, "zlib")


def _within(opened: bytes, bytes_max: int, body: bytes, codec: str) -> bytes:
    if len(opened) > bytes_max:
        raise _unreadable(body, codec, f"it grows beyond {bytes_max} bytes")
    return opened


def _unreadable(body: bytes, codec: str, why: str) -> BodyUnreadable:
    return BodyUnreadable(
        f"a body of {len(body)} bytes is marked as compressed by {codec} but cannot be read "
        f"({why}); its sender or its log is at fault"
    )
