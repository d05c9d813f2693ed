"""Who holds which queue for ordered consumption, over a restart of the broker.

    rmq_ray/queue_locks     one JSON array a line, in the order in which it happened:
        [epoch, client id, group, topic, broker name, queue id]         the client got the queue
        [epoch, null,      group, topic, broker name, queue id]         the queue is free

RocketMQ forgets locks with its process; then a second consumer gets a queue whose holder still
works. Here a broker that comes back knows the holders. Only changes of hands are written, no
refreshes, and nothing is synced: a process that dies loses nothing; a host that loses power is away
for longer than clients trust a lock (30 s).

Decides: the form. Does not decide who gets a lock (``protocol.queue_locks``). It is loaded in a
thread and written to in the broker's loop.

Invariants: a line
counts from its newline on; a last line without one was not granted; the file holds at most four
times as many lines as there are locks, plus 4,096.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rmq_ray.errors import StoreMissing
from rmq_ray.files import File, FileSystem
from rmq_ray.model.ids import MessageQueue

SPARE_LINES = 4_096


@dataclass(frozen=True, slots=True)
class LockLine:
    """One change. ``client_id`` None = free."""

    epoch: int
    client_id: str | None
    group: str
    queue: MessageQueue


class LockJournal:
    """The file. ``append`` is one write; it raises the store's errors, and then nothing counts as
    written.
    """

    def __init__(self, path: str, files: FileSystem) -> None:
        self._path = path
        self._files = files
        self._file: File | None = None
        self._end = 0
        self._lines = 0

    def load(self) -> tuple[list[LockLine], int]:
        """(locks in force, greatest epoch ever written). Lines that make no sense are dropped:
        their queues are free.
        """
        try:
            raw = self._files.read_whole(self._path)
        except StoreMissing:
            raw = b""
        whole = raw[: raw.rfind(b"\n") + 1]
        self._end, self._lines = len(whole), whole.count(b"\n")
        held: dict[tuple[str, MessageQueue], LockLine] = {}
        highest = 0
        for text in whole.splitlines():
            line = _parsed(text)
            if line is None:
                continue
            highest = max(highest, line.epoch)
            if line.client_id is None:
                held.pop((line.group, line.queue), None)
            else:
                held[line.group, line.queue] = line
        return list(held.values()), highest

    def append(self, lines: Iterable[LockLine]) -> None:
        """Write changes behind what is there; in the kernel on return."""
        texts = [_text(line) for line in lines]
        if not texts:
            return
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
        data = b"".join(texts)
        self._file.pwrite(
            data, self._end
        )  # from the end of the last whole line: what a crash left half written goes
        self._end += len(data)
        self._lines += len(texts)

    def is_long(self, locks: int) -> bool:
        """Whether the file should be written anew, with the ``locks`` in force only."""
        return self._lines > 4 * locks + SPARE_LINES

    def rewrite(self, held: Iterable[LockLine]) -> None:
        """Replace the file by these locks; not synced either: this runs in the broker's loop."""
        texts = [_text(line) for line in held]
        data = b"".join(texts)
        temporary = f"{self._path}.tmp"
        file = self._files.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
        finally:
            file.close()
        self._files.rename(temporary, self._path)
        self.close()
        self._end, self._lines = len(data), len(texts)

    def close(self) -> None:
        """Close the file; the next ``append`` opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _text(line: LockLine) -> bytes:
    queue = line.queue
    return (
        json.dumps(
            [line.epoch, line.client_id, line.group, queue.topic, queue.broker_name, queue.queue_id]
        ).encode()
        + b"\n"
    )


def _parsed(text: bytes) -> LockLine | None:
    try:
        found: Any = json.loads(text)
        epoch, client_id, group, topic, broker_name, queue_id = found
    except (ValueError, TypeError):
        return None
    texts = all(isinstance(value, str) for value in (group, topic, broker_name)) and (
        client_id is None or isinstance(client_id, str)
    )
    if not texts or type(epoch) is not int or type(queue_id) is not int:
        return None
    return LockLine(epoch, client_id, group, MessageQueue(topic, broker_name, queue_id))
