"""Python values as message bodies, without pickle: what arrives can be read by anybody, and runs
no code.

    bytes                     as they are
    pyarrow.Table             Arrow IPC stream
    numpy.ndarray             Arrow IPC tensor, of numbers
    everything of msgpack     None, bool, int, float, str, list, dict, bytes in them

Decides the form of each kind of value; which it is, a message's tag says. Pure. Invariant:
what ``encode`` takes, ``decode`` returns equal and of the same type; a tuple, which would come back
as a list, is refused.
"""

from __future__ import annotations

from typing import Any

import msgpack

from rmq_ray.errors import BodyUnreadable, ClientError

BYTES, MSGPACK, TABLE, TENSOR = "bytes", "msgpack", "arrow", "tensor"


def encode(value: Any) -> tuple[bytes, str]:
    """Body and kind. ``ClientError`` for what has no form here."""
    if value.__class__ is bytes:
        return value, BYTES
    package = type(value).__module__.partition(".")[0]
    if package == "pyarrow" and hasattr(value, "to_reader"):
        return _table_bytes(value), TABLE
    if package == "numpy" and type(value).__name__ == "ndarray":
        return _tensor_bytes(value), TENSOR
    try:
        body: bytes = msgpack.packb(value, strict_types=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ClientError(
            f"a {type(value).__name__} is no plain value ({error}): send bytes, what JSON has, a "
            f"pyarrow.Table or a numpy array of numbers, or pickle where you trust the senders",
            type(value).__name__,
        ) from error
    return body, MSGPACK


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
            import pyarrow as pa

            if kind == TABLE:
                return pa.ipc.open_stream(body).read_all()
            return pa.ipc.read_tensor(pa.BufferReader(body)).to_numpy().copy()
    except (ValueError, msgpack.exceptions.UnpackException, OSError) as error:
        raise BodyUnreadable(f"the body is no {kind} value: {error}", kind) from error
    raise BodyUnreadable(f"no kind of value is called {kind!r:.80} here", kind[:80])


def _table_bytes(value: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value)
    return bytes(sink.getvalue())


def _tensor_bytes(value: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    try:
        pa.ipc.write_tensor(pa.Tensor.from_numpy(value), sink)
    except (pa.ArrowException, TypeError) as error:
        raise ClientError(
            f"an array of {value.dtype} is no array of numbers ({error}): pickle it, or send a "
            f"pyarrow.Table",
            str(value.dtype),
        ) from error
    return bytes(sink.getvalue())
