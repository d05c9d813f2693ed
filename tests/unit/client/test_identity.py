"""Frame ids and keys never repeat, and the window of sequences is bounded."""

from __future__ import annotations

import pytest

from rmq_ray.client.identity import SEQUENCE_SPAN_MAX, ProducerIdentity
from rmq_ray.errors import BrokerBusy

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


def test_an_unresolved_frame_holds_back_the_ones_that_would_push_it_out_of_the_brokers_window() -> None:
    identity = ProducerIdentity("127.0.0.1")
    oldest = identity.take(10)
    for _ in range(SEQUENCE_SPAN_MAX - 1):
        identity.release(identity.take(10))
    with pytest.raises(BrokerBusy, match="unanswered while"):
        identity.take(10)
    identity.release(oldest)
    assert identity.take(10).sequence == SEQUENCE_SPAN_MAX
