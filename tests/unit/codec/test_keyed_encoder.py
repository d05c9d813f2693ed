import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.key_range import KeyRange
from rmq_ray.codec.keyed_encoder import RecordFlags, encode_keyed
from rmq_ray.errors import MessageIllegal
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames.frame_check import check_frame

FRAME = FrameId(bytes(range(16)), 7)
HEAD = "7F000001" * 3 + "0000"
TEXTS = st.sampled_from(
    [
        "",
        "TAGS\x01a\x02",
        "KEYS\x01k1 k2\x02TAGS\x01ü\x02",
        "x\x01y\x02",
        "KEYS\x01" + "k" * 300 + "\x02",
    ]
)


def record_by_record(bodies, texts, keys, **options):
    properties = [f"{text}UNIQ_KEY\x01{key}" for text, key in zip(texts, keys, strict=True)]
    return encode_frame("Topic_1", 3, bodies, properties, 1_700_000_000_123, FRAME, **options)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=300), TEXTS), min_size=1, max_size=60),
    st.booleans(),
    st.integers(0, 70_000),
    st.booleans(),
)
def test_columns_make_the_bytes_that_a_loop_makes(messages, same_text, first, flagged):
    bodies = [body for body, _ in messages]
    texts = [messages[0][1] if same_text else text for _, text in messages]
    keys = KeyRange(HEAD, first, len(bodies))
    options = (
        {
            "flags": [n % 7 - 3 for n in range(len(bodies))],
            "sys_flags": [n % 2 for n in range(len(bodies))],
        }
        if flagged
        else {}
    )
    flags = RecordFlags(options.get("flags"), options.get("sys_flags", 0))
    data, sizes = encode_keyed("Topic_1", 3, bodies, texts, keys, 1_700_000_000_123, FRAME, flags)
    expected, expected_sizes = record_by_record(bodies, texts, keys, **options)
    assert data == expected
    assert sizes.dtype == np.dtype(">i4") and sizes.tolist() == expected_sizes.tolist()


def test_the_broker_takes_such_a_frame_and_finds_its_keys():
    keys = KeyRange(HEAD, 0xFFF0, 40)
    data, sizes = encode_keyed(
        "T", 0, [b"body %d" % n for n in range(40)], ["TAGS\x01a\x02"] * 40, keys, 1, FRAME
    )
    frame = check_frame(bytearray(data), sizes, 1_000)
    assert frame.frame_id == FRAME and frame.unique is not None
    assert frame.unique.tobytes().decode() == "".join(keys)


@pytest.mark.parametrize("odd", [None, 0, 17, 39])
def test_properties_that_do_not_fit_are_refused_with_the_record(odd):
    long = "K\x01" + "v" * 32_725 + "\x02"
    texts = [long] * 40 if odd is None else [long if number == odd else "" for number in range(40)]
    with pytest.raises(MessageIllegal, match=f"in record {odd or 0}; 32767 fit"):
        encode_keyed("T", 0, [b"x"] * 40, texts, KeyRange(HEAD, 0, 40), 1, FRAME)


def test_what_no_frame_can_be_is_refused_as_ever():
    for count in (0, 65_537):
        with pytest.raises(MessageIllegal, match="1 to 65536"):
            encode_keyed("T", 0, [b"x"] * count, [""] * count, KeyRange(HEAD, 0, count), 1, FRAME)
    with pytest.raises(MessageIllegal, match="topic"):
        encode_keyed("T" * 128, 0, [b"x"] * 20, [""] * 20, KeyRange(HEAD, 0, 20), 1, FRAME)


def test_a_range_of_keys_is_a_sequence_that_counts_in_hexadecimal():
    keys = KeyRange(HEAD, 0x1FFFE, 4)
    assert list(keys) == [HEAD + digits for digits in ("FFFE", "FFFF", "0000", "0001")]
    assert keys[-1] == keys[3] and keys[1:3] == list(keys)[1:3]
    assert keys.joined() == ",".join(keys)
    assert keys.matrix().tobytes().decode() == "".join(keys)
    with pytest.raises(IndexError):
        keys[4]
