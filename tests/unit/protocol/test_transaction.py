"""Rules of transactional messages: properties, checks, and the window that knows what became of
each half.
"""

from __future__ import annotations

import random

import pytest

from rmq_ray.model.message import decode_properties
from rmq_ray.model.topics import HALF_TOPIC
from rmq_ray.protocol.transaction import (
    CheckRules,
    EndState,
    HalfWindow,
    Op,
    Verdict,
    as_half,
    checks_of,
    copy_for_check,
    copy_for_immunity,
    decode_op,
    encode_op,
    final_text,
    half_facts,
    half_prefix,
    immunity_ms,
    judge,
    real_target,
)

RULES = CheckRules(6_000, 15, 72 * 3_600_000)
NOW = 1_700_000_000_000


def test_a_half_keeps_its_target_and_group_and_loses_what_only_a_broker_may_write() -> None:
    topic, half = as_half(
        "orders",
        3,
        {
            "TAGS": "paid",
            "WAIT": "true",
            "DELAY": "3",
            "RMQ_HALF_FROM": "7",
            "TRANSACTION_CHECK_TIMES": "9",
        },
        "web",
    )
    assert topic == HALF_TOPIC
    assert half == {
        "TAGS": "paid",
        "TRAN_MSG": "true",
        "REAL_TOPIC": "orders",
        "REAL_QID": "3",
        "PGROUP": "web",
    }
    assert real_target(half) == ("orders", 3)
    assert as_half("orders", 3, {"PGROUP": "other"}, "web")[1]["PGROUP"] == "other"
    assert decode_properties(final_text(copy_for_check(half, 5))) == {
        "TAGS": "paid",
        "PGROUP": "web",
    }


@pytest.mark.parametrize(
    "topic", ["", HALF_TOPIC, "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"]
)
def test_a_half_never_becomes_a_message_of_a_system_topic(topic: str) -> None:
    assert real_target({"REAL_TOPIC": topic, "REAL_QID": "0"}) is None


def verdict(
    age_ms: int,
    properties: dict[str, str] | None = None,
    *,
    stored_ms: int = 0,
    round_ms: int = NOW,
) -> Verdict:
    return judge(RULES, properties or {}, (NOW - age_ms, stored_ms), round_ms, NOW)


@pytest.mark.parametrize(
    ("age_ms", "properties", "expected"),
    [
        (5_999, {}, Verdict.STOP),
        (6_000, {}, Verdict.CHECK),
        (-1, {}, Verdict.CHECK),
        (10_000, {"TRANSACTION_CHECK_TIMES": "14"}, Verdict.CHECK),
        (10_000, {"TRANSACTION_CHECK_TIMES": "15"}, Verdict.DISCARD),
        (72 * 3_600_000 + 1, {}, Verdict.DISCARD),
        (29_999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "30"}, Verdict.PUT_BACK),
        (30_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "30"}, Verdict.CHECK),
        (5_999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}, Verdict.PUT_BACK),
        (6_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}, Verdict.CHECK),
        (5_999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, Verdict.STOP),
    ],
)
def test_what_a_check_does_with_a_half(
    age_ms: int, properties: dict[str, str], expected: Verdict
) -> None:
    assert verdict(age_ms, properties) is expected


def test_a_round_ends_at_halves_that_came_after_it_began() -> None:
    assert verdict(10_000, stored_ms=NOW, round_ms=NOW) is Verdict.STOP
    assert verdict(10_000, stored_ms=NOW - 1, round_ms=NOW) is Verdict.CHECK


def test_copies_count_checks_and_remember_where_they_come_from() -> None:
    once = copy_for_check({"KEYS": "a"}, 4)
    assert checks_of(once) == 1 and checks_of(copy_for_check(once, 9)) == 2
    back = copy_for_immunity({}, 4)
    assert copy_for_immunity(back, 9)["TRAN_PREPARED_QUEUE_OFFSET"] == "4"
    assert immunity_ms({"CHECK_IMMUNITY_TIME_IN_SECONDS": "12"}) == 12_000


@pytest.mark.parametrize(
    "op",
    [
        Op(7, EndState.COMMITTED),
        Op(0, EndState.ROLLED_BACK),
        Op(3, EndState.DISCARDED),
        Op(1, EndState.MOVED, 9, 1),
    ],
    ids=lambda op: op.state.name,
)
def test_ops_can_be_read_again(op: Op) -> None:
    assert decode_op(*encode_op(op)) == [op]


def test_ops_of_apache_rocketmq_say_that_a_half_ended_and_not_how() -> None:
    assert decode_op(b"12", {"TAGS": "d"}) == [Op(12, EndState.ENDED)]
    assert decode_op(b"12,15", {"TAGS": "d"}) == [Op(12, EndState.ENDED), Op(15, EndState.ENDED)], (
        "RocketMQ 5 joins them"
    )
    assert decode_op(b"\xff what", {}) == []
    assert decode_op(b"3", {"RMQ_OP": "m,x"}) == [Op(3, EndState.ENDED)]


def test_a_half_ends_once_and_its_first_outcome_stands() -> None:
    window = HalfWindow(10, 0)
    assert window.state(12) is EndState.PENDING and window.pending(13) == 3
    assert window.end(Op(12, EndState.COMMITTED)) and not window.end(Op(12, EndState.ROLLED_BACK))
    assert window.state(12) is EndState.COMMITTED and window.pending(13) == 2
    assert window.state(9) is EndState.FORGOTTEN and not window.end(Op(9, EndState.COMMITTED))
    assert window.next_pending(10) == 10 and window.next_pending(12) == 13


def test_the_end_of_an_old_copy_ends_the_one_that_stands_for_it() -> None:
    window = HalfWindow(0, 0)
    window.end(Op(2, EndState.MOVED, 10, 2))
    window.end(Op(10, EndState.MOVED, 20, 2))
    assert window.current(2) == window.current(10) == window.current(20) == 20
    assert window.current(3) == 3


def test_a_window_made_anew_from_the_saved_offsets_knows_what_the_old_one_knew() -> None:
    """Random histories of ends and moves; the log of ops is all that a restart has."""
    for seed in range(200):
        rng = random.Random(seed)
        window, ops, half_max = HalfWindow(0, 0), [], 0
        saved = (0, 0)
        for _ in range(rng.randrange(1, 120)):
            half_max += rng.randrange(3)
            pending = [
                offset
                for offset in range(window.start, half_max)
                if window.state(offset) is EndState.PENDING
            ]
            if pending and rng.random() < 0.8:
                offset = rng.choice(pending[:4])
                if rng.random() < 0.3:
                    op, half_max = Op(offset, EndState.MOVED, half_max, offset), half_max + 1
                else:
                    op = Op(
                        offset,
                        rng.choice([EndState.COMMITTED, EndState.ROLLED_BACK, EndState.DISCARDED]),
                    )
                window.end(op)
                window.written(max(op.half_offset, op.copy))
                ops.append(op)
            if rng.random() < 0.2:
                saved = window.trim(half_max, keep=5)
        again = HalfWindow(*saved)
        for op in ops[saved[1] :]:
            again.apply(decode_op(*encode_op(op)))
        for offset in range(saved[0], half_max):
            assert (
                again.state(offset) is window.state(offset)
                or window.state(offset) is EndState.FORGOTTEN
            ), (seed, offset)
            if window.state(window.current(offset)) is EndState.PENDING:
                assert again.current(offset) == window.current(offset), (seed, offset)
        assert again.pending(half_max) == window.pending(half_max), seed
        assert saved[0] <= window.next_pending(window.start), "a pending half is never left out"


def test_memory_is_a_byte_for_each_half_and_bounded_history() -> None:
    window = HalfWindow(0, 0)
    for offset in range(200_000):
        window.end(Op(offset, EndState.COMMITTED))
        window.written(offset)
        if offset % 10_000 == 0:
            window.trim(offset + 1)
    assert window.trim(200_000) == (200_000 - 65_536, 200_000 - 65_536)
    assert window.pending(200_000) == 0


KEY = f"UNIQ_KEY\x01{7:032X}"


@pytest.mark.parametrize(
    "text",
    [
        half_prefix("orders", 3, "web", None) + KEY,
        half_prefix("orders", 3, "web", 9) + "TAGS\x01t\x02KEYS\x01k\x02a\x01b\x02" + KEY,
        "RMQ_FRAME\x01" + "0" * 72 + "\x02" + half_prefix("orders", 3, "web", None) + KEY,
        half_prefix("orders", 3, "web", None) + KEY.replace("7", "8") + "\x02" + KEY,
        half_prefix("orders", 3, "web", None) + KEY + "\x02TAGS\x01t",
        half_prefix("orders", 3, "web", None) + "UNIQ_KEY\x01short",
        half_prefix("orders", 3, "web", None) + "UNIQ_KEY\x01" + "1" * 29 + "\x02x\x01",
        half_prefix("orders", 3, "web", None).removesuffix("\x02"),
        "REAL_QID\x01x\x02" + KEY,
        "TRAN_MSG\x01true\x02" + KEY,
        KEY,
        "",
    ],
)
def test_what_a_half_says_is_what_its_parsed_properties_say(text: str) -> None:
    properties = decode_properties(text)
    assert half_facts(text) == (
        properties.get("PGROUP"),
        real_target(properties),
        final_text(properties),
    )
