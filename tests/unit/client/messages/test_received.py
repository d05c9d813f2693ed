"""Received messages: every field out of the page's bytes, on demand."""

from __future__ import annotations

import copyreg
import io
import pickle
import zlib
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.client.messages.received import INFLATED_BYTES_MAX, PulledPage, untagged_bodies
from rmq_ray.codec.record import Record, encode_record
from rmq_ray.errors import ConsumeError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import SysFlag, decode_properties
from tests.support.clients.scripted_client import record

QUEUE = MessageQueue("orders", "broker-a", 2)
KEY = "C0A8000A3E5418B4AAC2000000010002"


def page(
    *records: bytes, queue: MessageQueue = QUEUE, bounds: tuple[int, int] = (3, 99)
) -> PulledPage:
    return PulledPage(
        queue, b"".join(records), np.array([len(r) for r in records], ">i4"), 0, bounds
    )


def test_every_field_is_read_from_the_record() -> None:
    properties = (
        f"RMQ_FRAME\x01{'0' * 72}\x02KEYS\x01o-1 "
        f"o-2\x02TAGS\x01paid\x02region\x01eu\x02UNIQ_KEY\x01{KEY}"
    )
    (message,) = page(
        record(QUEUE, 7, b"hello", properties, flag=5, reconsume_times=2, prepared_offset=11)
    ).messages()
    assert (message.topic, message.queue, message.queue_offset, message.log_offset) == (
        "orders",
        QUEUE,
        7,
        1_700,
    )
    assert (message.body, message.tag, message.keys, message.message_id) == (
        b"hello",
        "paid",
        ["o-1", "o-2"],
        KEY,
    )
    assert message.properties == {"region": "eu"}
    assert (message.flag, message.reconsume_times, message.prepared_offset) == (5, 2, 11)
    assert message.born_ts == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (message.store_ms, message.born_host, message.store_host) == (
        1_700_000_000_005,
        Address("192.168.0.10", 51000),
        Address("10.0.0.1", 10911),
    )
    assert message.offset_message_id == "0A00000100002A9F00000000000006A4"


def test_the_frame_mark_is_hidden_and_the_queue_bounds_are_added() -> None:
    (message,) = page(
        record(QUEUE, 0, properties=f"RMQ_FRAME\x01{'0' * 72}\x02a\x01b\x02")
    ).messages()
    assert message.all_properties == {"a": "b", "MIN_OFFSET": "3", "MAX_OFFSET": "99"}


@pytest.mark.seed("S4-174")
def test_messages_handed_to_a_listener_carry_the_time_it_got_them() -> None:
    (message,) = page(record(QUEUE, 0)).messages(started_ms=1_234)
    assert message.consume_start_ms == 1_234
    assert message.all_properties["CONSUME_START_TIME"] == "1234"


def test_a_retried_message_has_its_original_topic_again() -> None:
    retry = MessageQueue("%RETRY%g", "broker-a", 0)
    messages = page(
        record(retry, 0, properties="RETRY_TOPIC\x01orders"), record(retry, 1), queue=retry
    ).messages()
    assert [message.topic for message in messages] == ["orders", "%RETRY%g"]
    assert messages[0].queue == retry


def test_a_message_without_unique_key_is_known_by_where_it_lies() -> None:
    (message,) = page(record(QUEUE, 0)).messages()
    assert message.message_id == message.offset_message_id
    (other,) = page(record(QUEUE, 0, properties=f"UNIQ_KEY\x01{KEY}\x02a\x01b")).messages()
    assert other.message_id == KEY


def test_compressed_bodies_are_inflated() -> None:
    plain = b"x" * 5_000
    messages = page(
        record(QUEUE, 0, zlib.compress(plain), sys_flag=SysFlag.COMPRESSED),
        record(QUEUE, 1, b"plain"),
    ).messages()
    assert [message.body for message in messages] == [plain, b"plain"]
    assert messages[0].stored_body == zlib.compress(plain)


def test_bodies_without_tags_are_read_at_once_from_several_pages_and_parts_of_them() -> None:
    first = page(record(QUEUE, 0, b"a"), record(QUEUE, 1, b"b")).messages()
    second = page(*(record(QUEUE, n, b"TAGS\x01%d" % n) for n in range(300))).messages()
    some = [first[1], *second[7:], second[3], first[0]]
    assert untagged_bodies(some) == [message.body for message in some]
    assert untagged_bodies([]) == []


def test_a_tag_a_compressed_body_and_what_looks_like_a_tag_are_left_to_each_message() -> None:
    packed = record(QUEUE, 0, zlib.compress(b"x"), sys_flag=SysFlag.COMPRESSED)
    for other in (
        record(QUEUE, 1, b"b", "TAGS\x01paid"),
        record(QUEUE, 1, b"b", "MYTAGS\x01paid"),
        packed,
    ):
        messages = page(record(QUEUE, 0, b"a")).messages() + page(other).messages()
        assert untagged_bodies(messages) is None


def test_a_body_that_is_not_what_its_flags_say_is_a_typed_error() -> None:
    lz4 = SysFlag.COMPRESSED | 1 << 8
    cut = zlib.compress(b"y" * 500)[:-3]
    bomb = zlib.compress(bytes(INFLATED_BYTES_MAX + 1))
    for body, flags in (
        (b"not zlib", SysFlag.COMPRESSED),
        (b"lz4", lz4),
        (cut, SysFlag.COMPRESSED),
        (bomb, SysFlag.COMPRESSED),
    ):
        (message,) = page(record(QUEUE, 0, body, sys_flag=flags)).messages()
        with pytest.raises(ConsumeError):
            _ = message.body


@pytest.mark.parametrize("more", [0, 40])
def test_records_with_sixteen_byte_hosts_are_read_too(more: int) -> None:
    long = encode_record(
        Record(
            "orders",
            2,
            b"six",
            "TAGS\x01a",
            0,
            1,
            5,
            0,
            9,
            ("2001:db8::1", 1),
            10,
            ("2001:db8::2", 2),
            4,
            6,
        )
    )
    messages = page(
        record(QUEUE, 0, b"four"), long, *[record(QUEUE, 2 + i, b"four") for i in range(more)]
    ).messages()
    assert [message.body for message in messages] == [b"four", b"six"] + [b"four"] * more
    six = messages[1]
    assert (
        six.born_host,
        six.store_host,
        six.store_ms,
        six.reconsume_times,
        six.prepared_offset,
    ) == (
        Address("2001:db8::1", 1),
        Address("2001:db8::2", 2),
        10,
        4,
        6,
    )
    assert six.tag == "a"


def test_tags_are_compared_as_strings_and_not_confused_with_names_that_end_alike() -> None:
    found = page(
        record(QUEUE, 0, properties="TAGS\x01Aa"),
        record(QUEUE, 1, properties="TAGS\x01BB"),
        record(QUEUE, 2, properties="MYTAGS\x01Aa"),
        record(QUEUE, 3, properties="MYTAGS\x01BB\x02TAGS\x01Aa\x02"),
        record(QUEUE, 4),
        record(QUEUE, 5, b"TAGS\x01Aa"),
    )
    assert found.tagged(frozenset({"Aa"})) == [0, 3]
    assert [message.tag for message in found.messages()] == ["Aa", "BB", None, "Aa", None, None]


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("spoil", ["magic", "size", "short", "body", "negative", "tiny", "hosts"])
def test_bytes_that_are_no_records_make_no_page(spoil: str, count: int) -> None:
    raw = bytearray(b"".join(record(QUEUE, i) for i in range(count)))
    sizes = np.full(count, len(raw) // count, ">i4")
    assert len(PulledPage(QUEUE, bytes(raw), sizes)) == count
    if spoil == "magic":
        raw[4] ^= 1
    elif spoil == "size":
        sizes[:2] += np.array([1, -1], ">i4")
    elif spoil == "short":
        raw = raw[:-1]
    elif spoil == "negative":
        raw[84:88] = (-1).to_bytes(4, signed=True)
    elif spoil == "tiny":
        sizes[:2] += np.array([20 - sizes[0], sizes[0] - 20], ">i4")
    elif spoil == "hosts":
        raw[39 - len(raw) // count] |= (
            SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
        )  # of the last record
    else:
        raw[84:88] = (1 << 20).to_bytes(4)
    with pytest.raises(ConsumeError):
        PulledPage(QUEUE, bytes(raw), sizes)


def test_an_empty_page_is_refused() -> None:
    with pytest.raises(ConsumeError):
        PulledPage(QUEUE, b"", np.array([], ">i4"))


def test_a_pickled_message_is_one_record_of_plain_values() -> None:
    messages = page(*[record(QUEUE, i, b"%d" % i * 500) for i in range(50)]).messages(started_ms=5)
    messages[4].failed_here(9)
    packed = pickle.dumps(messages[4])
    assert len(packed) < 1_500
    back = pickle.loads(packed)
    assert (
        back.body,
        back.queue,
        back.queue_offset,
        back.reconsume_times,
        back.consume_start_ms,
    ) == (b"4" * 500, QUEUE, 4, 1, 9)
    assert back.all_properties["MAX_OFFSET"] == "99"


def test_a_pickled_message_needs_no_class_but_the_rebuilding_function() -> None:
    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            assert (module, name) == ("rmq_ray.client.messages.received", "restored")
            return super().find_class(module, name)

    (message,) = page(record(QUEUE, 0, b"x")).messages()
    assert Plain(io.BytesIO(pickle.dumps(message))).load().body == b"x"
    assert copyreg.dispatch_table.get(type(message)) is None


def test_a_message_kept_for_another_try_counts_it_locally() -> None:
    (message,) = page(record(QUEUE, 0, reconsume_times=3)).messages()
    message.failed_here(7)
    assert (message.reconsume_times, message.consume_start_ms) == (4, 7)


@given(bodies=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=40))
def test_bodies_come_out_as_they_went_in_whatever_their_lengths(bodies: list[bytes]) -> None:
    found = page(*[record(QUEUE, i, body) for i, body in enumerate(bodies)])
    assert [message.body for message in found.messages()] == bodies
    assert list(found.body_bytes) == [len(body) for body in bodies]
    assert [message.queue_offset for message in found.messages()] == list(range(len(bodies)))


@given(
    st.lists(
        st.sampled_from(
            [
                "a\x01b",
                "KEYS\x01x y",
                "",
                "\x01v",
                "name\x01",
                "\x01vv",
                "no separator",
                "a\x01b\x01c",
                "é\x01ü",
            ]
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_properties_are_parsed_as_the_format_says_whatever_is_broken_in_them(
    segments: list[str], ended: bool
) -> None:
    text = "\x02".join(segments) + ("\x02" if ended else "")
    (message,) = page(record(QUEUE, 0, properties=text)).messages()
    assert message.all_properties == decode_properties(text) | {
        "MIN_OFFSET": "3",
        "MAX_OFFSET": "99",
    }
