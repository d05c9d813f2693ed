"""Batches of arrays as message bodies, and back: Arrow's IPC stream of one record batch.

    {"obs": float32[64, 3, 84, 84], "reward": float32[64]}
        ─> a column of fixed-shape tensors, a column of numbers ─> one body

Decides: what can be a column. A column is copied once as a whole when the body is made, and not at
all when it is read: arrays then lie in the body's own memory and are read-only. Spark, Ray Data and
any other reader of Arrow can read the bodies. Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_ray.errors import BodyUnreadable, ClientError

DTYPE = b"rmq_ray.dtype"
"""Of a field: numpy's name of a type that Arrow has not as numbers (booleans are bits there)."""
KINDS = "biuf"  # boolean, integer, unsigned, floating point


def encoded(columns: Mapping[str, Any] | pa.RecordBatch | pa.Table) -> tuple[bytes, int]:
    """(body, rows). Columns: numpy arrays, torch tensors, Arrow arrays, or what ``numpy.asarray``
    makes numbers of, all with as many rows. ``ClientError`` for others.

    >>> body, rows = encoded({"x": np.ones((2, 3), np.float32), "done": np.array([True, False])})
    >>> rows, arrays(decoded(body))["x"].shape, arrays(decoded(body))["done"].dtype.name
    (2, (2, 3), 'bool')
    """
    batch = columns if isinstance(columns, pa.RecordBatch) else _batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes(), batch.num_rows


def decoded(body: Any) -> pa.RecordBatch:
    """The record batch of a body (bytes, or a ``pyarrow.Buffer``); its columns lie in the body.
    ``BodyUnreadable`` for what is none.
    """
    try:
        with pa.ipc.open_stream(
            body if isinstance(body, pa.Buffer) else pa.py_buffer(body)
        ) as found:
            return found.read_next_batch()
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise BodyUnreadable(
            f"this body is no batch of arrays ({error}); was the message put by a replay buffer?"
        ) from None


def arrays(batch: pa.RecordBatch) -> dict[str, Any]:
    """Columns as numpy arrays without a copy, those that are no numbers as arrays of objects."""
    found: dict[str, Any] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if isinstance(column, pa.FixedShapeTensorArray):
            array = column.to_numpy_ndarray()
        else:
            array = column.to_numpy(zero_copy_only=False)
        kept = (field.metadata or {}).get(DTYPE)
        if kept is not None:
            array = array.view(np.dtype(kept.decode()))
        found[field.name] = array if array.flags.aligned else array.copy()
    return found


def torch_tensors(columns: Mapping[str, Any]) -> dict[str, Any]:
    """numpy arrays as torch tensors, without a copy where they may be written to. ``ClientError``
    where torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise ClientError("torch is not installed here; take numpy() or install it") from None
    return {
        name: torch.from_numpy(array if array.flags.writeable else array.copy())
        for name, array in columns.items()
    }


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of several batches of arrays as one: a copy of each part as a whole, none where
    there is one part. ``ClientError`` where columns or shapes differ.
    """
    if len(parts) == 1:
        return dict(parts[0])
    names = list(parts[0]) if parts else []
    for part in parts:
        if list(part) != names:
            raise ClientError(
                f"these entries have different columns ({names} and {list(part)}); use their "
                f"own arrays, one entry at a time",
                repr(list(part))[:80],
            )
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in names}
    except ValueError as error:
        raise ClientError(
            f"these entries do not go together ({error}); use their own arrays, one at a time"
        ) from None


def _batch(columns: Any) -> pa.RecordBatch:
    if isinstance(columns, pa.Table):
        columns = dict(zip(columns.column_names, columns.columns, strict=True))
    if not isinstance(columns, Mapping) or not columns:
        raise ClientError(
            f"give a mapping of names to arrays, or an Arrow batch or table, not {columns!r:.80}",
            repr(columns)[:80],
        )
    made, fields = [], []
    for name, values in columns.items():
        column, kept = _column(str(name), values)
        made.append(column)
        fields.append(pa.field(str(name), column.type, metadata=kept))
    lengths = {field.name: len(column) for field, column in zip(fields, made, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ClientError(
            f"all columns must have as many rows, not {lengths}: the first dimension counts",
            repr(lengths)[:200],
        )
    return pa.RecordBatch.from_arrays(made, schema=pa.schema(fields))


def _column(name: str, values: Any) -> tuple[pa.Array, dict[bytes, bytes] | None]:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks(), None
    if isinstance(values, pa.Array):
        return values, None
    array = _array(name, values)
    if array.ndim == 0 or array.dtype.kind not in KINDS:
        raise ClientError(
            f"column {name!r} cannot be a tensor: it is {array.ndim}-dimensional of "
            f"{array.dtype}; give numbers or booleans with one row for each sample, or an Arrow "
            f"array",
            name,
        )
    kept = None
    if array.dtype.kind == "b":
        array, kept = array.view(np.uint8), {DTYPE: b"bool"}
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    if array.ndim == 1:
        return pa.array(array), kept
    if not array.size:
        raise ClientError(f"column {name!r} is empty: its shape is {array.shape}", name)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(array), kept


def _array(name: str, values: Any) -> Any:
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(values, torch.Tensor):
            values = values.detach().cpu().numpy()
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ClientError(f"column {name!r} cannot be a tensor: {error}", name) from None
