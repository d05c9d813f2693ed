"""Topics as Ray Data datasets and Arrow tables, both ways, without Java."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd
from rmq_ray.data import write as writing
from rmq_ray.errors import DuplicateMismatch
from rmq_ray.model.arrow import SCHEMA
from tests.support.outcomes import judging
from tests.support.waiting import eventually

ROWS = 3_000


@pytest.fixture(scope="module")
def topic(mq: rmq.Cluster) -> str:
    name = f"data-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=3)
    with rmq.Producer(cluster=mq.name) as p:
        for first in range(0, ROWS, 100):
            p.send_batch(
                [
                    rmq.Message(
                        name, b"%d" % n, tag=f"t{n % 3}", keys=[f"k{n}"], properties={"n": str(n)}
                    )
                    for n in range(first, first + 100)
                ]
            )
    return name


def test_a_topic_is_a_dataset_of_every_message(mq: rmq.Cluster, topic: str) -> None:
    dataset = mqd.read_topic(topic, cluster=mq.name)
    rows = dataset.take_all()
    with judging():
        assert dataset.count() == ROWS
        assert sorted(int(row["body"]) for row in rows) == list(range(ROWS))
    row = next(row for row in rows if row["body"] == b"7")
    assert (row["topic"], row["tag"], list(row["keys"]), dict(row["properties"])) == (
        topic,
        "t1",
        ["k7"],
        {"n": "7"},
    )
    assert set(row) == set(SCHEMA.names)


def test_only_the_columns_and_offsets_that_were_asked_for_are_read(
    mq: rmq.Cluster, topic: str
) -> None:
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    low, high = next(
        (row["min_offset"], row["max_offset"])
        for row in mq.admin.describe_topic(topic)
        if row["queue"] == 0
    )
    others = {rmq.MessageQueue(topic, "broker-a", queue_id): 0 for queue_id in (1, 2)}
    dataset = mqd.read_topic(
        topic,
        cluster=mq.name,
        columns=["body", "queue_offset"],
        start={queue: low + 5},
        end={queue: high - 5, **others},
    )
    rows = dataset.take_all()
    assert sorted(row["queue_offset"] for row in rows) == list(range(low + 5, high - 5))
    assert set(rows[0]) == {"body", "queue_offset"}


def test_tags_keys_patterns_and_several_topics_choose_what_is_read(
    mq: rmq.Cluster, topic: str
) -> None:
    tagged = mqd.read_topic(topic, cluster=mq.name, tags="t0 || t2", columns=["body"])
    assert tagged.count() == len(tagged.take_all()) == ROWS * 2 // 3
    (row,) = mqd.read_topic(
        pattern=f"{topic[:7]}.*", cluster=mq.name, key="k7", columns=["body", "keys"]
    ).take_all()
    assert (row["body"], list(row["keys"])) == (b"7", ["k7"])
    assert mqd.read_topic([topic, topic], cluster=mq.name, tags="").count() == ROWS


def test_offsets_and_columns_are_those_of_rays_kafka_reader_where_asked_for(
    mq: rmq.Cluster, topic: str
) -> None:
    def read(**settings: Any) -> list[dict[str, Any]]:
        dataset = mqd.read_topic(topic, cluster=mq.name, kafka_compat=True, **settings)
        return list(dataset.take_all())

    rows = read(start_offset={topic: {0: 5, 1: "earliest"}}, end_offset={topic: {0: 9, 1: 2, 2: 0}})
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        *((0, offset) for offset in range(5, 9)),
        (1, 0),
        (1, 1),
    ]
    assert list(rows[0]) == (
        "offset key value topic partition timestamp timestamp_type headers".split()
    )
    row = next(row for row in read() if row["value"] == b"7")
    assert (row["key"], row["topic"], dict(row["headers"])) == (b"k7", topic, {"n": b"7"})
    stored = datetime.fromtimestamp(row["timestamp"] / 1000, UTC)
    assert abs(datetime.now(UTC) - stored) < timedelta(hours=1)
    now = stored.replace(tzinfo=None)  # Ray reads it as UTC
    assert len(read(start_offset=now - timedelta(hours=1))) == ROWS
    assert read(start_offset=now + timedelta(hours=1)) == []
    assert len(read(start_offset=3, end_offset=10**9)) == ROWS - 9


def test_several_read_tasks_share_one_queue(mq: rmq.Cluster, topic: str) -> None:
    dataset = mqd.read_topic(topic, cluster=mq.name, columns=["body"], override_num_blocks=12)
    found = dataset.materialize()
    assert found.num_blocks() >= 12 and found.count() == ROWS


def test_an_empty_topic_is_an_empty_dataset_with_its_columns(mq: rmq.Cluster) -> None:
    name = f"empty-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=1)
    assert mqd.read_topic(name, cluster=mq.name).count() == 0
    assert mq.admin.to_arrow(name).schema == SCHEMA


def test_a_dataset_becomes_messages(mq: rmq.Cluster) -> None:
    name = f"written-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=2)
    dataset = ray.data.range(500, override_num_blocks=4).map_batches(
        lambda batch: pa.table(
            {
                "body": [b"%d" % n for n in batch["id"].to_pylist()],
                "user": [f"u{n}" for n in batch["id"].to_pylist()],
            }
        ),
        batch_format="pyarrow",
    )
    assert mqd.write_topic(dataset, name, key="user", cluster=mq.name) == 500
    table = mq.admin.to_arrow(name, columns=["keys", "body"])
    columns = (table.column(name).to_pylist() for name in ("keys", "body"))
    with judging():
        assert sorted((keys[0], int(body)) for keys, body in zip(*columns, strict=True)) == sorted(
            (f"u{n}", n) for n in range(500)
        )


def test_batches_without_an_end_go_on_where_the_loop_was(mq: rmq.Cluster, topic: str) -> None:
    group = f"train-{uuid.uuid4().hex[:8]}"
    batches = mqd.iter_batches(
        topic, group=group, batch_size=500, columns=["body"], cluster=mq.name, idle_s=20
    )
    first = [next(batches) for _ in range(3)]
    batches.close()  # the third was not finished: the next one was not asked for
    rest = list(
        mqd.iter_batches(
            topic, group=group, batch_size=500, columns=["body"], cluster=mq.name, idle_s=3
        )
    )
    assert all(0 < table.num_rows <= 500 for table in (*first, *rest))
    done = [int(body) for table in first[:2] for body in table.column("body").to_pylist()]
    seen = [int(body) for table in rest for body in table.column("body").to_pylist()]
    assert {row["lag"] for row in mq.admin.group_lag(group)} == {0}, "it gave up too early"
    with judging():
        assert sorted(done + seen) == list(range(ROWS)), (
            "nothing is lost, and what was finished does not come again"
        )


def test_a_read_task_that_dies_is_run_again_and_gives_each_row_once(
    mq: rmq.Cluster, topic: str, tmp_path: Path
) -> None:
    died = tmp_path / "died"

    def mortal(table: pa.Table) -> pa.Table:
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return table

    dataset = mqd.read_topic(topic, cluster=mq.name, columns=["body"], splits=6).map_batches(
        mortal, batch_format="pyarrow", batch_size=200
    )
    assert not died.exists(), "nothing is read before somebody asks for rows"
    with judging():
        assert sorted(int(row["body"]) for row in dataset.take_all()) == list(range(ROWS))
    assert died.exists()


def test_a_write_task_that_is_run_again_and_a_repeated_call_store_each_row_once(
    mq: rmq.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, died = f"once-{uuid.uuid4().hex[:8]}", tmp_path / "died"
    mq.admin.create_topic(name, queues=2)
    written = writing.TopicDatasink

    class Mortal(written):  # type: ignore[misc, valid-type]
        """Dies when a task has sent all it has and has not said so."""

        def write(self, blocks: Any, ctx: Any) -> int:
            count = super().write(blocks, ctx)
            if ctx.task_idx == 1 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return count

    monkeypatch.setattr(writing, "TopicDatasink", Mortal)
    for low in (0, 0, 1):
        dataset = ray.data.range(800, override_num_blocks=4).map_batches(
            lambda b, low=low: {"body": [b"%d" % (n + low) for n in b["id"]]}
        )
        if low:
            with pytest.raises(DuplicateMismatch):
                mqd.write_topic(dataset, name, once="job/1", cluster=mq.name)
        else:
            assert mqd.write_topic(dataset, name, once="job/1", cluster=mq.name) == 800
    assert died.exists()
    stored = mq.admin.to_arrow(name, columns=["body"])["body"].to_pylist()
    with judging():
        assert sorted(int(body) for body in stored) == list(range(800))


def test_a_checkpoint_of_positions_gives_each_shard_its_rows_once(
    mq: rmq.Cluster, topic: str
) -> None:
    """Two workers, each dies in the middle; the positions that they kept count, not the group's."""
    where: dict[str, Any] = {
        "group": f"sharded-{uuid.uuid4().hex[:8]}",
        "columns": ["body"],
        "cluster": mq.name,
        "commit": "manual",
        "batch_size": 400,
    }
    learnt: list[int] = []
    positions = []
    for rank in range(2):
        with mqd.iter_batches(topic, shard=(rank, 2), **where) as batches:
            learnt += [int(body) for body in next(batches)["body"].to_pylist()]
            positions.append(batches.position)
            if rank == 0:
                batches.commit()
            else:
                next(batches)  # lost with the worker
    for rank in range(2):
        for table in mqd.iter_batches(topic, shard=(rank, 2), idle_s=5, after=positions, **where):
            learnt += [int(body) for body in table["body"].to_pylist()]
    with judging():
        assert len(set(learnt)) == len(learnt)
    assert set(learnt) == set(range(ROWS))


def test_workers_of_one_group_share_the_queues_and_miss_nothing(mq: rmq.Cluster) -> None:
    name, group = f"shared-{uuid.uuid4().hex[:8]}", f"sharing-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=4)
    learnt: list[set[int]] = [set(), set()]

    def work(number: int) -> None:
        for table in mqd.iter_batches(
            name, group=group, columns=["body"], max_wait_s=0.2, cluster=mq.name, idle_s=5
        ):
            learnt[number].update(int(body) for body in table["body"].to_pylist())

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
    for worker in workers:
        worker.start()
    sent = itertools.count()
    with rmq.Producer(cluster=mq.name) as p:
        eventually(
            lambda: p.send(name, b"%d" % next(sent)) and all(learnt), 60
        )  # until both have queues
    for worker in workers:
        worker.join(60)
    assert {row["lag"] for row in mq.admin.group_lag(group)} == {0}
    with judging():
        assert learnt[0] | learnt[1] == set(range(next(sent)))


def test_members_of_a_group_leave_out_what_a_checkpoint_has(mq: rmq.Cluster, topic: str) -> None:
    group = f"kept-{uuid.uuid4().hex[:8]}"
    where: dict[str, Any] = {
        "group": group,
        "columns": ["body"],
        "cluster": mq.name,
        "commit": "manual",
    }
    with mqd.iter_batches(topic, batch_size=700, **where) as batches:
        learnt = [int(body) for body in next(batches)["body"].to_pylist()]
        position = batches.position
    with mqd.iter_batches(topic, idle_s=3, after=position, **where) as batches:
        learnt += [int(body) for table in batches for body in table["body"].to_pylist()]
        batches.commit()
    assert {row["lag"] for row in mq.admin.group_lag(group)} == {0}
    with judging():
        assert sorted(learnt) == list(range(ROWS))


def test_wrong_columns_topics_and_sizes_are_refused_before_anything_runs(
    mq: rmq.Cluster, topic: str
) -> None:
    with pytest.raises(rmq.ClientError, match="unknown column 'colour'"):
        mqd.read_topic(topic, cluster=mq.name, columns=["colour"])
    with pytest.raises(rmq.ClientError, match="different names"):
        mqd.read_topic(topic, cluster=mq.name, columns=[])
    with pytest.raises(rmq.TopicNotFound):
        mqd.read_topic("no-such-topic", cluster=mq.name)
    with pytest.raises(rmq.ClusterError):
        mqd.write_topic(ray.data.range(1), "t", cluster="nowhere")
    for wrong, message in (
        ({}, "either topic= .* or pattern="),
        ({"topic": topic, "tags": ["t0"]}, "tags must be an expression"),
    ):
        with pytest.raises(rmq.ClientError, match=message):
            mqd.read_topic(**wrong, cluster=mq.name)
    for shard in (None, (0, 2)):
        with pytest.raises(rmq.TopicNotFound, match="no-such-topic"):
            next(mqd.iter_batches("no-such-topic", group="g", shard=shard, cluster=mq.name))
    for wrong, message in (
        ({"start_offset": "latest"}, "start_offset must be an offset"),
        ({"end_offset": {topic: {"0": 1}}}, "numbers of partitions"),
        ({"end_offset": {topic: {0: -1}}}, "must be an offset"),
        ({"start_offset": {topic: {9: 1}}}, "no partition 9"),
        ({"start_offset": 1, "start": 5}, "or start and end"),
        ({"kafka_compat": True, "columns": ["body"]}, "select_columns"),
        ({"splits": 2, "override_num_blocks": 3}, "mean the same"),
    ):
        with pytest.raises(rmq.ClientError, match=message):
            mqd.read_topic(topic, **wrong, cluster=mq.name)
    with pytest.raises(rmq.ClientError, match="no argument 'colums'"):
        mqd.read_topic(topic, cluster=mq.name, colums=["body"])
    with pytest.raises(rmq.ClientError, match=r"takes a ray\.data\.Dataset, not a str"):
        mqd.write_topic("t", ray.data.range(1), cluster=mq.name)  # type: ignore[arg-type]
    with pytest.raises(rmq.ClientError, match="once must be a name"):
        mqd.write_topic(ray.data.range(1), "t", once="", cluster=mq.name)
    with pytest.raises(rmq.TopicNotWritable, match="belongs to a consumer group"):
        mqd.write_topic(ray.data.range(1), "%DLQ%t", cluster=mq.name)
    with pytest.raises(rmq.ClientError, match="batch_size"):
        next(mqd.iter_batches(topic, group="g", batch_size=0, cluster=mq.name))
    with pytest.raises(rmq.ClientError, match="rows_max=10"):
        mq.admin.to_arrow(topic, rows_max=10)
    with pytest.raises(rmq.ClientError, match="no column"):
        mq.admin.to_arrow(topic, columns=["colour"])
