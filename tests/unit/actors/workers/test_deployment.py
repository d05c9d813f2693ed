"""What @consumer takes and refuses, before any actor starts."""

from __future__ import annotations

import asyncio
import json
import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

import rmq_ray as rmq
from rmq_ray.actors import gateway, placement
from rmq_ray.actors.gateway import Ping
from rmq_ray.actors.workers import deployment, fleet
from rmq_ray.actors.workers.deployment import AsyncOneByOne, OneByOne, consumer
from rmq_ray.clock import ManualClock
from rmq_ray.config import ConsumerConfig
from tests.support.waiting import loop_turns


def message(body: bytes) -> SimpleNamespace:
    return SimpleNamespace(body=body)


def test_the_decorated_function_can_still_be_called() -> None:
    @rmq.consumer("orders", group="billing", tags="paid")
    def bill(msg):
        """Bills."""
        return len(msg.body)

    assert bill(message(b"four")) == 4
    assert (bill.__name__, bill.__doc__, bill.group, bill.subscriptions) == (
        "bill",
        "Bills.",
        "billing",
        {"orders": "paid"},
    )
    assert "billing" in repr(bill) and "orders" in repr(bill)


def test_one_message_a_list_and_the_context_reach_handlers_as_they_ask() -> None:
    messages = [message(b"a"), message(b"b")]
    assert OneByOne(lambda msg: msg.body, (), True)(messages[:1], "ctx") == b"a"
    assert OneByOne(lambda msg, ctx: (msg.body, ctx), (), True)(messages[:1], "ctx") == (
        b"a",
        "ctx",
    )
    assert OneByOne(lambda batch: len(batch), (), False)(messages, "ctx") == 2


def test_a_class_is_made_once_with_its_arguments_and_its_public_methods_are_reached() -> None:
    class Count:
        def __init__(self, first):
            self.count = first

        def __call__(self, msg):
            self.count += 1

        def total(self):
            return self.count

    listener = OneByOne(Count, (5,), True)
    listener([message(b"")], None)
    assert listener.total() == 6
    with pytest.raises(AttributeError):
        listener._hidden  # noqa: B018 - the look-up is what is tested


def test_coroutine_functions_are_awaited() -> None:
    async def handle(msg, ctx):
        return msg.body, ctx

    assert asyncio.run(AsyncOneByOne(handle, (), True)([message(b"x")], 1)) == (b"x", 1)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"topic": "no spaces", "group": "g"}, "no spaces"),
        ({"topic": "orders", "group": "g", "tags": 5}, "5"),
        ({"topic": {}, "group": "g"}, "1 to"),
        ({"topic": "orders", "group": "no spaces"}, "no spaces"),
        ({"topic": "orders", "group": "g", "batch_sise": 2}, "batch_sise"),
        ({"topic": "orders", "group": "g", "model": "anycast"}, "anycast"),
    ],
)
def test_settings_that_no_consumer_could_have_are_refused_where_they_are_written(
    settings: dict[str, object], wrong: str
) -> None:
    with pytest.raises(rmq.RmqError, match=wrong):
        rmq.consumer(**settings)


def test_arrow_handlers_get_whole_batches_and_a_configuration_counts() -> None:
    columns = consumer("t", group="g", batch="arrow")(lambda batch: None)
    assert (
        not columns.single
        and "batch_size" not in columns.settings
        and "concurrency" not in columns.settings
    )
    assert consumer("t", group="g")(lambda msg: None).single
    assert not consumer("t", group="g", config=ConsumerConfig("g", batch_size=32))(
        lambda messages: None
    ).single


def test_handlers_of_the_wrong_shape_are_refused() -> None:
    decorate = rmq.consumer("orders", group="g")
    with pytest.raises(rmq.ConfigError, match="a function or a class"):
        decorate(3)
    with pytest.raises(rmq.ConfigError, match="a message, or a message and a context"):
        decorate(lambda: None)
    with pytest.raises(rmq.ConfigError, match="a message, or a message and a context"):
        decorate(lambda a, b, c: None)


def test_arguments_for_a_function_and_impossible_numbers_are_refused() -> None:
    app = rmq.consumer("orders", group="g")(lambda msg: None)
    with pytest.raises(rmq.ConfigError, match="handlers that are classes"):
        app.deploy(args=(1,))
    for actors in (0, True, 1.5, 100_000):
        with pytest.raises(rmq.ConfigError, match="number of actors"):
            app.deploy(actors)
    with pytest.raises(rmq.ConfigError, match="no common lag"):
        rmq.consumer("orders", group="g", model="broadcasting")(lambda msg: None).deploy(
            autoscale=rmq.Autoscale(actors_max=3)
        )


def test_more_than_the_nodes_could_ever_run_is_refused_before_any_actor_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created: list[object] = []
    monkeypatch.setattr(gateway, "cluster_address", lambda cluster: None)
    monkeypatch.setattr(gateway, "resources", lambda: ([{"CPU": 4.0}], {"CPU": 4.0}))
    monkeypatch.setattr(gateway, "create_worker", lambda *a, **k: created.append(a))
    app = rmq.consumer("orders", group="billing")(lambda msg: None)
    with pytest.raises(rmq.TooFewResources, match="9 actors x CPU 2 = CPU 18.*has CPU 4 in total"):
        app.deploy(9, num_cpus=2)
    with pytest.raises(rmq.TooFewResources, match="GPU 1 asked for.*GPU 0 free now.*room for 0"):
        app.deploy(num_gpus=1)
    assert not created


@pytest.mark.parametrize(
    ("actors", "options", "free"), [(2, {}, {}), (9, {"wait_for_nodes": True}, {"CPU": 4.0})]
)
def test_what_is_in_use_or_may_be_added_is_waited_for_with_a_warning_at_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    actors: int,
    options: dict[str, bool],
    free: dict[str, float],
) -> None:
    told: list[str] = []
    monkeypatch.setattr(gateway, "cluster_address", lambda cluster: None)
    monkeypatch.setattr(gateway, "resources", lambda: ([{"CPU": 4.0}], free))
    monkeypatch.setattr(gateway, "create_worker", lambda *a, **k: told.append(caplog.text))
    monkeypatch.setattr(gateway, "call", lambda *a, **k: None)
    app = rmq.consumer("orders", group="billing")(lambda msg: None)
    app.deploy(actors, num_cpus=2, timeout_s=30, **options)
    (before,) = told
    assert "group billing waits up to 30 s for resources" in before
    assert f"{actors} actors x CPU 2" in before and "of CPU 4" in before


def test_workers_that_did_not_start_in_time_are_told_with_what_is_free_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(worker: object, method: str, timeout_s: float) -> None:
        if worker != "worker 0":
            raise rmq.ClusterError("actor call ping was not answered within 1 s")

    async def resources() -> tuple[list[dict[str, float]], dict[str, float]]:
        return [{"CPU": 4.0}], {"CPU": 2.0, "memory": 1e9} if killed else {"memory": 1e9}

    made: list[str] = []
    killed: list[str] = []

    def create(*_arguments: object, **_options: object) -> str:
        made.append(f"worker {len(made)}")
        return made[-1]

    monkeypatch.setattr(gateway, "create_worker", create)
    monkeypatch.setattr(gateway, "kill_worker", killed.append)
    monkeypatch.setattr(gateway, "call_async", silent)
    monkeypatch.setattr(gateway, "resources_beside", resources)
    monkeypatch.setattr(fleet, "is_restart", lambda: False)
    spec = fleet.FleetSpec("c", "billing", None, {}, {}, 3, {"num_cpus": 2})
    shell = fleet.FleetShell(gateway.pack(spec))
    with pytest.raises(
        rmq.ClusterError, match="2 of 3 workers .*CPU 6 asked for; free now are CPU 0 of CPU 4"
    ):
        asyncio.run(shell.start(1.0))
    assert killed == made == ["worker 0", "worker 1", "worker 2"]


def row(lag: int, age_ms: int | None) -> dict[str, int | None]:
    return {"lag": lag, "committed_age_ms": age_ms}


def test_a_lag_is_a_number_that_says_how_old_it_is() -> None:
    lag = fleet.GroupLag.of([row(7, 900), row(0, 60_000), row(5, 4_100), row(0, None)])
    assert (lag, lag.age_ms, f"{lag}", str(lag), json.dumps(lag)) == (12, 4_100, "12", "12", "12")
    copied = pickle.loads(pickle.dumps(lag))
    assert (copied, copied.age_ms) == (12, 4_100)
    nothing, unknown = fleet.GroupLag.of([row(0, 9)]), fleet.GroupLag.of([row(3, None), row(2, 1)])
    assert not nothing and nothing.age_ms == 0
    assert unknown == 5 and unknown.age_ms is None


def test_the_workers_of_a_node_that_goes_end_in_good_order_and_others_are_made_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, object]] = []
    told: list[tuple[str, str]] = []
    killed: list[str] = []

    def create(*arguments: object) -> str:
        made.append(dict(arguments[3]))  # type: ignore[call-overload]
        return f"worker {len(made)}"

    async def answer(worker: str, method: str, *_arguments: object, timeout_s: float) -> object:
        told.append((worker, method))
        if method == "node":
            if worker == "worker 3":
                raise rmq.ClusterError("it starts again", worker)
            return "old" if worker in ("worker 1", "worker 2") else "other"
        return worker != "worker 2"

    monkeypatch.setattr(gateway, "create_worker", create)
    monkeypatch.setattr(gateway, "call_async", answer)
    monkeypatch.setattr(gateway, "kill_worker", killed.append)
    monkeypatch.setattr(fleet, "is_restart", lambda: False)
    monkeypatch.setattr(fleet, "spawn", lambda work, _what: work.close())
    shell = fleet.FleetShell(
        gateway.pack(fleet.FleetSpec("c", "billing", None, {}, {}, 4, {"num_cpus": 1}))
    )

    async def work() -> None:
        await shell.start(1.0)
        assert made == [{"num_cpus": 1}] * 4
        left = await shell.leave_node("old", 5.0)
        assert left == {"group": "billing", "moved": 2, "ended": False}
        assert await shell.leave_node("gone", 5.0) == {
            "group": "billing",
            "moved": 0,
            "ended": True,
        }
        assert len(shell._workers) == 4

    asyncio.run(work())
    assert killed == ["worker 1", "worker 2"]
    assert {("worker 1", "stop"), ("worker 2", "stop")} == {
        (worker, method) for worker, method in told if method == "stop"
    }
    assert made[4:] == [{"num_cpus": 1, "label_selector": {"ray.io/node-id": "!in(old)"}}] * 2


@dataclass
class MadeWorkers:
    """``pings``: set when a worker joins; ``nodes``: where each of them runs."""

    made: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    pings: dict[str, asyncio.Event] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    told: list[tuple[object, ...]] = field(default_factory=list)
    options: list[object] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)

    def create(self, *arguments: object) -> str:
        self.options.append(arguments[3])
        self.made.append(f"worker {len(self.made) + 1}")
        return self.made[-1]

    async def call_async(
        self, worker: str, method: str, *arguments: object, timeout_s: float
    ) -> object:
        self.told.append((worker, method, *arguments, timeout_s))
        if method == "node":
            self.clock.advance_ms(1_000)
        if method == "ping" and worker in self.pings:
            await self.pings[worker].wait()
        return self.nodes.get(worker, "other") if method == "node" else True

    async def resources_beside(self) -> tuple[list[dict[str, float]], dict[str, float]]:
        return [{"CPU": 4.0}], {"CPU": 4.0}


@pytest.fixture
def ray_workers(monkeypatch: pytest.MonkeyPatch) -> MadeWorkers:
    found = MadeWorkers()
    monkeypatch.setattr(gateway, "create_worker", found.create)
    monkeypatch.setattr(gateway, "call_async", found.call_async)
    monkeypatch.setattr(gateway, "kill_worker", found.killed.append)
    monkeypatch.setattr(gateway, "resources_beside", found.resources_beside)
    monkeypatch.setattr(fleet, "is_restart", lambda: False)
    monkeypatch.setattr(fleet, "spawn", lambda work, _what: work.close())
    return found


def group_of(actors: int) -> fleet.FleetShell:
    return fleet.FleetShell(gateway.pack(fleet.FleetSpec("c", "billing", None, {}, {}, actors)))


def test_workers_that_are_being_added_leave_the_node_as_well(ray_workers: MadeWorkers) -> None:
    async def work() -> None:
        shell, late = group_of(2), asyncio.Event()
        ray_workers.pings = {"worker 2": late}
        ray_workers.nodes = {"worker 1": "old", "worker 2": "old"}
        starting = asyncio.create_task(shell.start(5.0))
        await loop_turns(10)
        assert (await shell.leave_node("old", 5.0))["moved"] == 1, "who has joined goes at once"
        late.set()
        await starting
        assert shell._workers == ["worker 3", "worker 4"]
        assert ray_workers.killed == ["worker 1", "worker 2"]

    asyncio.run(work())


def test_all_that_workers_do_before_their_node_goes_fits_into_the_time(
    ray_workers: MadeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "SYSTEM_CLOCK", ray_workers.clock)
    ray_workers.nodes = {"worker 1": "old"}

    async def work() -> None:
        shell = group_of(1)
        await shell.start(5.0)
        await shell.leave_node("old", 5.0)

    asyncio.run(work())
    assert ray_workers.told[1:] == [("worker 1", "node", 1.25), ("worker 1", "stop", 3.0, 4.0)]


def test_on_a_node_that_stays_after_all_workers_are_made_again(ray_workers: MadeWorkers) -> None:
    ray_workers.nodes = {"worker 1": "old"}

    async def work() -> None:
        shell = group_of(1)
        await shell.start(5.0)
        await shell.leave_node("old", 5.0)
        await shell.keep_nodes()
        await shell.scale(2, 5.0)

    asyncio.run(work())
    elsewhere = {"label_selector": {"ray.io/node-id": "!in(old)"}}
    assert ray_workers.options == [{}, elsewhere, {}]


def test_a_worker_that_a_drain_has_replaced_is_not_made_anew_by_who_watches(
    ray_workers: MadeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(worker: str, _timeout_s: float) -> Ping:
        if worker == "worker 1":
            await shell.leave_node("old", 5.0)
            shell._stopped = True
            return Ping.MISSING
        return Ping.ANSWERED

    shell = group_of(2)
    monkeypatch.setattr(fleet, "WATCH_S", 0)
    monkeypatch.setattr(gateway, "ping_handle", missing)
    ray_workers.nodes = {"worker 1": "old"}

    async def work() -> None:
        await shell.start(5.0)
        await shell._watch()
        assert shell._workers == ["worker 3", "worker 2"] and shell._made_anew == 0

    asyncio.run(work())


def test_workers_of_whom_nothing_is_heard_are_not_said_to_have_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_arguments: object, **_options: object) -> None:
        raise rmq.ClusterError("this process has lost its connection by Ray Client")

    monkeypatch.setattr(gateway, "call", lost)
    monkeypatch.setattr(gateway, "has_ended", lambda _fleet: False)
    workers = fleet.Workers("fleet", "billing")
    with pytest.raises(rmq.ClusterError, match="lost its connection"):
        workers.stop()
    monkeypatch.setattr(gateway, "has_ended", lambda _fleet: True)
    assert workers.stop()


def test_what_looks_after_a_group_lives_on_the_head_and_is_found_by_who_drains_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[dict[str, object], object]] = []

    def create(*arguments: object, name: object) -> str:
        made.append((dict(arguments[3]), name))  # type: ignore[call-overload]
        return "fleet"

    monkeypatch.setattr(gateway, "create_worker", create)
    monkeypatch.setattr(gateway, "call", lambda *_arguments, **_options: None)
    spec = fleet.FleetSpec("c", "billing", None, {}, {})
    for name in ("nightly", None):
        deployment._started(spec, name, 1.0)
    (named, full), (nameless, none) = made
    assert named == {"num_cpus": 0, "resources": {placement.HEAD: 0.001}}
    assert full == "c/workers/nightly" and none is None
    assert nameless["resources"] == named["resources"]
    assert str(nameless["name"]).startswith("c/workers/~")
    assert nameless["namespace"] == "rmq_ray"
