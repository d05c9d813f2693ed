"""Who a broker is and what it may do now: read by most handlers, changed by the broker alone."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.model.topics import Permission

_WRITE, _READ = int(Permission.WRITE), int(Permission.READ)


@dataclass(slots=True)
class Identity:
    """``address``: ``host:port`` as name servers tell it, empty before it listens. ``permission``:
    brokerPermission.
    """

    name: str
    broker_id: int
    cluster: str
    address: str = ""
    permission: int = int(Permission.READ_WRITE)
    boot_ms: int = 0
    region: str = "DefaultRegion"
    draining: bool = False
    """It takes no sends for now (``drain``)."""

    @property
    def writable(self) -> bool:
        """Whether clients may send."""
        return bool(self.permission & _WRITE)

    @property
    def readable(self) -> bool:
        """Whether clients may pull."""
        return bool(self.permission & _READ)

    @property
    def is_slave(self) -> bool:
        """Slaves take no sends and keep no offsets of their own."""
        return self.broker_id != 0
