"""What one party may ask of another. Implementations: connections (``remoting``), actor calls
(``actors.gateway``), memory (tests).

Invariant: nothing here knows Ray, sockets or threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from rmq_ray.config import Tls
from rmq_ray.model.ids import MessageQueue
from rmq_ray.value import Value


class ClusterAddress(Value, frozen=True):
    """How to reach a cluster: its name, name servers (``host:port``), the secret of the handshake
    (empty = none), and how TLS is spoken (None = plain). ``access_key``: the secret is the
    handshake key of this account; "" = it is the cluster's own.
    """

    __secret__ = ("secret",)

    cluster: str
    name_servers: tuple[str, ...]
    secret: bytes = b""
    tls: Tls | None = None
    access_key: str = ""


class Discovery(Protocol):
    """Where a client learns its name servers; asked again every 2 minutes and when all of them
    fail.
    """

    def lookup(self) -> ClusterAddress:
        """Raises ``ClusterError`` when the cluster cannot be found."""
        ...


@runtime_checkable
class ExplainsAbsence(Protocol):
    """A discovery that knows what was stopped on purpose."""

    def stopped_brokers(self) -> Mapping[str, bool]:
        """Broker -> whether all of it was stopped on purpose. ``ClusterError`` where the cluster
        does not run; may wait for its control plane.
        """
        ...


@runtime_checkable
class KeepsAccounts(Protocol):
    """A discovery that reaches the cluster's store of accounts."""

    def ask_accounts(self, method: str, *arguments: Any) -> Any:
        """A call of the store. ``ConfigError`` for what cannot be."""
        ...


class Peer(Protocol):
    """The other end of a server's connection, as handlers see it. ``send`` writes one whole frame
    or does nothing when closed.
    """

    host: str
    port: int
    closed: bool
    trusted: bool
    """True after our handshake; False for Apache RocketMQ's own clients on an open port."""
    member: bool
    """It proved the cluster's own secret: it is a part of the cluster, or inside its Ray."""
    account: str
    """The access key that our handshake proved; "" for members and without a handshake."""
    hung_up: bool
    """The connection ended because the other end closed it: what a killed process's system does at
    once, and what a partition never does.
    """
    attributes: dict[str, Any]
    """The server's own notes about this connection (client id, groups)."""

    def send(self, command: Any) -> None:
        """Write one whole frame; nothing when closed."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection; the reason is logged."""
        ...


class Split(Value, frozen=True):
    """A piece of a bulk read: queue offsets [start, end) of one queue, and where to get it.

    ``host_id`` and ``store_path`` and ``identity`` name the local files; ``addresses``
    (``host:port``, master first) the scan streams; ``epoch`` is the log's epoch when the split was
    planned; ``visible_end`` the byte position of the log up to which files may be read.
    """

    queue: MessageQueue
    start: int
    end: int
    host_id: str
    store_path: str
    identity: str
    epoch: int
    addresses: tuple[str, ...]
    segment_bytes: int
    consume_queue_entries: int
    visible_end: int


@runtime_checkable
class SplitReader(Protocol):
    """Reads one split as chunks of raw records."""

    def read(self, split: Split, chunk_bytes: int) -> Iterator[tuple[memoryview, Any]]:
        """Yields (records back to back, int32 array of their sizes) in queue order; raises typed
        errors.

        What was yielded is good until the next is asked for: readers may use its memory again.
        """
        ...
