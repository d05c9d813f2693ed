"""Rows of a page say what its messages say."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rmq_ray.client.messages import message_columns
from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.errors import ClientError
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SysFlag
from tests.support.clients.scripted_client import record

ORDERS = MessageQueue("orders", "broker-a", 3)
RETRY = MessageQueue("%RETRY%g", "broker-a", 0)


def page(queue: MessageQueue, records: Sequence[bytes]) -> PulledPage:
    return PulledPage(queue, b"".join(records), np.array([len(one) for one in records], ">i4"))


def told(message: MessageExt) -> dict[str, object]:
    queue = message.queue
    return {
        "topic": message.topic,
        "broker": queue.broker_name,
        "queue_id": queue.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "keys": message.keys,
        "tag": message.tag,
        "properties": [
            item
            for item in message.properties.items()
            if item[0] not in ("MIN_OFFSET", "MAX_OFFSET")
        ],
        "body": message.body,
        "born_ts": message.born_ts,
        "store_ts": message.store_ts,
        "reconsume_times": message.reconsume_times,
    }


def mixed(count: int) -> PulledPage:
    properties = [
        "",
        "TAGS\x01paid",
        "KEYS\x01a b\x02region\x01eu",
        "UNIQ_KEY\x01" + "0123456789ABCDEF" * 2,
    ]
    return page(
        ORDERS, [record(ORDERS, 7 + i, b"body-%d" % i, properties[i % 4]) for i in range(count)]
    )


@pytest.mark.parametrize("indices", [range(40), range(3, 9), [0, 2, 3, 39], [5], range(0)], ids=str)
def test_each_row_says_what_its_message_says(indices: Sequence[int]) -> None:
    found = message_columns.rows(mixed(40), indices)
    assert found.schema == SCHEMA
    assert found.to_pylist() == [told(message) for message in mixed(40).messages(indices)]


def test_few_columns_are_in_the_order_asked_for_and_unknown_ones_are_refused() -> None:
    assert message_columns.rows(mixed(2), [1], ["body", "queue_id"]).to_pydict() == {
        "body": [b"body-1"],
        "queue_id": [3],
    }
    with pytest.raises(ClientError, match="no column 'bodies'"):
        message_columns.rows(mixed(2), [1], ["bodies"])


def test_rows_of_a_retry_topic_have_the_first_topic() -> None:
    retried = page(
        RETRY,
        [
            record(RETRY, i, b"x", f"RETRY_TOPIC\x01{topic}", reconsume_times=2)
            for i, topic in enumerate(("orders", "bills"))
        ],
    )
    found = message_columns.rows(retried, range(2))
    assert found.schema == SCHEMA
    assert (found.column("topic").to_pylist(), found.column("reconsume_times").to_pylist()) == (
        ["orders", "bills"],
        [2, 2],
    )
    assert message_columns.rows(retried, range(2), ["body"]).num_columns == 1


def test_messages_that_were_kept_here_tell_their_own_count_of_tries() -> None:
    messages = mixed(6).messages([1, 4])
    for message in messages:
        message.failed_here(1)
    found = message_columns.rows_of(messages)
    assert (found.column("body").to_pylist(), found.column("reconsume_times").to_pylist()) == (
        [b"body-1", b"body-4"],
        [1, 1],
    )


def test_compressed_bodies_are_opened() -> None:
    squeezed = page(
        ORDERS,
        [
            record(ORDERS, 0, zlib.compress(b"a" * 1_000), sys_flag=int(SysFlag.COMPRESSED)),
            record(ORDERS, 1, b"plain"),
        ],
    )
    assert message_columns.rows(squeezed, range(2), ["body"]).to_pydict() == {
        "body": [b"a" * 1_000, b"plain"]
    }


def test_a_table_is_all_pieces_in_their_order_and_has_the_columns_even_without_any() -> None:
    found = message_columns.table([(mixed(5), range(2)), (mixed(5), [4])], ["body"])
    assert found.to_pydict() == {"body": [b"body-0", b"body-1", b"body-4"]}
    assert message_columns.table([]).schema == SCHEMA


def test_parts_of_a_page_are_slices_of_columns_that_were_made_once() -> None:
    whole = mixed(40)
    first, second = message_columns.rows(whole, range(8)), message_columns.rows(whole, range(8, 16))
    assert first.column("body").buffers()[2].address == second.column("body").buffers()[2].address
    assert message_columns.rows(whole, range(3), ["tag"]).schema.names == ["tag"]


def test_threads_that_begin_with_a_page_at_once_wait_for_the_one_that_makes_its_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = mixed(40)
    made: list[Any] = []
    others: list[threading.Thread] = []
    make = message_columns.to_batch

    def while_others_come(*args: Any) -> Any:
        made.append(args)
        if not others:
            others.extend(threading.Thread(target=take, args=(n,)) for n in range(1, 4))
            for other in others:
                other.start()
            assert whole.arrow_lock.locked(), "they cannot make them, too"
        return make(*args)

    bodies: dict[int, Any] = {}

    def take(part: int) -> None:
        rows = message_columns.rows(whole, range(part * 8, part * 8 + 8), ["body"])
        bodies[part] = rows.column("body").to_pylist()

    monkeypatch.setattr(message_columns, "to_batch", while_others_come)
    take(0)
    for other in others:
        other.join(30)
    assert len(made) == 1
    assert bodies == {n: [b"body-%d" % i for i in range(n * 8, n * 8 + 8)] for n in range(4)}
