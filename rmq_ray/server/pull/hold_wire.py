"""What travels between a broker and its hold service: frames of events over one Unix socket.

Decides: the bytes and their limits. Does not decide: what an event means (``protocol.hold_table``),
when it is sent.

    frame     u32 length of the rest, big-endian · msgpack list of events
    event     list; its first member is the kind

    broker -> service
      HELLO   [1, version, broker name]                first frame of a connection
      PARK    [2, token, topic, queue id, from offset, wait ms, greatest offset now,
               tag codes | nil]
      ARRIVED [3, topic, queue id, greatest offset, tag codes | nil]
      FORGET  [4, token]
      MAXIMA  [5, [[topic, queue id, greatest offset], ...]]
      PING    [6, number]
    service -> broker
      WELCOME [7, version]
      WAKE    [8, [token, ...]]
      PONG    [9, number]

"Greatest offset" is the offset that the queue's next message will get. Times are relative: the two
processes need not agree on a clock. Events of one direction keep their order; that is what makes
"no lost wake-up" hold.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgpack

from rmq_ray.errors import MalformedFrame

VERSION = 1
HELLO, PARK, ARRIVED, FORGET, MAXIMA, PING, WELCOME, WAKE, PONG = range(1, 10)

FRAME_BYTES_MAX = 8 << 20
# In one frame; senders cut their lists, and stay far below FRAME_BYTES_MAX with it.
EVENTS_MAX = 4_096
CODES_MAX = 64  # distinct tag codes worth sending; more count as unknown, which matches every pull
UNSENT_BYTES_MAX = 16 << 20  # an end that does not read is given up

Event = Sequence[Any]

_LENGTH = struct.Struct(">I")


def encode_events(events: Sequence[Event]) -> bytes:
    """One frame; at most ``EVENTS_MAX`` events."""
    payload: bytes = msgpack.packb(events)
    return _LENGTH.pack(len(payload)) + payload


class EventReader:
    """Cuts a stream of bytes into events. Keeps at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """Events of all frames that are complete now, in order. ``MalformedFrame``: the connection
        must be closed.
        """
        self._buffer += data
        events: list[Event] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:  # ends: every round moves ``at`` on
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > FRAME_BYTES_MAX:
                raise MalformedFrame(
                    f"a frame of {length} bytes exceeds {FRAME_BYTES_MAX}: the other end "
                    f"does not speak the hold protocol",
                    "hold link",
                )
            if len(self._buffer) - at < _LENGTH.size + length:
                break
            start = at + _LENGTH.size
            events += _decode(bytes(self._buffer[start : start + length]))
            at = start + length
        del self._buffer[:at]
        return events


def _decode(payload: bytes) -> list[Event]:
    try:
        events = msgpack.unpackb(payload, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedFrame(
            f"{len(payload)} bytes are no msgpack list of events: {error}", "hold link"
        ) from error
    if (
        not isinstance(events, list)
        or len(events) > EVENTS_MAX
        or not all(isinstance(event, list) and event for event in events)
    ):
        raise MalformedFrame(
            f"a frame must hold a list of at most {EVENTS_MAX} events, each a list with its "
            f"kind first",
            "hold link",
        )
    return events
