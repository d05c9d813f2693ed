"""A topic as a stream of datasets against the same topic by ``read_topic``, turn by turn: a count
over every body, 1 KB rows.

All rows as one batch of a stream have the goal: planned, written down, read and committed. In four
batches Ray Data's own start of an execution is paid four times; that is told, without a goal.
``CPU``: of this process and all that it started, which other work on the machine does not change.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

import rmq_ray as rmq
from benchmarks.dataframe import BODY_BYTES, PIECE, cpu_s, send, tree_cpu
from benchmarks.report import Figure
from benchmarks.scene import Scene
from rmq_ray import data as mqd

TURNS = 3
BATCHES = 4
GOAL = 0.8


def run(scene: Scene) -> None:
    """1 M rows by ``read_topic``, as one batch, and as four."""
    rows = scene.count(1_000_000, PIECE) // PIECE * PIECE
    numbers = itertools.count()
    with scene.cluster() as mq:
        send(mq, "streamed", BODY_BYTES, rows)
        scene.settle()
        ways: dict[str, Callable[[], int]] = {
            "read_topic": lambda: counted(
                mqd.read_topic("streamed", columns=["body"], cluster=mq.name)
            ),
            "stream": lambda: streamed(mq, scene.directory / f"checkpoint-{next(numbers)}", rows),
            "batches": lambda: streamed(
                mq, scene.directory / f"checkpoint-{next(numbers)}", -(-rows // BATCHES)
            ),
        }
        seconds: dict[str, float] = {}
        cpu: dict[str, float] = {}
        for turn in range(TURNS + 1):  # the first one warms up
            for name, read in ways.items():
                before, begin = tree_cpu(os.getpid()), time.perf_counter()
                found = read()
                taken = time.perf_counter() - begin
                used = cpu_s(before, tree_cpu(os.getpid()))
                assert found == rows, f"{name} gave {found} of {rows} rows"
                if turn:
                    seconds[name] = min(taken, seconds.get(name, taken))
                    cpu[name] = min(used, cpu.get(name, used))
    rates = {name: rows / taken for name, taken in seconds.items()}
    for name, what, goal in (
        ("stream", "stream into a dataset", GOAL),
        ("batches", f"stream into {BATCHES} datasets", None),
    ):
        scene.report.add(
            Figure(
                f"{what}, 1 KB rows", rates[name], "rows/s", "read_topic", rates["read_topic"], goal
            )
        )
        scene.report.add(
            Figure(
                f"{what}, 1 KB rows, CPU of all processes",
                cpu[name] / rows * 1e6,
                "us/row",
                "read_topic",
                cpu["read_topic"] / rows * 1e6,
            )
        )


def streamed(mq: rmq.Cluster, checkpoint: Path, max_rows: int) -> int:
    """Rows of all batches, each committed."""
    found = 0
    where: dict[str, Any] = {"checkpoint": checkpoint, "max_rows": max_rows, "cluster": mq.name}
    with mqd.stream("streamed", columns=["body"], **where) as batches:
        for batch in batches:
            found += counted(batch.dataset)
            batch.commit()
    return found


def counted(dataset: ray.data.Dataset) -> int:
    """Rows whose bodies were read."""
    sizes = dataset.map_batches(
        lambda table: pa.table({"rows": [table.num_rows - table["body"].null_count]}),
        batch_format="pyarrow",
        batch_size=None,
    )
    return int(sizes.sum("rows"))
