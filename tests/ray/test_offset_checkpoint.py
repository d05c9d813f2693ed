"""Ray Data's own job checkpoints by offsets: a job that failed goes on and reads what is new."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd
from tests.support.outcomes import judging

ROWS = 400


@pytest.fixture
def context() -> Iterator[ray.data.DataContext]:
    here = ray.data.DataContext.get_current()
    yield here
    here.checkpoint_config = None


def send(mq: rmq.Cluster, topic: str, first: int, count: int) -> None:
    with rmq.Producer(cluster=mq.name) as p:
        for low in range(first, first + count, 20):
            p.send_batch(topic, bodies=[b"%d" % n for n in range(low, low + 20)])


def test_a_job_that_failed_goes_on_with_what_is_not_written(
    mq: rmq.Cluster, tmp_path: Path, context: ray.data.DataContext
) -> None:
    topic, kept, out = f"ids-{uuid.uuid4().hex[:8]}", tmp_path / "kept", tmp_path / "out"
    failed = tmp_path / "failed"
    mq.admin.create_topic(topic, queues=2)
    send(mq, topic, 0, ROWS)

    def fails_once(table: pa.Table) -> pa.Table:
        if table.num_rows and b"250" in table["body"].to_pylist() and not failed.exists():
            failed.touch()
            raise ValueError("a bad day")
        return table

    def job() -> None:
        start = mqd.unwritten(topic, kept, mq.name)
        dataset = mqd.read_topic(
            topic, start=start, columns=["body", "offset_id"], splits=8, cluster=mq.name
        )
        dataset.map_batches(fails_once, batch_format="pyarrow").write_parquet(str(out))

    def bodies() -> list[int]:
        context.checkpoint_config = None
        return sorted(int(row["body"]) for row in ray.data.read_parquet(str(out)).take_all())

    context.checkpoint_config = mqd.offset_checkpoint(kept)
    with pytest.raises(ray.exceptions.RayError, match="a bad day"):
        job()
    context.checkpoint_config = mqd.offset_checkpoint(kept)
    job()
    assert failed.exists()
    with judging():
        assert bodies() == list(range(ROWS))
    behind = mqd.unwritten(topic, kept, mq.name)
    with judging():
        assert sum(behind.values()) == ROWS, "the next job reads nothing again"
    send(mq, topic, ROWS, 40)
    context.checkpoint_config = mqd.offset_checkpoint(kept)
    job()
    with judging():
        assert bodies() == list(range(ROWS + 40))
    other = ray.data.range(3)
    context.checkpoint_config = None
    other.write_parquet(str(tmp_path / "other"))
    with pytest.raises(rmq.ClientError, match="belongs to another job"):
        mqd.unwritten(topic, tmp_path / "other", mq.name)
