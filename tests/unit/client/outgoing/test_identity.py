"""Frame ids and keys never repeat, and the window of sequences is bounded."""

from __future__ import annotations

import threading

import pytest

from rmq_ray.client.outgoing.producer_identity import (
    LOOK_EVERY,
    SEQUENCE_SPAN_MAX,
    ProducerIdentity,
    UniqueKeys,
)
from rmq_ray.errors import BrokerBusy

WINDOW = 1_024  # a broker's window of frames per producer
NOW = 1_700_000_000_000


def test_sequences_count_from_zero_and_ids_differ_between_producers() -> None:
    one, two = ProducerIdentity("127.0.0.1"), ProducerIdentity("127.0.0.1")
    assert [one.take(10).sequence for _ in range(3)] == [0, 1, 2]
    assert one.take(10).producer_id != two.take(10).producer_id and len(one.producer_id) == 16


def test_keys_of_one_millisecond_and_of_two_producers_differ() -> None:
    one, two = ProducerIdentity("127.0.0.1"), ProducerIdentity("127.0.0.1")
    keys = [*one.unique_keys(NOW, 500), one.unique_key(NOW), *two.unique_keys(NOW, 500)]
    assert len(set(keys)) == 1001
    assert {len(key) for key in keys} == {32}


def test_an_unresolved_frame_holds_back_the_ones_that_would_push_it_out_of_the_brokers_window() -> (
    None
):
    identity = ProducerIdentity("127.0.0.1")
    oldest = identity.take(10)
    with pytest.raises(BrokerBusy, match="unanswered while"):
        for _ in range(WINDOW):
            identity.release(newest := identity.take(10))
    assert SEQUENCE_SPAN_MAX <= newest.sequence < WINDOW - LOOK_EVERY
    identity.release(oldest)
    assert identity.take(10).sequence > newest.sequence


def test_who_does_not_wait_is_refused_until_the_old_frame_is_resolved() -> None:
    """Asking again and again must not get past the limit."""
    identity = ProducerIdentity("127.0.0.1")
    oldest = identity.take(0)
    with pytest.raises(BrokerBusy):
        for _ in range(WINDOW):
            identity.release(identity.take(0))
    for _ in range(300):
        with pytest.raises(BrokerBusy):
            identity.take(0)
    identity.release(oldest)
    for _ in range(2 * WINDOW):
        identity.release(identity.take(0))


def test_who_is_held_back_goes_on_when_the_old_frame_is_resolved() -> None:
    identity = ProducerIdentity("127.0.0.1")
    oldest = identity.take(10)
    threading.Timer(0.05, lambda: identity.release(oldest)).start()
    for _ in range(2 * WINDOW):
        identity.release(identity.take(5_000))
    assert identity.take(10).sequence == 2 * WINDOW + 1


def test_unique_keys_carry_host_process_time_and_counter() -> None:
    keys = UniqueKeys("192.168.0.10", 15956, 0x18B4AAC2)
    now_ms = 1_700_000_000_000
    first, second = keys.take(now_ms, 2)
    assert first[:20] == "C0A8000A3E5418B4AAC2" and first[28:] == "0000" and second[28:] == "0001"
    assert int(keys.next(now_ms + 5)[20:28], 16) == int(first[20:28], 16) + 5
    assert len({*keys.take(now_ms, 65_536)}) == 65_536
    assert all(len(key) == 32 for key in (first, second))
