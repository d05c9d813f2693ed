"""Tables of a cluster: ``mq.tables``, and what ``rmq-ray table`` calls.

    mq.tables.create("orders", "s3://lake/orders")     from the oldest message on, for ever
    mq.tables.flush("orders")                          all that was visible now is in the table

Decides what may be asked of a table. Specs are kept by the name servers (RocketMQ's KV table), so
that a cluster that starts again goes on with its tables; what is in a table the table itself says.
Blocking.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from rmq_ray.actors import gateway, names
from rmq_ray.actors.discovery import RayDiscovery
from rmq_ray.client.scan.bulk_arguments import checked_columns
from rmq_ray.client.scan.topic_state import TopicState
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.arrow.arrow_rows import Rows as WantedRows
from rmq_ray.errors import ClientError, RmqError, TableExists, TableNotFound
from rmq_ray.protocol.scan.scan_positions import Where
from rmq_ray.table.actor import ArchivistShell, open_target
from rmq_ray.table.columns import check_columns, parse_columns
from rmq_ray.table.layout import ABOUT
from rmq_ray.table.reading import check_source, read_union
from rmq_ray.table.registry import TableRegistry
from rmq_ray.table.rules import FILE_BYTES, HOLD_BYTES, TableSpec, check_evolution
from rmq_ray.table.storage import bare, require_pyiceberg
from rmq_ray.table.upkeep import compare, expired, redecode, rewrite

FLUSH_S = 600.0
Rows = list[dict[str, Any]]
T = TypeVar("T")
UPKEEP_S = 3_600.0
RUNS_MAX = 1_000  # of one call: call it again for more
STATUS_S = 5.0
START_S = 90.0  # of a process on a busy machine


class Tables:
    """Of one cluster. Besides what each method names, calls raise ``TableNotFound``, and
    ``ClusterError`` where the cluster or the table's archivist cannot be reached.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._discovery = RayDiscovery(cluster)
        self._cluster = self._discovery.cluster
        self._registry = TableRegistry(self._discovery)

    def create(  # noqa: PLR0913 - the settings of a table
        self,
        topic: str,
        location: str,
        *,
        max_lag_s: float = 60.0,
        file_bytes: int = FILE_BYTES,
        hold_bytes: int = HOLD_BYTES,
        catalog: str | Mapping[str, str] | None = None,
        namespace: str = "default",
        decode: str = "",
        columns: str | Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Make a topic a table from its oldest message on; what ``describe`` says, once its
        archivist has opened it. See ``TableSpec`` for the settings; ``catalog``: pyiceberg's
        properties, or the name of a catalog that it knows; ``columns``: ``{"user": "string"}`` or
        ``"user string, amount double"``.

        A table that is at the location already is gone on with, exactly where it ended. Raises
        ``ConfigError`` for wrong settings, ``TopicNotFound``, ``TableExists``, ``TableError``
        where pyiceberg is missing or the location has another topic's table or any files that are
        no table's, ``TableStorageError`` where the location cannot be written to.
        """
        with TopicState(self._discovery, topic) as state:
            state.now()
        spec = TableSpec(
            topic,
            location,
            float(max_lag_s),
            file_bytes,
            hold_bytes,
            _catalog(catalog),
            namespace,
            decode,
            _columns(columns),
        ).checked()
        known = self._registry.all().get(topic)
        if known is not None:
            raise TableExists(
                f"topic {topic!r} is a table already, at {bare(known.location)}: alter it, or drop "
                "it first (its files stay unless you say otherwise)",
                topic,
            )
        open_target(spec).check_location()
        open_target(spec, "create").storage.write_whole(ABOUT, _public(spec))
        self._registry.keep(spec)
        try:
            self._start(spec)
        except RmqError:
            self._registry.forget(topic)
            raise
        return self.describe(topic)

    def list(self) -> Rows:
        """A row for each table: topic, location, state, rows, lag_messages, lag_seconds, error."""
        specs = self._registry.all()
        handles = {topic: gateway.find(names.archivist(self._cluster, topic)) for topic in specs}
        found = gateway.call_each(handles, "status", timeout_s=STATUS_S)
        return [
            found[topic]
            if not isinstance(found[topic], RmqError)
            else {
                "topic": topic,
                "location": bare(specs[topic].location),
                "state": "not answering",
                "error": str(found[topic]),
            }
            for topic in sorted(specs)
        ]

    def describe(self, topic: str) -> dict[str, Any]:
        """Settings, offsets, lag, gaps and what keeps it; see ``ArchivistShell.status``."""
        return dict(gateway.call(self._archivist(topic), "status"))

    def spec(self, topic: str) -> TableSpec:
        """As it was created and altered."""
        found = self._registry.all()
        if topic not in found:
            known = ", ".join(sorted(found)) or "none"
            raise TableNotFound(
                f"topic {topic!r} is no table (tables here: {known}): make it one with "
                f"mq.tables.create({topic!r}, location) or `rmq-ray table create`",
                topic,
            )
        return found[topic]

    def flush(self, topic: str, timeout_s: float = FLUSH_S) -> dict[str, dict[str, int]]:
        """Wait until all that was visible at the call is committed: broker -> queue -> next offset
        of the table. ``TableError`` after ``timeout_s``, else what keeps the archivist from it.
        """
        handle = self._archivist(topic)
        return dict(gateway.call(handle, "flush", timeout_s, timeout_s=timeout_s + START_S))

    def pause(self, topic: str) -> None:
        """Commit nothing until ``resume``; retention waits as far as ``hold_bytes``."""
        self._change(replace(self.spec(topic), paused=True))

    def resume(self, topic: str) -> None:
        """The end of ``pause``."""
        self._change(replace(self.spec(topic), paused=False))

    def alter(
        self,
        topic: str,
        *,
        columns: str | Mapping[str, str] | None = None,
        max_lag_s: float | None = None,
        hold_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Change what is given. Columns may be added and widened; ``TableError`` for anything
        else, before anything is changed. Rows that are there keep null in new columns.
        """
        spec = self.spec(topic)
        if columns is not None:
            wanted = _columns(columns)
            check_evolution(spec.columns, wanted)
            spec = replace(spec, columns=wanted)
        if max_lag_s is not None:
            spec = replace(spec, max_lag_s=float(max_lag_s))
        if hold_bytes is not None:
            spec = replace(spec, hold_bytes=hold_bytes)
        self._change(spec.checked())
        return self.describe(topic)

    def drop(self, topic: str, *, delete_files: bool = False) -> dict[str, int]:
        """The topic is no table any more; the files stay unless ``delete_files``, and a table made
        at the same location goes on with them. With ``delete_files``: foreign_files, how many
        files at the location were not the table's and so were left. Where the files cannot be
        deleted now, that is raised, and the table goes on: drop it again later.
        """
        self.spec(topic)
        actor = names.archivist(self._cluster, topic)
        found: dict[str, int] = {}
        if delete_files:
            left = gateway.call(self._archivist(topic), "drop", timeout_s=FLUSH_S)
            found = {"foreign_files": int(left)}
        gateway.call(gateway.controller(self._cluster), "disown", actor)
        self._let_go(actor)
        gateway.kill(actor, for_good=True)
        self._registry.forget(topic)
        return found

    def to_arrow(
        self,
        topic: str,
        *,
        start: Where = "earliest",
        end: Where = "latest",
        columns: Sequence[str] | None = None,
        source: str = "table+log",
    ) -> Any:
        """``pyarrow.Table`` of the topic: the table up to where it is, the log behind it, each row
        once; ``.to_pandas()`` makes a frame. ``start``, ``end``: as of ``admin.to_arrow``; an
        ``end`` of a time or ``rmq.LikeGroup`` is the topic as of then. ``source``: "table" = files
        alone. ``columns``: of the messages. This process must reach the table's location.
        """
        rows = WantedRows(tuple(checked_columns(columns, ClientError)))
        return read_union(self._discovery, topic, start, end, rows, check_source(source))

    # --- upkeep -----------------------------------------------------------------------------------

    def compact(self, topic: str, timeout_s: float = UPKEEP_S) -> dict[str, int]:
        """Make large files of neighbouring small ones, as Ray tasks: files_before, files_after. The
        archivist goes on meanwhile. ``TableError`` where it began anew: nothing was changed then.
        """
        handle, spec = self._archivist(topic), self.spec(topic)
        writer, files, runs = gateway.call(handle, "begin_upkeep", timeout_s=timeout_s)
        jobs = [(spec.to_json(), run, writer) for run in runs[:RUNS_MAX]]
        made = [one for part in self._each(spec, rewrite, jobs, timeout_s) for one in part]
        gone = [one for _, run, _ in jobs for one in run]
        gateway.call(handle, "replace_files", writer, gone, made, timeout_s=timeout_s)
        return {"files_before": len(files), "files_after": len(files) - len(gone) + len(made)}

    def expire(
        self, topic: str, older_than_s: float, timeout_s: float = UPKEEP_S
    ) -> dict[str, int]:
        """Forget whole days (UTC) that ended more than ``older_than_s`` ago, and the catalog's
        snapshots that are older: files, rows, snapshots that went.
        """
        handle = self._archivist(topic)
        writer, files, _ = gateway.call(handle, "begin_upkeep", timeout_s=timeout_s)
        before_ms = SYSTEM_CLOCK.now_ms() - int(older_than_s * 1000)
        gone = expired(files, before_ms)
        gateway.call(handle, "replace_files", writer, gone, [], timeout_s=timeout_s)
        versions = gateway.call(handle, "expire_versions", before_ms, timeout_s=timeout_s)
        rows = sum(one.rows for one in gone)
        return {"files": len(gone), "rows": rows, "snapshots": int(versions)}

    def replay(self, topic: str, timeout_s: float = UPKEEP_S) -> dict[str, int]:
        """Try the rejected rows again with the columns as they are now: taken (rows that are in the
        table now, at their old offsets), rejected (that are left).
        """
        handle, spec = self._archivist(topic), self.spec(topic)
        writer, files, _ = gateway.call(handle, "begin_upkeep", timeout_s=timeout_s)
        bad = sorted((one for one in files if one.rejected), key=lambda one: one.path)
        jobs = [(spec.to_json(), bad, writer)] if bad else []
        made = [one for part in self._each(spec, redecode, jobs, timeout_s) for one in part]
        name = hashlib.sha256("".join(one.path for one in bad).encode()).hexdigest()[:32]
        gateway.call(handle, "replace_files", writer, bad, made, name, timeout_s=timeout_s)
        left = sum(one.rows for one in made if one.rejected)
        return {"taken": sum(one.rows for one in made) - left, "rejected": left}

    def verify(self, topic: str, timeout_s: float = UPKEEP_S) -> Rows:
        """Compare table and log where both have rows: for each queue rows, sums of offsets, bytes
        and CRCs of bodies on both sides, ``equal``.
        """
        spec, beside = self.spec(topic), _first_broker(gateway.controller(self._cluster))
        job = (self._cluster, spec.to_json())
        place = beside if spec.stays else None
        return gateway.run_on(place, compare, job, near=beside, timeout_s=timeout_s)

    def start_all(self) -> None:
        """Start the archivists of all tables that are known: what ``rmq_ray.start`` does."""
        specs = self._registry.all()
        if specs:
            controller = gateway.controller(self._cluster)
            beside = _first_broker(controller)
            for spec in specs.values():
                self._made(spec, controller, beside)

    # --- archivists -------------------------------------------------------------------------------

    def _archivist(self, topic: str) -> Any:
        """Its handle; started again where it is gone."""
        handle = gateway.find(names.archivist(self._cluster, topic))
        return self._start(self.spec(topic)) if handle is None else handle

    def _start(self, spec: TableSpec) -> Any:
        """Return when it has opened the table."""
        controller = gateway.controller(self._cluster)
        handle = self._made(spec, controller, _first_broker(controller))
        gateway.call(handle, "open", timeout_s=START_S)
        return handle

    def _made(self, spec: TableSpec, controller: Any, beside: str | None) -> Any:
        name = names.archivist(self._cluster, spec.topic)
        handle = gateway.create(
            ArchivistShell,
            name,
            (self._cluster, spec.to_json()),
            resource=beside if spec.stays else None,
            near=beside,
        )
        gateway.call(controller, "adopt", name)
        return handle

    def _each(
        self,
        spec: TableSpec,
        function: Callable[..., T],
        jobs: Sequence[tuple[Any, ...]],
        timeout_s: float,
    ) -> Sequence[T]:
        """Run upkeep's tasks where the table's files are."""
        place = _first_broker(gateway.controller(self._cluster)) if spec.stays else None
        return gateway.run_each(function, jobs, resource=place, timeout_s=timeout_s)

    def _let_go(self, actor: str) -> None:
        """Retention waits for the table no more; without an answer for an hour yet."""
        handle = gateway.find(actor)
        if handle is not None:
            with suppress(RmqError):
                gateway.call(handle, "let_go", timeout_s=STATUS_S)

    def _change(self, spec: TableSpec) -> None:
        self._registry.keep(spec)
        gateway.call(self._archivist(spec.topic), "change", spec.to_json(), timeout_s=FLUSH_S)


def _first_broker(controller: Any) -> str | None:
    """What of Ray's the first broker's node offers; None = it may be anywhere."""
    plan = gateway.call(controller, "plan")
    found: str | None = plan.resources.get(plan.brokers[0].broker_name)
    return found


def _catalog(given: str | Mapping[str, str] | None) -> dict[str, str]:
    if not given:
        return {}
    require_pyiceberg()
    from rmq_ray.table.iceberg import catalog_of_text

    return catalog_of_text(given) if isinstance(given, str) else dict(given)


def _columns(given: str | Mapping[str, str] | None) -> dict[str, str]:
    if given is None:
        return {}
    return parse_columns(given) if isinstance(given, str) else check_columns(given)


def _public(spec: TableSpec) -> bytes:
    """What the table's folder says of its making, without what a catalog's properties may hide."""
    said = json.loads(spec.to_json())
    said |= {"location": bare(spec.location), "catalog": spec.catalog.get("name", "")}
    said["created_ms"] = SYSTEM_CLOCK.now_ms()
    return json.dumps(said, indent=1).encode()
