"""A durable back end of TransferQueue, the data bus of reinforcement learning
(TransferQueue on PyPI): ``from rmq_ray.transfer_queue import register``.

    register()                                     in every process that uses TransferQueue
    tq.init({"backend": {"storage_backend": "Rmq", "Rmq": {"topic": "experience"}}})

A topic is one job's.

Decides how a value becomes messages, where it is found again, and what is cleared. Open ``store``
first, then ``ledger``. Only ``client`` and ``backend`` import TransferQueue, and with it torch.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rmq_ray.errors import ClientError

if TYPE_CHECKING:
    from rmq_ray.transfer_queue.client import RmqStorageClient

__all__ = ["RmqStorageClient", "register"]
THEIRS = "transfer_queue"


def register() -> None:
    """Make TransferQueue of this process know the back end ``Rmq``, at once or when it is imported;
    calling it again does nothing. ``ClientError`` where it is not installed. Of Ray's workers:
    ``ray.init(runtime_env={"worker_process_setup_hook": "rmq_ray.transfer_queue.register"})``.
    """
    if THEIRS in sys.modules:
        _load("backend")
    elif find_spec(THEIRS) is None:
        raise _not_installed(THEIRS)
    elif not any(isinstance(finder, _Register) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Register())


class _Register(MetaPathFinder):
    """Registers the back end behind the first import of TransferQueue: a worker that never does
    that need not load torch. It stays until the module ran: who only asks whether there is one gets
    a spec, too.
    """

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        """See ``importlib``."""
        if name != THEIRS or getattr(self._asking, "others", False):
            return None
        self._asking.others = True
        try:
            spec = find_spec(name)
        finally:
            self._asking.others = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: Any) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _load("backend")

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def __getattr__(name: str) -> Any:
    """``RmqStorageClient`` is loaded, with TransferQueue, when it is first used."""
    if name != "RmqStorageClient":
        raise AttributeError(f"module 'rmq_ray.transfer_queue' has no attribute {name!r}")
    return _load("client").RmqStorageClient


def _load(module: str) -> Any:
    try:
        return import_module(f"rmq_ray.transfer_queue.{module}")
    except ModuleNotFoundError as error:
        raise _not_installed(str(error.name)) from error


def _not_installed(package: str) -> ClientError:
    return ClientError(
        f"{package} is not installed here: pip install TransferQueue brings it; rmq.Queue and "
        f"ReplayBuffer keep experience without it",
        package,
    )
