"""Training from a topic as of a moment: the same rows today, tomorrow, and when the log has long
forgotten them.

    python -m examples.training_as_of

Machines send what they measure; the topic is a table. A model is fitted by Ray Data to all rows as
of a time, and to those that a group had reviewed. Then a machine breaks and the topic goes on. Who
fits again as of the same moments gets the same models, bit by bit; who fits to the latest rows does
not.
"""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd

TOPIC, REVIEWERS, ROWS = "measured", "reviewers", 1_000
Model = tuple[int, float, float]


def measure(cluster: str, slope: int, first: int) -> None:
    """``ROWS`` lines "x,y" of y = slope * x + 7."""
    lines = [f"{x},{slope * x + 7}" for x in range(first, first + ROWS)]
    with rmq.Producer("machines", cluster=cluster) as producer:
        for low in range(0, ROWS, 100):
            producer.send_arrow(TOPIC, pa.table({"body": lines[low : low + 100]}))


def review(cluster: str, rows: int) -> None:
    """The group looks at this many rows at least, and commits how far it is."""
    seen = 0
    with mqd.iter_batches(
        TOPIC, group=REVIEWERS, batch_size=100, columns=["body"], commit="manual", cluster=cluster
    ) as batches:
        while seen < rows:
            seen += next(batches).num_rows
        batches.commit()


def sums(table: pa.Table) -> pa.Table:
    """Of one block what a line is fitted with. Integers: no order of blocks changes them."""
    parts = pc.split_pattern(table["body"].cast(pa.string()), ",")
    x, y = (pc.list_element(parts, at).cast(pa.int64()) for at in (0, 1))
    found = {"n": table.num_rows, "x": pc.sum(x), "y": pc.sum(y)}
    found |= {"xx": pc.sum(pc.multiply(x, x)), "xy": pc.sum(pc.multiply(x, y))}
    return pa.table({name: pa.array([value], pa.int64()) for name, value in found.items()})


def fit(cluster: str, as_of: Any) -> Model:
    """(rows, slope, where it begins) of the topic as of a time, a group's position, or "latest"."""
    rows = mqd.read_topic(TOPIC, source="table+log", end=as_of, columns=["body"], cluster=cluster)
    found = rows.map_batches(sums, batch_format="pyarrow", batch_size=None).sum(
        ["n", "x", "y", "xx", "xy"]
    )
    n, x, y, xx, xy = (int(found[f"sum({name})"]) for name in ("n", "x", "y", "xx", "xy"))
    slope, begin = np.linalg.solve([[xx, x], [x, n]], [xy, y])
    return n, float(slope), float(begin)


def main(cluster: str) -> dict[str, tuple[Model, Model]]:
    """As of what -> the model before the machine broke, and after."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=3)
    with tempfile.TemporaryDirectory(prefix="rmq-ray-as-of-") as directory:
        mq.tables.create(TOPIC, str(Path(directory) / TOPIC))
        measure(cluster, 3, 0)
        review(cluster, ROWS // 2)
        mq.tables.flush(TOPIC)
        time.sleep(0.01)  # stores tell milliseconds
        wanted = {
            "time": datetime.now(UTC),
            "group": rmq.LikeGroup(REVIEWERS),
            "latest": "latest",
        }
        before = {name: fit(cluster, as_of) for name, as_of in wanted.items()}
        measure(cluster, -1, ROWS)  # it broke
        after = {name: fit(cluster, as_of) for name, as_of in wanted.items()}
        mq.tables.drop(TOPIC)
    for name in wanted:
        print(f"as of {name}: {before[name]}, then {after[name]}")
    return {name: (before[name], after[name]) for name in wanted}


if __name__ == "__main__":
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory(prefix="rmq-ray-as-of-") as store:
        started = rmq.start("as-of", store_path=store)
        main(started.name)
        started.stop()
