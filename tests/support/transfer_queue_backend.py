"""A plugin of pytest for a session in the environment that has PyTorch: TransferQueue's own tests,
which ship in its wheel, and ours get one Ray and one cluster of ours, and the back end ``Rmq``
where they choose one.
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
    """In their modules by the names that they have there."""
    for module in {item.module for item in items}:
        getattr(module, "BACKEND_CONFIGS", {})["SimpleStorage"] = BACKEND  # the one by default
        if hasattr(module, "_TQ_CONFIG"):
            module._TQ_CONFIG = module.OmegaConf.create(BACKEND)


@pytest.fixture(scope="session", autouse=True)
def mq() -> Any:
    """The cluster. Each of their modules ends Ray, which the next one needs: here the session
    does.
    """
    ray.init(address="local", include_dashboard=False, log_to_driver=False, runtime_env=HOOK)
    shutdown, ray.shutdown = ray.shutdown, lambda: None
    register()
    with tempfile.TemporaryDirectory() as store:
        cluster = rmq.start(store_path=store, store_settings={"segment_bytes": 64 << 20})
        yield cluster
        cluster.stop()
    shutdown()
