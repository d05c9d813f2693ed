"""Broadcasting: every consumer of a group gets every message, keeps its own offsets, and drops what
it cannot process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.consumer.local_offset_store import LocalFileOffsetStore
from rmq_ray.client.consumer.offset_store import RemoteOffsetStore
from rmq_ray.client.messages.listener import RECONSUME_LATER
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import StoreCorrupt
from rmq_ray.model.groups import MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.pulling import PullSysFlag
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.brokers.pull_broker import PullCluster
from tests.support.waiting import eventually

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(4)]


@pytest.fixture
def cluster() -> Iterator[PullCluster]:
    with PullCluster(topics={"orders": 4}) as running:
        yield running


class Bodies:
    """A listener that counts."""

    def __init__(self, answer: Callable[[Any], Any] = lambda _message: None) -> None:
        self.answer = answer
        self.seen: Counter[bytes] = Counter()

    def __call__(self, messages: list[Any], _ctx: Any) -> Any:
        self.seen.update(message.body for message in messages)
        return self.answer(messages[0])


def consumer(
    cluster: PullCluster,
    listener: Any,
    directory: Path,
    model: str = "broadcasting",
    **options: Any,
) -> PushConsumer:
    config = ConsumerConfig("news", local_offset_dir=str(directory), concurrency=1)
    options = {"start_from": "first", "subscriptions": {"orders": "*"}, "config": config} | options
    return PushConsumer("news", listener=listener, discovery=cluster, model=model, **options)


def fill(cluster: PullCluster, name: bytes) -> set[bytes]:
    for queue_id in range(4):
        cluster.put("orders", queue_id, [b"%s-%d-%d" % (name, queue_id, i) for i in range(10)])
    return {b"%s-%d-%d" % (name, queue_id, i) for queue_id in range(4) for i in range(10)}


@pytest.mark.seed("S4-002", "S4-009", "S1-023", "S1-024", "S0-016")
def test_every_consumer_of_the_group_holds_all_queues_and_gets_every_message_once(
    cluster: PullCluster, tmp_path: Path
) -> None:
    expected = fill(cluster, b"old")
    one, two = Bodies(), Bodies()
    with consumer(cluster, one, tmp_path) as first, consumer(cluster, two, tmp_path) as second:
        eventually(lambda: first.balanced and second.balanced)
        assert first.assignment() == second.assignment() == QUEUES
        assert first.client_id != second.client_id
        expected |= fill(cluster, b"new")
        eventually(lambda: sum(one.seen.values()) == sum(two.seen.values()) == 80)
    assert one.seen == two.seen == Counter(expected)


@pytest.mark.seed("S0-063", "S3-123", "S0-016")
def test_the_same_group_in_clustering_divides_the_queues(
    cluster: PullCluster, tmp_path: Path
) -> None:
    with (
        consumer(cluster, Bodies(), tmp_path, "clustering") as one,
        consumer(cluster, Bodies(), tmp_path, "clustering") as two,
    ):
        eventually(
            lambda: (
                len([q for q in one.assignment() if q in QUEUES])
                == len([q for q in two.assignment() if q in QUEUES])
                == 2
            )
        )
        assert {type(c._engine.parts.offsets) for c in (one, two) if c._engine is not None} == {
            RemoteOffsetStore
        }


@pytest.mark.seed("S4-050", "S3-115", "S4-053", "S4-213")
def test_offsets_stay_at_the_consumer_and_no_retry_topic_is_subscribed(
    cluster: PullCluster, tmp_path: Path
) -> None:
    fill(cluster, b"x")
    seen = Bodies()
    with consumer(cluster, seen, tmp_path) as running:
        eventually(lambda: running.stats()["consumed_ok"] == 40)
        assert running._engine is not None and isinstance(
            running._engine.parts.offsets, LocalFileOffsetStore
        )
        (data,) = cluster.pull_brokers[0].heartbeats[-1].consumers
        assert (data.model, [subscription.topic for subscription in data.subscriptions]) == (
            MessageModel.BROADCASTING,
            ["orders"],
        )
        client_id = running.client_id
    broker = cluster.pull_brokers[0]
    assert broker.committed == [] and not any(
        pull.sys_flag & PullSysFlag.COMMIT_OFFSET for pull in broker.pulls
    )
    assert broker.requests[RequestCode.QUERY_CONSUMER_OFFSET] == 0
    assert (tmp_path / client_id / "news" / "offsets.json").exists()


@pytest.mark.seed("S4-213")
def test_a_restarted_consumer_goes_on_where_it_was_whatever_the_others_did(
    cluster: PullCluster, tmp_path: Path
) -> None:
    old = fill(cluster, b"old")
    seen = Bodies()
    with consumer(cluster, seen, tmp_path) as running:
        eventually(lambda: running.stats()["consumed_ok"] == 40)
    new = fill(cluster, b"new")
    again, another = Bodies(), Bodies()
    with (
        consumer(cluster, again, tmp_path) as first,
        consumer(cluster, another, tmp_path) as second,
    ):
        eventually(lambda: sum(again.seen.values()) == 40 and sum(another.seen.values()) == 80)
        eventually(lambda: first.balanced and second.balanced)
    assert (set(again.seen), set(another.seen)) == (new, new | old)


@pytest.mark.seed("S4-179")
def test_what_fails_is_logged_and_dropped(
    cluster: PullCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cluster, b"x")
    seen = Bodies(lambda message: RECONSUME_LATER if message.body == b"x-2-3" else None)
    with consumer(cluster, seen, tmp_path) as running:
        wanted = {"consumed_ok": 39, "dropped": 1, "sent_back": 0, "consumed_failed": 1}
        eventually(lambda: running.stats().items() >= (wanted | {"in_flight": 0}).items())
    assert cluster.pull_brokers[0].sent_back == [] and seen.seen[b"x-2-3"] == 1
    (line,) = [
        record.getMessage() for record in caplog.records if "is dropped" in record.getMessage()
    ]
    assert "offset 3" in line and "news" in line


@pytest.mark.seed("S1-025")
def test_a_topic_that_does_not_exist_is_told_and_consumed_once_it_does(
    cluster: PullCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Bodies()
    with consumer(cluster, seen, tmp_path, subscriptions={"later": "*"}) as running:
        eventually(lambda: "gets nothing of topic later: no name server knows it" in caplog.text)
        assert not running.balanced
        cluster.add_topic("later", 1)
        cluster.put("later", 0, [b"x"])
        eventually(lambda: seen.seen[b"x"] == 1)


def test_a_consumer_whose_offsets_cannot_be_read_does_not_start_and_says_which_file(
    cluster: PullCluster, tmp_path: Path
) -> None:
    with consumer(cluster, Bodies(), tmp_path, client_id="me@here"):
        pass
    for name in ("offsets.json", "offsets.json.bak"):
        (tmp_path / "me@here" / "news" / name).write_text("{")
    broken = consumer(cluster, Bodies(), tmp_path, client_id="me@here")
    with pytest.raises(StoreCorrupt, match="offsets.json"):
        broken.start()
    for name in ("offsets.json", "offsets.json.bak"):
        (tmp_path / "me@here" / "news" / name).unlink()
    with broken as running:
        eventually(lambda: running.balanced)
