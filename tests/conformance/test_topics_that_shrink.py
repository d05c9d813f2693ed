"""A topic that gets fewer queues: nothing is sent to the others any more, and they are read until
they are empty. And what a command says of a topic or group that it deletes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_ray.cli.base import context
from rmq_ray.cli.main import main
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.messages.listener import Reject
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually

QUEUES = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as running:
        yield running


@pytest.fixture
def admin(cluster: LiveCluster) -> Iterator[Admin]:
    made = Admin(cluster)
    made.create_topic("orders", queues=QUEUES)
    yield made
    made.close()


@pytest.fixture
def command(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(context.Options, "admin", property(lambda _self: admin))
    return CliRunner()


def send(cluster: LiveCluster, queue_id: int, count: int) -> None:
    queue = MessageQueue("orders", "broker-a", queue_id)
    with Producer("p", discovery=cluster) as producer:
        producer.send_batch([Message("orders", b"%d" % queue_id)] * count, queue=queue)


def queues(admin: Admin) -> tuple[int, int]:
    (found,) = admin.route("orders").queues
    return found.read_queues, found.write_queues


def left(queue_id: int, messages: int) -> dict[str, object]:
    return {"broker": "broker-a", "queue": queue_id, "messages": messages}


def test_queues_that_go_are_read_until_they_are_empty_and_say_what_they_hold(
    cluster: LiveCluster, admin: Admin
) -> None:
    send(cluster, 0, 2)
    send(cluster, 3, 5)
    assert admin.alter_topic("orders", queues=1) == [left(3, 5)]
    assert queues(admin) == (QUEUES, 1)
    seen = Collector()
    with PushConsumer(
        "g",
        listener=seen,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
    ):
        seen.wait_for(7)
    assert seen.bodies.count(b"3") == 5
    eventually(lambda: admin.alter_topic("orders", queues=1) == [])
    assert queues(admin) == (1, 1)


def commit(cluster: LiveCluster, group: str, queue: MessageQueue, offset: int) -> None:
    with PullConsumer(group, discovery=cluster) as consumer:
        consumer.assign([queue])
        eventually(lambda: consumer.commit({queue: offset}) == {queue: offset})


def test_a_group_that_is_away_and_has_its_positions_at_another_broker_keeps_queues(
    tmp_path: Path,
) -> None:
    with LiveCluster(tmp_path, brokers=2) as cluster, closing(Admin(cluster)) as admin:
        admin.create_topic("orders", queues=2)
        queue = MessageQueue("orders", "broker-b", 1)
        with Producer("p", discovery=cluster) as producer:
            producer.send_batch([Message("orders", b"x")] * 3, queue=queue)
        commit(cluster, "quick", queue, 3)
        commit(cluster, "away", MessageQueue("orders", "broker-a", 0), 0)
        assert admin.alter_topic("orders", queues=1) == [left(1, 3) | {"broker": "broker-b"}]
        commit(cluster, "away", queue, 3)
        assert admin.alter_topic("orders", queues=1) == []


def test_queues_that_hold_nothing_go_at_once(cluster: LiveCluster, admin: Admin) -> None:
    send(cluster, 0, 2)
    assert admin.alter_topic("orders", queues=1) == [] and queues(admin) == (1, 1)


def test_by_force_they_go_at_once(cluster: LiveCluster, admin: Admin) -> None:
    send(cluster, 3, 5)
    assert admin.alter_topic("orders", queues=1, force=True) == [] and queues(admin) == (1, 1)


def test_a_topic_that_grows_again_has_what_its_queues_held(
    cluster: LiveCluster, admin: Admin
) -> None:
    send(cluster, 3, 5)
    admin.alter_topic("orders", queues=1)
    assert admin.alter_topic("orders", queues=QUEUES) == []
    assert queues(admin) == (QUEUES, QUEUES)
    assert [row["messages"] for row in admin.describe_topic("orders")] == [0, 0, 0, 5]


def test_the_commands_say_what_stays_and_what_goes(
    cluster: LiveCluster, admin: Admin, command: CliRunner
) -> None:
    send(cluster, 3, 5)
    altered = command.invoke(main, ["topic", "alter", "orders", "--queues", "1"])
    assert altered.exit_code == 0
    assert "queue 3 of broker broker-a holds 5 messages that are not consumed" in altered.output
    forced = command.invoke(main, ["topic", "alter", "orders", "--queues", "1", "--force"])
    assert forced.exit_code == 0 and "not consumed" not in forced.output
    send(cluster, 0, 2)
    deleted = command.invoke(main, ["topic", "delete", "orders", "-y"])
    assert deleted.exit_code == 0
    assert [line.split() for line in deleted.output.splitlines()][1:3] == [
        ["state", "deleted"],
        ["messages", "7"],
    ]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_group_that_is_deleted_takes_its_dead_letters_along_unless_they_are_kept(
    cluster: LiveCluster, admin: Admin, command: CliRunner, keeps: bool
) -> None:
    send(cluster, 0, 1)

    def refuse(_messages: list[Any], _ctx: Any) -> None:
        raise Reject

    with PushConsumer(
        "g", listener=refuse, subscriptions={"orders": "*"}, discovery=cluster, start_from="first"
    ):
        eventually(lambda: "%DLQ%g" in admin.topics(system=True))
    option = ["--keep-dead-letters"] if keeps else []
    deleted = command.invoke(main, ["group", "delete", "g", "-y", *option])
    assert deleted.exit_code == 0, deleted.output
    assert ("%DLQ%g" in deleted.output) is not keeps and "%RETRY%g" in deleted.output
    assert ("%DLQ%g" in admin.topics(system=True)) is keeps
