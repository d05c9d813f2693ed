"""A table without a catalog: Parquet files in folders, and what of them counts.

    <location>/day=2026-11-25/broker-a-0003-...parquet     rows; a glob over day=*/ reads them
    <location>/_rejected/day=2026-11-25/...parquet         rows that did not fit the schema
    <location>/_rmq/offsets.json                           the newest manifest, for other readers
    <location>/_rmq/commits/<generation>-<sequence>.json   the newest manifests: what counts
    <location>/_rmq/generations/<generation>               one for each start of a committer

    manifest  {"format": 1, "topic", "commit", "offsets", "epochs", "gaps", "commits", "rows",
               "files": [[path, day, broker, queue id, first, next, rows, bytes, rejected], ...]}

The manifest with the greatest (generation, sequence) is the table. A committer takes a generation
when it starts, then reads the table, then commits it again under its own generation: whatever an
older one still writes after that is no more than a leftover, on stores that cannot compare and
swap, too. Each manifest names all files, so a commit is one object, written last. An older
committer sees the newer generation before its next commit and gives up (``CommitterReplaced``).

Decides that. Does not decide what is committed (``archivist``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from rmq_ray.errors import CommitterReplaced, TableError
from rmq_ray.table.layout import (
    ABOUT,
    COMMITS,
    GENERATIONS,
    OFFSETS,
    check_unused,
    delete_own,
    is_kept,
    is_rows,
    is_staged,
)
from rmq_ray.table.rules import Change, DataFile, TableState, generation_of
from rmq_ray.table.storage import Storage

FORMAT = 1
FOLDERS = ("", "_rejected/")
KEPT = 10
SUMMARY = ("offsets", "epochs", "gaps", "commits", "replayed")


class ManifestTable:
    """``writer``: some letters and digits that no other start of a committer has; without it the
    table is only read.
    """

    folder, rejected_folder = FOLDERS

    def __init__(self, storage: Storage, topic: str, writer: str = "") -> None:
        self.storage, self.topic = storage, topic
        self.writer = writer
        self._generation = 0
        self._files: tuple[DataFile, ...] = ()

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> TableState:
        """What is committed now. ``TableError`` for a manifest that cannot be read."""
        newest = max(self._own(COMMITS), default=None)
        if newest is None:
            self._files = ()
            return TableState("")
        text = self.storage.read_whole(newest)
        if text is None:  # pruned by a committer between both questions
            return self.load()
        state = self._read(newest, text)
        if self._generation and self.storage.read_whole(OFFSETS) != text:
            self.storage.write_whole(OFFSETS, text)  # a commit ended between both
        return state

    def files(self) -> tuple[DataFile, ...]:
        """Those of the state that was loaded or committed last."""
        return self._files

    def _read(self, name: str, text: bytes) -> TableState:
        try:
            found = json.loads(text)
            if found["format"] > FORMAT:
                raise ValueError(f"its format is {found['format']}, this version reads {FORMAT}")
            if found["topic"] != self.topic:
                raise ValueError(f"it is of topic {found['topic']!r}, not of {self.topic!r}")
            self._files = tuple(DataFile(*row) for row in found["files"])
            state = TableState.of_summary(
                self.topic,
                name,
                {f"rmq.{key}": json.dumps(found[key]) for key in SUMMARY},
            )
            return replace(state, rows=found["rows"], rejected_rows=found["rejected_rows"])
        except (ValueError, LookupError, TypeError) as error:
            raise TableError(
                f"{self.storage.path(name)} is no manifest of this table: {error}; give the table "
                "a location of its own, or restore the file",
                name,
            ) from error

    # --- committing -------------------------------------------------------------------------------

    def take_over(self) -> TableState:
        """Become the one committer: the state that is built on from now on."""
        taken = [int(path.rpartition("/")[2][:6]) for path in self._own(GENERATIONS)]
        self._generation = max(taken, default=0) + 1
        self.storage.write_whole(f"{GENERATIONS}/{self._name()}", b"")
        state = self.load()
        return self.commit(state, Change(f"take-over-{self._name()}"))

    def commit(self, expected: TableState, change: Change) -> TableState:
        """The state behind it. ``CommitterReplaced`` where a newer committer has taken the table
        over, or its files are gone; any other error leaves the outcome unknown until ``load``.
        """
        taken = self._check_newest()
        if self._name() not in taken:
            raise CommitterReplaced(
                f"the files of the table at {self.storage.root} were deleted: it begins anew, with "
                "what the log still has",
                self.storage.root,
            )
        removed = {one.path for one in change.removed}
        files = (*(one for one in self._files if one.path not in removed), *change.added)
        state = expected.behind(change)
        sequence = 1 + int(expected.version.rpartition("-")[2][:-5] or 0) if expected.version else 1
        version = f"{COMMITS}/{self._name()}-{sequence:012}.json"
        text = self._text(state, change, files)
        self.storage.write_whole(version, text)
        self._files = files
        self.storage.write_whole(OFFSETS, text)
        return replace(state, version=version)

    def _check_newest(self) -> set[str]:
        """The generations; ``CommitterReplaced`` where there is a newer one."""
        taken = {path.rpartition("/")[2] for path in self._own(GENERATIONS)}
        if max(taken, default="") > self._name():
            raise CommitterReplaced(
                f"another committer has taken over {self.storage.root}: this one gives up",
                self.storage.root,
            )
        return taken

    def _text(self, state: TableState, change: Change, files: Sequence[DataFile]) -> bytes:
        said: dict[str, Any] = {
            key: json.loads(text) for key, text in ((k[4:], v) for k, v in state.summary().items())
        }
        return json.dumps(
            {
                "format": FORMAT,
                "topic": self.topic,
                "commit": change.id,
                "rows": state.rows,
                "rejected_rows": state.rejected_rows,
                **said,
                "files": [astuple(one) for one in files],
            },
            separators=(",", ":"),
        ).encode()

    def _name(self) -> str:
        return f"{self._generation:06}-{self.writer}"

    @property
    def writer_name(self) -> str:
        """What the names of this committer's files end with."""
        return self._name()

    # --- leftovers --------------------------------------------------------------------------------

    def check_location(self) -> None:
        """``TableError`` where another topic's table is there, or none and files of others. Rows
        that no manifest names are this topic's where a making of its table is told there.
        """
        if not self._own(COMMITS):
            check_unused(self.storage, _owns if self._was_made_here() else is_kept)
        self.load()

    def _was_made_here(self) -> bool:
        """Whether a table of this topic was begun to be made, or to be dropped, and no more."""
        text = self.storage.read_whole(ABOUT)
        try:
            return text is not None and json.loads(text)["topic"] == self.topic
        except (ValueError, LookupError, TypeError):
            return False

    def sweep(self, now_ms: int) -> int:
        """Delete what no commit names: files of attempts that failed, of older committers, and what
        a compaction replaced; older manifests. How many data files went. Files of others stay.

        To be called by who has taken over, between its commits: nothing of it is under way. Files
        of newer committers stay, and ``CommitterReplaced`` is raised where there is one.
        """
        self._check_newest()
        named = {one.path for one in self._files}
        swept = 0
        for one in self.storage.list(""):
            newer = generation_of(one.path) > self._generation
            if is_rows(one.path, FOLDERS) and one.path not in named and not newer:
                self.storage.delete(one.path)
                swept += 1
            elif is_staged(one.path):
                self.storage.delete(one.path)
        for folder in (COMMITS, GENERATIONS):
            for path in self._own(folder)[:-KEPT]:
                self.storage.delete(path)
        return swept

    def prune(self) -> None:
        """Forget all manifests but the newest."""
        for path in self._own(COMMITS)[:-KEPT]:
            self.storage.delete(path)

    def expire_versions(self, _before_ms: int) -> int:
        """There are none to expire: the newest manifests prune themselves."""
        return 0

    def alter(self, _schema: Any) -> None:
        """Nothing to do: each file has the columns of its time."""

    def drop(self) -> int:
        """Delete every file of the table; how many files of others stay."""
        return delete_own(self.storage, _owns)

    def _own(self, folder: str) -> list[str]:
        """Manifests or generations, in order."""
        return [one.path for one in self.storage.list(folder) if is_kept(one.path)]


def _owns(path: str) -> bool:
    return is_rows(path, FOLDERS) or is_kept(path)
