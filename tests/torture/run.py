"""One run: a cluster on a disk with a power switch, load, faults, calm, judgement."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

import ray

import rmq_ray as rmq
from tests.support.waiting import eventually
from tests.torture import disk as disks
from tests.torture import network
from tests.torture.boots import Boots
from tests.torture.checker import violations
from tests.torture.clocks import Clocks
from tests.torture.disk import Disk
from tests.torture.faults import Faults
from tests.torture.history import Ended, History
from tests.torture.modes import Mode
from tests.torture.victims import Victims
from tests.torture.workload import Workload

STORE = {"segment_bytes": 16 << 20, "consume_queue_entries": 30_000}
WARM_S = 3.0
STOP_S = 60.0
GAP_S = 0.02
SHOWN = 5
EVERY_KIND = re.compile("")
LOSSES = ("acknowledged_is_kept", "committed_is_delivered", "everything_is_delivered")
TWICE = "stored_once"


@dataclass
class Told:
    """What came of it."""

    mode: Mode
    seconds: float
    history: History
    violations: list[str]

    @property
    def acknowledged(self) -> int:
        """Sends whose answer was OK."""
        return sum(send.outcome is Ended.OK for send in self.history.sends)

    def text(self) -> str:
        """What happened when, the violations, a row for each kind of fault, a row for the run, the
        line that sums up.
        """
        faults = self.history.faults
        began = faults[0].began if faults else 0.0
        course = [
            f"{fault.began - began:6.1f} s  {fault.kind} ({fault.broker or 'cluster'}), "
            f"{fault.outage_s:.1f} s"
            for fault in faults
        ]
        kinds: dict[str, list[float]] = defaultdict(list)
        for fault in faults:
            kinds[fault.kind].append(fault.outage_s)
        rows = [
            f"| {self.mode.name} | {kind} | {len(times)} | {max(times):.1f} s |"
            for kind, times in sorted(kinds.items())
        ]
        sums = (
            f"{self.acknowledged:,} acknowledged, {len(faults)} faults, "
            f"{len(self.violations)} violations"
        )
        head = "| mode | fault | times | no send was acknowledged, longest |"
        rule = "| --- | --- | --- | --- |"
        return "\n".join([*course, *self._shown(), head, rule, *rows, self._row(), sums])

    def _shown(self) -> Iterator[str]:
        """Of each rule the first violations."""
        rules: dict[str, list[str]] = defaultdict(list)
        for line in self.violations:
            rules[line.partition(":")[0]].append(line)
        for name, lines in rules.items():
            yield from lines[:SHOWN]
            if len(lines) > SHOWN:
                yield f"{name}: {len(lines) - SHOWN:,} more"

    def _row(self) -> str:
        """As in docs/reliability.md: mode, seconds, faults and kinds, acknowledged, violations of
        what is kept, stored twice, longest outage.
        """
        faults = self.history.faults
        lost = sum(line.startswith(LOSSES) for line in self.violations)
        twice = sum(line.startswith(TWICE) for line in self.violations)
        outage_s = max((fault.outage_s for fault in faults), default=0.0)
        kinds = len({fault.kind for fault in faults})
        return (
            f"| `{self.mode.name}` | {self.seconds:.0f} s | {len(faults)} of {kinds} kinds "
            f"| {self.acknowledged:,} | {lost} | {twice} | {outage_s:.1f} s |"
        )


def note_outages(history: History) -> None:
    """Of each fault the longest time between two acknowledged sends until the next one begins."""
    ends = sorted(send.ended for send in history.sends if send.outcome is Ended.OK)
    gaps = [(before, after) for before, after in pairwise(ends) if after - before > GAP_S]
    begins = [fault.began for fault in history.faults]
    for fault, until in zip(history.faults, [*begins[1:], inf], strict=True):
        met = [after - before for before, after in gaps if fault.began < after and before < until]
        fault.outage_s = max(met, default=0.0)


def why_not() -> str | None:
    """Why nothing can be tortured on this machine; None = it can."""
    return disks.why_not() or network.why_not()


def failing_calls(percent: int) -> dict[str, str]:
    """Settings of Ray that let actor calls fail: a third before they are sent, a third while they
    are on their way, a third when they are answered. Nobody can tell which.
    """
    ways = ("req", "in_flight", "resp")
    shares = {f"{way}_failure_prob": max(1, percent // len(ways)) for way in ways}
    calls = {"CoreWorkerService.grpc_client.PushTask": {"num_failures": -1, **shares}}
    return {
        "RAY_testing_rpc_failure": json.dumps(calls),
        "RAY_testing_rpc_failure_avoid_intra_node_failures": "0",
    }


def torture(
    directory: Path,
    mode: Mode,
    seconds: float,
    seed: int,
    *,
    only: re.Pattern[str] = EVERY_KIND,
    ray_failures: int = 0,
    keep: Path | None = None,
) -> Told:
    """Ray is started by it, since its processes must see the boots of the hosts. Returns when the
    cluster is stopped. ``only``: which kinds of faults; ``ray_failures``: so many of 100 actor
    calls fail all the time; ``keep``: where what the disks hold and what Ray's processes logged
    goes to when a promise was broken.
    """
    history = History()
    if ray_failures:
        os.environ.update(failing_calls(ray_failures))
    logging.getLogger("rmq_ray").setLevel(logging.CRITICAL)  # clients tell of each fault
    with (
        Disk(directory, seed) as disk,
        closing(Boots(directory)) as boots,
        closing(Clocks(directory)) as clocks,
    ):
        started = ray.init(
            address="local",
            _node_ip_address="127.0.0.1",
            num_cpus=4,
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
        )
        mq = rmq.start(
            f"torture-{mode.name}", store_path=disk.path, store_settings=STORE, **mode.settings
        )
        try:
            workload = Workload(mq, history, seed)
            draw = random.Random(seed)
            victims = Victims(mq, disk, boots, mode, draw)
            faults = Faults(victims, disk, clocks, mode, workload, draw, only)
            workload.start()
            time.sleep(WARM_S)
            faults.run(history, time.monotonic() + seconds)
            workload.stop_sending()
            workload.drain(mode.brokers)
            workload.stop()
        finally:
            eventually(lambda: _stopped(mq), STOP_S)
            ray.shutdown()
        note_outages(history)
        told = Told(mode, seconds, history, faults.not_back + violations(history))
        if told.violations and keep is not None:
            shutil.copytree(disk.path, keep / "disks")
            shutil.copytree(Path(started.address_info["session_dir"]) / "logs", keep / "logs")
            (keep / "history.pickle").write_bytes(pickle.dumps(history))
    return told


def _stopped(mq: rmq.Cluster) -> bool:
    """A controller that restarts cannot be asked."""
    with suppress(rmq.ClusterError):
        mq.stop()
        return True
    return False
