"""The name server's key-value table: namespace -> key -> value, kept in ``kvConfig.json``
(protocol-behaviour 4.4; store-format 12).

Decides: what is in the table, and that whoever changed it hears of it only once it is on disk. Does
not decide what the values mean; RocketMQ keeps ``ORDER_TOPIC_CONFIG`` here: topic ->
``broker-a:4;broker-b:4``. Called by ``server.namesrv.name_server_handlers``.

Invariants: names and values are bounded in number and size; a broken file is never replaced by an
empty table (``load`` raises).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rmq_ray.errors import AdminError, RmqError
from rmq_ray.files import FileSystem
from rmq_ray.server.base.config_saver import ConfigSaver, Saved
from rmq_ray.server.base.offload import Done, Offload
from rmq_ray.store.tables.config_files import KvTable, kv_file

T = TypeVar("T")
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
ENTRIES_MAX = 10_000
CHARS_MAX = 65_536  # of one namespace, key or value


class WriteAtOnce:
    """An ``Offload`` that does the work in the calling thread: for a table that changes once a
    month.
    """

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        """``done`` has run on return."""
        outcome: T | Exception
        try:
            outcome = work()
        except RmqError as error:
            outcome = error
        done(outcome)

    def post(self, call: Callable[[], None]) -> None:
        """Run it."""
        call()


class KvConfig:
    """The table of one name server. ``directory`` "" = nothing is kept over a restart."""

    def __init__(self, directory: str, files: FileSystem, offload: Offload) -> None:
        self._table: KvTable = {}
        self._file = kv_file(files, f"{directory}/kvConfig.json") if directory else None
        self._saver = ConfigSaver("kvConfig.json", self._snapshot, self._write, offload)

    def load(self) -> None:
        """Read the file, if there is one. ``StoreCorrupt`` when neither it nor its ``.bak`` can be
        read.
        """
        if self._file is not None:
            self._table = self._file.load() or {}

    def get(self, namespace: str, key: str) -> str | None:
        """One value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace, None when it was never used."""
        found = self._table.get(namespace)
        return None if found is None else dict(found)

    def put(self, namespace: str, key: str, value: str, then: Saved) -> None:
        """Set a value; ``then(None)`` once it is on disk, ``then(error)`` when it holds in memory
        only.

        Raises ``AdminError`` for a value that is too long or a table that is full; nothing has
        changed then.
        """
        for what, text in (("namespace", namespace), ("key", key), ("value", value)):
            if len(text) > CHARS_MAX:
                raise AdminError(
                    f"the {what} has {len(text)} characters, the limit is {CHARS_MAX}; keep "
                    f"large values elsewhere"
                )
        if self.get(namespace, key) is None and self.entries >= ENTRIES_MAX:
            raise AdminError(
                f"the table holds {ENTRIES_MAX} entries already; delete some before "
                f"{namespace!r} {key!r} can be added"
            )
        self._table.setdefault(namespace, {})[key] = value
        self._saver.save(then)

    def delete(self, namespace: str, key: str, then: Saved) -> None:
        """Remove a value; an unknown one is fine. ``then`` as in ``put``."""
        self._table.get(namespace, {}).pop(key, None)
        self._saver.save(then)

    @property
    def entries(self) -> int:
        """Values in all namespaces."""
        return sum(len(table) for table in self._table.values())

    def _snapshot(self) -> KvTable:
        return {namespace: dict(table) for namespace, table in self._table.items()}

    def _write(self, table: KvTable) -> None:
        if self._file is not None:
            self._file.save(table)
