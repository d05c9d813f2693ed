"""What lies in a broker's directory, and whether the broker could serve from it.

``look`` runs on the node that has the disk (Ray calls it there), ``judge`` where somebody plans a
start. Decides which disks a broker is not started on. Does not decide what is done about a store
that is opened (``store.tables.store_lock`` asks the same questions again, under its lock).

Invariant: nothing is written, made or locked.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rmq_ray.errors import StoreCorrupt, StoreForeign, StoreMissing, StoreUnwritable

_HARMLESS = {"lost+found"}


@dataclass(frozen=True, slots=True)
class Disk:
    """What lies in a directory. ``owner`` and ``identity`` where there is a store; ``others``:
    names of files that are none of a store's.
    """

    exists: bool
    writable: bool
    identity: str | None = None
    owner: str | None = None
    damaged: str | None = None
    has_log: bool = False
    others: tuple[str, ...] = ()
    free_bytes: int = 0


def look(path: str) -> Disk:
    """What lies in this directory of this machine: runs on the node that has the disk."""
    root = Path(path)
    if not root.is_dir():
        above = next((parent for parent in root.parents if parent.exists()), root)
        return Disk(
            False,
            above.is_dir() and os.access(above, os.W_OK | os.X_OK),
            free_bytes=shutil.disk_usage(above).free,
        )
    entries = {entry.name for entry in root.iterdir()}
    identity = owner = damaged = None
    file = root / "rmq_ray" / "identity"
    if file.is_file():
        try:
            values = json.loads(file.read_bytes())
            identity, owner = str(values["identity"]), str(values["broker_name"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged = f"{file} is no identity: {error}"
    has_log = (root / "commitlog").is_dir()
    others = () if identity or damaged or has_log else tuple(sorted(entries - _HARMLESS))[:3]
    return Disk(
        True,
        os.access(root, os.W_OK | os.X_OK),
        identity,
        owner,
        damaged,
        has_log,
        others,
        shutil.disk_usage(root).free,
    )


def judge(
    disk: Disk,
    broker: str,
    path: str,
    known: str | None,
    known_file: str = "rmq.stores.json",
    *,
    copied: bool = False,
) -> str:
    """What a broker would find there, in words; the typed error where it could not serve from it.
    ``known``: the store that it had.

    ``broker``: its name, for a slave "broker-a/1". ``copied``: there are other copies of its log,
    from which an empty directory is filled.
    """
    owner = broker.partition("/")[0]
    if disk.damaged:
        raise StoreCorrupt(f"{disk.damaged}; restore it from a copy", path, 0)
    if disk.identity is None and known is not None:
        found = "is empty" if disk.exists else "does not exist"
        begin = "to copy them from its master" if copied else "to begin with an empty store"
        remedy = (
            f"mount its disk; if its data are lost for good, remove {broker} from {known_file} "
            f"{begin}"
        )
        raise StoreMissing(f"{path} {found}, expected is store {known} of {broker}: {remedy}", path)
    if disk.identity is not None and known not in (None, disk.identity):
        raise StoreForeign(
            f"{path} is store {disk.identity}, expected is {known} of {broker}: mount the "
            f"right disk",
            path,
        )
    if disk.owner not in (None, owner):
        raise StoreForeign(
            f"{path} belongs to broker {disk.owner!r}, not {owner!r}: give each broker a "
            f"directory of its own",
            path,
        )
    if disk.others:
        raise StoreForeign(
            f"{path} holds files that are no store ({', '.join(disk.others)}): give {broker} "
            f"an empty directory",
            path,
        )
    if not disk.writable:
        raise StoreUnwritable(
            f"{path} cannot be written by the user that runs Ray: change its owner, or "
            f"choose another directory",
            path,
        )
    if disk.identity:
        return f"found {disk.identity}"
    return "log of Apache RocketMQ, taken over" if disk.has_log else "made new"


def judge_ledger(disk: Disk, path: str) -> str:
    """The same for the directory in which the controller keeps who is master."""
    if disk.identity or disk.has_log or disk.damaged:
        raise StoreForeign(
            f"{path} is a broker's store: give the controller a directory of its own, "
            f"[controller] store = ...",
            path,
        )
    if not disk.writable:
        raise StoreUnwritable(
            f"{path} cannot be written by the user that runs Ray: change its owner, or "
            f"choose another, [controller] store = ...",
            path,
        )
    return "found" if disk.others else "made new"
