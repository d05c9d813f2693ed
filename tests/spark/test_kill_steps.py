"""The driver of a stream, killed with signal 9 in a batch: no sink lacks a row, sinks that know the
batch have none twice. ``kill_steps`` as a program has all steps; here are the two between which a
batch is half done.
"""

from __future__ import annotations

from pathlib import Path

from rmq_ray.spark.java import ensure_java
from tests.spark import kill_steps
from tests.support.outcomes import judging


def test_a_killed_driver_loses_nothing_and_repeats_only_where_the_sink_does_not_know_batches(
    tmp_path: Path,
) -> None:
    ensure_java()
    found = kill_steps.run(tmp_path, kill_steps.STEPS[2:4], 2 * kill_steps.BATCH_ROWS)
    assert len(found) == 17
    for (way, sink, step), (lost, repeated) in found.items():
        again = {
            "in the middle of the writes": kill_steps.BATCH_ROWS // 2,
            "after the sinks wrote": kill_steps.BATCH_ROWS,
        }
        with judging():
            assert (lost, repeated) == (0, again[step] if sink == "file, appended" else 0), (
                way,
                sink,
                step,
            )
