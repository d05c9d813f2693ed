"""A plugin of pytest for TransferQueue's own tests, which ship in its wheel: they get a cluster of
ours, and the back end ``Rmq`` where they choose one by its name (``TQ_TEST_BACKEND=Rmq``). A test
folder of its own process each: they start and stop Ray.
"""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
import ray

import rmq_ray as rmq
from rmq_ray.transfer_queue import register

HOOK = {"worker_process_setup_hook": "rmq_ray.transfer_queue.register"}
BACKEND = {
    "controller": {"polling_mode": True},
    "backend": {"storage_backend": "Rmq", "Rmq": {"topic": "experience"}},
}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for module in {item.module for item in items}:
        getattr(module, "BACKEND_CONFIGS", {})["Rmq"] = BACKEND
        if hasattr(module, "_TQ_CONFIG"):
            module._TQ_CONFIG = module.OmegaConf.create(BACKEND)


@pytest.fixture(scope="session", autouse=True)
def cluster_of_ours() -> Any:
    ray.init(address="local", include_dashboard=False, log_to_driver=False, runtime_env=HOOK)
    register()
    with tempfile.TemporaryDirectory() as store:
        cluster = rmq.start(store_path=store, store_settings={"segment_bytes": 64 << 20})
        yield cluster
        if ray.is_initialized():
            cluster.stop()
