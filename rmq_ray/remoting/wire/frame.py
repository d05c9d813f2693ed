"""One frame of RocketMQ's remoting protocol: bytes to a ``Command`` and back (remoting 1).

    L i32 | W i32                                        | header H bytes | body L-4-H bytes
          |   byte 0: 0 JSON, 1 ROCKETMQ; 24 bits: H     |

    ROCKETMQ header: code i16, language i8, version i16, opaque i32, flag i32, remark i32+n,
    extFields i32+n (i16+key, i32+value)*

Decides what is a well-formed frame; knows neither codes nor fields nor connections. Invariants:
``decode`` raises ``MalformedFrame`` and nothing else, whatever the bytes; it copies no body; a
frame that ``encode`` returns has at most ``FRAME_BYTES_MAX`` bytes after its length field.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from rmq_ray.errors import FrameTooLarge, MalformedFrame
from rmq_ray.model import fastjson
from rmq_ray.value import Draft

Buffer = bytes | bytearray | memoryview
Body = Buffer | tuple[Buffer, ...]

JSON = 0
BINARY = 1
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
PYTHON = 3
VERSION = 407
"""What we say we are: V4_9_7, the release whose behaviour this package has (remoting 1)."""
STANDARD_JSON_VERSION = 401
"""Callers from V4_9_4 on get routes as standard JSON (remoting 2)."""
LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
)
OTHER_LANGUAGE = 7
FRAME_BYTES_MAX = 16_777_212
FRAME_BYTES_MIN = 4
HEADER_BYTES_MAX = (1 << 24) - 1
HEADER_READ_MAX = 1 << 20
"""Of a frame that is read: what a header may make its reader parse. The longest that RocketMQ's
clients write hold 32 KiB of properties.
"""
FIELDS_MAX = 1_024
"""Ext fields of one frame; RocketMQ's richest request has 25."""

_Int32 = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
_LENGTH = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_BARE = struct.Struct(">IhbhiiII")
"""W and a ROCKETMQ header without remark and fields: what our own requests look like."""
_BARE_FRAME = struct.Struct(">IIhbhiiII")
_FIXED = struct.Struct(">hbhiii")
_BARE_BYTES = 21
_BARE_MARK = BINARY << 24 | _BARE_BYTES
_NOT_AS_FASTJSON = re.compile("\\\\u00[0-9][a-f]|[\x7f-\x9f\u2028\u2029]")
_LANGUAGE_NUMBER = {name: number for number, name in enumerate(LANGUAGES)}


def language(number: int) -> str:
    """Name of a client's language."""
    return LANGUAGES[number] if 0 <= number < len(LANGUAGES) else "OTHER"


class Command(Draft):
    """One request or answer.

    ``fields``: None = no header class, as Java writes it. ``body``: a tuple of buffers is written
    back to back. A body that ``decode`` made is a view of the frame. ``serialize``: form of the
    header; an answer takes its request's.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    fields: dict[str, str] | None = None
    body: Body = b""
    remark: str | None = None
    language: int = PYTHON
    version: int = VERSION
    serialize: int = JSON

    @property
    def is_response(self) -> bool:
        """Bit 0 of the flag: this answers the request of the same opaque."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Bit 1 of the flag: nobody waits for an answer."""
        return self.flag & FLAG_ONEWAY != 0

    def answer(
        self,
        code: int = 0,
        fields: dict[str, str] | None = None,
        body: Body = b"",
        remark: str | None = None,
    ) -> Command:
        """The answer to this request: its opaque, its form of header."""
        return Command(
            code, self.opaque, FLAG_RESPONSE, fields, body, remark, PYTHON, VERSION, self.serialize
        )

    def again(self) -> Command:
        """The same request for another connection, which numbers its own."""
        return Command(self.code, fields=self.fields, body=self.body)

    def body_bytes(self) -> bytes:
        """The body as one ``bytes`` of its own, safe to keep."""
        body = self.body
        return b"".join(body) if isinstance(body, tuple) else bytes(body)


def encode(command: Command, opaque: int | None = None, flag: int | None = None) -> list[Buffer]:
    """The frame as buffers to be written back to back: length and header, then the body's parts.

    ``opaque`` and ``flag`` replace the command's own without changing it. Raises ``FrameTooLarge``.
    """
    opaque = command.opaque if opaque is None else opaque
    flag = command.flag if flag is None else flag
    body = command.body
    if type(body) is bytes:
        body_length = len(body)
        parts: list[Buffer] = [body] if body_length else []
    else:
        parts = [
            _flat(part) for part in (body if isinstance(body, tuple) else (body,)) if len(part)
        ]
        body_length = sum([len(part) for part in parts])
    if body_length > FRAME_BYTES_MAX - FRAME_BYTES_MIN - _BARE_BYTES:
        raise _too_large(body_length)
    if command.serialize == BINARY:
        if not command.fields and not command.remark:  # what our own requests look like
            size = FRAME_BYTES_MIN + _BARE_BYTES + body_length
            return [
                _BARE_FRAME.pack(
                    size,
                    _BARE_MARK,
                    command.code,
                    command.language,
                    command.version,
                    opaque,
                    flag,
                    0,
                    0,
                ),
                *parts,
            ]
        header = _binary_header(command, opaque, flag)
    else:
        header = _json_header(command, opaque, flag)
    size = FRAME_BYTES_MIN + len(header) + body_length
    if size > FRAME_BYTES_MAX or len(header) > HEADER_BYTES_MAX:
        raise _too_large(size)
    return [
        b"%b%b%b"
        % (_LENGTH.pack(size), _LENGTH.pack(command.serialize << 24 | len(header)), header),
        *parts,
    ]


def encode_bytes(command: Command) -> bytes:
    """The frame as one ``bytes``, with its length field."""
    return b"".join(encode(command))


def decode(frame: memoryview) -> Command:
    """One frame without its length field; the body is a view of it. Raises ``MalformedFrame``."""
    length = len(frame)
    if length >= FRAME_BYTES_MIN + _BARE_BYTES:
        mark, code, language, version, opaque, flag, remark, fields = _BARE.unpack_from(frame)
        if mark == _BARE_MARK and not remark and not fields:
            return Command(
                code,
                opaque,
                flag,
                None,
                frame[25:] if length > 25 else b"",
                None,
                language,
                version,
                BINARY,
            )
    elif length < FRAME_BYTES_MIN:
        raise MalformedFrame(f"a frame of {length} bytes has no room for its header's length")
    (mark,) = _LENGTH.unpack_from(frame)
    form, header_length = mark >> 24, mark & HEADER_BYTES_MAX
    if header_length > length - FRAME_BYTES_MIN:
        raise MalformedFrame(f"header of {header_length} bytes in a frame of {length}")
    if header_length > HEADER_READ_MAX:
        raise MalformedFrame(f"header of {header_length} bytes; at most {HEADER_READ_MAX} are read")
    end = FRAME_BYTES_MIN + header_length
    header = frame[FRAME_BYTES_MIN:end]
    body = frame[end:] if length > end else b""
    if form == JSON:
        return _from_json(header, body)
    if form == BINARY:
        return _from_binary(header, body)
    raise MalformedFrame(
        f"header of serialize type {form & 0xFF}; 0 (JSON) and 1 (ROCKETMQ) are known"
    )


def _flat(part: Buffer) -> Buffer:
    return part.cast("B") if isinstance(part, memoryview) and part.itemsize != 1 else part


def _too_large(size: int) -> FrameTooLarge:
    return FrameTooLarge(
        f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} are sent, split the body",
        size,
        FRAME_BYTES_MAX,
    )


def _json_header(command: Command, opaque: int, flag: int) -> bytes:
    header: dict[str, Any] = {"code": int(command.code)}
    if command.fields is not None:
        header["extFields"] = command.fields
    header["flag"] = flag
    header["language"] = (
        LANGUAGES[command.language]
        if 0 <= command.language < len(LANGUAGES)
        else LANGUAGES[OTHER_LANGUAGE]
    )
    header["opaque"] = opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    if (not text.isascii() or "\\u" in text or "\x7f" in text) and _NOT_AS_FASTJSON.search(text):
        text = _as_fastjson(header)
    return text.encode("utf-8", "replace")  # Java, too, writes '?' for half a surrogate pair


def _as_fastjson(header: dict[str, Any]) -> str:
    fields = header.get("extFields")
    members = []
    for name, value in header.items():
        if name == "extFields" and fields is not None:
            value_text = (
                "{"
                + ",".join(
                    [
                        f"{fastjson.quote(key)}:{fastjson.quote(text)}"
                        for key, text in fields.items()
                    ]
                )
                + "}"
            )
        else:
            value_text = fastjson.dumps(value)
        members.append(f'"{name}":{value_text}')
    return "{" + ",".join(members) + "}"


def _binary_header(command: Command, opaque: int, flag: int) -> bytes:
    remark = command.remark.encode("utf-8", "replace") if command.remark else b""
    entries: list[bytes] = []
    for key, value in (command.fields or {}).items():
        key_bytes, value_bytes = key.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        if len(key_bytes) > 32_767:
            raise _too_large(len(key_bytes))
        entries += (
            _SHORT.pack(len(key_bytes)),
            key_bytes,
            _LENGTH.pack(len(value_bytes)),
            value_bytes,
        )
    fields = b"".join(entries)
    fixed = _FIXED.pack(command.code, command.language, command.version, opaque, flag, len(remark))
    return b"".join((fixed, remark, _LENGTH.pack(len(fields)), fields))


class _PlainHeader(Struct, gc=False, forbid_unknown_fields=True):
    """A JSON header as all clients but odd ones write it."""

    code: _Int32 = 0
    opaque: _Int32 = 0
    flag: _Int32 = 0
    extFields: dict[str, str] | None = None  # noqa: N815 - as it is on the wire
    remark: str | None = None
    language: str = LANGUAGES[0]
    serializeTypeCurrentRPC: str = ""  # noqa: N815
    version: _Int32 = 0


_read_plain = msgspec.json.Decoder(_PlainHeader).decode


def _from_json(header: memoryview, body: Buffer) -> Command:
    """Most headers are read by msgspec, four times as fast; what it does not take is judged by the
    reader that knows fastjson's dialect.
    """
    try:
        plain = _read_plain(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _from_odd_json(header, body)
    fields = plain.extFields
    if fields is not None and len(fields) > FIELDS_MAX:
        return _from_odd_json(header, body)
    return Command(
        plain.code,
        plain.opaque,
        plain.flag,
        fields,
        body,
        plain.remark,
        _LANGUAGE_NUMBER.get(plain.language, OTHER_LANGUAGE),
        plain.version,
        JSON,
    )


def _from_odd_json(header: memoryview, body: Buffer) -> Command:
    try:
        found = fastjson.loads(header)
    except ValueError as error:
        raise MalformedFrame(f"header is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise MalformedFrame("header is JSON, but no object")
    remark = found.get("remark")
    if remark is not None and not isinstance(remark, str):
        raise MalformedFrame("remark is no text")
    return Command(
        _integer(found, "code"),
        _integer(found, "opaque"),
        _integer(found, "flag"),
        _fields(found.get("extFields")),
        body,
        remark,
        _language(found.get("language")),
        _integer(found, "version"),
        JSON,
    )


def _integer(header: dict[Any, Any], name: str) -> int:
    value = header.get(name)
    if value is None:
        return 0
    if isinstance(value, str) and len(value) <= 11:
        try:
            value = int(value)
        except ValueError:
            raise MalformedFrame(f"{name} is no integer") from None
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise MalformedFrame(f"{name} is no integer of 32 bits")
    return value


def _language(value: Any) -> int:
    """Absent is JAVA; what is unknown is served all the same (remoting 1)."""
    if value is None:
        return 0
    if isinstance(value, str):
        return _LANGUAGE_NUMBER.get(value, OTHER_LANGUAGE)
    return value if type(value) is int and 0 <= value < len(LANGUAGES) else OTHER_LANGUAGE


def _fields(found: Any) -> dict[str, str] | None:
    """Numbers and booleans become text; fields without a value are left out."""
    if found is None:
        return None
    if not isinstance(found, dict) or len(found) > FIELDS_MAX:
        raise MalformedFrame(f"extFields is no object of at most {FIELDS_MAX} fields")
    fields: dict[str, str] = {}
    for name, value in found.items():
        if type(value) is str and type(name) is str:
            fields[name] = value
        elif value is not None:
            try:
                fields[name if isinstance(name, str) else fastjson.dumps(name)] = (
                    value if isinstance(value, str) else fastjson.dumps(value)
                )
            except (ValueError, TypeError):
                raise MalformedFrame(f"ext field {name!r} has no text form") from None
    return fields


def _from_binary(header: memoryview, body: Buffer) -> Command:
    total = len(header)
    if total < _BARE_BYTES:
        raise MalformedFrame(f"ROCKETMQ header of {total} bytes; {_BARE_BYTES} at least")
    code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
    if not 0 <= remark_length <= total - _BARE_BYTES:
        raise MalformedFrame(f"remark of {remark_length} bytes in a header of {total}")
    at = _FIXED.size + remark_length
    (fields_length,) = _LENGTH.unpack_from(header, at)
    at += 4
    if fields_length < 0 or fields_length > total - at:
        raise MalformedFrame(f"ext fields of {fields_length} bytes in a header of {total}")
    try:
        remark = (
            str(header[_FIXED.size : _FIXED.size + remark_length], "utf-8")
            if remark_length
            else None
        )
        fields = _binary_fields(header[at : at + fields_length]) if fields_length else None
    except UnicodeDecodeError:
        raise MalformedFrame("remark or ext field is not UTF-8") from None
    return Command(code, opaque, flag, fields, body, remark, language, version, BINARY)


def _binary_fields(area: memoryview) -> dict[str, str]:
    fields: dict[str, str] = {}
    at, end = 0, len(area)
    for _ in range(FIELDS_MAX):
        if at == end:
            return fields
        if end - at < 6:
            raise MalformedFrame(f"{end - at} bytes after the last ext field")
        (key_length,) = _SHORT.unpack_from(area, at)
        value_at = at + 2 + key_length
        if key_length < 0 or value_at + 4 > end:
            raise MalformedFrame(f"ext field name of {key_length} bytes reaches beyond the fields")
        (value_length,) = _LENGTH.unpack_from(area, value_at)
        if value_length < 0 or value_length > end - value_at - 4:
            raise MalformedFrame(
                f"ext field value of {value_length} bytes reaches beyond the fields"
            )
        name, value = area[at + 2 : value_at], area[value_at + 4 : value_at + 4 + value_length]
        if key_length and value_length:
            fields[str(name, "utf-8")] = str(value, "utf-8")
        at = value_at + 4 + value_length
    if at == end:
        return fields
    raise MalformedFrame(f"more than {FIELDS_MAX} ext fields")
