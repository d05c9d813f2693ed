"""Which records belong to the topics that are there now: a topic that is deleted and made again is
another topic of the same name.

    log      | orders 0 1 2 | ... | orders 3 4 ...
                            ^ deleted: ``since``       made again: its queue goes on at 3, its end

    rmq_ray/topic_lives.json    {"lives":{"orders":{"ends":{"0":3},"since":1234}}}, beside .bak

A record of a topic at a log offset belongs to the topic that is there now where that offset is not
below ``since``, the log's end when the topic was deleted last; nothing is written to a topic that
is not there, so this is where the next one of its name is born. And queue offsets never go back: a
queue of the new topic begins where the one of the old topic ended, so no position that anybody
keeps can be taken for one of another message.

Decides that rule, and the form of the file. Does not decide who may delete, or when the file is
written: together with the table of topics, before it. A slave has its master's lives: it has the
same log, with the same queue offsets. Changed in the broker's loop, read in any thread.

Invariants: ``since`` and ``ends`` of a topic do not fall, but for a log that was cut; what is not
known to have been deleted belongs to its topic.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from rmq_ray.codec.config_files import ConfigFile
from rmq_ray.codec.store_files import OURS
from rmq_ray.files import FileSystem

LIVES_MAX = 50_000
"""Of deleted topics; beyond it those are forgotten first whose records have all left the log."""


class Life(NamedTuple):
    """Of a topic that was deleted, be it there again. ``since``: log offset; ``ends``: queue id ->
    queue offset at which the queue goes on.
    """

    since: int
    ends: dict[int, int]


Lives = dict[str, Life]
NONE = Life(0, {})


class TopicLives:
    """Of one store. ``root``: its directory."""

    def __init__(self, root: str, files: FileSystem) -> None:
        self._file: ConfigFile[Lives] = ConfigFile(
            files, f"{root}/{OURS}/topic_lives.json", encode_lives, decode_lives
        )
        self._lives: Lives = {}
        self._saved: Lives | None = None
        self._saving = threading.Lock()
        self.changes = 0
        """How often a topic was deleted, or the log cut: what was known of lives before may be
        wrong.
        """

    def load(self) -> None:
        """Read the file, the first time: later, memory is newer. ``StoreCorrupt`` when neither it
        nor its copy can be read.
        """
        if self._saved is None:
            self._saved = self._file.load() or {}
            self._lives = dict(self._saved)

    def save(self, lives: Lives) -> None:
        """Write a ``snapshot`` where it is not what the file says. Durable on return; any
        thread.
        """
        with self._saving:
            if lives != self._saved:
                self._file.save(lives)
                self._saved = lives

    def snapshot(self) -> Lives:
        """A copy that a thread may keep."""
        return self._lives.copy()

    def replace(self, lives: Lives) -> None:
        """On a slave: what the master says."""
        self.changes += 1
        self._lives = dict(lives)

    def end(self, topic: str, log_offset: int, ends: Mapping[int, int], log_begin: int) -> None:
        """The topic is deleted: everything of it lies below ``log_offset``, and its queues end
        there. ``log_begin``: where the log begins now.
        """
        self.changes += 1
        before = self._lives.get(topic, NONE)
        self._lives[topic] = Life(max(before.since, log_offset), {**before.ends, **ends})
        while len(self._lives) > LIVES_MAX:  # ends: one less each round
            oldest = min(self._lives, key=lambda name: self._lives[name].since)
            if self._lives[oldest].since > log_begin:
                break
            del self._lives[oldest]

    def cut_to(self, log_offset: int) -> None:
        """The log ends there since it was cut: what is written from now on is newer than every
        deletion.
        """
        self.changes += 1
        for topic, life in self._lives.items():
            if life.since > log_offset:
                self._lives[topic] = Life(log_offset, life.ends)

    def holds(self, topic: str, log_offset: int) -> bool:
        """Whether a record of ``topic`` that begins there is one of the topic that is there now, or
        is made next.
        """
        return log_offset >= self._lives.get(topic, NONE).since

    def since(self, topic: str) -> int:
        """The log offset below which no record belongs to the topic."""
        return self._lives.get(topic, NONE).since

    def begin(self, topic: str, queue_id: int) -> int:
        """Where a queue of the topic began, or would begin."""
        return self._lives.get(topic, NONE).ends.get(queue_id, 0)

    def begins(self) -> dict[tuple[str, int], int]:
        """The same of every queue that does not begin at 0."""
        return {
            (topic, queue_id): end
            for topic, life in self._lives.items()
            for queue_id, end in life.ends.items()
        }

    def __len__(self) -> int:
        return len(self._lives)

    def __contains__(self, topic: str) -> bool:
        """Whether a topic of that name was deleted."""
        return topic in self._lives


def encode_lives(lives: Lives) -> dict[str, Any]:
    """Plain values of the file, and of what slaves are told."""
    return {
        "lives": {
            topic: {
                "ends": {str(queue): end for queue, end in life.ends.items()},
                "since": life.since,
            }
            for topic, life in lives.items()
        }
    }


def decode_lives(value: Mapping[str, Any]) -> Lives:
    """The reverse; of a master that tells none, none."""
    return {
        str(topic): Life(
            int(life["since"]), {int(queue): int(end) for queue, end in life["ends"].items()}
        )
        for topic, life in value.get("lives", {}).items()
    }
