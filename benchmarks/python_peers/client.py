"""A process of its own for the client of each system, so that its CPU is its own.

python -m benchmarks.python_peers.client kafka      where its servers are comes in, as JSON; out
                                                    go its ways; then, for each number of a way
                                                    and of messages that comes in, what was
                                                    measured
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from importlib import import_module
from typing import Any

from benchmarks.python_peers.way import PATIENCE_S, Measured, Way

MODULES = {
    "rmq_ray": "ours",
    "Kafka": "kafka",
    "NATS JetStream": "nats_streams",
    "Redis Streams": "redis_streams",
}


class Client:
    """Of one system; ends with the block. ``RuntimeError`` where it ends before, which says on
    stderr why.
    """

    def __init__(self, system: str, where: dict[str, Any]) -> None:
        self.system = system
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.python_peers.client", MODULES[system]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.versions: str
            self.versions, self.ways = self._asked(where)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def measure(self, number: int, messages: int) -> Measured:
        """A round of the way with this number."""
        found: Measured = self._asked([number, messages])
        return found

    def _asked(self, what: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        watchdog = threading.Timer(PATIENCE_S, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(ANSWER):
                    return json.loads(line[len(ANSWER) :])
        except BrokenPipeError:
            pass  # it has ended
        finally:
            watchdog.cancel()
        raise RuntimeError(f"the client of {self.system} ended; see what it wrote above")


ANSWER = "answer: "
"""Libraries write to stdout, too."""


def told(way: Way) -> dict[str, Any]:
    """What the other process needs of it."""
    return {name: value for name, value in vars(way).items() if name != "measure"}


def serve(module: str) -> None:
    """The client's process: until its input ends."""
    system = import_module(f"benchmarks.python_peers.{module}")
    with system.connected(json.loads(sys.stdin.readline())) as ways:
        say([system.versions(), [told(way) for way in ways]])
        for line in sys.stdin:
            number, messages = json.loads(line)
            say(ways[number].measure(messages))


def say(what: Any) -> None:
    """An answer."""
    print(ANSWER + json.dumps(what), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
