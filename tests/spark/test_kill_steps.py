"""The driver of a stream, killed with signal 9 in a batch: no sink lacks a row, sinks that know the
batch have none twice. ``kill_steps`` as a program has all steps; here are the two between which a
batch is half done, and the session of the other tests goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark import kill_steps
from tests.support.outcomes import judging

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket")


def test_a_killed_driver_loses_nothing_and_repeats_only_where_the_sink_does_not_know_batches(
    session: Any, tmp_path: Path
) -> None:
    found = kill_steps.run(tmp_path, session, kill_steps.STEPS[2:4], 2 * kill_steps.BATCH_ROWS)
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
