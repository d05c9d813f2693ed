"""The first of the rooms that a broker is made of: what it stands on, whatever it stores.

``core.broker_core`` makes the rooms in this order. Each is a small value; a part takes the rooms
that it works in and binds what it uses of them:

    room            module            what is in it
    BrokerRuntime   here              who it is; its clock, files and threads; what it counts
    BrokerStorage   tables.storage    the store's keeper, and the tables beside the log
    Writers         send.writers      what stores single messages
    Timers          admin.timers      what waits for its time
    Clients         admin.clients     who is connected: members, pulls, pops

Answers that come later go through a ``base.responses.Responder``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig
from rmq_ray.files import FileSystem
from rmq_ray.server.base.counters import Counters
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.offload import Offload


@dataclass(frozen=True, slots=True)
class BrokerRuntime:
    """``config``: as it is when the broker takes its role; parts that follow changes have a
    ``configure``. ``store_host``: address and port that records carry.

    ``offload``: threads for what the broker itself needs (recovery, tables, deletion of files).
    ``reads``: threads for what clients ask, so that many scans hold up neither tables nor recovery.
    """

    config: BrokerConfig
    identity: Identity
    store_host: tuple[str, int]
    clock: Clock
    offload: Offload
    reads: Offload
    files: FileSystem = field(default_factory=FileSystem)
    counters: Counters = field(default_factory=Counters)
