"""Frames: bytes captured from Apache RocketMQ 4.9.7 come out the same, and nothing but
``MalformedFrame`` comes of bad ones.
"""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import FrameTooLarge, MalformedFrame
from rmq_ray.remoting.wire import frame as frames
from rmq_ray.remoting.wire.frame import (
    BINARY,
    FIELDS_MAX,
    FRAME_BYTES_MAX,
    JSON,
    LANGUAGES,
    Command,
    decode,
    encode,
    encode_bytes,
)
from tests.support.stores.golden_frames import GOLDEN, Golden

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
COMMANDS = st.builds(
    Command,
    code=st.integers(-(1 << 15), (1 << 15) - 1),
    opaque=I32,
    flag=I32,
    fields=st.none() | st.dictionaries(TEXTS.filter(bool), TEXTS.filter(bool), max_size=6),
    body=st.binary(max_size=50),
    remark=st.none() | TEXTS.filter(bool),
    language=st.integers(0, len(LANGUAGES) - 1),
    version=st.integers(0, (1 << 15) - 1),
    serialize=st.sampled_from((JSON, BINARY)),
)


def whole(length: int, word: int, rest: bytes = b"") -> memoryview:
    return memoryview(struct.pack(">I", word) + rest)[:length]


def decoded(data: bytes) -> Command:
    return decode(memoryview(data)[4:])


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_captured_frames_are_read(golden: Golden) -> None:
    command = decoded(golden.frame)
    assert (command.code, command.opaque, command.flag, command.version) == (
        golden.code,
        golden.opaque,
        golden.flag,
        407,
    )
    assert (command.fields, command.remark, bytes(command.body)) == (
        golden.fields,
        golden.remark,
        golden.body,
    )
    assert (command.serialize, LANGUAGES[command.language]) == (golden.serialize, golden.language)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_captured_frames_are_written_byte_for_byte(golden: Golden) -> None:
    language = LANGUAGES.index(golden.language)
    command = Command(
        golden.code,
        golden.opaque,
        golden.flag,
        golden.fields,
        golden.body,
        golden.remark,
        language,
        407,
        golden.serialize,
    )
    assert encode_bytes(command) == golden.frame


@settings(deadline=None)
@given(COMMANDS)
def test_every_command_survives_both_forms(command: Command) -> None:
    frame = encode_bytes(command)
    found = decoded(frame)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    wanted = command.fields if command.serialize == JSON else command.fields or None
    assert (found.fields, bytes(found.body)) == (wanted, command.body)
    for name in ("code", "opaque", "flag", "remark", "language", "version", "serialize"):
        assert getattr(found, name) == getattr(command, name)


def test_our_requests_header_has_21_bytes_and_the_body_follows_as_it_is() -> None:
    body = bytearray(b"records")
    head, rest = encode(Command(20010, 7, body=body, serialize=BINARY))
    assert len(head) == 4 + 4 + 21 and rest is body


def test_opaque_and_flag_can_be_replaced_without_touching_the_command() -> None:
    command = Command(10, 1, 0, serialize=BINARY)
    found = decoded(b"".join(encode(command, 99, 2)))
    assert (found.opaque, found.flag, command.opaque, command.flag) == (99, 2, 1, 0)


def test_a_body_of_several_buffers_is_written_back_to_back() -> None:
    wide = memoryview(struct.pack(">ii", 1, 2)).cast("i")
    command = Command(11, 3, body=(b"ab", b"", memoryview(b"cd"), wide), serialize=BINARY)
    assert bytes(decoded(encode_bytes(command)).body) == b"abcd" + struct.pack(">ii", 1, 2)
    assert command.body_bytes() == b"abcd" + struct.pack(">ii", 1, 2)


def test_an_answer_has_the_opaque_and_the_form_of_its_request() -> None:
    for form in (JSON, BINARY):
        answer = Command(11, 42, 0, serialize=form).answer(17, remark="no topic")
        assert (
            answer.code,
            answer.opaque,
            answer.serialize,
            answer.is_response,
            answer.is_oneway,
        ) == (17, 42, form, True, False)


@pytest.mark.parametrize(
    ("header", "code", "opaque", "fields"),
    [
        ('{"code":28,"opaque":7}', 28, 7, None),
        ('{"code":0,"flag":1,"opaque":7,"unknown":{"a":[1]}}', 0, 7, None),
        (
            '{ "code" : "11", "opaque": -1, "extFields": {"queueId": 3, "on": true, "no": '
            'null, "r": 1.5} }',
            11,
            -1,
            {"queueId": "3", "on": "true", "r": "1.5"},
        ),
        ('{"code":34,"extFields":{}}', 34, 0, {}),
        ('{"code":34,"extFields":null,"language":"COBOL","remark":null}', 34, 0, None),
        ('{"code":34,"extFields":{5:6}}', 34, 0, {"5": "6"}),
    ],
)
def test_json_headers_are_read_as_leniently_as_rocketmq_reads_them(
    header: str, code: int, opaque: int, fields: dict[str, str] | None
) -> None:
    found = decode(whole(9_999, len(header), header.encode()))
    assert (found.code, found.opaque, found.fields) == (code, opaque, fields)


@pytest.mark.parametrize(
    ("language", "number"), [('"GO"', 9), ("9", 9), ('"KLINGON"', 7), ("99", 7), ("null", 0)]
)
def test_unknown_languages_are_served(language: str, number: int) -> None:
    header = f'{{"code":1,"language":{language}}}'.encode()
    assert decode(whole(9_999, len(header), header)).language == number


def test_control_characters_are_escaped_in_json_and_raw_in_binary() -> None:
    fields = {"i": "KEYS\x01k\x02TAGS\x01\x1f\x7f"}
    assert b"KEYS\\u0001k\\u0002TAGS\\u0001\\u001F\\u007F" in encode_bytes(
        Command(310, fields=fields, serialize=JSON)
    )
    assert fields["i"].encode() in encode_bytes(Command(310, fields=fields, serialize=BINARY))


def test_half_a_surrogate_pair_becomes_a_question_mark_as_in_java() -> None:
    for form in (JSON, BINARY):
        assert decoded(encode_bytes(Command(1, remark="a\ud800b", serialize=form))).remark == "a?b"


def test_a_binary_value_of_no_length_reads_as_no_value() -> None:
    assert decoded(
        encode_bytes(Command(1, fields={"a": "", "b": "x"}, serialize=BINARY))
    ).fields == {"b": "x"}


MALFORMED = {
    "shorter than its first word": b"\0\0",
    "header longer than the frame": struct.pack(">I", 5) + b"{}",
    "unknown serialize type": struct.pack(">I", 2 << 24 | 2) + b"{}",
    "negative serialize type": struct.pack(">I", 0xFF000002) + b"{}",
    "header is no json": struct.pack(">I", 3) + b"{a}",
    "header is a list": struct.pack(">I", 2) + b"[]",
    "header is not utf-8": struct.pack(">I", 2) + b"\xff\xff",
    "no header": struct.pack(">I", 0),
    "code is a list": struct.pack(">I", 11) + b'{"code":[]}',
    "code is true": struct.pack(">I", 13) + b'{"code":true}',
    "code has 33 bits": struct.pack(">I", 19) + b'{"code":4294967296}',
    "code is a word": struct.pack(">I", 14) + b'{"code":"ten"}',
    "remark is a number": struct.pack(">I", 12) + b'{"remark":1}',
    "ext fields are a list": struct.pack(">I", 16) + b'{"extFields":[]}',
    "binary header of 20 bytes": struct.pack(">I", 1 << 24 | 20) + bytes(20),
    "binary remark too long": struct.pack(">I", 1 << 24 | 21)
    + bytes(13)
    + struct.pack(">ii", 1, 0),
    "binary remark negative": struct.pack(">I", 1 << 24 | 21)
    + bytes(13)
    + struct.pack(">ii", -1, 0),
    "binary fields too long": struct.pack(">I", 1 << 24 | 21) + bytes(17) + struct.pack(">i", 1),
    "binary fields negative": struct.pack(">I", 1 << 24 | 21) + bytes(17) + struct.pack(">i", -1),
    "binary fields cut": struct.pack(">I", 1 << 24 | 24)
    + bytes(17)
    + struct.pack(">i", 3)
    + b"\0\1a",
    "binary name too long": struct.pack(">I", 1 << 24 | 28)
    + bytes(17)
    + struct.pack(">ihi", 7, 9, 0)
    + b"a",
    "binary value too long": struct.pack(">I", 1 << 24 | 28)
    + bytes(17)
    + struct.pack(">ih", 7, 1)
    + b"a"
    + struct.pack(">i", 1),
    "binary value negative": struct.pack(">I", 1 << 24 | 28)
    + bytes(17)
    + struct.pack(">ih", 7, 1)
    + b"a"
    + struct.pack(">i", -1),
    "binary remark is not utf-8": struct.pack(">I", 1 << 24 | 22)
    + bytes(13)
    + struct.pack(">i", 1)
    + b"\xff"
    + bytes(4),
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode(memoryview(frame))


def test_a_flood_of_ext_fields_is_refused_in_both_forms() -> None:
    many = {f"k{number}": "v" for number in range(FIELDS_MAX + 1)}
    for form in (JSON, BINARY):
        with pytest.raises(MalformedFrame, match="ext"):
            decoded(encode_bytes(Command(1, fields=many, serialize=form)))


def test_a_deep_header_is_refused() -> None:
    header = (
        json.dumps({"code": 1}).encode()[:-1]
        + b',"extFields":'
        + b"[" * 5_000
        + b"]" * 5_000
        + b"}"
    )
    with pytest.raises(MalformedFrame):
        decode(whole(99_999, len(header), header))


def test_frames_above_16_mib_are_not_written() -> None:
    room = FRAME_BYTES_MAX - 4 - 21
    for form in (JSON, BINARY):
        with pytest.raises(FrameTooLarge):
            encode(Command(10, body=bytes(room + 1), serialize=form))
    assert len(encode_bytes(Command(10, body=bytes(room), serialize=BINARY))) == 4 + FRAME_BYTES_MAX


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_no_bytes_make_the_decoder_fail_otherwise(data: bytes) -> None:
    for form in (JSON, BINARY):
        frame = struct.pack(">I", form << 24 | len(data)) + data
        for view in (memoryview(frame), memoryview(data)):
            try:
                found = decode(view)
            except MalformedFrame:
                continue
            assert isinstance(found, Command)


@settings(deadline=None)
@given(
    COMMANDS,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_flipped_bytes_are_read_or_refused(command: Command, flips: list[tuple[int, int]]) -> None:
    frame = bytearray(encode_bytes(command)[4:])
    for at, value in flips:
        frame[at % len(frame)] = value
    try:
        found = decode(memoryview(frame))
    except MalformedFrame:
        return
    assert isinstance(found, Command)


ODD_JSON = st.sampled_from(
    (
        '{"code":1.0}',
        '{"code":"7","opaque":null}',
        '{"code":true}',
        '{"code":1}x',
        ' {"code":1} ',
        '{"code":1,"code":2}',
        '{"code":2147483648}',
        '{"code":310,"extFields":{"a":"b","c":5,"d":null},"language":"GO"}',
        '{"code":310,"extFields":{0:"b"},"version":407}',
        '{"extFields":{"a":"\\ud800","b":"\x01"},"language":9}',
        '{"extFields":{"a":"\\u0001x"},"language":"XX","serializeTypeCurrentRPC":"JSON"}',
        '{"serializeTypeCurrentRPC":7,"unknown":{"deep":[[1]]},"remark":"r"}',
        '{"unknown":' + "[" * 70 + "]" * 70 + "}",
        "[]",
    )
)


@settings(deadline=None)
@given(ODD_JSON, st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=3)), max_size=2))
def test_both_readers_of_json_headers_agree(text: str, changes: list[tuple[int, bytes]]) -> None:
    header = bytearray(text.encode("utf-8", "surrogatepass"))
    for at, data in changes:
        header[at : at + len(data)] = data
    outcomes: list[Command | None] = []
    for read in (frames._from_json, frames._from_odd_json):
        try:
            outcomes.append(read(memoryview(header), b""))
        except MalformedFrame:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]
