"""``doctor``: what on this machine keeps the queue from running, or from running well, and what is
wrong with the cluster that runs, each with its remedy.

Reads only. ``fail`` = does not work so (exit code 1), ``warn`` = works worse or
only without an extra, ``ok``.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from rmq_ray.cli.base import output, ray_head
from rmq_ray.cli.base.context import Options, first_line, pass_options, told
from rmq_ray.config import GIB, HOUR_MS, StoreConfig, environment
from rmq_ray.errors import RmqError, SparkError
from rmq_ray.files import FileSystem
from rmq_ray.remoting.wire.overview import GROUP, LAG, named
from rmq_ray.store.reading.retention import Room, room_on

OK, WARN, FAIL = "ok", "warn", "fail"
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
NEEDED = ("ray", "numpy", "pyarrow", "msgpack")
SPARK = ("pyspark", "raydp")
FREE_BYTES_MIN = 2 * GIB  # a segment and the one that is prepared behind it
OPEN_FILES_MIN = 4_096
DISK_WARN_PERCENT = 85
Check = tuple[str, str, str, str]
"""(what, ok | warn | fail, what was found, remedy)."""


@click.command()
@click.option(
    "--store",
    "store_path",
    default="rmq-data",
    show_default=True,
    type=click.Path(),
    help="Directory of the stores, for its disk.",
)
@click.option("--machine", is_flag=True, help="This machine only, also where a cluster runs.")
@pass_options
@told
def doctor(options: Options, store_path: str, machine: bool) -> None:
    """Check this machine: Python, packages, Ray, niceness, Java, disk, limits; and, where --cluster
    runs, its copies, disks, groups and dead letters. Exit code 1 if something cannot work.
    """
    with suppress(RmqError):  # `_ray` says it
        options.meant_ray()
    checks = [
        _python(),
        *_packages(),
        *_ray(options.address),
        _token(),
        _java(),
        _disk(Path(store_path)),
        _open_files(),
        *([] if machine else _cluster(options)),
    ]
    rows = [
        {"check": what, "state": state, "found": found, "remedy": remedy}
        for what, state, found, remedy in checks
    ]
    output.rows(rows, ["check", "state", "found", "remedy"], options.style)
    if any(state == FAIL for _, state, _, _ in checks):
        raise click.exceptions.Exit(1)


def _cluster(options: Options) -> list[Check]:
    """Of the message cluster; nothing where none runs in the Ray that is meant."""
    try:
        if ray_head.find(options.address) is None:
            return []
        options.connect_ray()
        from rmq_ray.actors import gateway

        running = gateway.clusters()
        if options.cluster not in running:
            said = f"no cluster {options.cluster!r}; here run: {', '.join(running) or 'none'}"
            return [("cluster", OK, said, "`rmq-ray up` starts one; --cluster names another")]
        mq = options.connect()
        status = mq.status()
        found = cluster_findings(status, mq.weak_brokers(status), options.admin.overviews())
    except RmqError as error:
        return [("cluster", FAIL, first_line(error), "`rmq-ray status` says more")]
    return found or [("cluster", OK, f"{options.cluster} serves, nothing found", "")]


def cluster_findings(
    status: Mapping[str, Any], weak: Mapping[str, str], overviews: Mapping[str, Mapping[str, Any]]
) -> list[Check]:
    """What is wrong with a cluster, or will be. ``overviews``: broker -> what its master tells."""
    found: list[Check] = []
    copies = Counter(row["broker"] for row in status["replicas"])
    for row in status["replicas"]:
        name = f"{row['broker']}/{row['replica']}" if copies[row["broker"]] > 1 else row["broker"]
        if row["state"] != "serving":
            remedy = f"rmq-ray broker start {row['broker']}; `rmq-ray status` says why"
            found.append((f"broker {name}", FAIL, str(row["state"]), remedy))
    found += [
        (f"copies of {name}", FAIL, said, "rmq-ray broker list: start what is away")
        for name, said in weak.items()
    ]
    alone = sorted(name for name, count in copies.items() if count == 1)
    if alone:
        remedy = "give it slaves (replicas) where messages must outlive a disk"
        found.append(("copies", WARN, f"one copy only: {', '.join(alone)}", remedy))
    for name, overview in sorted(overviews.items()):
        found += _of_broker(name, overview.get("status") or {})
    found += _of_groups(overviews)
    return found


def _of_broker(name: str, status: Mapping[str, Any]) -> Iterator[Check]:
    store = status.get("store") or {}
    watermark = status.get("disk_watermark", 0)
    if store.get("disk_full"):
        yield f"disk of {name}", FAIL, "full: sends are refused", "free space; rmq-ray broker clean"
    elif watermark >= DISK_WARN_PERCENT:
        used = f"{store.get('disk_used_ratio') or 0:.0%} used"
        remedy = "free space, or `rmq-ray broker set` a shorter fileReservedTime"
        yield f"disk of {name}", WARN, used, remedy
    if status.get("draining"):
        yield (
            f"broker {name}",
            WARN,
            "drained: it takes no messages",
            f"rmq-ray broker undrain {name}",
        )
    for row in status.get("falling_behind", ()):
        said = (
            f"{row['messages']} messages of {row['topic']}, the oldest "
            f"{row['oldest_age_ms'] / HOUR_MS:.0f} of {row['kept_ms'] / HOUR_MS:.0f} hours old"
        )
        remedy = "add consumers, or keep messages longer, before retention takes them"
        yield f"group {row['group']}", WARN, said, remedy
    if status.get("expired_messages"):
        said = f"{status['expired_messages']} messages went before groups had them"
        yield f"retention of {name}", WARN, said, "rmq-ray status: expired names the groups"
    if status.get("dead_letters"):
        said = f"{status['dead_letters']} dead letters since {name} began"
        yield f"dead letters of {name}", WARN, said, "rmq-ray dlq list, then show and resend"


def _of_groups(overviews: Mapping[str, Mapping[str, Any]]) -> Iterator[Check]:
    """Groups with a backlog and without consumers."""
    members: Counter[str] = Counter()
    lags: Counter[str] = Counter()
    for overview in overviews.values():
        for row in named(GROUP, overview.get("groups") or ()):
            members[row["group"]] += row["members"] or 0
        for row in named(LAG, overview.get("lags") or ()):
            lags[row["group"]] += row["lag"]
    for group, lag in lags.most_common():
        if lag and not members[group]:
            remedy = f"start its consumers, or rmq-ray group delete {group}"
            yield f"group {group}", WARN, f"{lag} messages and no consumer", remedy


def _python() -> Check:
    fits = sys.version_info[:2] in PYTHONS and platform.system() == "Linux"
    return (
        "python",
        OK if fits else FAIL,
        f"{platform.python_version()} on {platform.system()}",
        "" if fits else "use Python 3.11 to 3.13 on Linux",
    )


def _packages() -> list[Check]:
    found: list[Check] = []
    for names, state, remedy in (
        (NEEDED, FAIL, "pip install 'rmq_ray[ray]'"),
        (SPARK, WARN, "only for Spark: pip install 'rmq_ray[spark]'"),
    ):
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        said = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
        found.append(
            (
                "packages" if state == FAIL else "spark",
                state if missing else OK,
                said,
                remedy if missing else "",
            )
        )
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _ray(address: str) -> list[Check]:
    heads = ray_head.running()
    try:
        meant = ray_head.find(address)
    except RmqError as error:
        return [("ray", FAIL, first_line(error), "")]
    if meant is None:
        return [("ray", OK, "none runs", "`rmq-ray up` starts one")]
    others = [head.address for head in heads if head.address != meant]
    said = f"at {meant}" + (f", others: {', '.join(others)}" if others else "")
    nice = {head.address: ray_head.worker_niceness(head) for head in heads}.get(meant)
    if nice == 0:
        return [("ray", OK, said, ""), ("niceness", OK, "0", "")]
    remedy = (
        "start Ray with RAY_worker_niceness=0 in its environment, as `rmq-ray up` does: brokers "
        "restart three times as quick"
    )
    return [
        ("ray", OK, said, ""),
        (
            "niceness",
            WARN,
            "unknown: it runs on another machine" if nice is None else str(nice),
            remedy,
        ),
    ]


def _token() -> Check:
    mode = environment("RAY_AUTH_MODE") or "Ray's default"
    path = Path(environment("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    there = path.is_file() or bool(environment("RAY_AUTH_TOKEN"))
    remedy = (
        ""
        if there
        else (
            f"made by the first ray.init() or `ray start` here; other machines need a copy of "
            f"{path}"
        )
    )
    return (
        "token",
        OK if there or mode != "token" else FAIL,
        f"mode {mode}, token {'there' if there else 'not there'}",
        remedy,
    )


def _java() -> Check:
    from rmq_ray.spark import java  # imports Ray

    try:
        path = java.ensure_java()
    except SparkError as error:
        return "java", WARN, "none", f"only for Spark: {first_line(error)}"
    return "java", OK, f"{java.java_version(path)} at {path}", ""


def _disk(store: Path) -> Check:
    """Of the nearest directory that is there."""
    store = store.expanduser().absolute()
    there = next(path for path in (store, *store.parents) if path.is_dir())
    disk, limits = FileSystem().disk_space(str(there)), StoreConfig("unused")
    said = f"{disk.free_bytes / GIB:.1f} GiB free at {there}, {disk.used_ratio:.0%} used"
    if not os.access(there, os.W_OK):
        return (
            "disk",
            FAIL,
            f"{there} cannot be written",
            "choose another --store, or give this user write permission",
        )
    full = (
        f"sends are refused over {limits.disk_full_ratio:.0%} with less than "
        f"{limits.disk_free_bytes_min / GIB:.0f} GiB free: free space"
    )
    room = room_on(disk, limits)
    if room is Room.FULL or disk.free_bytes < FREE_BYTES_MIN:
        return "disk", FAIL, said, full
    if room is Room.SHORT:
        return "disk", WARN, said, f"{full} before the oldest segments go early"
    return "disk", OK, said, ""


def _open_files() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < OPEN_FILES_MIN
    return (
        "open files",
        WARN if few else OK,
        f"{soft} at most",
        f"ulimit -n {OPEN_FILES_MIN} before Ray is started, for many queues and clients"
        if few
        else "",
    )
