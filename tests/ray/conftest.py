"""One Ray cluster for all tests of this folder, and message clusters of their own for each test
that asks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import rmq_ray as rmq
from rmq_ray.actors import discovery
from tests.support.waiting import witnesses

SMALL = {"segment_bytes": 64 << 20}
"""Two segments of a GiB are preallocated otherwise, for each of the many stores that these tests
make.
"""
SHARED = "shared"  # how the names of clusters of many tests begin
OF_MANY = {"mq", "mortal", "own", "wide"}  # their fixtures
_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def ray_here() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., rmq.Cluster]]:
    """Starts clusters with names of their own; stops what is left at the end."""
    started: list[rmq.Cluster] = []

    def begin(**settings: Any) -> rmq.Cluster:
        name = settings.pop("name", f"t{next(_numbers)}")
        cluster = rmq.start(
            name, **{"store_path": str(tmp_path / name), "store_settings": SMALL, **settings}
        )
        started.append(cluster)
        witnesses[name] = cluster.status
        return cluster

    yield begin
    for cluster in {c.name: c for c in started}.values():
        witnesses.pop(cluster.name, None)
        stop(cluster)


@pytest.fixture(scope="session")
def mq(ray_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rmq.Cluster]:
    """A cluster that all tests of this folder share; they must neither kill nor change it."""
    yield from cluster_of_many(tmp_path_factory)


@pytest.fixture(scope="session")
def mortal(ray_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rmq.Cluster]:
    """One for the tests that kill parts of it: each leaves all of them serving."""
    yield from cluster_of_many(tmp_path_factory)


@pytest.fixture(scope="module")
def own(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[rmq.Cluster]:
    """A cluster of the tests of one module, which may. The module's ``OWN`` has its settings."""
    yield from cluster_of_many(tmp_path_factory, **getattr(request.module, "OWN", {}))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rmq.Cluster]:
    """Two brokers and two name servers; who stops or kills one leaves it serving."""
    for cluster in cluster_of_many(tmp_path_factory, brokers=2, name_servers=2):
        assert set(cluster.addresses) == {"name_servers", "broker-a", "broker-b"}, (
            "start returns when name servers know every broker"
        )
        yield cluster


@pytest.fixture(autouse=True)
def _shared_is_meant_by_who_asks_for_it(request: pytest.FixtureRequest) -> Iterator[None]:
    """To the other tests of the process its cluster is unknown: a call that names none means
    theirs.
    """
    mine = {request.getfixturevalue(name).name for name in OF_MANY & set(request.fixturenames)}
    others = [name for name in discovery._used if name.startswith(SHARED) and name not in mine]
    hidden = {name: discovery._used.pop(name) for name in others}
    yield
    discovery._used.update(hidden)


def cluster_of_many(directories: pytest.TempPathFactory, **settings: Any) -> Iterator[rmq.Cluster]:
    name = settings.pop("name", f"{SHARED}{next(_numbers)}")
    store = str(directories.mktemp("store"))
    cluster = rmq.start(name, store_path=store, store_settings=SMALL, **settings)
    witnesses[cluster.name] = cluster.status
    yield cluster
    witnesses.pop(cluster.name, None)
    stop(cluster)


def stop(cluster: rmq.Cluster) -> None:
    """Also where its test has stopped it."""
    try:
        cluster.stop()
    except rmq.ClusterError as error:
        if "no cluster" not in str(error):
            raise
