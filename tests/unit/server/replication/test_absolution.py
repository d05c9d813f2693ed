"""When a slave whose log may have lost bytes takes it for whole again: not before it has what the
master's log has.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.server.slave.replica import Replica


@pytest.mark.parametrize(("end", "whole"), [(500, False), (999, False), (1_000, True)])
def test_a_slave_that_may_have_lost_bytes_is_sound_when_it_reached_the_masters_end(
    end: int, whole: bool
) -> None:
    """The master was elected a moment ago: it has confirmed nothing yet, and its log holds what was
    acknowledged in epochs before.
    """
    absolved: list[object] = []
    store = SimpleNamespace(
        end_offset=end, report=SimpleNamespace(sound=False), absolve=lambda: None
    )
    slave: Any = Replica.__new__(Replica)
    slave._leadership, slave._clock = object(), ManualClock()
    slave._thread = SimpleNamespace(submit=lambda what, _then: absolved.append(what))
    Replica._note(slave, cast("Any", store), 1_000)
    assert absolved == ([store.absolve] if whole else [])
