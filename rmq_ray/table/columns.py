"""Declared columns: what a body says, decoded behind the columns of the message.

    {"user": "string", "amount": "double"}  +  b'{"user": "ann", "amount": 3, "x": 1}'
        ──> user = "ann", amount = 3.0
    b'{"user": 7}'  ──> rejected: Expected `str | null`, got `int` - at `$.user`

Decides: which types there are, and when a body fits: unknown fields are ignored, missing ones are
null; anything that would change a value on the way is a reason to reject the row. Pure.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rmq_ray.errors import ConfigError
from rmq_ray.model.arrow import COLUMNS, SCHEMA, TIME
from rmq_ray.table.data_files import REASON

REASON_CHARS = 300
_INT = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
_LONG = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
TYPES: dict[str, tuple[Any, Any]] = {
    "string": (pa.string(), str),
    "boolean": (pa.bool_(), bool),
    "int": (pa.int32(), _INT),
    "long": (pa.int64(), _LONG),
    "float": (pa.float32(), float),
    "double": (pa.float64(), float),
    "timestamp": (TIME, datetime),
    "date": (pa.date32(), date),
    "binary": (pa.binary(), bytes),
}
"""Name -> (in Arrow, what msgspec decodes to). Times are RFC 3339 text in JSON, without a zone UTC;
binary is base64 in JSON.
"""


def parse_columns(text: str) -> dict[str, str]:
    """``"user string, amount double"`` as a mapping. ``ConfigError`` for what cannot be.

    >>> parse_columns("user string, amount double")
    {'user': 'string', 'amount': 'double'}
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, kind = part.partition(" ")
        if name in found:
            raise ConfigError(f"column {name!r} stands twice in the schema", name)
        found[name] = kind.strip()
    return check_columns(found)


def check_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """Themselves; ``ConfigError`` for a type or a name that cannot be."""
    for name, kind in columns.items():
        if kind not in TYPES:
            raise ConfigError(
                f"column {name!r} has the type {kind!r}; there are {', '.join(TYPES)}", name
            )
        if not name.isidentifier() or name.startswith("_") or name in (*COLUMNS, "day"):
            raise ConfigError(
                f"{name!r} cannot name a column: it must be letters, digits and '_', begin with a "
                f"letter, and not be one of {', '.join(COLUMNS)}, day",
                name,
            )
    return dict(columns)


def schema_of(columns: Mapping[str, str]) -> Any:
    """The Arrow schema of a table: a message's columns, then the declared ones."""
    return pa.schema([*SCHEMA, *(pa.field(name, TYPES[kind][0]) for name, kind in columns.items())])


class BodyDecoder:
    """``decode``: "json", "msgpack" or "arrow" (a stream of one row)."""

    def __init__(self, decode: str, columns: Mapping[str, str]) -> None:
        self._names = list(columns)
        self._types = [TYPES[kind][0] for kind in columns.values()]
        self._schema = schema_of(columns)
        self._decode = self._make(decode, columns)

    def split(self, batch: Any) -> tuple[Any, Any]:
        """(rows that fit with their declared columns, rows that do not with ``_reason``), each in
        its order.
        """
        values: list[tuple[Any, ...]] = []
        fits: list[bool] = []
        reasons: list[str] = []
        for body in batch.column("body"):
            try:
                values.append(self._decode(body.as_buffer()))
                fits.append(True)
            except (
                msgspec.MsgspecError,
                UnicodeDecodeError,
                pa.ArrowException,
                ValueError,
            ) as error:
                fits.append(False)
                reasons.append(str(error)[:REASON_CHARS])
            except AttributeError:  # a body that is null: it could not be uncompressed
                fits.append(False)
                reasons.append("the body cannot be read")
        good, bad = batch, batch.slice(0, 0)
        if reasons:
            mask = pa.array(fits)
            good, bad = batch.filter(mask), batch.filter(pc.invert(mask))
        columns = zip(*values, strict=True) if values else [()] * len(self._names)
        decoded = [
            pa.array(column, kind) for column, kind in zip(columns, self._types, strict=True)
        ]
        rejected = pa.RecordBatch.from_arrays(
            [*bad.columns, pa.array(reasons, pa.string())], schema=SCHEMA.append(REASON)
        )
        fitting = pa.RecordBatch.from_arrays([*good.columns, *decoded], schema=self._schema)
        return fitting, rejected

    def _make(self, decode: str, columns: Mapping[str, str]) -> Callable[[Any], tuple[Any, ...]]:
        if decode == "arrow":
            return self._from_arrow
        shape = msgspec.defstruct(
            "Row",
            [(f"f{at}", TYPES[kind][1] | None, None) for at, kind in enumerate(columns.values())],
            rename={f"f{at}": name for at, name in enumerate(columns)},
            gc=False,
        )
        module = msgspec.json if decode == "json" else msgspec.msgpack
        decoder: Any = module.Decoder(shape)
        as_tuple = msgspec.structs.astuple

        def decoded(body: Any) -> tuple[Any, ...]:
            return as_tuple(decoder.decode(body))

        return decoded

    def _from_arrow(self, body: Any) -> tuple[Any, ...]:
        with pa.ipc.open_stream(io.BytesIO(body)) as stream:
            table = stream.read_all()
        if table.num_rows != 1:
            raise ValueError(f"an Arrow body must have one row, not {table.num_rows}")
        there = set(table.column_names)
        return tuple(
            table.column(name).cast(kind)[0].as_py() if name in there else None
            for name, kind in zip(self._names, self._types, strict=True)
        )
