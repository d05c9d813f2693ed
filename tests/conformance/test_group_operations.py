"""Operators and running groups: positions moved live and at rest, copied and skipped; one message
consumed directly; what a member says of itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_ray.cli.base import context
from rmq_ray.cli.main import main
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.admin_groups import Offset
from rmq_ray.client.messages.listener import (
    COMMIT,
    RECONSUME_LATER,
    ROLLBACK,
    SUCCESS,
    SUSPEND_CURRENT_QUEUE_A_MOMENT,
    Reject,
)
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import AdminError, GroupNotFound, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_positions import LikeGroup
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector, fails_for_hours
from tests.support.waiting import eventually

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as running:
        yield running


@pytest.fixture
def admin(cluster: LiveCluster) -> Iterator[Admin]:
    made = Admin(cluster)
    made.create_topic("orders", queues=1)
    yield made
    made.close()


def send(cluster: LiveCluster, first: int, count: int) -> None:
    with Producer("p", discovery=cluster) as p:
        for number in range(first, first + count):
            p.send("orders", b"%d" % number)


def consumer(cluster: LiveCluster, group: str, listener) -> PushConsumer:
    config = ConsumerConfig(group, offset_illegal_delay_ms=100)
    return PushConsumer(
        group,
        listener=listener,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
        config=config,
    )


def consume_all(cluster: LiveCluster, group: str, count: int) -> None:
    seen = Collector()
    with consumer(cluster, group, seen):
        seen.wait_for(count)


def numbers(seen: Collector) -> list[int]:
    return list(map(int, seen.bodies))


@pytest.mark.parametrize("target", ["first", Offset(4), {QUEUE: 7}], ids=str)
def test_a_running_group_goes_back_where_it_is_told_and_skips_nothing(
    cluster: LiveCluster, admin: Admin, target
) -> None:
    send(cluster, 0, 10)
    seen = Collector()
    with consumer(cluster, "g", seen) as running:
        seen.wait_for(10)
        running.persist_offsets()
        eventually(lambda: admin.group_lag("g")[-1]["committed"] == 10)
        assert admin.group_lag("g")[-1]["committed_age_ms"] >= 0
        planned = admin.seek_group("g", "orders", target)
        assert sorted(numbers(seen)) == list(range(10)), "a dry run moves nothing"
        (row,) = admin.seek_group("g", "orders", target, execute=True)
        assert [row] == planned and row["committed"] == 10
        seen.wait_for(20 - row["target"])
        send(cluster, 10, 2)
        seen.wait_for(22 - row["target"])
    first, behind = numbers(seen)[:10], numbers(seen)[10:]
    assert sorted(first) == list(range(10)) and sorted(behind) == list(range(row["target"], 12))


def test_a_running_group_gives_up_its_backlog(cluster: LiveCluster, admin: Admin) -> None:
    gate, seen = threading.Event(), Collector()

    def slow(messages, ctx):
        seen(messages, ctx)
        gate.wait(20)

    send(cluster, 0, 50)
    config = ConsumerConfig(
        "g", offset_illegal_delay_ms=100, concurrency=1, threshold_messages=5, pull_records=5
    )
    with PushConsumer(
        "g",
        listener=slow,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
        config=config,
    ):
        seen.wait_for(1)
        (row,) = admin.skip_group("g", "orders", execute=True)
        assert row["target"] == 50
        gate.set()
        eventually(lambda: admin.group_lag("g")[-1]["committed"] == 50)
        send(cluster, 50, 1)
        eventually(lambda: numbers(seen)[-1] == 50)
    assert len(numbers(seen)) <= 11, (
        "what was pulled before may still be handed out, the backlog is not"
    )


def test_a_group_at_rest_goes_where_another_is_to_a_time_and_to_an_offset(
    cluster: LiveCluster, admin: Admin
) -> None:
    send(cluster, 0, 5)
    consume_all(cluster, "ahead", 5)
    middle = datetime.now(UTC)
    send(cluster, 5, 5)
    consume_all(cluster, "behind", 10)
    assert admin.seek_group("behind", "orders", middle)[0]["target"] in (5, 6)
    assert (
        admin.seek_group("behind", "orders", LikeGroup("ahead"), execute=True)[0]["moved_by"] == -5
    )
    assert admin.group_lag("behind")[-1]["committed"] == 5
    assert (
        admin.seek_group("behind", "orders", Offset(1_000_000), execute=True)[0]["target"] == 10
    ), "bounded by what is there"
    with pytest.raises(GroupNotFound, match="nobody"):
        admin.seek_group("behind", "orders", LikeGroup("nobody"))


def test_a_copy_of_a_group_goes_on_where_the_group_is(cluster: LiveCluster, admin: Admin) -> None:
    send(cluster, 0, 6)
    consume_all(cluster, "source", 6)
    send(cluster, 6, 3)
    (row,) = admin.clone_group("source", "copy", "orders")
    assert (row["target"], row["moved_by"]) == (6, 6)
    assert "copy" not in admin.groups()
    admin.clone_group("source", "copy", "orders", execute=True)
    assert (
        "copy" in admin.groups()
        and admin.seek_group("source", "orders", LikeGroup("copy"))[0]["moved_by"] == 0
    )
    seen = Collector()
    with consumer(cluster, "copy", seen):
        seen.wait_for(3)
        with pytest.raises(AdminError, match="stop them first"):
            admin.clone_group("source", "copy", "orders", execute=True)
    assert sorted(numbers(seen)) == [6, 7, 8]
    with pytest.raises(GroupNotFound):
        admin.clone_group("nobody", "copy", "orders")


def test_members_that_pull_by_themselves_are_not_moved_silently(
    cluster: LiveCluster, admin: Admin
) -> None:
    send(cluster, 0, 3)
    with PullConsumer("puller", discovery=cluster, start_from="first") as pulling:
        pulling.subscribe("orders")
        eventually(lambda: len(pulling.poll(10, timeout=0.2)))
        with pytest.raises(AdminError, match="stop"):
            admin.seek_group("puller", "orders", "first", execute=True)


@pytest.mark.seed("S4-167")
def test_one_message_is_consumed_directly_and_its_outcome_told(
    cluster: LiveCluster, admin: Admin
) -> None:
    answers = {b"0": None, b"1": RECONSUME_LATER}

    def listener(messages, ctx):
        if messages[0].body == b"2":
            raise ValueError("no such account")
        return answers[bytes(messages[0].body)]

    with Producer("p", discovery=cluster) as p:
        ids = [p.send("orders", b"%d" % number).offset_message_id for number in range(3)]
    with PushConsumer(
        "g", listener=listener, subscriptions={"orders": "no-such-tag"}, discovery=cluster
    ) as running:
        eventually(lambda: running.assignment() and admin.group_clients("g"))
        results = [
            admin.consume_directly("g", running.client_id, message_id, "broker-a")
            for message_id in ids
        ]
        info = admin.running_info("g", running.client_id)
        assert running.stats()["consumed_ok"] == 0, "nothing is committed or counted by it"
        with pytest.raises(AdminError, match="not online"):
            admin.consume_directly("g", "somebody-else", ids[0], "broker-a")
        with pytest.raises(AdminError, match="broker-z"):
            admin.consume_directly("g", running.client_id, ids[0], "broker-z")
        with pytest.raises(AdminError, match="not online"):
            admin.running_info("g", "somebody-else")
    assert [result["consumeResult"] for result in results] == [
        "CR_SUCCESS",
        "CR_LATER",
        "CR_THROW_EXCEPTION",
    ]
    assert "no such account" in results[2]["remark"]
    assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
    assert info["mqTable"]
    assert {one["topic"] for one in info["subscriptionSet"]} == {"orders", "%RETRY%g"}
    assert "jstack" not in info


@pytest.mark.seed("S4-178")
def test_an_operator_sees_how_fast_a_member_consumes_and_where_its_threads_stand(
    cluster: LiveCluster, admin: Admin
) -> None:
    with Producer("p", discovery=cluster) as p:
        p.send_batch("orders", [b"x"] * 40)
    seen: list[bytes] = []

    def listener(messages: Any, ctx: Any) -> Any:
        seen.extend(bytes(message.body) for message in messages)
        return RECONSUME_LATER if len(seen) == 1 else None

    with PushConsumer(
        "g",
        listener=listener,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
        concurrency=1,
    ) as running:
        eventually(lambda: len(seen) >= 40 and running.stats()["consumed_ok"] >= 39)
        info = admin.running_info("g", running.client_id, stacks=True)
        again = admin.running_info("g", running.client_id)
    rates = info["statusTable"]["orders"]
    assert rates["consumeOKTPS"] > 0 and rates["pullTPS"] > 0 and rates["consumeFailedMsgs"] == 1
    assert rates["consumeFailedTPS"] > 0
    rates = again["statusTable"]["orders"]
    assert rates["consumeOKTPS"] == rates["consumeFailedTPS"] == 0, "since the last answer"
    assert "STATE: " in info["jstack"] and "rmq-" in info["jstack"]
    assert all(row["lastConsumeTimestamp"] > 0 for row in info["mqTable"].values())


def test_an_ordered_listener_is_asked_directly_in_its_own_terms(
    cluster: LiveCluster, admin: Admin
) -> None:
    def by_hand(ctx):
        ctx.suspend_ms, ctx.auto_commit = 20, False

    answers = [
        None,
        SUCCESS,
        COMMIT,
        ROLLBACK,
        SUSPEND_CURRENT_QUEUE_A_MOMENT,
        Reject,
        Reject(),
        SystemExit(3),
        "nonsense",
    ]

    def listener(messages, ctx):
        by_hand(ctx)
        answer = answers[int(messages[0].body)]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    with Producer("p", discovery=cluster) as p:
        ids = [p.send("orders", b"%d" % number).offset_message_id for number in range(len(answers))]
    with PushConsumer(
        "g",
        listener=listener,
        subscriptions={"orders": "no-such-tag"},
        orderly=True,
        discovery=cluster,
    ) as running:
        eventually(lambda: running.assignment() and admin.group_clients("g"))
        results = [
            admin.consume_directly("g", running.client_id, message_id, "broker-a")
            for message_id in ids
        ]
    assert [result["consumeResult"] for result in results] == [
        "CR_SUCCESS",
        "CR_SUCCESS",
        "CR_COMMIT",
        "CR_ROLLBACK",
        "CR_LATER",
        "CR_LATER",
        "CR_LATER",
        "CR_THROW_EXCEPTION",
        "CR_LATER",
    ]
    assert all(result["order"] is True and result["autoCommit"] is False for result in results)
    assert "SystemExit" in results[7]["remark"] and "nonsense" in results[8]["remark"]


def test_a_topic_that_there_is_not_is_told_and_not_moved_in(
    cluster: LiveCluster, admin: Admin
) -> None:
    send(cluster, 0, 1)
    consume_all(cluster, "g", 1)
    for asked in (
        lambda: admin.seek_group("g", "no-such", "first"),
        lambda: admin.skip_group("g", "no-such"),
        lambda: admin.clone_group("g", "h", "no-such"),
    ):
        with pytest.raises(TopicNotFound, match="no-such"):
            asked()


def test_a_deletion_counts_what_waited_for_its_time_or_its_retry(
    cluster: LiveCluster, admin: Admin
) -> None:
    with consumer(cluster, "g", fails_for_hours), Producer("p", discovery=cluster) as p:
        send(cluster, 0, 3)
        p.send("orders", b"later", delay=timedelta(hours=1))
        waiting = {"%RETRY%g": 3, "orders": 1}
        eventually(lambda: admin.waiting().get("delayed") == waiting)
    eventually(lambda: not admin.group_clients("g"))
    assert admin.delete_group("g") == {"%RETRY%g": 3}
    assert admin.delete_topic("orders") == {"messages": 3, "waiting": 1, "groups": []}


def test_deleting_what_is_not_there_is_the_same_error_here_and_on_the_command_line(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context.Options, "admin", property(lambda self: admin))
    for noun, delete, error in (
        ("topic", admin.delete_topic, TopicNotFound),
        ("group", admin.delete_group, GroupNotFound),
    ):
        with pytest.raises(error) as caught:
            delete("typo")
        done = CliRunner().invoke(main, [noun, "delete", "typo", "-y"])
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"Error: {caught.value} [{error.__name__}]\n"
