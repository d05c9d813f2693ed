"""What a broker keeps: the second of its rooms (``base.runtime``)."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.server.tables.broker_tables import BrokerTables


@dataclass(frozen=True, slots=True)
class BrokerStorage:
    """``keeper``: of the store, which is there while it serves. ``tables``: topics, groups, offsets
    and the settings that changed.
    """

    keeper: StoreKeeper
    tables: BrokerTables
