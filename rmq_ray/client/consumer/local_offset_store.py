"""Offsets of a broadcasting consumer: in a file of its own machine (protocol-behaviour 18).

    <root>/<client id>/<group>/offsets.json
        {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:335, ...}}
    <root>/<client id>/<group>/offsets.json.bak
        the content before the last save; read when the file is broken or missing

Decides under which client id a consumer keeps its offsets. It must be the same after a restart, and
no other consumer's at the same time: the place is locked, and who gives no client id takes the
first free one of ``ip@cluster.group``, ``ip@cluster.group.1``, ... The file's form is Apache
RocketMQ's (``codec.config_files``).

Invariants: an offset in the file is never above what was consumed. Offsets of queues that are away
for a while stay in the file. Writing happens in the client's timer thread, every 5 s, and when a
queue or the consumer leaves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from math import inf
from typing import ClassVar

from rmq_ray.client.consumer.offset_store import OffsetStore, ReadOffset
from rmq_ray.clock import Clock
from rmq_ray.codec.config_files import broadcast_offsets_file
from rmq_ray.errors import ClientError, RmqError, StoreInUse
from rmq_ray.files import DirectoryLock, FileSystem
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import ClusterAddress
from rmq_ray.protocol.rebalance import LONG_AGO_MS, NO_STORED_OFFSET
from rmq_ray.remoting.sockets import LOOPBACK, local_ip

FILE = "offsets.json"
PLACES_MAX = 1_000
"""Consumers of one broadcasting group on one machine."""

log = logging.getLogger("rmq_ray.client.offsets")


class LocalPlace:
    """A directory that belongs to one consumer until ``release``; ``client_id`` is part of its
    path.
    """

    def __init__(self, client_id: str, directory: str, lock: DirectoryLock) -> None:
        self.client_id = client_id
        self.directory = directory
        self._lock = lock

    @classmethod
    def claim(
        cls,
        root: str,
        cluster: ClusterAddress,
        group: str,
        client_id: str | None,
        files: FileSystem,
    ) -> LocalPlace:
        """The place of ``client_id``, or the first free one of this machine.

        ``ClientError`` when a living consumer has it, or a thousand have all of them;
        ``StoreError`` when the directory cannot be made.
        """
        if client_id is not None:
            found = cls._take(root, client_id, group, files)
            if found is None:
                raise ClientError(
                    f"another consumer of group {group!r} with client id {client_id!r} runs "
                    f"on this machine; give each its own client_id",
                    client_id,
                )
            return found
        host = (
            local_ip(Address.parse(cluster.name_servers[0])) if cluster.name_servers else LOOPBACK
        )
        for number in range(PLACES_MAX):
            name = f"{host}@{cluster.cluster}.{group}" + (f".{number}" if number else "")
            found = cls._take(root, name, group, files)
            if found is not None:
                return found
        raise ClientError(
            f"{PLACES_MAX} broadcasting consumers of group {group!r} run on this machine; "
            f"use another group",
            group,
        )

    @classmethod
    def _take(cls, root: str, client_id: str, group: str, files: FileSystem) -> LocalPlace | None:
        directory = f"{root}/{client_id.replace('/', '_')}/{group}"
        files.make_dirs(directory)
        try:
            return cls(client_id, directory, files.lock_directory(directory))
        except StoreInUse:
            return None

    def release(self) -> None:
        """Another consumer may have it; it finds the offsets."""
        self._lock.release()


class LocalFileOffsetStore(OffsetStore):
    """An ``OffsetStore`` in one file. ``load`` before anything else."""

    at_brokers: ClassVar[bool] = False

    def __init__(self, directory: str, files: FileSystem, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._began_ms: dict[str, float] = {}
        self._file = broadcast_offsets_file(files, f"{directory}/{FILE}")
        self._saving = threading.Lock()
        self._kept: dict[MessageQueue, int] = {}

    def load(self) -> None:
        """Read the file, else its ``.bak``. ``StoreCorrupt`` when there are files and none can be
        read: beginning anew would skip messages.
        """
        self._kept = self._file.load() or {}
        self._began_ms = dict.fromkeys((queue.topic for queue in self._kept), -LONG_AGO_MS)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        """See ``OffsetStore``. It is written with the next save."""
        super().begin(queue, offset)
        self._began_ms.setdefault(queue.topic, self._clock.monotonic_ms())

    def known_ms(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``: what this consumer knows itself."""
        began_ms = self._began_ms.get(queue.topic)
        return None if began_ms is None else round(self._clock.monotonic_ms() - began_ms)

    def read(self, queue: MessageQueue, where: ReadOffset) -> int:
        """See ``OffsetStore``."""
        with self._lock:
            if where is not ReadOffset.STORE and (
                queue in self._offsets or where is ReadOffset.MEMORY
            ):
                return self._offsets.get(queue, NO_STORED_OFFSET)
            found = self._kept.get(queue, NO_STORED_OFFSET)
            if found >= 0:
                self._offsets[queue] = found
            return found

    def persist(self, queue: MessageQueue) -> bool:
        """See ``OffsetStore``. False when the disk refuses: it is tried again with the next one."""
        return self._save([queue], self._offsets) if queue in self._offsets else False

    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """See ``OffsetStore``; but nothing is forgotten, since nobody else has it."""
        self._save(queues, self._offsets)

    def hand_over(self, table: Mapping[MessageQueue, int], until_ms: float = inf) -> None:
        """See ``OffsetStore``."""
        self._save(table, table)

    def _save(self, queues: Collection[MessageQueue], offsets: Mapping[MessageQueue, int]) -> bool:
        with self._saving:
            with self._lock:
                table = self._kept | {queue: offsets[queue] for queue in queues if queue in offsets}
            if table == self._kept:
                return True
            try:
                self._file.save(table)
            except (RmqError, OSError) as error:
                log.warning("offsets not written, next time again: %s", error)
                return False
            with self._lock:
                self._kept = table
            return True
