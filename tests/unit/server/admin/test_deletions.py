"""What a deleted topic or group takes along, what its deletion says, and that nothing of it comes
back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.errors import StoreFailed
from rmq_ray.model.topics import GroupConfig
from rmq_ray.remoting.wire import bodies, bodies_admin, body_json
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.headers import DeleteGroupHeader, SendBackHeader
from rmq_ray.store.tables.topic_lives import decode_lives
from tests.support.brokers.broker_bench import Bench

RETRY, DLQ = "%RETRY%billing", "%DLQ%billing"
DEAD, LATER = -1, 1


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    bench_group(made)
    yield made
    made.close()


def bench_group(bench: Bench) -> None:
    body = body_json.write(bodies_admin.encode_group(GroupConfig("billing")))
    assert bench.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body).code == 0


def back(bench: Bench, level: int) -> None:
    sent = bench.send(bodies_=[b"x"])
    header = SendBackHeader(sent.base_log_offset, "billing", level, "U", "orders", False, None)
    assert bench.ask(Code.CONSUMER_SEND_MSG_BACK, header.to_fields()).code == 0


def deliver(bench: Bench) -> None:
    bench.clock.advance_ms(2_000)
    bench.core.tick()
    bench.offload.drain()


def delete(bench: Bench, all_of_it: bool = True, keep: bool | None = None) -> dict[str, str]:
    header = DeleteGroupHeader("billing", all_of_it, keep)
    answer = bench.ask(Code.DELETE_SUBSCRIPTIONGROUP, header.to_fields())
    assert answer.code == 0, answer.remark
    return answer.fields or {}


def held(bench: Bench, topic: str) -> int:
    store = bench.core.keeper.store
    assert store is not None
    low, high = store.bounds(topic, 0)
    return high - low


def filled(bench: Bench) -> None:
    """One message waits in the retry topic, one for it, two are dead."""
    back(bench, LATER)
    deliver(bench)
    back(bench, LATER)
    back(bench, DEAD)
    back(bench, DEAD)
    assert (held(bench, RETRY), held(bench, DLQ)) == (1, 2)


def test_a_deleted_group_takes_its_retries_and_dead_letters_along_and_says_so(
    bench: Bench,
) -> None:
    filled(bench)
    bench.core.tables.offsets.commit("orders", "billing", 0, 1, "c")
    assert delete(bench) == {"topics": f"{RETRY}=1,{DLQ}=2"}
    assert bench.core.tables.offsets.of_group("billing") == {}
    assert RETRY not in bench.core.tables.topics and DLQ not in bench.core.tables.topics


def test_a_new_group_of_that_name_gets_nothing_of_the_old_one(bench: Bench, tmp_path: Path) -> None:
    filled(bench)
    delete(bench)
    bench_group(bench)
    deliver(bench)
    assert (held(bench, RETRY), held(bench, DLQ)) == (0, 0)
    bench.close()
    again = Bench(tmp_path, clock=bench.clock).open(create=False)
    deliver(again)
    assert (held(again, RETRY), held(again, DLQ)) == (0, 0)
    back(again, LATER)
    deliver(again)
    assert held(again, RETRY) == 1, "its own"
    again.close()
    bench.open(create=False)


def test_dead_letters_that_are_kept_stay(bench: Bench) -> None:
    filled(bench)
    assert delete(bench, keep=True) == {"topics": f"{RETRY}=1"}
    assert held(bench, DLQ) == 2 and DLQ in bench.core.tables.topics


def test_a_request_of_rocketmq_that_leaves_the_offsets_leaves_what_is_to_be_retried(
    bench: Bench,
) -> None:
    filled(bench)
    assert delete(bench, all_of_it=False) == {"topics": ""}
    assert (held(bench, RETRY), held(bench, DLQ)) == (1, 2)


def test_a_deleted_topic_says_what_went_with_it(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 3)
    bench.send(queue_id=1)
    for group in ("shipping", "billing"):
        bench.core.tables.offsets.commit("orders", group, 0, 2, "c")
    answer = bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert answer.fields == {"messages": "4", "groups": "billing,shipping"}


def test_positions_in_a_topic_that_is_not_here_go_when_it_is_deleted(bench: Bench) -> None:
    offsets = bench.core.tables.offsets
    offsets.commit("gone", "billing", 0, 2, "c")
    answer = bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})
    assert answer.fields == {"messages": "0", "groups": "billing"}
    assert offsets.groups_of("gone") == []


def test_a_group_whose_deletion_is_refused_has_lost_nothing(bench: Bench) -> None:
    tables, keeper = bench.core.tables, bench.core.keeper
    tables.offsets.commit("orders", "billing", 0, 1, "c")
    bench.offload.held = True
    keeper.check(StoreFailed("a disk that refuses"))  # the store is read again
    assert keeper.store is None
    answer = bench.ask(
        Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("billing", True, None).to_fields()
    )
    assert answer.code != 0 and "read again" in str(answer.remark)
    assert "billing" in tables.groups
    assert tables.offsets.of_group("billing") == {"orders": {0: 1}}
    bench.offload.run()
    bench.offload.drain()


def test_a_broker_that_starts_again_knows_which_topics_were_deleted(
    bench: Bench, tmp_path: Path
) -> None:
    bench.send(bodies_=[b"old"] * 3)
    assert bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    bench.close()
    again = Bench(tmp_path, clock=bench.clock).open(create=False)
    store = again.core.keeper.store
    assert store is not None
    assert store.bounds("orders", 0) == (3, 3), "it goes on where the old one ended"
    again.close()
    bench.open(create=False)


def test_a_slave_that_asks_for_the_topics_is_told_which_were_deleted(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 3)
    assert bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    body = bench.ask(Code.GET_ALL_TOPIC_CONFIG).body
    assert decode_lives(body_json.parse(body))["orders"].ends == {0: 3}
    assert "orders" not in bodies.decode_topic_configs(body)[0]
