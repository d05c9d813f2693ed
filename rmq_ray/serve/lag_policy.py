"""How many replicas a deployment of tasks should have: an autoscaling policy of Ray Serve.

    AutoscalingConfig(
        min_replicas=0, max_replicas=8, target_ongoing_requests=20,
        policy=AutoscalingPolicy(
            policy_function=LagPolicy, policy_kwargs={"queue_name": "images"}
        ),
    )

    replicas = (tasks that wait or run + requests of handles) / target_ongoing_requests

Where a replica takes long to start (a model that is loaded, a GPU's node), ``startup_s`` looks
ahead: by the time that a replica asked for now takes part, the tasks that came faster than they
were done wait as well. Decides from what was measured last; each measurement is one request a
broker in a thread that ends with it, so that a policy which Serve drops leaves nothing behind.
Serve keeps its own limits and delays. Invariants: 0 only where nothing waits and nothing runs; a
broker that does not answer changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmq_ray.client.admin.admin import Admin
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ConfigError, RmqError
from rmq_ray.serve.settings import ORDERED, RmqAdapterConfig
from rmq_ray.serve.task_lag import waiting

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

STARTUP_S_MAX = 3_600.0
log = logging.getLogger("rmq_ray.serve")


class LagPolicy:
    """``queue_name``: that of ``TaskProcessorConfig``. ``poll_interval_s``: between measurements.
    ``startup_s``: from the moment that a replica is asked for until it works. ``where``:
    ``cluster``, ``name_servers``, ``access_key``, ``secret_key``, as of ``RmqAdapterConfig``; Serve
    wants plain values. Raises ``ConfigError`` for others.
    """

    def __init__(
        self,
        queue_name: str,
        poll_interval_s: float = 2.0,
        startup_s: float = 0.0,
        **where: Any,
    ) -> None:
        if not _is_number(poll_interval_s) or not 0 < poll_interval_s < float("inf"):
            raise ConfigError(
                f"poll_interval_s must be over 0 s, not {poll_interval_s!r}", poll_interval_s
            )
        if not _is_number(startup_s) or not 0 <= startup_s <= STARTUP_S_MAX:
            raise ConfigError(
                f"startup_s must be 0 to {STARTUP_S_MAX:.0f} s, not {startup_s!r}", startup_s
            )
        self._queue = queue_name
        self._startup_s = startup_s
        self._interval_ms = poll_interval_s * 1_000
        self._where = RmqAdapterConfig.of(where)
        self._lock = threading.Lock()
        self._asking = False
        self._asked_ms = float("-inf")
        self._measured: deque[tuple[float, int]] = deque()
        """(when, ms; lag): those of the last ``startup_s``, and the one before them."""

    def __call__(self, ctx: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """(replicas, what they were reckoned from)."""
        self._measure()
        with self._lock:
            measured = list(self._measured)
        config = ctx.config
        if not measured or config is None:
            return ctx.current_num_replicas, {"lag": None}
        lag, target = measured[-1][1], config.get_target_ongoing_requests()
        to_come = growth(measured, self._startup_s)
        wanted = replicas(lag + to_come + ctx.total_num_requests, target)
        return wanted, {"lag": lag, "to_come": round(to_come)}

    def _measure(self) -> None:
        """Begin one measurement, where it is time and none is under way."""
        now_ms = SYSTEM_CLOCK.monotonic_ms()
        with self._lock:
            if self._asking or now_ms - self._asked_ms < self._interval_ms:
                return
            self._asking, self._asked_ms = True, now_ms
        threading.Thread(target=self._ask, name=f"rmq-lag-{self._queue}", daemon=True).start()

    def _ask(self) -> None:
        try:
            admin = Admin(self._where.discovery)
            try:
                self._note(waiting(admin, self._queue, ORDERED + self._queue))
            finally:
                admin.close()
        except RmqError as error:
            log.warning("the lag of %s cannot be had: %s", self._queue, error)
        finally:
            self._asking = False

    def _note(self, lag: int) -> None:
        now_ms, kept = SYSTEM_CLOCK.monotonic_ms(), self._measured
        with self._lock:
            kept.append((now_ms, lag))
            while len(kept) > 2 and kept[1][0] <= now_ms - self._startup_s * 1_000:
                kept.popleft()


def growth(measured: Sequence[tuple[float, int]], startup_s: float) -> float:
    """Tasks by which the lag will have grown in ``startup_s``, at the pace of what was measured
    (when, ms; lag) in as long; 0 where it falls. What came before that is one burst: no more of it
    than came.

    >>> growth([(0.0, 100), (60_000.0, 160)], 30.0), growth([(0.0, 100), (2_000.0, 60)], 30.0)
    (30.0, 0.0)
    >>> growth([(0.0, 0), (2_000.0, 1_000)], 90.0)
    1000.0
    """
    (began_ms, first), (ended_ms, last) = measured[0], measured[-1]
    if last <= first or not startup_s:
        return 0.0
    return (last - first) * startup_s / max(startup_s, (ended_ms - began_ms) / 1_000)


def replicas(work: float, target: float) -> float:
    """Of so many tasks and requests, ``target`` for each replica; at least one while there is any.

    >>> replicas(0, 5), replicas(1, 5), replicas(23, 5)
    (0.0, 1.0, 4.6)
    """
    return 0.0 if work <= 0 else max(1.0, work / target)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
