"""What TransferQueue knows the back end by: the name ``Rmq`` of its manager and of its start.

Decides which of TransferQueue's calls mean what of ours. Imports TransferQueue, and with it torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transfer_queue.storage.bootstrap.provider import StorageBootstrapProvider
from transfer_queue.storage.managers.base import KVStorageManager, StorageManagerFactory

from rmq_ray.transfer_queue.client import RmqStorageClient
from rmq_ray.transfer_queue.saved_position import load_position, save_position
from rmq_ray.transfer_queue.settings import BackendSettings
from rmq_ray.transfer_queue.store import ValueStore

NAME = "Rmq"


@StorageManagerFactory.register(NAME)
class RmqStorageManager(KVStorageManager):  # type: ignore[misc]
    """Made by TransferQueue in every process."""

    def __init__(self, controller_info: Any, config: Any, zmq_context: Any = None) -> None:
        plain = {**dict(config or {}), "client_name": RmqStorageClient.__name__}
        super().__init__(controller_info, plain, zmq_context=zmq_context)

    async def clear_data(self, metadata: Any) -> None:
        """Also of samples whose clear was interrupted: the controller tells no fields of them any
        more, and the ledger does.
        """
        if metadata.field_names:
            await super().clear_data(metadata)
            return
        store: ValueStore = self.storage_client.store
        samples = {str(index) for index in metadata.global_indexes}
        keys = [key for key in store.live_keys() if key.partition("@")[0] in samples]
        store.clear(keys, [None] * len(keys))

    async def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Values are on disk already: what is kept is which of them are there now."""
        store: ValueStore = self.storage_client.store
        save_position(str(checkpoint_dir), store.topic, store.position())

    async def load_checkpoint(self, checkpoint_dir: str) -> None:
        """The values of then: those that were cleared since are there again, as far as retention
        has them. ``ClientError`` for the checkpoint of another topic, and for one that is damaged.
        """
        store: ValueStore = self.storage_client.store
        store.back(load_position(str(checkpoint_dir), store.topic))

    def close(self) -> None:
        """End the connections to brokers and to TransferQueue's controller."""
        client = self.__dict__.pop("storage_client", None)
        if client is not None:
            client.store.close()
        super().close()


@StorageBootstrapProvider.register_provider(NAME)  # type: ignore[untyped-decorator]
def initialize_rmq(conf: Any) -> Mapping[str, Any]:
    """The process that starts TransferQueue first makes the topics, and says to all others which
    cluster is meant.
    """
    settings = BackendSettings.of(conf.backend.get(NAME) or {})
    for name, value in settings.bound().items():
        conf.backend[NAME][name] = value
    ValueStore(settings).close()
    return {"topic": settings.topic}
