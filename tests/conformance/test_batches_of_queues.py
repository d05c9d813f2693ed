"""Batches of a queue of values: whole, in their order, of their types, each item once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ray.util.queue import Empty

import rmq_ray as rmq
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.outcomes import judging
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live"), segment_bytes=16 << 20) as live:
        yield live


def queue(cluster: LiveCluster, name: str, **settings: Any) -> rmq.Queue:
    told = cluster.lookup()
    where = {"cluster": told.cluster, "name_servers": told.name_servers, "secret": told.secret}
    return rmq.Queue(name, **where, **settings)


@pytest.mark.parametrize(
    "items",
    [
        [b"a", b"TAGS\x01msgpack", b"c" * 3_000],
        [1, {"a": [b"x", None]}, "TAGS\x01arrow"],
        [b"a", 1, b"", None, "ue", b"TAGS\x01pickle\x02", b"z"] * 40,
        [(1, 2), {3}, b"x"],
    ],
    ids=["bytes", "plain", "mixed", "pickled"],
)
def test_a_batch_comes_back_equal_in_its_order_and_of_its_types(
    cluster: LiveCluster, items: list[Any], request: pytest.FixtureRequest
) -> None:
    with queue(cluster, f"types-{request.node.callspec.id}", pickle=True) as jobs:
        jobs.put_nowait_batch(iter(items))
        jobs.put_nowait_batch([])
        half = len(items) // 2
        with judging():
            found = jobs.get_nowait_batch(half) + jobs.get_nowait_batch(len(items) - half)
            assert found == items
            assert list(map(type, found)) == list(map(type, items))
        assert jobs.empty()


def test_arrays_and_bytes_share_a_batch(cluster: LiveCluster) -> None:
    with queue(cluster, "arrays") as jobs:
        jobs.put_nowait_batch([np.arange(3), b"x", np.ones(2)])
        first, second, third = jobs.get_nowait_batch(3)
        assert (first.tolist(), second, third.tolist()) == ([0, 1, 2], b"x", [1.0, 1.0])


def test_a_batch_with_an_item_that_cannot_travel_is_not_put(cluster: LiveCluster) -> None:
    with queue(cluster, "wrong") as jobs:
        for wrong in ((1,), object(), bytearray(b"x")):
            with pytest.raises(rmq.ClientError):
                jobs.put_nowait_batch([b"a", wrong, b"b"])
        with pytest.raises(TypeError, match="iterable"):
            jobs.put_nowait_batch(7)  # type: ignore[arg-type]
        assert jobs.empty()


def test_a_thousand_items_of_a_kilobyte_are_one_frame(cluster: LiveCluster) -> None:
    core = cluster.brokers[0]._core
    assert core is not None
    with queue(cluster, "frame") as jobs:
        jobs.put(b"first")
        before = core.counters.put_frames
        items = [b"%04d" % number + bytes(1_020) for number in range(1_000)]
        jobs.put_nowait_batch(items)
        assert core.counters.put_frames == before + 1, "stored whole or not at all"
        assert jobs.get() == b"first"
        with judging():
            assert jobs.get_nowait_batch(1_000) == items


def test_what_a_batch_has_taken_is_given_back_where_it_cannot_have_the_rest(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queue(cluster, "broken") as jobs:
        jobs.put_nowait_batch([b"%d" % number * 1_024 for number in range(1, 2_001)])
        consumer = jobs._connected().consumer
        receive, calls = consumer.receive, []

        def once(*args: Any, **settings: Any) -> Any:
            calls.append(args)
            if len(calls) > 1:
                raise rmq.RequestTimeout("no answer")
            return receive(*args, **settings)

        monkeypatch.setattr(consumer, "receive", once)
        with pytest.raises(rmq.RequestTimeout):
            jobs.get_nowait_batch(2_000)
        monkeypatch.undo()
        assert eventually(lambda: jobs.size() == 2_000), "all of it is to be got again"


def test_getters_of_batches_at_the_same_time_get_each_item_once(cluster: LiveCluster) -> None:
    with queue(cluster, "shared") as jobs:
        jobs.put_nowait_batch(range(400))
        got: list[int] = []

        def take() -> None:
            while not jobs.empty():
                try:
                    got.extend(jobs.get_nowait_batch(7))
                except Empty:
                    if jobs.size() < 7:
                        return

        takers = [threading.Thread(target=take, daemon=True) for _ in range(4)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(60)
        assert not any(taker.is_alive() for taker in takers)
        assert eventually(lambda: len(got) + jobs.size() == 400)
        while not jobs.empty():
            got.append(jobs.get(timeout=60))
        with judging():
            assert sorted(got) == list(range(400))
