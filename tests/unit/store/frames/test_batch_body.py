"""RocketMQ's batch in bulk: what is stored, queued, indexed and refused is what reading it message
by message makes of it.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.errors import RmqError
from rmq_ray.store.frames import batch_body
from rmq_ray.store.frames.batch_body import encode_batch_in_bulk, property_strings
from rmq_ray.store.frames.single_message import encode_batch
from rmq_ray.store.front import appender
from rmq_ray.store.front.message_store import AppendResult, StoredMessage
from tests.support.brokers.store_rig import BORN, HOST, StoreRig, small_config
from tests.support.stores.random_batches import COMMON, batch_bodies, batch_item

DERIVED = ("commitlog", "consumequeue", "index")
SHIFTED = "KEYS\x01{2}\x02region\x01{3}\x02UNIQ_KEY\x017F0000012A9F{0:012X}"
JAVAS = "KEYS\x01o-{0}\x02UNIQ_KEY\x017F0000012A9F18B4AAC2{0:012X}\x02WAIT\x01true\x02TAGS\x01t{1}"


def files_of(rig: StoreRig) -> dict[str, bytes]:
    """Log, queues and index as they are on disk after a flush."""
    rig.store.flush()
    return {
        path: bytes(inode.current)
        for path, inode in rig.disk.names.items()
        if any(part in path for part in DERIVED)
    }


def outcome(batch: StoredMessage) -> tuple[object, dict[str, bytes], list[object]]:
    """(result or refusal, files, arrivals) of a store that takes this batch twice."""
    rig = StoreRig(config=small_config(body_bytes_max=30_000))
    results: list[AppendResult | tuple[type[RmqError], str]] = []
    for _ in range(2):
        try:
            results.append(rig.store.append_batch_body(batch))
        except RmqError as error:
            results.append((type(error), error.message))
    return results, files_of(rig), list(rig.arrivals)


def one_by_one(batch: StoredMessage) -> tuple[object, dict[str, bytes], list[object]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "encode_batch_in_bulk", lambda *_: None)
        return outcome(batch)


@given(batch_bodies(), st.sampled_from(COMMON), st.sampled_from((0, 1, 8)), st.booleans())
def test_a_batch_is_stored_or_refused_as_its_messages_one_by_one(
    body: bytes, common: str, sys_flag: int, is_v6: bool
) -> None:
    born = ("2001:db8::1", 5_000) if is_v6 else BORN
    batch = StoredMessage("orders", 3, body, common, 0, sys_flag, 1_234, born, 2)
    assert outcome(batch) == one_by_one(batch)


def javas_body(lengths: list[int], text: str = JAVAS) -> bytes:
    """``text``: {0} the number, {1} a few values, {2} and {3} of lengths that add up to 9."""
    return b"".join(
        batch_item(
            b"x" * length,
            text.format(
                number, number % 3, "k" * (1 + number % 8), "r" * (8 - number % 8)
            ).encode(),
            number,
        )
        for number, length in enumerate(lengths)
    )


@pytest.mark.parametrize(
    "lengths",
    [[100] * 110, [number % 7 for number in range(110)], [0] * 90, list(range(90))],
)
@pytest.mark.parametrize("text", [JAVAS, SHIFTED])
def test_what_javas_client_sends_is_read_in_bulk(lengths: list[int], text: str) -> None:
    body = javas_body(lengths, text)
    batch = StoredMessage("orders", 3, body, COMMON[0], born_host=BORN)
    found = encode_batch_in_bulk(batch, HOST, 1 << 20)
    wanted = encode_batch(batch, HOST, 1 << 20)
    assert found is not None and found.frame.sizes.tolist() == wanted.frame.sizes
    assert found.frame.starts.tolist() == wanted.frame.starts
    assert found.frame.tag_codes.tolist() == wanted.frame.tag_codes
    hashed = sum([len(keys.rows) for keys in found.frame.hashed_keys])
    assert hashed >= 2 * (len(lengths) - 20) > 0, "keys are hashed together"
    assert outcome(batch) == one_by_one(batch)


@pytest.mark.parametrize("size", [0, 1, 11, 21, 22, 352, 353, 1 << 31, (1 << 32) - 1])
def test_a_batch_of_impossible_sizes_is_refused_in_the_same_words(size: int) -> None:
    body = size.to_bytes(4, "big") * 88
    batch = StoredMessage("orders", 3, body, COMMON[0], born_host=BORN)
    assert outcome(batch) == one_by_one(batch)


@pytest.mark.parametrize("key", ["A" * 32, "0" * 56, "A" * 80, "k"])
def test_unique_keys_of_any_length_are_found_by_query(key: str) -> None:
    rig = StoreRig()
    texts = [f"UNIQ_KEY\x01{key[:-1]}{number % 10}".encode() for number in range(40)]
    body = b"".join(batch_item(b"b%d" % number, text) for number, text in enumerate(texts))
    rig.store.append_batch_body(StoredMessage("T", 0, body, COMMON[0], born_host=BORN))
    found = rig.store.query("T", f"{key[:-1]}7", 32, 0, 1 << 62)
    assert sorted(re.findall(rb"b(\d+)", b" ".join(found))) == [b"17", b"27", b"37", b"7"]


def test_a_doubtful_batch_is_left_to_the_judge_of_single_messages() -> None:
    sound = javas_body([10] * 20)
    for body, common in (
        (sound[:-1], COMMON[0]),
        (sound, ""),
        (sound, COMMON[3]),
        (sound + batch_item(b"x", b"a\x01\xff"), COMMON[0]),
        (sound + batch_item(b"x", b"RMQ_FRAME\x01a"), COMMON[0]),
        (sound + batch_item(b"x", b"a\x01" + b"y" * 32_740), COMMON[0]),
    ):
        batch = StoredMessage("orders", 0, body, common, born_host=BORN)
        assert encode_batch_in_bulk(batch, HOST, 1 << 20) is None


@given(batch_bodies())
def test_no_property_escapes_a_search(body: bytes) -> None:
    texts = property_strings(body)
    items = batch_body._read_items(body) if len(body) >= 352 else None
    if items is None:
        assert texts == body
        return
    for start, body_len, text_len in zip(
        items.starts.tolist(), items.body_lens.tolist(), items.text_lens.tolist(), strict=True
    ):
        begin = start + 22 + body_len
        assert body[begin : begin + text_len] in texts
