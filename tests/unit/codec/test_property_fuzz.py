"""Any text and any bytes as the property string of a record: what can be read of it is read the
same way everywhere, and nothing but a typed error comes out.
"""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.codec.record_properties import plain_facts, split_facts, stored_facts, stored_parts
from rmq_ray.errors import RmqError
from rmq_ray.model.message import decode_properties, encode_properties

PIECES = st.sampled_from(
    [
        *(b"KEYS", b"TAGS", b"UNIQ_KEY", b"DELAY", b"WAIT", b"REAL_TOPIC", b"PGROUP", b"a"),
        *(b"\x01", b"\x02", b"3", b"k1 k2", b"  ", b"\xe6\xa0\x87", b"\xff\xfe", b"\x00", b""),
    ]
)
BYTES = st.one_of(st.binary(max_size=120), st.lists(PIECES, max_size=30).map(b"".join))
NAMES = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=9)


@settings(max_examples=500)
@given(BYTES)
def test_any_bytes_are_read_or_refused_with_a_typed_error(text: bytes) -> None:
    for read in (split_facts, stored_parts, stored_facts, plain_facts):
        with contextlib.suppress(RmqError):
            read(text)


@settings(max_examples=300)
@given(st.text(max_size=80))
def test_what_any_text_is_read_as_is_written_and_read_the_same(text: str) -> None:
    found = decode_properties(text)
    assert decode_properties(encode_properties(found)) == found


@settings(max_examples=300)
@given(st.dictionaries(NAMES, NAMES, max_size=8))
def test_what_is_written_is_read(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == {
        name: value for name, value in properties.items() if len(name) + len(value) >= 2
    }
