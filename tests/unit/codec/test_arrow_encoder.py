import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.codec.arrow.arrow_encoder import encode_arrow
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.key_range import KeyRange
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames.frame_check import check_frame

FRAME = FrameId(bytes(range(16)), 7)
HEAD = "7F000001" * 3 + "0000"
TEXTS = st.sampled_from(["", "TAGS\x01a\x02", "KEYS\x01k1 k2\x02TAGS\x01ü\x02", "x\x01y\x02"])


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=700), TEXTS), min_size=1, max_size=40),
    st.integers(0, 5),
    st.booleans(),
)
def test_columns_make_the_bytes_that_a_loop_makes_from_any_slice(messages, skipped, labelled):
    bodies = [body for body, _ in messages]
    texts = [text if labelled else "" for _, text in messages]
    keys = KeyRange(HEAD, 0xFFFA, len(bodies))
    padding = [b"other"] * skipped
    column = pa.array(padding + bodies + padding, pa.binary()).slice(skipped, len(bodies))
    labels = (
        pa.array(padding + [text.encode() for text in texts], pa.binary()).slice(skipped)
        if labelled
        else None
    )
    data, sizes = encode_arrow("Topic_1", 3, column, labels, keys, 123, FRAME)
    properties = [f"{text}UNIQ_KEY\x01{key}" for text, key in zip(texts, keys, strict=True)]
    expected, expected_sizes = encode_frame("Topic_1", 3, bodies, properties, 123, FRAME)
    assert bytes(data) == expected
    assert sizes.tolist() == expected_sizes.tolist()


def test_the_broker_takes_such_a_frame():
    bodies = pa.array([b"b" * 100] * 50, pa.binary())
    data, sizes = encode_arrow(
        "T",
        1,
        bodies,
        pa.array([b"KEYS\x01%d\x02" % n for n in range(50)], pa.binary()),
        KeyRange(HEAD, 0, 50),
        1,
        FRAME,
    )
    frame = check_frame(bytearray(data), sizes, 1_000)
    assert (frame.topic, frame.queue_id, frame.count, frame.frame_id) == ("T", 1, 50, FRAME)
    assert frame.keys == [(n, str(n)) for n in range(50)]
