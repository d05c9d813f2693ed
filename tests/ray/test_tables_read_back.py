"""A topic that is a table, read back: files and log as one, as of a time or a group's position."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmq_ray as rmq
from rmq_ray import data as mqd
from rmq_ray.errors import ClientError, TableNotFound
from rmq_ray.model.arrow import SCHEMA
from tests.support.outcomes import judging


@pytest.fixture(scope="module")
def halves(mq: rmq.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A topic of 1,000 messages, 600 of them in its paused table, and the time between both."""
    topic = f"halves-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(topic, queues=3)
    folder: Path = tmp_path_factory.mktemp("table")
    with mq.producer() as producer:
        for n in range(600):
            producer.send(topic, b"%d" % n, tag=f"t{n % 2}", keys=[f"k{n}"])
    mq.tables.create(topic, str(folder))
    mq.tables.flush(topic)
    mq.tables.pause(topic)
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    with mq.producer() as producer:
        for n in range(600, 1_000):
            producer.send(topic, b"%d" % n, tag=f"t{n % 2}", keys=[f"k{n}"])
    yield topic, between
    mq.tables.drop(topic)


def numbers(table: Any) -> list[int]:
    return sorted(int(body) for body in table.column("body").to_pylist())


def in_order(table: Any) -> Any:
    return table.sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])


def test_table_and_log_together_are_the_topic(mq: rmq.Cluster, halves: tuple[str, int]) -> None:
    topic, _ = halves
    union = mq.tables.to_arrow(topic)
    assert union.schema == SCHEMA
    with judging():
        assert in_order(union).equals(in_order(mq.admin.to_arrow(topic)))
        assert numbers(mq.tables.to_arrow(topic, source="table")) == list(range(600))


def test_a_read_as_of_a_time_ends_there_in_either_part(
    mq: rmq.Cluster, halves: tuple[str, int]
) -> None:
    topic, between = halves
    assert numbers(mq.tables.to_arrow(topic, end=between)) == list(range(600))
    assert numbers(mq.tables.to_arrow(topic, start=between)) == list(range(600, 1_000))
    early = mq.tables.to_arrow(topic).column("store_ts").sort()[0].value // 1000
    assert numbers(mq.tables.to_arrow(topic, end=early)) == []


def test_a_read_as_of_a_group_or_of_offsets_ends_there(
    mq: rmq.Cluster, halves: tuple[str, int]
) -> None:
    topic, _ = halves
    group = f"g-{uuid.uuid4().hex[:8]}"
    batches = mqd.iter_batches(
        topic, group=group, batch_size=350, cluster=mq.name, commit="manual", idle_s=20
    )
    seen = next(batches)
    while seen.num_rows < 700:
        seen = pa.concat_tables([seen, next(batches)])
    batches.commit()
    position = batches.position
    batches.close()
    wanted = numbers(seen)
    assert numbers(mq.tables.to_arrow(topic, end=position, columns=["body"])) == wanted
    assert numbers(mq.tables.to_arrow(topic, end=rmq.LikeGroup(group))) == wanted
    rest = numbers(mq.tables.to_arrow(topic, start=position))
    with judging():
        assert sorted(wanted + rest) == list(range(1_000))


def test_ray_data_reads_both_with_columns_tags_and_keys(
    mq: rmq.Cluster, halves: tuple[str, int]
) -> None:
    topic, _ = halves

    def read(**how: Any) -> list[int]:
        found = mqd.read_topic(topic, cluster=mq.name, columns=["body"], **how).take_all()
        return sorted(int(row["body"]) for row in found)

    with judging():
        assert read(source="table+log") == list(range(1_000))
    assert read(source="table+log", tags="t1") == list(range(1, 1_000, 2))
    assert read(source="table+log", key="k7") == [7]
    assert read(source="table") == list(range(600))


def test_a_stream_of_datasets_begins_in_the_table_and_goes_on_in_the_log(
    mq: rmq.Cluster, halves: tuple[str, int], tmp_path: Path
) -> None:
    topic, between = halves

    def stream(name: str, **how: Any) -> mqd.TopicStream:
        where = {"checkpoint": tmp_path / name, "columns": ["body"], "max_rows": 350}
        return mqd.stream(topic, **where, source="table+log", cluster=mq.name, **how)

    def bodies(dataset: Any) -> list[int]:
        return sorted(int(row["body"]) for row in dataset.take_all())

    with stream("all") as batches:
        first = next(batches)
        kept = bodies(first.dataset)
        first.commit()
        uncommitted = next(batches)
        seen = bodies(uncommitted.dataset)
    with stream("all") as batches:  # by a program that was started again
        for batch in batches:
            found = bodies(batch.dataset)
            with judging():
                assert not batch.again or (found, batch.number) == (seen, uncommitted.number)
            kept += found
            batch.commit()
    with judging():
        assert sorted(kept) == list(range(1_000))
    with stream("later", start=between) as batches:
        assert sorted(row for batch in committed(batches) for row in bodies(batch.dataset)) == list(
            range(600, 1_000)
        )


def committed(batches: mqd.TopicStream) -> Iterator[mqd.StreamBatch]:
    """Each batch, committed behind the caller's work."""
    for batch in batches:
        yield batch
        batch.commit()


def test_wrong_sources_are_refused(
    mq: rmq.Cluster, halves: tuple[str, int], tmp_path: Path
) -> None:
    with pytest.raises(ClientError, match="table\\+log"):
        mqd.read_topic(halves[0], cluster=mq.name, source="lake")
    with pytest.raises(ClientError, match="one topic"):
        mqd.read_topic([halves[0], "x"], cluster=mq.name, source="table")
    mq.admin.create_topic("no-table", queues=1)
    with pytest.raises(TableNotFound, match="create one"):
        mqd.read_topic("no-table", cluster=mq.name, source="table+log")
    stream = {"checkpoint": tmp_path, "cluster": mq.name}
    with pytest.raises(TableNotFound, match="create one"):
        mqd.stream("no-table", source="table+log", **stream)
    with pytest.raises(ClientError, match="no end"):
        mqd.stream(halves[0], source="table", **stream)
    with pytest.raises(ClientError, match="one topic"):
        mqd.stream([halves[0], "x"], source="table+log", **stream)
