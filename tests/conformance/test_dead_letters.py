"""Dead letters of every kind of consumer: seen, resent to where they came from, each once unless
asked again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_ray.cli.base import context
from rmq_ray.cli.main import main
from rmq_ray.client.admin.dead_letters import POSITION_GROUP, DeadLetters, origin_topic
from rmq_ray.client.messages.listener import Reject
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import AdminError, ClientError, GroupNotFound, SendError
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as running:
        yield running


@pytest.fixture
def dead(cluster: LiveCluster) -> Iterator[DeadLetters]:
    made = DeadLetters(cluster)
    made.create_topic("orders", queues=2)
    yield made
    made.close()


def send(cluster: LiveCluster, count: int, topic: str = "orders") -> list[str]:
    with Producer("p", discovery=cluster) as p:
        return [
            p.send(
                Message(topic, b"%d" % i, "paid", [f"k{i}"], {"region": "eu", "n": str(i)}, flag=7)
            ).message_id
            for i in range(count)
        ]


def reject_all(
    cluster: LiveCluster,
    dead: DeadLetters,
    group: str,
    count: int,
    topic: str = "orders",
    **options,
) -> None:
    def listener(messages, ctx):
        raise Reject("no address")

    with PushConsumer(
        group,
        listener=listener,
        subscriptions={topic: "*"},
        discovery=cluster,
        start_from="first",
        **options,
    ) as consumer:
        eventually(lambda: consumer.stats()["sent_back"] == count)


def fate(dead: DeadLetters, group: str) -> tuple[int, int]:
    (row,) = [row for row in dead.dead_letter_groups() if row["group"] == group]
    return row["messages"], row["left"]


def test_every_kind_of_consumer_leaves_dead_letters_that_know_where_they_came_from(
    cluster: LiveCluster, dead: DeadLetters
) -> None:
    ids = send(cluster, 3)
    reject_all(cluster, dead, "concurrent", 3)
    reject_all(cluster, dead, "ordered", 3, orderly=True)
    reject_all(cluster, dead, "columns", 3, batch="arrow")
    with SimpleConsumer("orders", "popping", discovery=cluster) as popping:
        taken = 0
        while taken < 3:  # ends: three messages wait
            for message in popping.receive(3, invisible=30, wait=5):
                message.reject()
                taken += 1
    eventually(lambda: len(dead.dead_letter_groups()) == 4)
    for group in ("concurrent", "ordered", "columns", "popping"):
        eventually(lambda group=group: fate(dead, group) == (3, 3))
        found = list(dead.dead_letters(group))
        assert sorted(message.message_id for message in found) == sorted(ids)
        assert {origin_topic(message) for message in found} == {"orders"}
        assert {(message.tag, message.properties["region"]) for message in found} == {
            ("paid", "eu")
        }
        if group != "popping":
            assert {message.failed_with for message in found} == {"Reject: no address"}


@pytest.mark.parametrize("orderly", [False, True])
def test_a_dead_letter_tells_what_its_listener_failed_with_and_where_and_a_resent_one_does_not(
    cluster: LiveCluster, dead: DeadLetters, orderly: bool
) -> None:
    def listener(messages, ctx):
        raise ValueError("order without an amount")

    send(cluster, 1)
    with PushConsumer(
        "g",
        listener=listener,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
        orderly=orderly,
        max_reconsume_times=0,
    ) as consumer:
        eventually(lambda: consumer.stats()["sent_back"] == 1)
    eventually(lambda: len(dead.dead_letter_groups()) == 1)
    (message,) = dead.dead_letters("g")
    assert message.failed_with == "ValueError: order without an amount"
    assert message.failed_on is not None and f"@{os.getpid()}" in message.failed_on
    assert message.properties == {"region": "eu", "n": "0"}, "they are none of the user's"
    got = Collector()
    with PushConsumer(
        "h",
        listener=got,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
    ):
        assert dead.resend_dead_letters("g", execute=True) == {"orders": 1}
        eventually(lambda: len(got.messages) == 2)
    assert [one.failed_with for one in got.messages] == [None, None]


def test_what_is_resent_is_a_new_message_to_the_first_topic_and_goes_once(
    cluster: LiveCluster, dead: DeadLetters
) -> None:
    send(cluster, 5)
    reject_all(cluster, dead, "g", 5)
    assert dead.resend_dead_letters("g") == {"orders": 5} and fate(dead, "g") == (5, 5), (
        "nothing is sent without execute"
    )
    seen = Collector()
    with PushConsumer(
        "g", listener=seen, subscriptions={"orders": "*"}, discovery=cluster, start_from="first"
    ):
        assert dead.resend_dead_letters("g", limit=2, execute=True) == {"orders": 2}
        assert fate(dead, "g") == (5, 3)
        assert len(list(dead.dead_letters("g", all_of_them=False))) == 3
        assert dead.resend_dead_letters("g", execute=True) == {"orders": 3}
        assert dead.resend_dead_letters("g", execute=True) == {} and fate(dead, "g") == (5, 0)
        seen.wait_for(5)
        assert dead.resend_dead_letters("g", again=True, limit=1, execute=True) == {"orders": 1}
        assert fate(dead, "g") == (5, 0), "the position does not go back"
        seen.wait_for(6)
    again = seen.messages[0]
    assert set(seen.bodies) == {b"0", b"1", b"2", b"3", b"4"} and {
        message.reconsume_times for message in seen.messages
    } == {0}
    assert (again.tag, again.keys, again.properties, again.flag) == (
        "paid",
        [f"k{int(again.body)}"],
        {"region": "eu", "n": again.body.decode()},
        7,
    )


def test_single_ones_are_resent_by_their_ids_without_moving_the_position(
    cluster: LiveCluster, dead: DeadLetters
) -> None:
    ids = send(cluster, 3)
    reject_all(cluster, dead, "g", 3)
    assert dead.resend_dead_letters("g", message_ids=[ids[1]], execute=True) == {"orders": 1}
    assert fate(dead, "g") == (3, 3)
    with pytest.raises(AdminError, match="no dead letter nothing"):
        dead.resend_dead_letters("g", message_ids=[ids[0], "nothing"], execute=True)
    assert sum(row["messages"] for row in dead.describe_topic("orders")) == 4


def test_a_send_that_fails_leaves_the_rest_for_the_next_time(
    cluster: LiveCluster, dead: DeadLetters
) -> None:
    send(cluster, 2)
    reject_all(cluster, dead, "g", 2)
    dead.create_topic("orders", queues=2, permission=4)
    with pytest.raises(SendError):
        dead.resend_dead_letters("g", execute=True)
    assert fate(dead, "g") == (2, 2)
    dead.create_topic("orders", queues=2)
    assert dead.resend_dead_letters("g", execute=True) == {"orders": 2} and fate(dead, "g") == (
        2,
        0,
    )


def test_groups_without_dead_letters_and_wrong_names_are_told(dead: DeadLetters) -> None:
    assert dead.dead_letter_groups() == []
    with pytest.raises(GroupNotFound, match="no dead letters"):
        list(dead.dead_letters("nobody"))
    with pytest.raises(ClientError):
        dead.resend_dead_letters("bad group")
    assert POSITION_GROUP not in [row["group"] for row in dead.dead_letter_groups()]


def test_an_export_says_how_many_it_wrote_and_where(
    cluster: LiveCluster, dead: DeadLetters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context.Options, "discovery", cluster)
    ids = send(cluster, 3)
    reject_all(cluster, dead, "g", 3)
    eventually(lambda: len(dead.dead_letter_groups()) == 1 and fate(dead, "g") == (3, 3))
    done = CliRunner().invoke(main, ["dlq", "export", "g"])
    assert sorted(json.loads(line)["message_id"] for line in done.stdout.splitlines()) == (
        sorted(ids)
    )
    assert done.stderr == "3 dead letters of g were written to standard output\n"
    file = tmp_path / "dead.jsonl"
    to_file = CliRunner().invoke(main, ["dlq", "export", "g", "--out", str(file)])
    assert (to_file.stdout, file.read_text()) == ("", done.stdout)
    assert to_file.stderr == f"3 dead letters of g were written to {file}\n"
    missing = CliRunner().invoke(main, ["dlq", "export", "h", "--out", str(tmp_path / "h")])
    assert missing.exit_code == 1 and "[GroupNotFound]" in missing.stderr
    assert "written" not in missing.stderr and not (tmp_path / "h").exists()
