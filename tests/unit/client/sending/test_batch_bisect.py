"""A refused frame of several calls is taken apart until each message has its own verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.client.outgoing.producer_identity import ProducerIdentity
from rmq_ray.client.outgoing.send_future import BatchOutcome, SendFuture
from rmq_ray.client.outgoing.send_payload import encode_records, flag_word
from rmq_ray.client.sending.batch_bisect import SplitBatch, bisected
from rmq_ray.errors import BrokerBusy, MessageIllegal, MessageTooLarge, SendError, SendUnknown
from rmq_ray.model.ids import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 3)
Bad = st.sets(st.integers(0, 30))


def refusal(numbers: Sequence[int], bad: set[int]) -> SendError | None:
    return next((MessageIllegal(f"number {n}") for n in numbers if n in bad), None)


@given(count=st.integers(2, 31), bad=Bad)
def test_every_good_message_is_sent_once_in_order_and_every_bad_one_has_its_own_error(
    count: int, bad: set[int]
) -> None:
    stored: list[int] = []
    frames = 0

    def make(parts: Any, outcome: BatchOutcome) -> Any:
        return parts[0]

    split = SplitBatch((list(range(count)), [""] * count, None), QUEUE, make)  # type: ignore[arg-type]
    error: SendError | None = MessageIllegal("one of them")
    while True:
        split.ended(error)
        if split.begin() is None:
            break
        numbers: Any = split.send()
        frames += 1
        error = refusal(numbers, bad)
        stored += numbers if error is None else []
    assert stored == [n for n in range(count) if n not in bad]
    assert frames <= 2 * count
    assert [
        str(each) if isinstance(each, SendError) else str(each[0].error) for each in split.verdicts
    ] == [f"number {n}" if n in bad else "None" for n in range(count)]


@given(count=st.integers(1, 31), bad=Bad)
def test_tasks_of_a_loop_get_the_same_verdicts(count: int, bad: set[int]) -> None:
    stored: list[int] = []

    async def send(begin: int, end: int) -> Any:
        if (error := refusal(range(begin, end), bad)) is not None:
            raise error
        stored.extend(range(begin, end))
        return list(range(begin, end))

    found = asyncio.run(bisected(count, send))
    assert [str(each) for each in found] == [
        f"number {n}" if n in bad else str(n) for n in range(count)
    ]
    assert stored == [n for n in range(count) if n not in bad]


@pytest.mark.parametrize("kind", [BrokerBusy, SendUnknown, SendError])
def test_what_concerns_every_message_is_not_tried_again_in_split(kind: type[SendError]) -> None:
    frames: list[tuple[int, int]] = []

    async def send(begin: int, end: int) -> Any:
        frames.append((begin, end))
        raise MessageTooLarge("together") if end - begin == 8 else kind("not now")

    found = asyncio.run(bisected(8, send))
    assert frames == [(0, 8), (0, 4), (4, 8)] and {type(each) for each in found} == {kind}


def test_what_has_no_verdict_when_all_is_given_up_gets_the_last_error() -> None:
    split = SplitBatch(
        (["a", "b", "c"], [""] * 3, None), QUEUE, lambda parts, outcome: SimpleNamespace()
    )  # type: ignore[arg-type, list-item, return-value]
    split.ended(MessageIllegal("one of them"))
    split.begin()
    split.ended(None)
    split.abandon(SendUnknown("closed"))
    outcome = BatchOutcome(QUEUE)
    outcome.verdicts = split.verdicts
    outcome.finish(split.refusal)
    futures = [SendFuture(outcome, n) for n in range(3)]
    assert futures[0].exception(0) is None
    assert [str(future.exception(0)) for future in futures[1:]] == ["closed", "closed"]


texts = st.lists(
    st.tuples(
        st.text("abä\U0001f600", min_size=1, max_size=9), st.text("xyü ", min_size=1, max_size=9)
    ),
    max_size=3,
)
flags = st.integers(-(1 << 31), (1 << 31) - 1)


@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=40), texts, flags, st.sampled_from([0, 0x301])),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
)
def test_messages_can_be_had_again_from_their_frame(messages: list[Any], with_flags: bool) -> None:
    bodies = [body for body, _, _, _ in messages]
    strings = [
        "".join(f"{name}\x01{value}\x02" for name, value in pairs) for _, pairs, _, _ in messages
    ]
    words = [flag_word(flag, sys_flag) for _, _, flag, sys_flag in messages] if with_flags else None
    payload = encode_records(
        ProducerIdentity("127.0.0.1"), QUEUE, bodies, strings, 1_700_000_000_000, 0.0, words
    )
    assert payload.parts() == (bodies, strings, words if words is not None and any(words) else None)
