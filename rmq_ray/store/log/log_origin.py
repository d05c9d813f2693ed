"""Which log a store holds, and whether it is a copy of another broker's: what tells a slave's log
from a foreign one.

    rmq_ray/origin      JSON: log (32 hex digits: the identity of the store in which the log began), copied (true on a slave)

A store has an identity of its own (``store_lock``); all copies of a log name the same ``log``.
Without the file the log began here. Decides: the form. Does not decide: what follows from it
(recovery begins an epoch when a copy is written to; ``follower_store`` refuses foreign logs).
Called by: restart, follower store, the master's side of replication. Invariant: durable on return
of ``write_origin``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from rmq_ray.errors import StoreCorrupt, StoreMissing
from rmq_ray.files import FileSystem
from rmq_ray.store.io.store_lock import OURS


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """``log``: identity of the log, empty = none yet (a slave that never met its master).
    ``copied``: written by a slave last.
    """

    log: str
    copied: bool


def read_origin(files: FileSystem, root: str, identity: str) -> LogOrigin:
    """The origin of the log at ``root``, a store with ``identity``. Raises ``StoreCorrupt`` for a
    file that is not in form.
    """
    path = f"{root}/{OURS}/origin"
    try:
        found = json.loads(files.read_whole(path))
        return LogOrigin(str(found["log"]), bool(found["copied"]))
    except StoreMissing:
        return LogOrigin(identity, False)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(
            f"{path} does not tell a log's origin: {error}; restore it from a copy", path, 0
        ) from error


def write_origin(files: FileSystem, root: str, origin: LogOrigin) -> None:
    """Keep it; durable on return."""
    files.write_whole(
        f"{root}/{OURS}/origin", json.dumps({"log": origin.log, "copied": origin.copied}).encode()
    )
