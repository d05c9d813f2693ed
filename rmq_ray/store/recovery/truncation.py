"""Cutting the end off a copy's log: what another master was elected without (design contract 12).

    rmq_ray/truncating      one line: the log offset at which the log is to end. While it is there the cut may be half done

    mark, durable -> our checkpoint removed -> queues, index, windows, quarantine, log, epochs cut
    -> new checkpoint -> mark removed

Decides: the order, and what a start does that finds the mark: the cut again, then a recovery
without our checkpoint. Does not decide where to cut (``protocol.election.lineage``). Called by:
follower store, restart. Invariants: nothing is cut before the mark is on disk, and it stays until
everything that was derived from the cut log is; each step can be done again; no byte below the
mark's offset is touched.
"""

from __future__ import annotations

import logging

from rmq_ray.errors import StoreCorrupt, StoreMissing
from rmq_ray.files import FileSystem
from rmq_ray.store.io.store_lock import OURS
from rmq_ray.store.log.epoch_file import EpochFile
from rmq_ray.store.log.quarantine import Quarantine
from rmq_ray.store.log.segment_chain import SegmentChain
from rmq_ray.store.queue.index_service import IndexService

logger = logging.getLogger("rmq_ray.store")


def mark_truncation(files: FileSystem, root: str, log_offset: int) -> None:
    """From now on the log ends at ``log_offset``, whatever happens; our checkpoint speaks of a
    longer one and goes. Durable on return.
    """
    files.write_whole(_path(root), b"%d\n" % log_offset)
    files.remove_whole(f"{root}/{OURS}/checkpoint")


def pending_truncation(files: FileSystem, root: str) -> int | None:
    """Where a cut that was begun must cut; None when there is none. ``StoreCorrupt`` when the mark
    is not in form.
    """
    try:
        text = files.read_whole(_path(root)).decode("ascii", "replace").strip()
    except StoreMissing:
        return None
    if not text.isdigit():
        raise StoreCorrupt(
            f"{_path(root)} names no log offset; restore the store from a copy", _path(root), 0
        )
    return int(text)


def resume_truncation(files: FileSystem, root: str, chain: SegmentChain) -> int | None:
    """At a start, before anything else is read: finish the cut of the log; where it ends now, None
    when no cut was begun.
    """
    log_offset = pending_truncation(files, root)
    if log_offset is not None:
        logger.warning("the log at %s was being cut at %d: it is cut again", root, log_offset)
        mark_truncation(files, root, log_offset)
        if chain.begin <= log_offset < chain.end:
            chain.cut_from(log_offset)
    return log_offset


def cut_lists(
    log_offset: int, epochs: EpochFile, quarantine: Quarantine, index: IndexService | None
) -> None:
    """Epochs, quarantine and index know nothing of what lies at or behind ``log_offset`` any
    more.
    """
    epochs.cut_from(log_offset)
    quarantine.cut_from(log_offset)
    if index is not None:
        index.cut_from(log_offset)


def finish_truncation(files: FileSystem, root: str) -> None:
    """A checkpoint of the shorter log is on disk."""
    if files.exists(_path(root)):
        files.remove_whole(_path(root))


def _path(root: str) -> str:
    return f"{root}/{OURS}/truncating"
