"""Which bodies a producer compresses, and how a message carries that it did (protocol-behaviour 8;
store-format 2.3).

A body of ``compress_over_bytes`` or more is compressed by the producer's codec; it stays as it is
when that makes it no smaller, or fails. What is compressed is only marked in SYSFLAG: consumers,
bulk readers and the command line restore it by themselves.

On its way through batches a message has one number for its two flags, the flag word: the user's
flag, or, for a compressed one, its low 32 bits with SYSFLAG above. Called by both producers before
a message joins a batch; ``client.sending.batching`` and ``client.outgoing.send_payload`` split the
words.

Invariant: a word of a message that is not compressed is the user's flag itself, so that without
compression nothing is done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmq_ray.client.outgoing.send_request import Outgoing
from rmq_ray.client.outgoing.splitting import FrameParts
from rmq_ray.codec.compression import compress, sys_flag_of
from rmq_ray.config import ProducerConfig

FLAG_MAX = (1 << 31) - 1

log = logging.getLogger("rmq_ray.client")


def flag_word(flag: int, sys_flag: int) -> int:
    """Both flags in one number; ``flag`` is a signed 32-bit number.

    >>> split_word(flag_word(-5, 0x301)), split_word(flag_word(-5, 0))
    ((-5, 769), (-5, 0))
    """
    return sys_flag << 32 | flag & 0xFFFFFFFF if sys_flag else flag


def split_word(word: int) -> tuple[int, int]:
    """(the user's flag, SYSFLAG)."""
    if word <= FLAG_MAX:
        return word, 0
    flag = word & 0xFFFFFFFF
    return (flag if flag <= FLAG_MAX else flag - (1 << 32)), word >> 32


def split_words(words: Sequence[int] | None) -> tuple[list[int] | None, int | list[int]]:
    """(users' flags, SYSFLAGs) of the messages of a frame, each in the short form where all
    are 0.
    """
    if words is None or not any(words):
        return None, 0
    if max(words) <= FLAG_MAX:
        return list(words), 0
    pairs = [split_word(word) for word in words]
    return [flag for flag, _ in pairs], [sys_flag for _, sys_flag in pairs]


class Compressor:
    """Of one producer. ``of(config)`` is None when compression is off."""

    def __init__(self, codec: str, over_bytes: int, level: int | None) -> None:
        self._codec = codec
        self._over_bytes = over_bytes
        self._level = level
        self._sys_flag = sys_flag_of(codec)

    @classmethod
    def of(cls, config: ProducerConfig) -> Compressor | None:
        """What the settings ask for."""
        return (
            None
            if config.compression is None
            else cls(config.compression, config.compress_over_bytes, config.compression_level)
        )

    def wants(self, body: object) -> bool:
        """True for a body long enough to be tried."""
        return isinstance(body, bytes) and len(body) >= self._over_bytes

    def apply(self, message: Outgoing) -> None:
        """Compress the message's body in place, if that is worth it."""
        message.body, message.flag = self._pack(message.body, message.flag)

    def frame(self, bodies: list[bytes], texts: list[str], flags: list[int] | None) -> FrameParts:
        """A frame of a batch with its long bodies compressed."""
        if max(map(len, bodies)) < self._over_bytes:
            return bodies, texts, flags
        packed = [
            self._pack(body, flag)
            for body, flag in zip(bodies, flags or [0] * len(bodies), strict=True)
        ]
        words = [word for _, word in packed]
        return [body for body, _ in packed], texts, words if any(words) else None

    def _pack(self, body: bytes, flag: int) -> tuple[bytes, int]:
        if len(body) < self._over_bytes:
            return body, flag
        try:
            packed = compress(body, self._codec, self._level)
        except (MemoryError, OSError, ValueError) as error:
            log.warning(
                "a body of %d bytes could not be compressed by %s (%s); it is sent as it is",
                len(body),
                self._codec,
                error,
            )
            return body, flag
        return (
            (packed, flag_word(flag, self._sys_flag)) if len(packed) < len(body) else (body, flag)
        )
