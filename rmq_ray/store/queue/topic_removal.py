"""Removing a topic's queues in two steps: out of the way at once (the broker's loop), off the disk
later (the checkpoint thread).

    rmq_ray/deleted-<n>-<topic>/<queue id>/...      what was ``consumequeue/<topic>`` until its topic was deleted

Decides: the names, so that a restart in between knows which queues are missing on purpose. Does not
decide: who may delete. Called by: message store, checkpointer, restart. Invariant: such a directory
goes only after a checkpoint without its topic was written.
"""

from __future__ import annotations

from rmq_ray.files import FileSystem
from rmq_ray.store.io.store_lock import OURS

_PREFIX = "deleted-"


def deleted_topic_directory(root: str, topic: str, files: FileSystem) -> str:
    """A directory of that kind which is not there yet."""
    names = set(files.list_dir(f"{root}/{OURS}"))
    number = 0
    while f"{_PREFIX}{number}-{topic}" in names:  # ends: the names are finite
        number += 1
    return f"{root}/{OURS}/{_PREFIX}{number}-{topic}"


def deleted_topics(root: str, files: FileSystem) -> list[tuple[str, str]]:
    """(topic, directory) of every deletion that is not finished."""
    ours = f"{root}/{OURS}"
    names = [name for name in files.list_dir(ours) if name.startswith(_PREFIX)]
    return [(name.split("-", 2)[2], f"{ours}/{name}") for name in names]


def remove_deleted_topics(deleted: list[tuple[str, str]], files: FileSystem) -> None:
    """Take them off the disk: slow where there are many files."""
    for _, directory in deleted:
        for queue_id in files.list_dir(directory):
            for name in files.list_dir(f"{directory}/{queue_id}"):
                files.unlink(f"{directory}/{queue_id}/{name}")
            files.remove_dir(f"{directory}/{queue_id}")
        files.remove_dir(directory)
