"""What TransferQueue knows the back end by: the name ``Rmq`` of its manager and of its start.

Decides what a checkpoint of TransferQueue keeps of the values: how far the ledger went. Imports
TransferQueue, and with it torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transfer_queue.storage.bootstrap.provider import StorageBootstrapProvider
from transfer_queue.storage.managers.base import KVStorageManager, StorageManagerFactory

from rmq_ray.errors import ClientError
from rmq_ray.transfer_queue.client import RmqStorageClient
from rmq_ray.transfer_queue.settings import BackendSettings
from rmq_ray.transfer_queue.store import ValueStore

NAME = "Rmq"
SAVED = "rmq_ray.json"


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
        saved = {"topic": store.topic, "position": store.position()}
        Path(checkpoint_dir).mkdir(parents=True, exist_ok=True)
        (Path(checkpoint_dir) / SAVED).write_text(json.dumps(saved), "utf-8")

    async def load_checkpoint(self, checkpoint_dir: str) -> None:
        """The values of then: those that were cleared since are there again, as far as retention
        has them. ``ClientError`` for the checkpoint of another topic.
        """
        store: ValueStore = self.storage_client.store
        saved = json.loads((Path(checkpoint_dir) / SAVED).read_text("utf-8"))
        if saved["topic"] != store.topic:
            raise ClientError(
                f"{checkpoint_dir} was saved of the topic {saved['topic']!r}, and this is "
                f"{store.topic!r}",
                saved["topic"],
            )
        store.back(saved["position"])

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
