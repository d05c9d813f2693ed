"""One remoting command and its bytes (remoting 1). A core without I/O: bytes in, commands out.

    +---------+---------------------+------------------+----------------+
    | L  i32  | W  i32              | header  H bytes  | body  L-4-H    |
    |         | type << 24 | H      |                  |                |
    +---------+---------------------+------------------+----------------+
    L counts what follows it. type 0 = JSON header, 1 = ROCKETMQ binary header:
    code i16 | language i8 | version i16 | opaque i32 | flag i32 | remark length i32, bytes | ext length i32, entries
    entry: key length i16, key, value length i32, value

Decides nothing about commands. Invariants: what ``decode`` accepts, ``encode`` writes back the same; ``MalformedFrame`` for
everything else, never another error.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from json.encoder import encode_basestring

from rmq_ray.errors import MalformedFrame

JSON = 0
BINARY = 1
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
VERSION = 407  # RocketMQ 4.9.7
PYTHON = 3
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST")
_LANGUAGE_NUMBERS = {name: number for number, name in enumerate(LANGUAGES)}
_SERIALIZE_NAMES = ("JSON", "ROCKETMQ")
HEAD = struct.Struct(">ii")
FIXED = struct.Struct(">hbhiii")  # up to and with the remark's length
PLAIN = struct.Struct(">iihbhiiii")  # L, W and a binary header without remark and ext fields
I32 = struct.Struct(">i")
I16 = struct.Struct(">h")
_PLAIN_HEADER = 21
HEADER_BYTES_MAX = 1 << 20

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class Command:
    """A request or a response. ``fields``: ext fields, all strings. ``body``: bytes, or buffers that are written in order."""

    code: int
    opaque: int = 0
    flag: int = 0
    fields: dict[str, str] | None = None
    body: Buffer | tuple[Buffer, ...] = b""
    remark: str | None = None
    language: int = PYTHON
    version: int = VERSION
    serialize: int = JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def answer(self, code: int = 0, fields: dict[str, str] | None = None, body: Buffer | tuple[Buffer, ...] = b"", remark: str | None = None) -> Command:
        """The response to this request: same opaque, same form of header."""
        return Command(code, self.opaque, FLAG_RESPONSE, fields, body, remark, serialize=self.serialize)


def encode(command: Command) -> list[Buffer]:
    """The frame as buffers for ``writelines`` or ``sendmsg``: head and header first, then the body's."""
    body = command.body
    parts: tuple[Buffer, ...] = body if isinstance(body, tuple) else ((body,) if len(body) else ())
    size = sum(_nbytes(part) for part in parts)
    if command.serialize == BINARY:
        if not command.fields and not command.remark:
            word = BINARY << 24 | _PLAIN_HEADER
            head = PLAIN.pack(4 + _PLAIN_HEADER + size, word, command.code, command.language, command.version, command.opaque, command.flag, 0, 0)
            return [head, *parts]
        header = _binary_header(command)
    else:
        header = _json_header(command)
    return [HEAD.pack(4 + len(header) + size, command.serialize << 24 | len(header)) + header, *parts]


def encode_bytes(command: Command) -> bytes:
    """The frame as one piece."""
    return b"".join(encode(command))


def decode(frame: memoryview) -> Command:
    """A command from a frame without its length field. The body is a view of ``frame``. ``MalformedFrame`` for anything else."""
    if len(frame) < 4:
        raise MalformedFrame(f"a frame of {len(frame)} bytes has no header word")
    (word,) = I32.unpack_from(frame)
    length = word & 0xFFFFFF
    serialize = word >> 24
    if length > len(frame) - 4 or length > HEADER_BYTES_MAX:
        raise MalformedFrame(f"header of {length} bytes in a frame of {len(frame)}")
    if serialize == BINARY:
        command = _decode_binary(frame, length)
    elif serialize == JSON:
        command = _decode_json(bytes(frame[4 : 4 + length]))
    else:
        raise MalformedFrame(f"unknown header type {serialize}")
    command.body = frame[4 + length :]
    return command


def _nbytes(part: Buffer) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _json_header(command: Command) -> bytes:
    """Keys in alphabetical order, nulls omitted, no blanks: what fastjson writes."""
    parts = [f'{{"code":{command.code}']
    if command.fields is not None:
        entries = ",".join([f"{encode_basestring(key)}:{encode_basestring(value)}" for key, value in command.fields.items() if value is not None])
        parts.append(f'"extFields":{{{entries}}}')
    parts.append(f'"flag":{command.flag}')
    parts.append(f'"language":"{LANGUAGES[command.language]}"')
    parts.append(f'"opaque":{command.opaque}')
    if command.remark is not None:
        parts.append(f'"remark":{encode_basestring(command.remark)}')
    parts.append(f'"serializeTypeCurrentRPC":"{_SERIALIZE_NAMES[command.serialize]}"')
    parts.append(f'"version":{command.version}}}')
    return ",".join(parts).encode("utf-8", "surrogatepass")


def _binary_header(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    ext = bytearray()
    for key, value in (command.fields or {}).items():
        if value is None:
            continue
        name, content = key.encode(), value.encode()
        ext += I16.pack(len(name)) + name + I32.pack(len(content)) + content
    fixed = FIXED.pack(command.code, command.language, command.version, command.opaque, command.flag, len(remark))
    return fixed + remark + I32.pack(len(ext)) + bytes(ext)


def _decode_binary(frame: memoryview, length: int) -> Command:
    if length < _PLAIN_HEADER:
        raise MalformedFrame(f"binary header of {length} bytes is shorter than its fixed part")
    code, language, version, opaque, flag, remark_length = FIXED.unpack_from(frame, 4)
    at, end = 4 + FIXED.size, 4 + length
    remark = None
    try:
        if remark_length:
            remark, at = _text(frame, at, remark_length, end - 4), at + remark_length
        (ext_length,) = I32.unpack_from(frame, at)
        fields = _entries(frame, at + 4, ext_length, end) if ext_length else None
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedFrame(f"broken binary header: {error}") from None
    return Command(code, opaque, flag, fields, b"", remark, language if 0 <= language < len(LANGUAGES) else 0, version, BINARY)


def _entries(frame: memoryview, at: int, size: int, end: int) -> dict[str, str]:
    if size < 0 or at + size != end:
        raise MalformedFrame(f"ext fields of {size} bytes do not fill the header")
    fields: dict[str, str] = {}
    while at < end:
        (length,) = I16.unpack_from(frame, at)
        key, at = _text(frame, at + 2, length, end), at + 2 + length
        (length,) = I32.unpack_from(frame, at)
        value, at = _text(frame, at + 4, length, end), at + 4 + length
        fields[key] = value
    return fields


def _text(frame: memoryview, at: int, length: int, end: int) -> str:
    if length < 0 or at + length > end:
        raise MalformedFrame(f"text of {length} bytes at {at} runs over the header's end at {end}")
    return str(frame[at : at + length], "utf-8")


def _decode_json(text: bytes) -> Command:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedFrame(f"header is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise MalformedFrame("JSON header is no object")
    return Command(
        _integer(found, "code"),
        _integer(found, "opaque"),
        _integer(found, "flag"),
        _ext_fields(found.get("extFields")),
        b"",
        found.get("remark") if isinstance(found.get("remark"), str) else None,
        _language(found.get("language")),
        _integer(found, "version"),
        JSON,
    )


def _ext_fields(found: object) -> dict[str, str] | None:
    if found is None:
        return None
    if not isinstance(found, dict):
        raise MalformedFrame("extFields is no object")
    return {key: value if type(value) is str else _as_text(value) for key, value in found.items() if value is not None}


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value)


def _integer(found: dict[str, object], key: str) -> int:
    value = found.get(key, 0)
    if not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise MalformedFrame(f"{key} is no 32-bit number")
    return int(value)


def _language(value: object) -> int:
    if isinstance(value, int):
        return value if 0 <= value < len(LANGUAGES) else 0
    return _LANGUAGE_NUMBERS.get(str(value), 0)
