"""Python values as message bodies, without pickle: what arrives can be read by anybody, and runs
no code.

    bytes, but not none       as they are
    pyarrow.Table             Arrow IPC stream
    numpy.ndarray             Arrow IPC tensor, of numbers in this machine's byte order
    plain values              msgpack: None, bool, int, float, str, list, dict, bytes in them; and
                              no bytes at all, since a message has a body

Decides the form of each kind of value; which it is, a message's tag says. Pure. Invariant:
what ``encode`` takes, ``decode`` returns equal and of the same type. What a library takes and gives
back as something else is refused: a tuple or a bytearray in msgpack, truth values or the other byte
order in a tensor, an Arrow type that is not registered (who gets it registers it, too).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from rmq_ray.errors import BodyUnreadable, ClientError
from rmq_ray.extras import load

BYTES, MSGPACK, TABLE, TENSOR = "bytes", "msgpack", "arrow", "tensor"
_PLAIN = frozenset({dict, list, str, int, float, bool})
_DISGUISED = frozenset({bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp})
"""What msgpack takes beside plain values, whatever it is told: bytes when they come back, or what
would be read as a value of ours.
"""
_NO_MARKS = bytes(set(range(256)) - set(range(0xC4, 0xCA)) - set(range(0xD4, 0xD9)))
"""Bytes that do not begin msgpack's binary values and extensions, the forms of all these."""


def encode(value: Any) -> tuple[bytes, str]:
    """Body and kind. ``ClientError`` for what has no form here."""
    if value.__class__ is bytes and value:
        return value, BYTES
    if value.__class__ not in _PLAIN:
        package = type(value).__module__.partition(".")[0]
        if package == "pyarrow" and type(value).__name__ == "Table":
            return _table_bytes(value), TABLE
        if package == "numpy" and type(value).__name__ == "ndarray":
            return _tensor_bytes(value), TENSOR
    try:
        body = pack_plain(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ClientError(
            f"a {type(value).__name__} is no plain value ({error}): send bytes, what JSON has, a "
            f"pyarrow.Table or a numpy array of numbers, or pickle where you trust the senders",
            type(value).__name__,
        ) from error
    return body, MSGPACK


def pack_plain(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """msgpack of plain values, and of those that ``default`` makes an extension of. ``TypeError``
    for what would come back as another type, and what msgpack raises.
    """
    body: bytes = msgpack.packb(value, default=default, strict_types=True)
    if body.translate(None, _NO_MARKS):  # else none of them is in it: nine values of ten
        _refuse_disguised(value)
    return body


def _refuse_disguised(value: Any) -> None:
    """``TypeError`` names a type in ``value`` that msgpack takes for another."""
    within = [value]
    for one in within:  # it grows meanwhile; ends: msgpack was through with it
        kind = type(one)
        if kind is dict:
            within += one
            within += one.values()
        elif kind is list:
            within += one
        elif kind in _DISGUISED:
            raise TypeError(f"a {kind.__name__} would come back as something else")


def decode(body: bytes, kind: str) -> Any:
    """The value. ``BodyUnreadable`` for a kind that is not known here, and a body that is not of
    it.
    """
    try:
        if kind == BYTES:
            return body
        if kind == MSGPACK:
            return msgpack.unpackb(body, strict_map_key=False)
        if kind in (TABLE, TENSOR):
            pa = load("pyarrow")

            if kind == TABLE:
                return pa.ipc.open_stream(body).read_all()
            return pa.ipc.read_tensor(pa.BufferReader(body)).to_numpy().copy()
    except (
        ValueError,
        TypeError,
        RuntimeError,
        msgpack.exceptions.UnpackException,
        OSError,
    ) as error:
        raise BodyUnreadable(f"the body is no {kind} value: {error}", kind) from error
    raise BodyUnreadable(f"no kind of value is called {kind!r:.80} here", kind[:80])


def _table_bytes(value: Any) -> bytes:
    pa = load("pyarrow")

    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_table(value)
        body = bytes(sink.getvalue())
        kept = pa.ipc.open_stream(body).schema.equals(value.schema, check_metadata=True)
        fault: Any = None if kept else "one of its types comes back as another"
    except pa.ArrowException as error:
        fault = error
    if fault is not None:
        raise ClientError(
            f"a table of {value.schema.types!s:.200} cannot travel ({fault}): cast it, or "
            f"pickle it",
            str(value.schema.types)[:200],
        )
    return body


def _tensor_bytes(value: Any) -> bytes:
    pa = load("pyarrow")

    sink = pa.BufferOutputStream()
    try:
        # a copy where strides are negative
        tensor = pa.Tensor.from_numpy(value if value.flags.forc else value.copy())
        pa.ipc.write_tensor(tensor, sink)
        kept = tensor.type.to_pandas_dtype()
        fault: Any = None if value.dtype == kept else f"it comes back as {kept.__name__}"
    except (pa.ArrowException, TypeError) as error:
        fault = error
    if fault is not None:
        raise ClientError(
            f"an array of {value.dtype.str} is no array of numbers ({fault}): pickle it, or send a "
            f"pyarrow.Table",
            str(value.dtype),
        )
    return bytes(sink.getvalue())
