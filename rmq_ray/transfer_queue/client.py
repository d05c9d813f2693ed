"""``StorageKVClient`` of TransferQueue: what its managers of key-value back ends call.

Decides what TransferQueue's arguments mean; ``store`` does the work. Imports TransferQueue, and
with it torch.
"""

from __future__ import annotations

from typing import Any

from transfer_queue.storage.clients.base import StorageClientFactory, StorageKVClient

from rmq_ray.errors import ClientError
from rmq_ray.transfer_queue.settings import BackendSettings
from rmq_ray.transfer_queue.store import ValueStore


@StorageClientFactory.register("RmqStorageClient")
class RmqStorageClient(StorageKVClient):  # type: ignore[misc]
    """Values on the topic that ``config`` names (``BackendSettings``); any thread may call it. A
    value's place is its custom metadata: a text. ``store`` has what TransferQueue does not call:
    ``live_keys``, ``position``, ``back``, ``close``.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.store = ValueStore(BackendSettings.of(config or {}))

    def put(self, keys: Any, values: Any) -> list[str]:
        """On return the brokers have all values. See ``ValueStore.put``."""
        if not isinstance(keys, list) or not isinstance(values, list) or len(keys) != len(values):
            raise ClientError("put() takes a list of keys and a list of as many values")
        return self.store.put(keys, values)

    def get(
        self,
        keys: list[str],
        shapes: Any = None,
        dtypes: Any = None,
        custom_backend_meta: list[Any] | None = None,
    ) -> list[Any]:
        """The values in the order of ``keys``. ``shapes`` and ``dtypes`` are not needed. Without
        metadata the newest value of each key. See ``ValueStore.get``.
        """
        return self.store.get(keys, _places(keys, custom_backend_meta))

    def clear(self, keys: list[str], custom_backend_meta: list[Any] | None = None) -> None:
        """On return no ``get`` anywhere has these values. See ``ValueStore.clear``."""
        self.store.clear(keys, _places(keys, custom_backend_meta))


def _places(keys: Any, meta: list[Any] | None) -> list[str | None]:
    found = [None] * len(keys) if meta is None else list(meta)
    if not isinstance(keys, list) or len(found) != len(keys):
        raise ClientError(f"there are {len(keys)} keys and {len(found)} places; give one for each")
    return found
