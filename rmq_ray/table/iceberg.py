"""A table in an Iceberg catalog: the same Parquet files, and Iceberg's commits.

    one snapshot a commit; its summary says  rmq.offsets, rmq.epochs, rmq.gaps, rmq.commits
    rejected rows: a table of their own, <topic>__rejected, with offsets of its own

Format version 2, partitioned by day(store_ts), hidden from queries. A commit says what it expects
(the snapshot that was read): the catalog refuses it where another one came first. pyiceberg's own
repetition of a refused commit is off, since it would add our rows behind another committer's, and
so is its deletion of what the refused snapshot names: that may have been committed all the same.
Snapshots of others (a compaction, a deletion) say nothing of ours: the summary of the newest
ancestor that does counts, and where all of these were expired the table's properties.

Decides that. Rejected rows are committed first; what a crash in between leaves is seen by the
rejected table's own offsets. The only module that imports pyiceberg. Invariants: a file that may be
part of a commit whose outcome is not known is not deleted for a day; one that a snapshot names, or
that others wrote, is not swept, however its place is spelt (``layout``).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rmq_ray.errors import (
    CommitRefused,
    CommitterReplaced,
    ConfigError,
    RmqError,
    TableError,
    TableStorageError,
)
from rmq_ray.model.arrow import COLUMNS
from rmq_ray.table.data_files import rejected_schema
from rmq_ray.table.layout import (
    ABOUT,
    check_unused,
    delete_own,
    is_kept,
    is_metadata,
    is_rows,
    is_staged,
    path_below,
    place,
    without_checksum,
)
from rmq_ray.table.rules import (
    WIDENED,
    Change,
    DataFile,
    TableSpec,
    TableState,
    parse_file_name,
)
from rmq_ray.table.storage import STAGING, Storage, bare

ORPHAN_MS = 86_400_000
ANCESTORS_MAX = 10_000
NO_RETRY = {"commit.retry.num-retries": "0"}
PROPERTIES = {"format-version": "2", "write.metadata.delete-after-commit.enabled": "true"}
NAME_MAPPING = "schema.name-mapping.default"
REJECTED = "__rejected"
FOLDERS = ("data/", "rejected/data/")
METADATA = ("metadata/", "rejected/metadata/")


class IcebergTable:
    """Created with its namespace where it is not there. ``catalog``: a pyiceberg catalog, else the
    one that the spec's properties name.
    """

    folder, rejected_folder = FOLDERS

    def __init__(self, spec: TableSpec, schema: Any, writer: str = "", catalog: Any = None) -> None:
        self._spec, self.writer_name = spec, writer
        self.storage = Storage(spec.location)
        self._base = with_scheme(spec.location)
        with told(spec):
            self._catalog = catalog or load_catalog(spec.catalog)
            self._schema = schema
            self._table = self._open(spec.topic, "", schema) if writer else self._found("")
            self._bad = self._found(REJECTED)

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> TableState:
        """What is committed now."""
        with told(self._spec):
            self._table.refresh()
            self._bad = self._found(REJECTED)
            return self._with_rejected(self._state_of(self._table))

    def _with_rejected(self, state: TableState) -> TableState:
        if self._bad is None:
            return state
        own = self._state_of(self._bad)
        return replace(
            state,
            rejected_rows=own.rows,
            rejected_offsets=own.offsets,
            rejected_commits=own.commits,
        )

    def files(self) -> tuple[DataFile, ...]:
        """As they are now. Those of others (a compaction of theirs) have no queue: ``queue_id``
        -1.
        """
        with told(self._spec):
            self._table.refresh()
            return (
                *self._files_of(self._table, False),
                *(() if self._bad is None else self._files_of(self._bad, True)),
            )

    def _state_of(self, table: Any) -> TableState:
        topic, current = self._spec.topic, table.current_snapshot()
        version = "" if current is None else str(current.snapshot_id)
        found: Mapping[str, str] = table.properties
        at = current
        for _ in range(ANCESTORS_MAX):
            if at is None:
                break
            if "rmq.offsets" in at.summary.additional_properties:
                found = at.summary.additional_properties
                break
            at = (
                None
                if at.parent_snapshot_id is None
                else table.snapshot_by_id(at.parent_snapshot_id)
            )
        state = TableState.of_summary(topic, version, found if current is not None else {})
        return replace(state, rows=_rows(table))

    def _files_of(self, table: Any, rejected: bool) -> Iterator[DataFile]:
        field = table.schema().find_field("queue_offset").field_id
        for task in table.scan().plan_files():
            if task.delete_files:
                raise TableError(
                    f"the table of {self._spec.topic!r} has delete files of another engine: let "
                    "that one rewrite its data files first",
                    self._spec.topic,
                )
            one = task.file
            path = path_below(self._base, str(one.file_path))
            name = parse_file_name(path.rpartition("/")[2])
            days = one.partition[0]
            day = "" if days is None else str(datetime.fromtimestamp(days * 86_400, UTC).date())
            broker, queue_id, first, _ = name or ("", -1, 0, 0)
            bound = (one.upper_bounds or {}).get(field)
            behind = struct.unpack("<q", bound)[0] + 1 if bound else first
            rows, size = int(one.record_count), int(one.file_size_in_bytes)
            yield DataFile(path, day, broker, queue_id, first, behind, rows, size, rejected)

    # --- committing -------------------------------------------------------------------------------

    def take_over(self) -> TableState:
        """The state that is built on from now on. Fencing is the catalog's: each commit names the
        snapshot that it expects. Columns that were asked for and did not reach it are added.
        """
        self.alter(self._schema)
        return self.load()

    def commit(self, expected: TableState, change: Change) -> TableState:
        """The state behind it. ``CommitRefused`` where another commit came first; after any
        other error its outcome is not known until ``load``.
        """
        with told(self._spec):
            if not change.replayed:
                self._commit_rejected(expected, change)
            if expected.version != str(self._current_id() or ""):
                self._table.refresh()
            state = self._state_of(self._table)
            if state.offsets != expected.offsets:
                raise CommitRefused("the table moved since it was read", self._spec.topic)
            if not change.replayed or state.replayed != change.replayed:
                state = self._commit(self._table, expected, _part(change, rejected=False))
            if change.replayed:  # behind the table: a death in between is seen by ``replayed``
                self._commit_rejected(expected, change)
            return self._with_rejected(state)

    def _commit_rejected(self, expected: TableState, change: Change) -> None:
        part = _part(change, rejected=True)
        if not part.added and not part.removed:
            return
        if self._bad is None:
            self._bad = self._open(f"{self._spec.topic}{REJECTED}", REJECTED)
        own = self._state_of(self._bad)
        if change.id in own.commits:
            return
        if own.offsets != expected.rejected_offsets:
            raise CommitRefused("the rejected rows moved since they were read", self._spec.topic)
        self._commit(self._bad, own, part)

    def _current_id(self) -> int | None:
        current = self._table.current_snapshot()
        return None if current is None else int(current.snapshot_id)

    def _commit(self, table: Any, expected: TableState, change: Change) -> TableState:
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        table.metadata.properties.update(NO_RETRY)  # of this object alone; see the module
        state = expected.behind(change)
        said = state.summary()
        paths = [f"{self._base}/{one.path}" for one in change.added]
        try:
            with table.transaction() as transaction:
                transaction.set_properties(said)
                metadata = transaction.table_metadata
                new = [parquet_file_to_data_file(table.io, metadata, path) for path in paths]
                update = transaction.update_snapshot(snapshot_properties=said)
                gone = {one.path for one in change.removed}
                with update.overwrite() if gone else update.fast_append() as snapshot:
                    # a refusal is no proof that nothing was committed: who stands between may have
                    # asked again after an answer was lost, and our own commit came first
                    snapshot._clean_all_uncommitted = _leave
                    for task in table.scan().plan_files() if gone else ():
                        path = path_below(self._base, task.file.file_path)
                        if path in gone:
                            snapshot.delete_data_file(task.file)
                            gone.discard(path)
                    for one in new:
                        snapshot.append_data_file(one)
                if gone:
                    raise CommitFailedException(f"{len(gone)} files were replaced meanwhile")
        except (CommitFailedException, ValidationException) as error:
            raise CommitRefused(
                f"another commit to the table of {self._spec.topic!r} came first: {error}",
                self._spec.topic,
            ) from error
        return replace(self._state_of(table))

    # --- the tables -------------------------------------------------------------------------------

    def _identifier(self, suffix: str) -> tuple[str, str]:
        return self._spec.namespace, f"{self._spec.topic}{suffix}"

    def _found(self, suffix: str) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog.load_table(self._identifier(suffix))
        except NoSuchTableError:
            return None

    def _open(self, name: str, suffix: str, schema: Any = None) -> Any:
        """The table, made where it is not there."""
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.schema import assign_fresh_schema_ids
        from pyiceberg.transforms import DayTransform

        found = self._found(suffix)
        if found is not None:
            return found
        there = [] if suffix else list(self.storage.walk())
        lost = any(path.endswith(".metadata.json") for path in there)
        if lost and any(is_rows(path, FOLDERS) for path in there):
            raise TableStorageError(
                f"the catalog does not have the table {name}, and its rows are at "
                f"{bare(self._spec.location)}: register it again in the catalog (the newest file "
                "of its folder metadata), and it goes on by itself; or move these files away, and "
                "it begins anew with what the log still has",
                self._spec.location,
            )
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

        fresh = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema or rejected_schema()))
        by_day = PartitionField(
            fresh.find_field("store_ts").field_id, 1000, DayTransform(), "store_day"
        )
        self._catalog.create_namespace_if_not_exists(self._spec.namespace)
        return self._catalog.create_table_if_not_exists(
            (self._spec.namespace, name),
            fresh,
            location=f"{self._base}/rejected" if suffix else self._base,
            partition_spec=PartitionSpec(by_day),
            properties={
                **PROPERTIES,
                NAME_MAPPING: fresh.name_mapping.model_dump_json(),
            },
        )

    def alter(self, schema: Any) -> None:
        """Add and widen columns, as far as the table's are not there yet."""
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

        wanted = _pyarrow_to_schema_without_ids(schema)
        with told(self._spec):
            self._table.refresh()
            have = {field.name: field.field_type for field in self._table.schema().fields}
            with self._table.update_schema() as update:
                for field in wanted.fields:
                    if field.name not in have:
                        update.add_column(field.name, field.field_type)
                    elif (str(have[field.name]), str(field.field_type)) in WIDENED:
                        update.update_column(field.name, field.field_type)
            mapping = self._table.schema().name_mapping.model_dump_json()
            if self._table.properties.get(NAME_MAPPING) != mapping:
                with self._table.transaction() as transaction:
                    transaction.set_properties({NAME_MAPPING: mapping})

    def prune(self) -> None:
        """Nothing: snapshots are expired when that is asked for."""

    def expire_versions(self, before_ms: int) -> int:
        """Expire the snapshots that are older; how many."""
        before = 0
        with told(self._spec):
            for table in filter(None, (self._table, self._bad)):
                before += len(table.snapshots())
                moment = datetime.fromtimestamp(before_ms / 1000, UTC)
                table.maintenance.expire_snapshots().older_than(moment).commit()
                table.refresh()
                before -= len(table.snapshots())
        return before

    # --- files ------------------------------------------------------------------------------------

    def check_location(self) -> None:
        """``TableError`` where the catalog has a table of others by this name, or no table and the
        location has files.
        """
        if self._table is None:
            check_unused(self.storage, is_kept)
            return
        with told(self._spec):
            self._check_own(self._table, self._base)
            if self._bad is not None:
                self._check_own(self._bad, f"{self._base}/rejected")

    def _check_own(self, table: Any, base: str) -> None:
        name = ".".join(table.name())
        moved = place(table.location()) != place(base)  # by a catalog that chooses itself, maybe
        if moved and self.storage.read_whole(ABOUT) is None:
            raise TableError(
                f"the catalog has the table {name} at {bare(table.location())} already: create it "
                "with that location where it is this topic's, or else in a namespace of its own",
                self._spec.topic,
            )
        columns = {field.name for field in table.schema().fields}
        told_by_us = table.current_snapshot() is None or "rmq.offsets" in table.properties
        if not (told_by_us and columns.issuperset(COLUMNS)):
            raise TableError(
                f"the catalog's table {name} was not made of a topic: give this one a namespace "
                "and a location of its own",
                self._spec.topic,
            )

    def sweep(self, now_ms: int) -> int:
        """Delete files of rows of ours that no snapshot names, and parts of such, that are older
        than a day; how many. Files of others stay, those of their compactions, too.
        """
        with told(self._spec):
            # others may have committed since we did
            self._table.refresh()
            self._bad = self._found(REJECTED)
            named = self._named(self._table) | self._named(self._bad)
        swept = 0
        for folder in (*FOLDERS, STAGING):
            for one in self.storage.list(folder.rstrip("/")):
                ours = is_rows(one.path, FOLDERS) or is_staged(one.path)
                old = now_ms - one.modified_ms > ORPHAN_MS
                if ours and old and one.path not in named:
                    self.storage.delete(one.path)
                    swept += 1
        return swept

    def _named(self, table: Any) -> set[str]:
        """Paths of all files that a snapshot of the table has; none where there is no table."""
        if table is None:
            return set()
        uris = table.inspect.all_files()["file_path"].to_pylist()
        return {path_below(self._base, uri) for uri in uris}

    def drop(self) -> int:
        """Take the tables out of the catalog, delete their files, and those that their snapshots
        name; how many files of others stay. A table that the catalog lacks names none.
        """
        from pyiceberg.exceptions import NoSuchTableError

        named: set[str] = set()
        with told(self._spec):
            for suffix in ("", REJECTED):
                with suppress(FileNotFoundError):  # somebody deleted what says it
                    named |= self._named(self._found(suffix))
            for suffix in ("", REJECTED):
                with suppress(NoSuchTableError):
                    self._catalog.drop_table(self._identifier(suffix))

        def owns(path: str) -> bool:
            path = without_checksum(path)
            known = path in named or is_rows(path, FOLDERS)
            return known or is_metadata(path, METADATA) or is_kept(path)

        return delete_own(self.storage, owns)


def load_catalog(properties: Mapping[str, str]) -> Any:
    """pyiceberg's; ``ConfigError`` where the properties name none."""
    from pyiceberg.catalog import load_catalog as load

    # it warns of each column without statistics, in every file; bodies have none on purpose
    logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
    rest = dict(properties)
    name = rest.pop("name", "default")
    try:
        return load(name, **rest)
    except ValueError as error:
        raise ConfigError(
            f"catalog {name!r} cannot be loaded: {error}; give its properties, like "
            "type=sql,uri=sqlite:////data/catalog.db, or describe it in ~/.pyiceberg.yaml",
            name,
        ) from error


@contextmanager
def told(spec: TableSpec) -> Iterator[None]:
    """What pyiceberg, its catalog and file systems raise, as an error of ours. A table that the
    catalog does not have any more is ``CommitterReplaced``: the next start decides what becomes of
    it (``IcebergTable._open``).
    """
    from pyiceberg.exceptions import NoSuchTableError

    try:
        yield
    except RmqError:
        raise
    except NoSuchTableError as error:
        raise CommitterReplaced(
            f"the catalog does not have the table of {spec.topic!r} any more: where its rows are "
            "there, it waits for the catalog, else it begins anew with what the log still has",
            spec.topic,
        ) from error
    except Exception as error:
        remedy = (
            "files that the catalog names are gone: bring them back, or drop the table in the "
            "catalog, and it begins anew with what the log still has"
            if isinstance(error, FileNotFoundError)
            else "check that it answers and that the Ray node has its credentials. The table goes "
            "on by itself then"
        )
        raise TableStorageError(
            f"the catalog of the table of {spec.topic!r} does not do what it should: "
            f"{type(error).__name__}: {error!s:.300}; {remedy}",
            spec.location,
        ) from error


def with_scheme(location: str) -> str:
    """A location as Iceberg names files: with a scheme, without options or a slash at its end.

    >>> with_scheme("/data/orders/"), with_scheme("s3://bucket/orders?region=x")
    ('file:///data/orders', 's3://bucket/orders')
    """
    plain = location.partition("?")[0].rstrip("/")
    return plain if "://" in plain else f"file://{plain}"


def _leave() -> None:
    """In the place of pyiceberg's deletion of a refused snapshot's manifests."""


def _part(change: Change, *, rejected: bool) -> Change:
    """What of a change belongs to one of both tables."""
    added, removed = (
        tuple(one for one in files if one.rejected == rejected)
        for files in (change.added, change.removed)
    )
    return replace(change, added=added, removed=removed)


def _rows(table: Any) -> int:
    current = None if table is None else table.current_snapshot()
    if current is None:
        return 0
    return int(current.summary.additional_properties.get("total-records", 0))


def catalog_of_text(text: str) -> dict[str, str]:
    """``"type=sql,uri=sqlite:///c.db"`` as properties; one word is the name of a catalog that
    pyiceberg knows. ``ConfigError`` for a part without "=".

    >>> catalog_of_text("lake"), catalog_of_text("name=lake,type=rest")
    ({'name': 'lake'}, {'name': 'lake', 'type': 'rest'})
    """
    if "=" not in text:
        return {"name": text}
    found = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{part!r} of the catalog's properties must be NAME=VALUE", part)
        found[key.strip()] = value.strip()
    return found
