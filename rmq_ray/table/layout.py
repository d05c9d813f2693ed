"""Which files at a location are a table's own, and when two URIs name one place.

    day=2026-11-25/<name>, _rejected/day=.../<name>       rows; <name>: ``rules.parse_file_name``
    data/day=.../<name>, rejected/data/day=.../<name>     rows, where a catalog is given
    metadata/<n>-<uuid>.metadata.json, snap-...avro, ...  Iceberg's, by pyiceberg or Java
    _rmq/offsets.json, table.json, commits/, generations/ of the table as a whole
    _rmq/staging/day=2026-11-25+<name>, ...               not complete yet

Decides that: a file with any other name is somebody else's. It is never deleted, and no table is
made in a folder that has one. Does not decide which of its own files a table still needs. Invariant
of places: engines spell one place in several ways (Spark writes ``file:/data`` where pyiceberg has
``file:///data``, ``s3a://`` for ``s3://``), so that URIs are never compared as texts.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from rmq_ray.errors import TableError
from rmq_ray.table.rules import parse_file_name
from rmq_ray.table.storage import STAGING, Storage, bare

COMMITS, GENERATIONS, OFFSETS = "_rmq/commits", "_rmq/generations", "_rmq/offsets.json"
ABOUT = "_rmq/table.json"
_COMMIT = re.compile(rf"{COMMITS}/\d{{6,}}-[^/]*-\d{{12,}}\.json")
_GENERATION = re.compile(rf"{GENERATIONS}/\d{{6,}}-[^/]*")
_DAY = re.compile(r"(.*)day=-?\d{4,}-\d\d-\d\d")
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_METADATA = re.compile(
    rf"\d+-{_UUID}(?:\.gz)?\.metadata\.json|(?:{_UUID}-m\d+|optimized-m-{_UUID})\.avro"
    rf"|snap-\d+-\d+-{_UUID}\.avro|\d+-{_UUID}\.stats"
)
_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/]*))?(.*)")
_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_ONE_ROOT = ("file", "hdfs", "viewfs")
"""Schemes of which a table sees one file system, whatever host a URI names."""


def is_rows(path: str, folders: Sequence[str]) -> bool:
    """Whether a path below a location is a file of rows of ours; ``folders``: in front of ``day=``.

    >>> name = "broker-a-0003-00000000000000000070-e2-g000004-ab12.parquet"
    >>> is_rows(f"data/day=2026-11-25/{name}", ["data/"]), is_rows(f"data/{name}", ["data/"])
    (True, False)
    >>> is_rows("day=2026-11-25/a.parquet", [""]), is_rows(f"other/day=2026-11-25/{name}", [""])
    (False, False)
    """
    folder, _, name = path.rpartition("/")
    day = _DAY.fullmatch(folder)
    return day is not None and day[1] in folders and parse_file_name(name) is not None


def is_staged(path: str) -> bool:
    """Whether it is a file of ours that is not complete.

    >>> is_staged("_rmq/staging/_rmq+offsets.json"), is_staged("_rmq/staging/notes.txt")
    (True, False)
    """
    folder, _, name = path.rpartition("/")
    ours = name.startswith("_rmq+") or parse_file_name(name) is not None
    return folder == STAGING and ours


def is_kept(path: str) -> bool:
    """Whether it is one of those that we keep in the folder _rmq.

    >>> is_kept("_rmq/table.json"), is_kept("_rmq/commits/000001-ab12-000000000007.json")
    (True, True)
    >>> is_kept("_rmq/commits/notes.txt"), is_kept("orders.json")
    (False, False)
    """
    named = path in (OFFSETS, ABOUT) or is_staged(path)
    return named or any(form.fullmatch(path) for form in (_COMMIT, _GENERATION))


def is_metadata(path: str, folders: Sequence[str]) -> bool:
    """Whether it is a file of an Iceberg table's ``metadata/``, by the name that Iceberg gives.

    >>> uuid = "0b7e2f4a-1c7e-4d57-9a38-7f5f3b0f9c11"
    >>> is_metadata(f"metadata/00001-{uuid}.metadata.json", ["metadata/"])
    True
    >>> is_metadata("metadata/notes.txt", ["metadata/"])
    False
    """
    return any(
        path.startswith(folder) and _METADATA.fullmatch(path[len(folder) :]) for folder in folders
    )


def without_checksum(path: str) -> str:
    """The file that Hadoop's ``.<name>.crc`` beside it belongs to; any other is itself.

    >>> without_checksum("data/.a.parquet.crc"), without_checksum("data/a.parquet")
    ('data/a.parquet', 'data/a.parquet')
    """
    folder, slash, name = path.rpartition("/")
    if name.startswith(".") and name.endswith(".crc"):
        name = name[1:-4]
    return f"{folder}{slash}{name}"


def check_unused(storage: Storage, owns: Callable[[str], bool]) -> None:
    """``TableError`` where the location has a file that is not one of ours."""
    for path in storage.walk():
        if not owns(path):
            place = bare(storage.uri)
            raise TableError(
                f"location {place} has files that are not this table's, like {path}: give the "
                "table a folder of its own that is empty or not there yet. Nothing was written",
                place,
            )


def delete_own(storage: Storage, owns: Callable[[str], bool]) -> int:
    """Delete every file of ours, at last the one by which what is left is known as ours; how many
    others stay.
    """
    left = 0
    for one in sorted(storage.list(""), key=lambda one: one.path == ABOUT):
        if owns(one.path):
            storage.delete(one.path)
        else:
            left += 1
    return left


def place(uri: str) -> str:
    """Where something lies, the same text for each way of writing it.

    >>> {place(uri) for uri in ("/d/t", "file:/d/t", "file:///d//t/", "file://localhost/d/t")}
    {'file:///d/t'}
    >>> {place(uri) for uri in ("s3://lake/t", "s3a://lake/t/", "s3n://key:secret@lake/t")}
    {'s3://lake/t'}
    """
    found = _URI.fullmatch(uri)
    scheme, host, path = ("file", "", uri) if found is None else found.groups(default="")
    scheme = _SAME_SCHEMES.get(scheme.lower(), scheme.lower())
    host = "" if scheme in _ONE_ROOT else host.rpartition("@")[2]
    return f"{scheme}://{host}{posixpath.normpath('/' + path.strip('/'))}"


def path_below(base: str, uri: str) -> str:
    """The path of a file below a place; the URI itself where it lies elsewhere.

    >>> path_below("file:///d/t", "file:/d/t/data/a"), path_below("s3://lake/t", "s3a://sea/t/a")
    ('data/a', 's3a://sea/t/a')
    """
    root, found = place(base), place(uri)
    inside = found.startswith(f"{root.rstrip('/')}/")
    return found[len(root.rstrip("/")) + 1 :] if inside else uri
