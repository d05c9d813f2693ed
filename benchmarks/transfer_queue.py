"""TransferQueue with our back end beside its own SimpleStorage, which keeps nothing: the same puts
and gets in turns, in the environment that has PyTorch.
"""

from __future__ import annotations

import json
import statistics
import subprocess

from benchmarks.report import Figure
from benchmarks.scene import ROUNDS, Scene
from tools import transfer_queue

VOLUME = 128 << 20
TIMEOUT_S = 600


def run(scene: Scene) -> None:
    """MB a second of one process that puts samples and gets them again."""
    volume = max(8 << 20, round(VOLUME * scene.scale))
    words = [str(scene.directory / "transfer-queue"), str(ROUNDS), str(volume)]
    done = subprocess.run(
        [str(transfer_queue.python()), "-m", "benchmarks.transfer_queue_job", *words],
        cwd=transfer_queue.ROOT,
        env=transfer_queue.variables(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    rates = {
        name: volume / 1e6 / statistics.median(seconds)
        for name, seconds in json.loads(done.stdout.splitlines()[-1]).items()
    }
    for what in dict.fromkeys(name.rpartition(" ")[0] for name in rates):
        base, rate = rates[f"{what} SimpleStorage"], rates[f"{what} Rmq"]
        name = f"TransferQueue, {what} samples"
        goal = None if "KB" in what else 0.9
        scene.report.tell(f"{name}, SimpleStorage", base, "MB/s")
        scene.report.add(Figure(f"{name}, rmq_ray", rate, "MB/s", "SimpleStorage", base, goal))
