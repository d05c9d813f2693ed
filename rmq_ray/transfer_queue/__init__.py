"""A durable back end of TransferQueue, the data bus of reinforcement learning (PyPI:
``TransferQueue``): ``from rmq_ray.transfer_queue import register``.

    register()                                     in every process that uses TransferQueue
    tq.init({"backend": {"storage_backend": "Rmq", "Rmq": {"topic": "experience"}}})

Decides how a value becomes messages, where it is found again, and what is cleared. Open ``store``
first, then ``ledger``. Only ``client`` and ``backend`` import TransferQueue, and with it torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_ray.transfer_queue.client import RmqStorageClient

__all__ = ["RmqStorageClient", "register"]


def register() -> None:
    """Make TransferQueue of this process know the back end ``Rmq``; calling it again does nothing.
    ``ClientError`` where TransferQueue is not installed. Of Ray's workers:
    ``ray.init(runtime_env={"worker_process_setup_hook": "rmq_ray.transfer_queue.register"})``.
    """
    _upstream("backend")


def __getattr__(name: str) -> Any:
    """``RmqStorageClient`` is loaded, with TransferQueue, when it is first used."""
    if name != "RmqStorageClient":
        raise AttributeError(f"module 'rmq_ray.transfer_queue' has no attribute {name!r}")
    return _upstream("client").RmqStorageClient


def _upstream(module: str) -> Any:
    from importlib import import_module

    from rmq_ray.errors import ClientError

    try:
        return import_module(f"rmq_ray.transfer_queue.{module}")
    except ModuleNotFoundError as error:
        raise ClientError(
            f"{error.name} is not installed here: pip install TransferQueue brings it; rmq.Queue "
            f"and ReplayBuffer keep experience without it",
            str(error.name),
        ) from error
