"""A topic as bounded datasets one after the other: each row once in the output, whatever dies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd
from tests.support.outcomes import judging


def sent(mq: rmq.Cluster, topic: str, first: int, count: int) -> None:
    with rmq.Producer(cluster=mq.name) as p:
        p.send_batch(topic, bodies=[b"%d" % n for n in range(first, first + count)])


def made(mq: rmq.Cluster, queues: int = 2) -> str:
    name = f"stream-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=queues)
    return name


def bodies(dataset: ray.data.Dataset) -> list[int]:
    return sorted(int(row["body"]) for row in dataset.take_all())


def written(root: Path) -> list[int]:
    return bodies(ray.data.read_parquet(str(root)))


KILLED = """
import os, signal, sys, ray
import rmq_ray as rmq
from rmq_ray import data as mqd
topic, cluster, checkpoint, out, address = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
where = {"checkpoint": checkpoint, "columns": ["body"], "max_rows": 60, "cluster": cluster}
for batch in mqd.stream(topic, **where):
    def write(dataset, path):
        dataset.write_parquet(path)
        if batch.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    batch.write(out, write)
"""


def test_a_program_killed_between_output_and_commit_repeats_the_batch_and_has_each_row_once(
    mq: rmq.Cluster, tmp_path: Path
) -> None:
    topic = made(mq)
    sent(mq, topic, 0, 100)
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    program = tmp_path / "killed.py"
    program.write_text(textwrap.dedent(KILLED))
    address = ray.get_runtime_context().gcs_address
    ended = subprocess.run(
        [sys.executable, str(program), topic, mq.name, str(checkpoint), str(out), address],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        timeout=150,
        check=False,
    )
    assert ended.returncode == -9
    assert (out / "batch-0000000001").is_dir(), "it wrote, and did not commit"
    sent(mq, topic, 100, 50)
    arguments: dict[str, Any] = {"columns": ["body"], "max_rows": 60, "cluster": mq.name}
    again = next(mqd.stream(topic, checkpoint=checkpoint, **arguments))
    with judging():
        assert (again.number, again.again, again.rows) == (1, True, 40), "not what came since"
    numbers = []
    for batch in mqd.stream(topic, checkpoint=checkpoint, group="seen", **arguments):
        batch.write(out, lambda dataset, path: dataset.write_parquet(path))
        numbers.append((batch.number, batch.name))
    assert numbers[0] == (1, again.name) and [n for n, _ in numbers] == [1, 2]
    with judging():
        assert written(out) == list(range(150))
    assert sum(row["lag"] for row in mq.admin.group_lag("seen")) == 0


def test_a_trigger_gives_what_came_since_until_it_is_stopped(
    mq: rmq.Cluster, tmp_path: Path
) -> None:
    topic = made(mq)
    sent(mq, topic, 0, 10)
    found = []
    with mqd.stream(
        topic, checkpoint=tmp_path, trigger="200 ms", columns=["body"], cluster=mq.name
    ) as stream:
        for batch in stream:
            assert batch.skipped == {}
            found.append(bodies(batch.dataset))
            batch.commit()
            if len(found) == 2:
                stream.stop()
            else:
                sent(mq, topic, 10, 5)
    assert found == [list(range(10)), list(range(10, 15))]


def test_a_log_that_began_again_is_an_error_or_told(mq: rmq.Cluster, tmp_path: Path) -> None:
    topic = made(mq, queues=1)
    sent(mq, topic, 0, 20)
    for folder in ("strict", "loose"):
        for batch in mqd.stream(topic, checkpoint=tmp_path / folder, cluster=mq.name):
            batch.commit()
    sent(mq, topic, 20, 2)
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, queues=1)
    sent(mq, topic, 0, 3)
    with pytest.raises(rmq.OffsetOutOfRange, match="offset 20 of "):
        next(mqd.stream(topic, checkpoint=tmp_path / "strict", cluster=mq.name))
    batch = next(
        mqd.stream(topic, checkpoint=tmp_path / "loose", fail_on_data_loss=False, cluster=mq.name)
    )
    queue = rmq.MessageQueue(topic, "broker-a", 0)
    with judging():
        assert batch.skipped == {queue: (20, 22)} and bodies(batch.dataset) == [0, 1, 2]


def test_wrong_triggers_topics_and_checkpoints_are_refused(mq: rmq.Cluster, tmp_path: Path) -> None:
    topic, other = made(mq), made(mq)
    where: dict[str, Any] = {"checkpoint": tmp_path / "c", "cluster": mq.name}
    for wrong in ("10 parsecs", "", "-1 s", "2 days", 10):
        with pytest.raises(rmq.ClientError, match="trigger must be"):
            mqd.stream(topic, trigger=wrong, **where)  # type: ignore[arg-type]
    with pytest.raises(rmq.TopicNotFound):
        mqd.stream("no-such-topic", **where)
    with pytest.raises(rmq.ClientError, match="checkpoint must name"):
        mqd.stream(topic, checkpoint=" ", cluster=mq.name)
    sent(mq, topic, 0, 3)
    stream = mqd.stream(topic, **where)
    next(stream)
    with pytest.raises(rmq.ClientError, match="batch 0 is not committed"):
        next(stream)
    with pytest.raises(rmq.ClientError, match=f"belongs to a stream of {topic}"):
        mqd.stream(other, **where)
    text = (tmp_path / "c/rmq_ray/stream.json").read_text()
    shutil.copytree(tmp_path / "c", tmp_path / "d")
    (tmp_path / "d/rmq_ray/stream.json").write_text(text.replace(mq.name, "elsewhere"))
    with pytest.raises(rmq.ClientError, match="of cluster 'elsewhere'"):
        mqd.stream(topic, checkpoint=tmp_path / "d", cluster=mq.name)


def test_the_program_that_opened_a_checkpoint_last_has_it(mq: rmq.Cluster, tmp_path: Path) -> None:
    topic = made(mq)
    sent(mq, topic, 0, 3)
    old = next(mqd.stream(topic, checkpoint=tmp_path, columns=["body"], cluster=mq.name))
    new = next(mqd.stream(topic, checkpoint=tmp_path, columns=["body"], cluster=mq.name))
    with pytest.raises(rmq.ClientError, match="another program has opened this checkpoint"):
        old.commit()
    new.commit()
    assert new.name == old.name and bodies(new.dataset) == [0, 1, 2]


def test_the_example_writes_each_click_once(mq: rmq.Cluster) -> None:
    from examples import stream_datasets

    clicks = range(stream_datasets.CLICKS + stream_datasets.MORE)
    found = stream_datasets.main(mq.name)
    with judging():
        assert found == (len(clicks), sum(clicks))
