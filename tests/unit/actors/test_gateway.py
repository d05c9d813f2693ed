"""Whatever Ray says of an actor call is an error of ours here: a surprise would end the controller,
again and again.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray import exceptions

from rmq_ray.actors import gateway
from rmq_ray.actors.gateway import Ping
from rmq_ray.errors import ClusterError, StoreFailed

FOREIGN = exceptions.RayTaskError("attend", "Traceback: here", KeyError("strange"))  # type: ignore[no-untyped-call]
RAYS = [
    exceptions.RaySystemError("the raylet failed"),  # type: ignore[no-untyped-call]
    exceptions.OutOfMemoryError("killed"),  # type: ignore[no-untyped-call]
    exceptions.LocalRayletDiedError("gone"),
    exceptions.NodeDiedError("gone"),  # type: ignore[no-untyped-call]
    exceptions.PendingCallsLimitExceeded("full"),
    FOREIGN,
    FOREIGN.as_instanceof_cause(),  # type: ignore[no-untyped-call]
]


class Handle:
    """Of an actor whose calls fail so."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, _method: str) -> Handle:
        return self

    async def remote(self, *_arguments: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", RAYS, ids=lambda error: type(error).__name__)
def test_every_error_of_ray_is_ours_and_silence_to_a_ping(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ClusterError, match="attend"):
        asyncio.run(gateway.call_async(Handle(error), "attend"))
    assert asyncio.run(gateway.ping_handle(Handle(error), 1.0)) is Ping.SILENT

    def get(_reference: object, timeout: float) -> Any:
        raise error

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(ClusterError, match="attend"):
        gateway._result(None, "attend", 1.0)
    assert ("Traceback: here" in caplog.text) is isinstance(error, exceptions.RayTaskError)


def test_an_error_of_ours_comes_through_as_it_is() -> None:
    ours = exceptions.RayTaskError("attend", "Traceback: here", StoreFailed("the disk fails"))  # type: ignore[no-untyped-call]
    with pytest.raises(StoreFailed, match="the disk fails"):
        asyncio.run(gateway.call_async(Handle(ours), "attend"))


class Context:
    """Of a process that has joined Ray."""

    def get_worker_id(self) -> str:
        return "the parent's"


def said_by_child(work: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], 5.0)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = os.read(reading, 65_536).decode() if ready else "nothing within 5 s"
    os.close(reading)
    return said


def test_a_child_forked_while_another_thread_holds_rays_lock_knows_its_parent_and_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = threading.Lock()

    def get_runtime_context() -> Context:
        with lock:
            return Context()

    def child() -> str:
        try:
            gateway.require_ray()
        except ClusterError as error:
            return str(error)
        return "has Ray"

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", get_runtime_context)
    monkeypatch.setattr(gateway, "_context", None)
    lock.acquire()
    threading.Timer(0.1, lock.release).start()
    assert said_by_child(child).startswith("this process was forked from one that uses Ray")
    assert lock.acquire(timeout=5.0)  # for good, from here on
    assert said_by_child(child).startswith("this process was forked from one that uses Ray")
    gateway.require_ray()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert said_by_child(child).startswith("Ray is not initialised")
