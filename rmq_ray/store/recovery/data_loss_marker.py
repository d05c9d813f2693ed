"""Whether a log has all that was ever acknowledged or shown of it, as far as its disk can tell
(model: ``ReplicaReport.sound``).

    rmq_ray/unsound     exists from the recovery that found it out until the log is once more known to be whole

Decides: a host that lost its power with bytes that were not synced, an end below what was on disk
once, or a sync that failed with bytes acknowledged before it make a log unsound. Does not decide
what follows (elections ask another copy first). Called by: restart and a store that failed
(``judge``), follower store, a new reign (``absolve``). Invariant: the mark is durable before the
log is written again, or the next start would take this one's boot for the one that wrote it all.
"""

from __future__ import annotations

from rmq_ray.files import FileSystem
from rmq_ray.store.io.store_lock import OURS


def judge(files: FileSystem, root: str, lost: bool) -> bool:
    """``lost``: this recovery may have lost something. True when the log is sound; durable on
    return.
    """
    path = _path(root)
    if lost and not files.exists(path):
        files.write_whole(path, b"")
    return not files.exists(path)


def absolve(files: FileSystem, root: str) -> None:
    """The log is whole: its master says so, or it is the measure now."""
    if files.exists(_path(root)):
        files.remove_whole(_path(root))


def _path(root: str) -> str:
    return f"{root}/{OURS}/unsound"
