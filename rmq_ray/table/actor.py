"""The archivist of a table as a Ray actor: detached, found by its name, restarted by Ray, pinged by
the cluster's controller. One runs for a table, so it is its one committer; should two ever run, the
commits tell them apart.

Decides when a turn is taken, and that the next one is tried later after an error, which ``status``
tells until it has passed. Does not decide what a turn does (``archivist``). All blocking work runs
in threads, one turn at a time; beside the turns, which may wait long for a store, the log is held
(``retention_hold``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rmq_ray.actors.discovery import RayDiscovery
from rmq_ray.actors.shell import exit_hard, is_restart, spawn
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import put_environment
from rmq_ray.errors import CommitterReplaced, RmqError, TableError
from rmq_ray.model.metrics import Family, Sample
from rmq_ray.protocol.scan.scan_positions import nested
from rmq_ray.table.archivist import Archivist, Target
from rmq_ray.table.columns import schema_of
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.registry import TableRegistry
from rmq_ray.table.retention_hold import HOLD_EVERY_MS, RetentionHold
from rmq_ray.table.rules import DataFile, TableSpec, compactable
from rmq_ray.table.source import TopicSource
from rmq_ray.table.storage import Storage, bare, require_pyiceberg

log = logging.getLogger("rmq_ray.table")
LOOK_S = 1.0
LATER_S_MAX = 30.0
UPKEEP_MS = 3_600_000
WRITER_CHARS = 8
T = TypeVar("T")
UP = "rmq_table_up"
UP_HELP = "1 = the table's archivist works; 0 = its status has an error."
LAG_HELP = "Messages that are visible and not in the table yet."
SECONDS_HELP = "Since the oldest of them was stored."
ROWS_HELP = "Rows of the table."
REJECTED_HELP = "Rows that did not fit the declared columns."
HELD_HELP = "Bytes of a broker's log that retention keeps for the table, the most of any broker."
GAPS_HELP = "Ranges of messages that the table never got."


class ArchivistShell:
    """``spec``: a ``TableSpec`` as JSON."""

    def __init__(self, cluster: str, spec: str) -> None:
        # names are looked up in threads, where a blocking call holds nothing up; Ray warns anyway
        put_environment("RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "0")
        self._cluster, self._spec = cluster, TableSpec.from_json(spec)
        self._archivist: Archivist | None = None
        self._hold: RetentionHold | None = None
        self._making = threading.Lock()
        self._stopped = False
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._error: RmqError | None = None
        self._error_ms = 0
        self._writer = ""
        self._upkeep = ""
        self._upkeep_until_ms = 0.0
        spawn(self._run(), f"table of {self._spec.topic}")

    async def ping(self) -> str:
        """The topic; the controller asks every second."""
        return self._spec.topic

    async def pid(self) -> int:
        """Of this actor's process."""
        return os.getpid()

    async def status(self) -> dict[str, Any]:
        """``topic, location, catalog, state`` ("running", "paused", "waiting": with an ``error``),
        ``max_lag_s, decode, columns, error, error_since_ms, held_bytes, holding`` (whether
        retention waits), and once the table was opened ``lag_messages, lag_seconds, rows,
        rejected_rows, offsets, gaps, committed_ms, topic_gone``.
        """
        spec, work = self._spec, self._archivist
        state = None if work is None else work.state
        found: dict[str, Any] = {
            "topic": spec.topic,
            "location": bare(spec.location),
            "catalog": spec.catalog.get("name", "default") if spec.catalog else "",
            "state": "paused" if spec.paused else "waiting" if self._error else "running",
            "max_lag_s": spec.max_lag_s,
            "decode": spec.decode,
            "columns": dict(spec.columns),
            "error": "" if self._error is None else str(self._error),
            "error_since_ms": self._error_ms,
        }
        if self._hold is not None:
            found |= {"held_bytes": self._hold.held_bytes, "holding": self._hold.holding}
        if work is None or state is None:
            return found
        return found | {
            "lag_messages": work.lag.messages,
            "lag_seconds": round(work.lag.ms / 1000, 1),
            "rows": state.rows,
            "rejected_rows": state.rejected_rows,
            "offsets": nested(state.offsets).get(spec.topic, {}),
            "gaps": [gap.plain() for gap in state.gaps],
            "committed_ms": work.committed_ms,
            "topic_gone": work.topic_gone,
        }

    async def metrics(self) -> list[Family]:
        """For the exporter (docs/metrics.md)."""
        work = self._archivist
        labels = {"cluster": self._cluster, "topic": self._spec.topic}
        found = [
            Family(UP, "gauge", UP_HELP, (Sample(labels, float(self._error is None)),)),
        ]
        if self._hold is not None:
            held = Sample(labels, float(self._hold.held_bytes))
            found.append(Family("rmq_table_held_bytes", "gauge", HELD_HELP, (held,)))
        if work is None or work.state is None:
            return found
        for name, text, value in (
            ("rmq_table_lag_messages", LAG_HELP, work.lag.messages),
            ("rmq_table_lag_seconds", SECONDS_HELP, work.lag.ms / 1000),
            ("rmq_table_rows", ROWS_HELP, work.state.rows),
            ("rmq_table_rejected_rows", REJECTED_HELP, work.state.rejected_rows),
            ("rmq_table_gaps", GAPS_HELP, len(work.state.gaps)),
        ):
            found.append(Family(name, "gauge", text, (Sample(labels, float(value)),)))
        return found

    async def open(self) -> None:
        """Return when the table has been taken over. Raises what keeps the archivist from that."""
        await self._do(lambda work: work.opened())

    async def flush(self, timeout_s: float) -> dict[str, Any]:
        """Commit until all that was visible at the call is in the table; its offsets. Raises what
        keeps it from that, ``TableError`` after ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                ends = await self._do(lambda work: work.ends())
                while True:  # ends: at the time-out
                    work = await self._do(lambda one: (one.turn(force=True), one)[1])
                    state = work.state
                    if state is not None and all(
                        state.offsets.get(queue, 0) >= end for queue, end in ends.items()
                    ):
                        return nested(state.offsets).get(self._spec.topic, {})
        except TimeoutError:
            raise TableError(
                f"the table of {self._spec.topic!r} did not get everything within {timeout_s:g} s; "
                "it goes on: ask again, or with a longer timeout",
                self._spec.topic,
            ) from None

    async def change(self, spec: str) -> None:
        """Go on with other settings."""
        fresh = TableSpec.from_json(spec)
        async with self._turn:
            if fresh.columns != self._spec.columns and self._archivist is not None:
                await asyncio.to_thread(self._target.alter, schema_of(fresh.columns))
            self._spec = fresh
            if self._hold is not None:
                self._hold.hold_bytes = fresh.hold_bytes
            if self._archivist is not None:
                self._archivist.take_spec(fresh)
        self._wake.set()

    async def stop(self) -> None:
        """The table is dropped, with its files: take no further turn; what is under way ends
        first. Once more is no error.
        """
        await self.let_go()
        async with self._turn:
            if self._hold is not None:
                await asyncio.to_thread(self._source.close)

    async def let_go(self) -> None:
        """The table is dropped: on return retention waits for it no more, and no turn begins."""
        self._stopped = True
        await asyncio.to_thread(self._close_hold)

    # --- upkeep -----------------------------------------------------------------------------------

    async def begin_upkeep(self) -> tuple[str, list[DataFile], list[list[DataFile]]]:
        """(a name for the files of this upkeep, all files, runs of small ones). Nothing is swept
        from now on until ``replace_files``, for an hour at most; an earlier upkeep ends with this.
        """
        files: Sequence[DataFile] = await self._do(lambda work: (work.opened(), work.files)[1])
        self._upkeep_until_ms = SYSTEM_CLOCK.monotonic_ms() + UPKEEP_MS
        if self._archivist is not None:
            self._archivist.sweeps_from_ms = self._upkeep_until_ms
        self._upkeep = f"{self._writer}-{uuid.uuid4().hex[:WRITER_CHARS]}"
        return self._upkeep, list(files), compactable(files, self._spec.file_bytes)

    async def replace_files(
        self, upkeep: str, removed: list[DataFile], added: list[DataFile], replayed: str = ""
    ) -> int:
        """Commit what upkeep made in the place of these files, and sweep them; how many went."""
        if upkeep != self._upkeep or SYSTEM_CLOCK.monotonic_ms() > self._upkeep_until_ms:
            raise TableError(
                f"the archivist of {self._spec.topic!r}, or another upkeep, began anew meanwhile: "
                "nothing was changed, ask again",
                self._spec.topic,
            )
        self._upkeep = ""

        def work(one: Archivist) -> int:
            try:
                one.replace_files(removed, added, replayed)
            finally:
                one.sweeps_from_ms = 0.0
            return one.sweep()

        return await self._do(work)

    async def expire_versions(self, before_ms: int) -> int:
        """Of the catalog's snapshots; how many went."""
        return await self._do(lambda _work: self._target.expire_versions(before_ms))

    async def drop(self) -> int:
        """Delete the table: catalog entry and files; how many files of others stay. On return no
        turn begins, and retention waits no more; after an error what is left of it goes on.
        """

        def work(_one: Archivist) -> int:
            left = self._target.drop()
            self._stopped = True  # within this turn: the next one would make the table anew
            return left

        left = await self._do(work)
        await self.stop()
        return left

    # --- turns ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._learn_spec()
        spawn(self._keep_holding(), f"hold of {self._spec.topic}")
        failures = 0
        while True:  # until the process is ended
            moved = False
            if not self._stopped:
                try:
                    moved = await self._do(self._step)
                    failures = 0
                except RmqError as error:
                    failures += 1
                    log.warning("table of %s: %s", self._spec.topic, error)
            if not moved:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(LOOK_S * 2**failures, LATER_S_MAX)):
                        await self._wake.wait()
                self._wake.clear()

    def _step(self, work: Archivist) -> bool:
        if self._stopped:  # while it waited for its turn
            return False
        return work.watch() if self._spec.paused else work.turn()

    async def _keep_holding(self) -> None:
        while True:  # until the process is ended
            try:
                await asyncio.to_thread(self._renew)
            except RmqError as error:
                log.warning("the log of the table of %s is not held: %s", self._spec.topic, error)
            await asyncio.sleep(HOLD_EVERY_MS / 1000)

    def _renew(self) -> None:
        if not self._stopped:
            self._held().renew()

    async def _learn_spec(self) -> None:
        """A process that Ray starts again gets the settings of the first one."""
        registry = TableRegistry(RayDiscovery(self._cluster))
        while is_restart():  # ends: when a name server answers
            try:
                known = await asyncio.to_thread(registry.all)
            except RmqError as error:
                log.warning("settings of the table of %s: %s", self._spec.topic, error)
                await asyncio.sleep(LOOK_S)
            else:
                self._spec = known.get(self._spec.topic, self._spec)
                return

    async def _do(self, work: Callable[[Archivist], T]) -> T:
        """In a thread, one at a time; its error is kept for ``status`` until something succeeds."""
        async with self._turn:
            try:
                found = await asyncio.to_thread(lambda: work(self._made()))
            except CommitterReplaced as error:
                exit_hard(error)
                raise
            except RmqError as error:
                if self._error is None:
                    self._error_ms = SYSTEM_CLOCK.now_ms()
                self._error = error
                raise
            self._error, self._error_ms = None, 0
            return found

    def _made(self) -> Archivist:
        if self._archivist is None:
            spec = self._spec
            hold = self._held()
            self._target = open_target(spec, uuid.uuid4().hex[:WRITER_CHARS])
            self._archivist = Archivist(spec, self._source, self._target, SYSTEM_CLOCK, hold)
        self._writer = self._target.writer_name
        return self._archivist

    def _held(self) -> RetentionHold:
        """Made without the table, which may be out of reach; closed where the end came first."""
        with self._making:
            if self._hold is None:
                spec = self._spec
                self._source = TopicSource(RayDiscovery(self._cluster), spec.topic)
                self._hold = RetentionHold(self._source, spec.topic, spec.hold_bytes, SYSTEM_CLOCK)
                if self._stopped:
                    self._hold.close()
            return self._hold

    def _close_hold(self) -> None:
        """Behind ``_stopped``: a hold that is being made is seen here, or is made closed."""
        with self._making:
            hold = self._hold
        if hold is not None:
            hold.close()


def open_target(spec: TableSpec, writer: str = "") -> Target:
    """The table of a spec; ``writer``: of who is going to commit, "" = only to read."""
    if not spec.catalog:
        return ManifestTable(Storage(spec.location), spec.topic, writer)
    require_pyiceberg()
    from rmq_ray.table.iceberg import IcebergTable

    return IcebergTable(spec, schema_of(spec.columns), writer)
