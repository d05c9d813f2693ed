"""The controller's memory of who is master: a locked directory, one small file a broker name, each
replaced as a whole.

    <root>/cluster.json        {"cluster": "default", "format": 1}       whose ledger this is
    <root>/broker-a.reign      one line of JSON, one line with its CRC-32 in hex:
        {"assignment": {"broker_name": .., "master_epoch": .., ..}, "former": 0,
         "stores": {"0": "5f2c..", "1": ".."}}
        8a1f02c3

Decides: the form; that an older assignment never replaces a newer one. Does not decide who is
master (``protocol.election.promotion``). Nobody is told what ``write`` has not returned from.

Invariants: ``write`` returned = it survives a loss of power; whenever the power fails, a file is
its old or its new content as a whole; one process at a time (``flock`` on the directory).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rmq_ray.errors import StoreCorrupt, StoreError, StoreForeign, StoreInUse
from rmq_ray.files import DirectoryLock, FileSystem
from rmq_ray.model.replica_roles import Assignment, Standing

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """Of one broker name. ``standing`` None: nobody was ever master. ``stores``: replica ->
    identity of the store that it must have.
    """

    standing: Standing | None = None
    stores: Mapping[int, str] = field(default_factory=dict)


class Ledger:
    """One directory. ``root``: absolute path; made where it is missing."""

    def __init__(self, root: str, cluster: str, files: FileSystem) -> None:
        self._root = root
        self._cluster = cluster
        self._files = files
        self._lock: DirectoryLock | None = None

    def open(self) -> None:
        """Take the lock; does nothing where it is held here already.

        ``StoreInUse`` where another controller has it, ``StoreForeign`` for another cluster's
        ledger, ``StoreCorrupt`` for what is none.
        """
        if self._lock is not None:
            return
        files, path = self._files, f"{self._root}/cluster.json"
        files.make_dirs(self._root)
        try:
            self._lock = files.lock_directory(self._root)
        except StoreInUse:
            raise StoreInUse(
                f"another controller has the ledger {self._root}: stop that cluster first, "
                f"or choose another directory",
                self._root,
            ) from None
        try:
            if files.exists(path):
                self._check(path)
            elif strange := [
                name
                for name in files.list_dir(self._root)
                if not name.endswith(".tmp") and name != "lost+found"
            ]:
                raise StoreForeign(
                    f"{self._root} holds files that are no ledger "
                    f"({', '.join(strange[:3])}): give the controller an empty directory",
                    self._root,
                )
            else:
                files.write_whole(
                    path, json.dumps({"cluster": self._cluster, "format": FORMAT}).encode()
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def is_there(self) -> bool:
        """Whether this cluster has a ledger here, without its lock."""
        path = f"{self._root}/cluster.json"
        try:
            if found := self._files.exists(path):
                self._check(path)
        except StoreForeign:
            return False
        return found

    def read(self, broker_name: str) -> Entry:
        """What was written last; an empty ``Entry`` before the first time. ``StoreCorrupt`` where
        it cannot be read.
        """
        path = self._path(broker_name)
        if not self._files.exists(path):
            return Entry()
        text, _, crc = self._files.read_whole(path).partition(b"\n")
        try:
            if int(crc, 16) != zlib.crc32(text):
                raise ValueError("its CRC does not fit")
            return _entry(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(
                f"{path} cannot be read: {error}; remove it while all replicas of "
                f"{broker_name} run: then they are asked, and the furthest one reigns",
                path,
                0,
            ) from None

    def write(self, broker_name: str, entry: Entry) -> None:
        """Durable on return. After an error the old or the new one may be found by the next
        controller, and nobody may be told of it.
        """
        known = self.read(broker_name).standing
        if known is not None and (
            entry.standing is None or known.assignment.newer_than(entry.standing.assignment)
        ):
            raise StoreError(
                f"{self._path(broker_name)} has epoch {known.assignment.master_epoch} "
                f"already; an older one is not written over it",
                self._root,
            )
        path = self._path(broker_name)
        self._files.unlink(path + ".tmp")  # what an earlier error left is not written to again
        self._files.write_whole(path, _encoded(entry))

    def drop(self, broker_name: str) -> None:
        """Durable on return: what was known of this broker counts no more."""
        self._files.remove_whole(self._path(broker_name))

    def _path(self, broker_name: str) -> str:
        return f"{self._root}/{broker_name}.reign"

    def _check(self, path: str) -> None:
        try:
            found = json.loads(self._files.read_whole(path))
            cluster, form = str(found["cluster"]), int(found["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(
                f"{path} is damaged: {error}; restore it from a copy, or remove the "
                f"directory while all replicas run",
                path,
                0,
            ) from None
        if cluster != self._cluster:
            raise StoreForeign(
                f"{self._root} is the ledger of cluster {cluster!r}, not {self._cluster!r}: "
                f"give each cluster a directory of its own",
                self._root,
            )
        if form != FORMAT:
            raise StoreForeign(
                f"{self._root} has format {form}, this version knows {FORMAT}: use the "
                f"version that wrote it",
                self._root,
            )


def _encoded(entry: Entry) -> bytes:
    standing = entry.standing
    values: dict[str, Any] = {
        "stores": {str(replica): store for replica, store in sorted(entry.stores.items())}
    }
    if standing is not None:
        values |= {"assignment": asdict(standing.assignment), "former": standing.former}
    text = json.dumps(values, sort_keys=True).encode()
    return b"%s\n%08x\n" % (text, zlib.crc32(text))


def _entry(values: dict[str, Any]) -> Entry:
    stores = {int(replica): str(store) for replica, store in values["stores"].items()}
    if "assignment" not in values:
        return Entry(None, stores)
    found = values["assignment"]
    members = tuple(int(replica) for replica in found["sync_state_set"])
    master = None if found["master"] is None else int(found["master"])
    assignment = Assignment(
        str(found["broker_name"]),
        int(found["master_epoch"]),
        master,
        found["master_address"],
        members,
        int(found["version"]),
    )
    return Entry(
        Standing(assignment, None if values["former"] is None else int(values["former"])), stores
    )
