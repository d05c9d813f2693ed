"""Whose store this directory is: both locks, the identity, and the mark of an unclean stop
(docs/file-format.md#tables-and-small-files).

    lock              lockf on byte 0: Apache RocketMQ's own lock. flock on the directory: ours
                      (Java and Python do not see each other's)
    abort             exists while a broker runs; found at start = the last stop was unclean
    rmq_ray/identity  JSON: identity (32 hex digits), broker name, when it was minted

Decides: whether this broker may use the directory. An expected store that is empty, missing or
foreign is a typed error, never a new log: only ``create`` without an expected identity makes one.
Does not decide: whether what lies in it is sound (recovery). Invariant: one process at a time, for
as long as the locks are held.
"""

from __future__ import annotations

import json
import logging

from rmq_ray.codec.store_files import OURS
from rmq_ray.errors import StoreCorrupt, StoreError, StoreForeign, StoreMissing
from rmq_ray.files import DirectoryLock, FileSystem

logger = logging.getLogger("rmq_ray.store")


class StoreLock:
    """Holds one store directory. ``root``: absolute path."""

    def __init__(self, root: str, files: FileSystem) -> None:
        self._root = root
        self._files = files
        self._locks: list[DirectoryLock] = []

    def acquire(self, create: bool) -> None:
        """Take both locks. ``StoreInUse`` when another holds one, ``StoreMissing`` when the
        directory is not there and may not be made.
        """
        if not self._files.is_dir(self._root):
            if not create:
                raise StoreMissing(
                    f"there is no store at {self._root}; start with create to make one, or "
                    f"mount its disk",
                    self._root,
                )
            self._files.make_dirs(self._root)
        try:
            self._locks.append(self._files.lock_directory(self._root))
            self._locks.append(self._files.lock_first_byte(f"{self._root}/lock"))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give both locks back."""
        while self._locks:
            self._locks.pop().release()

    def identify(self, create: bool, expected: str | None, broker_name: str, now_ms: int) -> str:
        """The store's identity, minted if this is a new store (or one that Apache RocketMQ wrote)
        and ``create`` allows it.

        Raises ``StoreMissing`` (nothing there, or not what was expected), ``StoreForeign`` (another
        broker's).
        """
        path = f"{self._root}/{OURS}/identity"
        if self._files.exists(path):
            return self._check(path, expected, broker_name)
        if expected is not None:
            raise StoreMissing(
                f"{self._root} has no identity, expected is store {expected}; mount the "
                f"right disk or restore it",
                self._root,
            )
        if not create:
            raise StoreMissing(
                f"{self._root} holds no store of rmq_ray; start with create to make one", self._root
            )
        identity = self._files.random_bytes(16).hex()
        self._files.make_dirs(f"{self._root}/{OURS}")
        text = json.dumps({"identity": identity, "broker_name": broker_name, "created_ms": now_ms})
        self._files.write_whole(path, text.encode())
        return identity

    def mark_running(self) -> bool:
        """Make the abort file; True when it was there: the last stop was unclean. Durable on
        return.
        """
        path = f"{self._root}/abort"
        if self._files.exists(path):
            return True
        self._files.open(path, create=True).close()
        self._files.sync_dir(self._root)
        return False

    def mark_stopped(self) -> None:
        """Remove the abort file: everything was flushed. A disk that refuses costs a recovery."""
        try:
            self._files.remove_whole(f"{self._root}/abort")
        except StoreError as error:
            logger.warning(
                "the next start takes this stop of %s for a crash: %s", self._root, error
            )

    def _check(self, path: str, expected: str | None, broker_name: str) -> str:
        try:
            values = json.loads(self._files.read_whole(path))
            identity, owner = str(values["identity"]), str(values["broker_name"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(
                f"{path} is not an identity: {error}; restore it from a copy", path, 0
            ) from error
        if expected is not None and identity != expected:
            raise StoreForeign(
                f"{self._root} is store {identity}, expected is {expected}; mount the right disk",
                self._root,
            )
        if owner != broker_name:
            raise StoreForeign(
                f"{self._root} belongs to broker {owner!r}, not {broker_name!r}; give each "
                f"broker a directory of its own",
                self._root,
            )
        return identity
