"""Values as message bodies: tensors as they lie in memory, everything else in a form that can be
read without running code.

    form (a property)        body
    torch bfloat16 3,84      the elements, row by row; no shape: a single number
    array <f8 3,4            the same of a numpy array; ``scalar <f8`` of one of its numbers
    msgpack, bytes, arrow    as ``codec.values`` has them
    pickle                   anything else, where both sides ask for it

    rows of one tensor ──as long as they lie behind each other──> one Arrow column ──> frames

Decides the form of each value, and how values are cut: a body is at most ``PIECE_BYTES``, a longer
value is several messages. Pure; torch is imported only by who has tensors. Invariants: rows that
lie behind each other are not copied here; nothing has the form of an empty body (one zero byte
stands for no elements); what ``decode`` returns is the caller's own memory, a piece of which the
caller is the only owner included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_ray.actors import gateway
from rmq_ray.client.scan.blocks import address
from rmq_ray.client.scan.split_reader import ALIGNED
from rmq_ray.codec import values as plain
from rmq_ray.errors import BodyUnreadable, ClientError
from rmq_ray.guard import why

PIECE_BYTES = 4 << 20  # what a broker takes by default (body_bytes_max)
PARCEL_BYTES = 256 << 20
"""Bodies that are one table: an Arrow column of bytes may have 2 GiB."""
ALONE_BYTES = 1 << 20
"""A run of rows that is a table of its own from here on: putting columns together copies them."""
TORCH, ARRAY, SCALAR, PICKLE = "torch", "array", "scalar", "pickle"
KINDS = "biufcSUmM"
"""numpy's kinds of elements that are what they are by their bytes: no objects, no records."""
NOTHING = b"\0"


@dataclass(slots=True)
class Encoded:
    """One value: ``size`` bytes from ``address`` on, which ``owner`` keeps alive."""

    form: str
    address: int
    size: int
    owner: Any


class Piece(NamedTuple):
    """A message of value ``number``: the bytes from address ``begin`` up to ``end``."""

    number: int
    begin: int
    end: int


@dataclass(slots=True)
class Parcel:
    """A table of messages. ``numbers``: of the value that each of them is a piece of."""

    bodies: list[Any] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, run: Sequence[Piece], values: Sequence[Encoded]) -> None:
        """Pieces that lie behind each other, as one column without a copy."""
        first, size = run[0].begin, run[-1].end - run[0].begin
        owners = [values[piece.number].owner for piece in run]
        ends = np.array([0, *(piece.end - first for piece in run)], np.int32)
        buffers = [None, pa.py_buffer(ends), pa.foreign_buffer(first, size, owners)]
        self.bodies.append(pa.Array.from_buffers(pa.binary(), len(run), buffers))
        self.forms += [values[piece.number].form for piece in run]
        self.numbers += [piece.number for piece in run]
        self.size += size

    def table(self, keys: Sequence[str]) -> Any:
        """Columns body, key and form; ``keys``: of all values."""
        return pa.table(
            {
                "body": pa.chunked_array(self.bodies, pa.binary()),
                "key": pa.array([keys[number] for number in self.numbers], pa.string()),
                "form": pa.array(self.forms, pa.string()),
            }
        )


class Room:
    """Memory for the elements of ``values`` values of ``size`` bytes together, each from a multiple
    of ``ALIGNED`` on. One block: the kernel hands out the pages of many small ones one by one,
    which takes as long as filling them.
    """

    def __init__(self, size: int, values: int) -> None:
        self._block = np.empty(size + ALIGNED * (values + 1), np.uint8)
        self._next = -address(self._block) % ALIGNED

    def joined(self, pieces: Sequence[Any]) -> Any:
        """The pieces, one behind the other, as bytes of numpy: a copy, but of one that lies aligned
        in memory that may be written to, and so is its owner's alone.
        """
        if len(pieces) == 1:
            whole = np.frombuffer(pieces[0], np.uint8)
            if whole.flags.writeable and not address(whole) % ALIGNED:
                return whole
        begin = end = self._next
        for piece in pieces:
            end += len(piece)
            self._block[end - len(piece) : end] = np.frombuffer(piece, np.uint8)
        self._next = end + (begin - end) % ALIGNED
        return self._block[begin:end]


def encode(value: Any, pickle: bool = False) -> Encoded:
    """``ClientError`` names the type of a value that has no form."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(torch, value)
    whole = type(value) is np.ndarray or isinstance(value, np.generic)
    if whole and value.dtype.kind in KINDS:
        word = ARRAY if isinstance(value, np.ndarray) else SCALAR
        return _elements(f"{word} {value.dtype.str}", np.asarray(value))
    try:
        body, kind = plain.encode(value)
    except ClientError as error:
        if not pickle:
            raise _refuse(value, str(error)) from error
        body, kind = _pickled(value), PICKLE
    return _owned(kind, np.frombuffer(body, np.uint8))


def decode(form: str, pieces: Sequence[Any], pickle: bool = False, room: Room | None = None) -> Any:
    """The value of its bodies, in their order; elements lie in ``room``. ``BodyUnreadable`` for
    what is none, ``ClientError`` for one that was pickled where nothing is unpickled.
    """
    kind, _, rest = form.partition(" ")
    try:
        if kind in (TORCH, ARRAY, SCALAR):
            room = room or Room(sum(map(len, pieces)), 1)
            whole, (name, shape) = room.joined(pieces), _described(rest)
            if kind == TORCH:
                return _as_tensor(whole, name, shape)
            found = _as_array(whole, np.dtype(name), shape)
            return found[()] if kind == SCALAR else found
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise BodyUnreadable(f"a body is no {form!r:.80}: {error}", form[:80]) from error
    if kind != PICKLE:
        return plain.decode(b"".join(pieces), kind)
    if not pickle:
        raise ClientError(
            "a value was pickled, and nothing is unpickled here: set pickle of the back end, if "
            "you trust who put it"
        )
    return gateway.unpack(b"".join(pieces))


def parcels(values: Sequence[Encoded]) -> Iterator[Parcel]:
    """All values as tables: a long run of rows that lie behind each other is one of its own,
    the others are put together. The pieces of a value come in their order.
    """
    rest = Parcel()
    for run in _runs(values):
        size = run[-1].end - run[0].begin
        parcel = rest if size < ALONE_BYTES else Parcel()
        parcel.add(run, values)
        if parcel is not rest:
            yield parcel
        elif rest.size > PARCEL_BYTES:
            yield rest
            rest = Parcel()
    if rest.numbers:
        yield rest


def _runs(values: Sequence[Encoded]) -> Iterator[list[Piece]]:
    """Pieces that lie behind each other, up to ``PARCEL_BYTES``."""
    run: list[Piece] = []
    for number, value in enumerate(values):
        stop = value.address + value.size
        for begin in range(value.address, stop, PIECE_BYTES):
            piece = Piece(number, begin, min(begin + PIECE_BYTES, stop))
            if run and (run[-1].end != begin or piece.end - run[0].begin > PARCEL_BYTES):
                yield run
                run = []
            run.append(piece)
    if run:
        yield run


# --- tensors --------------------------------------------------------------------------------------


def _tensor(torch: Any, value: Any) -> Encoded:
    if value.is_nested or value.layout is not torch.strided or value.is_quantized:
        raise _refuse(value, "it is nested, sparse or quantized; put its parts")
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    form = _form(f"{TORCH} {str(value.dtype).removeprefix('torch.')}", tuple(value.shape))
    size = dense.numel() * dense.element_size()
    return Encoded(form, dense.data_ptr(), size, dense) if size else _nothing(form)


def _as_tensor(whole: Any, name: str, shape: tuple[int, ...]) -> Any:
    import torch

    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name}")
    count = prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(whole, dtype=dtype, count=count).reshape(shape)


def _elements(kind: str, value: Any) -> Encoded:
    form = _form(kind, value.shape)
    dense = np.ascontiguousarray(value)
    return _owned(form, dense) if dense.nbytes else _nothing(form)


def _as_array(whole: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    if not dtype.itemsize or not prod(shape):
        return np.zeros(shape, dtype)
    return np.frombuffer(whole, dtype, prod(shape)).reshape(shape)


def _owned(form: str, array: Any) -> Encoded:
    return Encoded(form, address(array), array.nbytes, array)


def _nothing(form: str) -> Encoded:
    return _owned(form, np.frombuffer(NOTHING, np.uint8))


def _form(kind: str, shape: tuple[int, ...]) -> str:
    return f"{kind} {','.join(map(str, shape))}" if shape else kind


def _described(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, shape = text.partition(" ")
    return name, tuple(map(int, shape.split(","))) if shape else ()


def _pickled(value: Any) -> bytes:
    try:
        return gateway.pack(value)
    except Exception as error:  # whatever the value's own code raises
        raise _refuse(value, why(error)) from error


def _refuse(value: Any, reason: str) -> ClientError:
    name = type(value).__name__
    return ClientError(f"a {name} cannot be put, nothing was: {reason:.300}", name)
