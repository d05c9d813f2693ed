"""Tasks and what becomes of them, as message bodies.

    task    [1, id, name, args, kwargs, created_ms]                      msgpack
    record  [1, id, status, tries, result, created_ms, expires_ms]       msgpack

    a value inside of them     msgpack's own types, else an extension:
        1 pyarrow.Table (IPC stream)    2 numpy array of numbers (IPC tensor)
        3 tuple                         4 pickle, where both sides allow it

Decides the bytes, which status stands when there are several, and what a task's id is: a UUID of
version 7, whose first 48 bits are the ms when it was made. Pure. Invariant: nothing is unpickled
unless the reader says so.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgpack
import ray.cloudpickle

from rmq_ray.codec import values
from rmq_ray.errors import BodyUnreadable, ClientError, TaskError, TaskNotEncodable
from rmq_ray.guard import why

VERSION = 1
TABLE, TENSOR, TUPLE, PICKLE = 1, 2, 3, 4
_CODES = {values.TABLE: TABLE, values.TENSOR: TENSOR}
_KINDS = {code: kind for kind, code in _CODES.items()}
REASON_MAX = 4_096  # letters
_TASK_FIELDS, _RECORD_FIELDS = 6, 7
NAME_AT, HEAD_BYTES = 2, 65_536
"""Where a task's name stands among its fields, and in which bytes it is looked for."""


class Status(Enum):
    """Celery's words."""

    PENDING = "PENDING"
    STARTED = "STARTED"
    RETRY = "RETRY"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    REVOKED = "REVOKED"

    @property
    def final(self) -> bool:
        """Nothing follows by itself."""
        return self in (Status.SUCCESS, Status.FAILURE, Status.REVOKED)


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a handler. ``created_ms`` since 1970."""

    id: str
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    created_ms: int


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What became of a task. ``result``: of a SUCCESS what the handler returned, else the reason
    as text, or None. ``tries``: that began so far.
    """

    id: str
    status: Status
    tries: int
    result: Any
    created_ms: int
    expires_ms: int


def new_id(now_ms: int, chance: bytes) -> str:
    """A task's id of 10 random bytes."""
    number = now_ms << 80 | int.from_bytes(chance[:10], "big")
    number = number & ~(0xF << 76 | 0x3 << 62) | 7 << 76 | 2 << 62
    return str(uuid.UUID(int=number))


def made_ms(task_id: object) -> int:
    """When the id was made. ``ClientError`` for what is no id of a task."""
    try:
        number = uuid.UUID(task_id) if isinstance(task_id, str) else None
    except ValueError:
        number = None
    if number is None or number.version != 7:
        raise ClientError(
            f"{task_id!r:.80} is no id of a task: give TaskResult.id of enqueue_task", str(task_id)
        )
    return number.int >> 80


def encode_task(task: Task, pickle: bool) -> bytes:
    """``TaskNotEncodable`` names what has no form."""
    if not isinstance(task.args, list | tuple) or not isinstance(task.kwargs, Mapping):
        raise TaskNotEncodable(
            f"args of task {task.name!r} must be a list or tuple, kwargs a mapping; they are "
            f"{type(task.args).__name__} and {type(task.kwargs).__name__}",
            task.name,
        )
    parts = [VERSION, task.id, task.name, list(task.args), dict(task.kwargs), task.created_ms]
    return _pack(parts, pickle, f"the arguments of task {task.name!r}", task.name)


def called(body: bytes) -> str | None:
    """The name of the handler that a task calls, its arguments unread; None of what is no task.

    >>> called(encode_task(Task("id", "resize", (), {}, 0), False)), called(b"no task")
    ('resize', None)
    """
    unpacker = msgpack.Unpacker()
    unpacker.feed(body[:HEAD_BYTES])
    try:
        unpacker.read_array_header()
        for _ in range(NAME_AT):
            unpacker.skip()
        name = unpacker.unpack()
    except (msgpack.UnpackException, ValueError):
        return None
    return name if isinstance(name, str) else None


def decode_task(body: bytes, pickle: bool) -> Task:
    """``BodyUnreadable`` for what is no task, and for pickled values that are not to be read."""
    parts = _unpack(body, pickle, _TASK_FIELDS)
    _, task_id, name, args, kwargs, created_ms = parts
    right = isinstance(task_id, str) and isinstance(name, str) and isinstance(created_ms, int)
    if not right or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise BodyUnreadable("the body is no task: its fields are of other types")
    return Task(task_id, name, args, kwargs, created_ms)


def encode_record(record: TaskRecord, pickle: bool) -> bytes:
    """``TaskNotEncodable`` for a result that has no form."""
    parts = [
        VERSION,
        record.id,
        record.status.value,
        record.tries,
        record.result,
        record.created_ms,
        record.expires_ms,
    ]
    return _pack(parts, pickle, "what the handler returned", record.id)


def decode_record(body: bytes, pickle: bool) -> TaskRecord:
    """``BodyUnreadable`` as of a task."""
    _, task_id, status, tries, result, created_ms, expires_ms = _unpack(
        body, pickle, _RECORD_FIELDS
    )
    try:
        return TaskRecord(task_id, Status(status), tries, result, created_ms, expires_ms)
    except ValueError as error:
        raise BodyUnreadable(f"the body tells no result of a task: {error}") from None


def standing(records: Iterable[TaskRecord]) -> TaskRecord | None:
    """Of one task's records, the newest first, the one that counts: the newest final one, because
    a task that was done may be begun again by who does not know that; else the newest.
    """
    newest = None
    for record in records:
        if record.status.final:
            return record
        newest = newest or record
    return newest


def begun(records: Iterable[TaskRecord]) -> int:
    """How many tries of a task count, of those that were told as STARTED: all up to the last one,
    and that one unless a PENDING for each time that it began says that it did not count. Some of
    the older records may be missing.
    """
    last = counted = 0
    for record in records:
        if record.status in (Status.STARTED, Status.PENDING) and record.tries >= last:
            counted = counted if record.tries == last else 0
            last = record.tries
            counted += 1 if record.status is Status.STARTED else -1
    return last if counted > 0 else max(0, last - 1)


def reason(error: BaseException) -> str:
    """As it stands in results, dead letters and the log; never raises."""
    return why(error)[:REASON_MAX].encode("utf-8", "backslashreplace").decode()


def _pack(parts: list[Any], pickle: bool, what: str, name: str) -> bytes:
    def extension(value: Any) -> msgpack.ExtType:
        if type(value) is tuple:
            return msgpack.ExtType(TUPLE, pack(list(value)))
        try:
            body, kind = values.encode(value)
        except ClientError:
            if not pickle:
                raise
            return msgpack.ExtType(PICKLE, ray.cloudpickle.dumps(value))  # type: ignore[no-untyped-call]
        return msgpack.ExtType(_CODES[kind], body)

    def pack(value: Any) -> bytes:
        return values.pack_plain(value, extension)

    try:
        return pack(parts)
    except TaskError:
        raise
    except Exception as error:  # pickle raises what the value's own code does
        raise TaskNotEncodable(f"{what} cannot be sent: {reason(error)}", name) from error


def _unpack(body: bytes, pickle: bool, count: int) -> list[Any]:
    def extension(code: int, data: bytes) -> Any:
        if code == TUPLE:
            return tuple(unpack(data))
        if code == PICKLE:
            if not pickle:
                raise BodyUnreadable(
                    "a value in it is pickled, and this adapter unpickles nothing: "
                    "adapter_config={'pickle': True} does, if you trust who sent it"
                )
            return ray.cloudpickle.loads(data)
        return values.decode(data, _KINDS.get(code, f"extension {code}"))

    def unpack(data: bytes) -> Any:
        return msgpack.unpackb(data, ext_hook=extension, strict_map_key=False)

    try:
        parts = unpack(body)
    except BodyUnreadable:
        raise
    except Exception as error:  # unpickling raises what the value's own code does
        raise BodyUnreadable(f"the body cannot be read: {reason(error)}") from error
    if not isinstance(parts, list) or len(parts) != count or parts[0] != VERSION:
        raise BodyUnreadable(f"the body is not {count} fields of version {VERSION}")
    return parts
