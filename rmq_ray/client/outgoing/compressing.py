"""Which bodies a producer compresses, and how a message carries that it did (protocol-behaviour 8;
store-format 2.3).

A body of ``compress_over_bytes`` or more is compressed by the producer's codec; it stays as it is
when that makes it no smaller, or fails. What is compressed is only marked in SYSFLAG: consumers,
bulk readers and the command line restore it by themselves.

On its way through batches a message has one number for its two flags, the flag word: the user's
flag, or, for a compressed one, its low 32 bits with SYSFLAG above
(``client.outgoing.send_payload``).

Invariant: a word of a message that is not compressed is the user's flag itself, so that without
compression nothing is done.
"""

from __future__ import annotations

import logging

from rmq_ray.client.outgoing.send_payload import FrameParts, flag_word
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.codec.compression import compress, sys_flag_of
from rmq_ray.config import ProducerConfig

log = logging.getLogger("rmq_ray.client")


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

    def apply(self, message: SendRequest) -> None:
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
