"""What the tests measure limits with: a process that was stopped, or did not get the processor, has
not lived meanwhile; one that waits or works has.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.faults.stopwatch import COUNTED_MAX_S, LivedTime, Stopwatch, within

ROOT = Path(__file__).resolve().parents[2]
STOPPED = """
import os, signal
from tests.support.faults.stopwatch import Stopwatch
watch = Stopwatch()
os.kill(os.getpid(), signal.SIGSTOP)
print(watch.lived_s, watch.stopped_s, flush=True)
"""


def test_of_a_long_tick_little_is_counted() -> None:
    lived = LivedTime(100.0)
    for now_s in (100.01, 100.02, 102.02, 102.03):
        lived.tick(now_s)
    assert lived.seconds == pytest.approx(0.03 + COUNTED_MAX_S)


def test_a_process_that_was_stopped_has_not_lived_meanwhile() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        threading.Event().wait(1.0)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=30)
    lived_s, stopped_s = map(float, output.split())
    assert stopped_s > 0.5 > lived_s


def test_waits_and_a_blocked_loop_are_counted() -> None:
    async def blocks() -> None:
        time.sleep(0.5)

    watch = Stopwatch()
    with pytest.raises(AssertionError, match=r"the limit is 0\.2 s"):
        asyncio.run(within(0.2, blocks()))
    assert watch.lived_s > 0.2 and asyncio.run(within(20.0, asyncio.sleep(0, "done"))) == "done"
