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

from rmq_ray.actors import gateway, placement
from rmq_ray.actors.gateway import Ping
from rmq_ray.errors import ClusterError, StoreFailed

NODE = "ab" * 28
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


def test_a_place_is_a_resource_or_a_label_and_either_keeps_its_node_from_being_idle() -> None:
    assert placement.at(None) == {}
    assert placement.at("store_a") == {"resources": {"store_a": 0.001}}
    labelled = placement.at("ray.io/node-group=broker-a")
    assert labelled == {"label_selector": {"ray.io/node-group": "broker-a"}, "memory": 1}
    ray.remote(Handle).options(**labelled)


def test_a_node_offers_its_own_resources_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "NodeID": "f00d",
        "Alive": True,
        "NodeManagerAddress": "10.0.0.7",
        "Resources": {"CPU": 2.0, "memory": 1.0, "node:10.0.0.7": 1.0, "store_a": 1.0},
        "Labels": {"ray.io/node-id": "f00d", "ray.io/node-group": "broker-a"},
    }
    monkeypatch.setattr(gateway, "require_ray", lambda: None)
    monkeypatch.setattr(ray, "nodes", lambda: [row, {**row, "Alive": False}])
    offered = frozenset({"store_a", "ray.io/node-group=broker-a"})
    assert gateway.nodes() == [placement.Node("10.0.0.7", offered, id="f00d")]
    (node,) = gateway.nodes()
    for place in (None, "store_a", "ray.io/node-group=broker-a", "node:10.0.0.7"):
        assert node.offers(place)
    for place in ("store_b", "node:10.0.0.8", placement.HEAD):
        assert not node.offers(place)
    assert placement.Node("10.0.0.7", frozenset(), head=True).offers(placement.HEAD)


# --- Ray Client ---


class Connection:
    """Of Ray Client; each question of a worker id is a call to its server."""

    asked = 0
    client_worker: object | None = None

    def get_runtime_context(self) -> Connection:
        return self

    def get_worker_id(self) -> str:
        self.asked += 1
        return f"worker {self.asked}"


def test_each_connection_of_ray_client_is_asked_once_who_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = Connection()
    monkeypatch.setattr(gateway, "_by_client", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", connection.get_runtime_context)
    monkeypatch.setattr(ray.util.client.ray, "get_context", lambda: connection)
    connection.client_worker = object()
    assert gateway.session() == gateway.session() == "worker 1"
    connection.client_worker = object()  # ray.shutdown(), ray.init()
    assert gateway.session() == "worker 2"
    assert said_by_child(gateway.session) == "worker 2", "a forked child has no way to the server"
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert gateway.session() == ""


def test_a_lost_connection_of_ray_client_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_arguments: object, **_options: object) -> None:
        raise ConnectionError("already been disconnected")

    monkeypatch.setattr(gateway, "require_ray", lambda: None)
    monkeypatch.setattr(ray, "get_actor", lost)
    told = r"ray.shutdown\(\), then ray.init.*producers.*go on.*already been disconnected"
    with pytest.raises(ClusterError, match=told):
        gateway.find("default/controller")
    monkeypatch.setattr(ray, "get", lost)
    with pytest.raises(ClusterError, match=told):
        gateway.call(Answering(), "state")


ASKING: list[Callable[[], object]] = [
    gateway.nodes,
    gateway.nodes_alive,
    gateway.resources,
    gateway.clusters,
    lambda: gateway.fleets("default"),
    lambda: gateway.run_on(None, len, ("",), timeout_s=1.0),
    lambda: gateway.run_each(len, [("",)], timeout_s=1.0),
    lambda: gateway.create_worker(Answering, (), {}, {}),
    lambda: gateway.create(Answering, "default/exporter", ()),
    lambda: gateway.call_each({"broker-a": Answering()}, "status", timeout_s=1.0),
    lambda: gateway.value_of(object()),
    lambda: gateway.kill_worker(Answering()),
    lambda: gateway.has_ended(Answering()),
]


@pytest.mark.parametrize("ask", ASKING)
def test_whatever_is_asked_by_a_lost_connection_of_ray_client_is_an_error_of_ours(
    ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_arguments: object, **_options: object) -> None:
        raise ConnectionError("already been disconnected")

    monkeypatch.setattr(gateway, "require_ray", lambda: None)
    for name in ("nodes", "available_resources", "remote", "wait", "get", "kill"):
        monkeypatch.setattr(ray, name, lost)
    monkeypatch.setattr(ray.util, "list_named_actors", lost)
    with pytest.raises(ClusterError, match=r"lost its connection by Ray Client: ray.shutdown\(\)"):
        ask()


@pytest.mark.parametrize(("error", "ended"), [
    (exceptions.ActorDiedError(), True),
    (exceptions.ActorUnavailableError("it starts again", None), False),
    (exceptions.GetTimeoutError("silence"), False),
])  # fmt: skip
def test_an_actor_has_ended_when_ray_says_that_it_died_and_not_when_it_is_silent(
    error: Exception, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(_reference: object, timeout: float) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    assert gateway.has_ended(Answering()) is ended


class Answering:
    """A handle whose calls are on their way."""

    def __getattr__(self, _method: str) -> Answering:
        return self

    def remote(self) -> object:
        return object()


def test_what_holds_handles_is_packed_where_ray_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    packed_by: list[str] = []

    class Task:
        def options(self, **_options: object) -> Task:
            return self

        def remote(self, value: object) -> bytes:
            packed_by.append("a task")
            return gateway._packed(value)

    monkeypatch.setattr(ray, "remote", lambda _function: Task())
    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference)
    assert gateway.unpack(gateway.pack({"n": 1})) == {"n": 1} and packed_by == []
    monkeypatch.setattr(gateway, "by_ray_client", lambda: True)
    assert gateway.unpack(gateway.pack({"n": 2})) == {"n": 2} and packed_by == ["a task"]


def test_what_ray_cannot_do_by_ray_client_is_told_with_what_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "require_ray", lambda: None)
    gateway.require_driver("Ray Data")
    monkeypatch.setattr(gateway, "by_ray_client", lambda: True)
    with pytest.raises(ClusterError, match="Ray Data does not work.*ray job submit.*in a task"):
        gateway.require_driver("Ray Data")


@pytest.mark.parametrize(
    ("near", "wanted"),
    [
        ("store_a", {"scheduling_strategy": (NODE, True), "memory": 1}),
        ("store_gone", {}),
        (None, {}),
    ],
)
def test_what_is_run_near_a_resource_is_on_its_node_and_without_one_anywhere(
    near: str | None, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    class Task:
        def options(self, **options: Any) -> Task:
            asked.update(options)
            return self

        def remote(self, *arguments: Any) -> Any:
            return arguments[0]

    monkeypatch.setattr(gateway, "require_ray", lambda: None)
    monkeypatch.setattr(
        gateway, "nodes", lambda: [placement.Node("10.0.0.1", frozenset({"store_a"}), id=NODE)]
    )
    monkeypatch.setattr(ray, "remote", lambda _function: Task())
    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference)
    assert gateway.run_on(None, len, ("x",), near=near, timeout_s=1.0) == "x"
    if "scheduling_strategy" in asked:
        strategy = asked["scheduling_strategy"]
        asked["scheduling_strategy"] = strategy.node_id, strategy.soft
    assert asked == {"num_cpus": 0, "max_retries": 0, **wanted}


@pytest.mark.parametrize(("resource", "wanted"), [(None, [1] * 9), ("store_a", [0] * 9)])
def test_tasks_at_a_node_need_no_cpu_of_it_and_run_a_few_at_a_time(
    resource: str | None, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus, waiting, most = list[int](), set[int](), list[int]()

    class Task:
        def options(self, **options: Any) -> Task:
            cpus.extend([options["num_cpus"]] * 9)
            return self

        def remote(self, number: int) -> int:
            waiting.add(number)
            most.append(len(waiting))
            return number

    def get(reference: int, timeout: float) -> int:
        waiting.discard(reference)
        return 10 * reference

    monkeypatch.setattr(gateway, "require_ray", lambda: None)
    monkeypatch.setattr(ray, "remote", lambda _function: Task())
    monkeypatch.setattr(ray, "get", get)
    each = [(number,) for number in range(9)]
    found = gateway.run_each(len, each, resource=resource, timeout_s=1.0)
    assert found == [10 * number for number in range(9)]
    assert cpus == wanted and max(most) == (9 if resource is None else gateway.TASKS_AT_ONCE)
    assert gateway.run_each(len, [], resource=resource, timeout_s=1.0) == []
