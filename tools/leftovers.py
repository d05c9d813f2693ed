"""A run of the tests writes below one directory of its own and leaves nothing behind.

    /tmp/mqt-<user id>/<checkout>/    TMPDIR and RAY_TMPDIR of the run
        ray/                          Ray's sessions
        auth_token                    the token of Ray's clusters, instead of ~/.ray/auth_token
        pytest-<lane>/                pytest's --basetemp
    build/kept/                       what stays of a red run: logs and small files
    build/run.lock                    held by the run: one at a time in a checkout

The directory is short, since the paths of Unix sockets end at 107 bytes and Ray's lie 68 below it.
It is emptied before a run and removed after it. Processes that outlive a run are known by ``RUN``
in the environment that they were started with; no other process is ever signalled. Caches of
Maven, Ivy and Go stay where they are: they hold what was downloaded, for later runs, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GIB = 1 << 30
ROOM_GIB = 15
"""Twice what a run was seen to fill, 7 GiB: brokers refuse sends where less than 4 are left."""
KEPT_BYTES_MAX = 500_000_000
SMALL_BYTES = 64 << 10
"""Whatever is not longer is kept, whatever it is."""
LOG_ENDINGS = (".log", ".err", ".out", ".txt", ".jsonl")
RUN = "RMQ_RAY_SUITE"
"""The variable that every process of a run inherits; its value names the run."""
TOKEN = "auth_token"
TEST = "PYTEST_CURRENT_TEST"
"""What pytest calls the test that runs, in the environment of what that starts."""
COMMAND_CHARS = 80
PROC = Path("/proc")
GRACE_S, TERM_S, KILL_S = 10.0, 5.0, 5.0
"""Ray's last processes end some seconds after the one that they served."""


class NoRoom(SystemExit):
    """The disk has too little room for the tests; ends the program with exit code 1."""


class RunsAlready(SystemExit):
    """Another run in this checkout goes on; ends the program with exit code 1."""


@dataclass(slots=True)
class OwnDirectory:
    """``run``: the value of ``RUN``. ``green``: set by whoever knows that nothing failed."""

    directory: Path
    run: str
    green: bool = False


@contextmanager
def own_directory(
    root: Path = ROOT, gib: float = ROOM_GIB, kept: str = "kept"
) -> Iterator[OwnDirectory]:
    """The run goes on inside of the block: what is started there inherits its directories. Also a
    program that is terminated leaves the block in order. ``kept``: the name, below ``build``, of
    what stays when the run is red.
    """
    build = root / "build"
    build.mkdir(parents=True, exist_ok=True)
    with (build / "run.lock").open("w") as lock:
        claim(lock.fileno(), root)
        place = OwnDirectory(directory_of(root), uuid.uuid4().hex)
        clean(place.directory)
        clean(build / kept)
        require_room(gib, place.directory)
        make(place.directory)
        before, terminate = dict(os.environ), signal.getsignal(signal.SIGTERM)
        os.environ.update(environment(place, before))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            yield place
        finally:
            signal.signal(signal.SIGTERM, terminate)
            os.environ.clear()
            os.environ.update(before)
            leave(place, build / kept)


def claim(lock: int, root: Path) -> None:
    """Take the lock of a checkout; ``RunsAlready`` where another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunsAlready(f"tests run in {root} already: wait for them or end them") from None


def directory_of(root: Path, temporary: Path = Path("/tmp")) -> Path:
    """Where runs of a checkout write; short whatever TMPDIR is."""
    checkout = hashlib.sha256(str(root).encode()).hexdigest()[:6]
    return temporary / f"mqt-{os.getuid()}" / checkout


def make(directory: Path) -> None:
    """The directory, with a token for Ray in it. ``RuntimeError`` where somebody else could write
    there.
    """
    above = directory.parent
    above.mkdir(mode=0o700, exist_ok=True)
    found = above.lstat()  # not what a link leads to
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise RuntimeError(f"{above} belongs to another user, or others may write there: remove it")
    directory.mkdir(mode=0o700)
    # Ray would write one into the user's home, unless it finds one here
    (directory / TOKEN).write_text(uuid.uuid4().hex)


def environment(place: OwnDirectory, given: Mapping[str, str]) -> dict[str, str]:
    """What the processes of a run find besides what is ``given``. Java knows no TMPDIR."""
    directory = str(place.directory)
    # Java programs of tests are short: what the second compiler does is never earned back
    java = f"-Djava.io.tmpdir={directory} -XX:-UsePerfData -XX:TieredStopAtLevel=1"
    return {
        RUN: place.run,
        # thousands of short processes: without cached byte code each compiles the package anew
        "PYTHONDONTWRITEBYTECODE": "",
        # of some hundred workers a session Ray's agent and log monitor look often at each
        "REPORTER_UPDATE_INTERVAL_MS": "60000",
        "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "1",
        # the titles that Ray gives its workers would overwrite their environment, RUN with it
        "SPT_NOENV": "1",
        "TMPDIR": directory,
        "RAY_TMPDIR": directory,
        "RAY_AUTH_TOKEN_PATH": f"{directory}/{TOKEN}",
        "SPARK_LOCAL_DIRS": directory,
        "JAVA_TOOL_OPTIONS": f"{given.get('JAVA_TOOL_OPTIONS', '')} {java}".strip(),
    }


def basetemp(name: str) -> list[str]:
    """Arguments of a pytest of the run, so that it writes below the run's directory; none where
    there is no run.
    """
    return ["--basetemp", f"{os.environ['TMPDIR']}/pytest-{name}"] if RUN in os.environ else []


def require_room(gib: float, directory: Path) -> None:
    """``NoRoom`` where the disk of a directory, which need not be there yet, has less."""
    there = next(path for path in (directory, *directory.parents) if path.is_dir())
    free = shutil.disk_usage(there).free / GIB
    if free < gib:
        raise NoRoom(f"the tests need {gib:g} GiB of disk at {there}; {free:.1f} GiB are free")


def clean(directory: Path) -> None:
    """Remove a directory that runs of this project's tests made; nothing where it is not there.
    ``OSError`` where something of it stays.
    """
    if directory.is_symlink() or not directory.is_dir():
        return
    for _ in _walk(directory):
        pass  # for the rights that it gives back
    shutil.rmtree(directory)


def leave(place: OwnDirectory, kept: Path, grace_s: float = GRACE_S) -> None:
    """End what outlived the run, keep the logs of a red one in ``kept``, remove all else."""
    leaked = end_processes(place.run, grace_s)
    if leaked:
        print(f"LEAK {len(leaked)} processes outlived the run and were ended: {'; '.join(leaked)}")
    (place.directory / TOKEN).unlink(missing_ok=True)
    if not place.green and keep_logs_only(place.directory):
        shutil.move(place.directory, kept)
        print(f"logs of this run: {kept}")
    clean(place.directory)
    with suppress(OSError):
        place.directory.parent.rmdir()  # unless another checkout's tests run


def keep_logs_only(directory: Path, bytes_max: int = KEPT_BYTES_MAX) -> int:
    """Remove everything below a directory but logs and small files, of those the newest that have
    ``bytes_max`` together. Returns the bytes that stay.
    """
    files = {}
    for folder, folders, names in _walk(directory):
        for path in (Path(folder, name) for name in (*folders, *names)):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and _is_worth_it(path, found.st_size):
                files[path] = found
            elif not stat.S_ISDIR(found.st_mode):
                path.unlink()  # segments, sockets, links
    kept = 0
    for path, found in sorted(files.items(), key=lambda file: file[1].st_mtime, reverse=True):
        if kept + found.st_size <= bytes_max:
            kept += found.st_size
        else:
            path.unlink()
    for folder, _, _ in os.walk(directory, topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)
    return kept


def _is_worth_it(path: Path, size: int) -> bool:
    return size <= SMALL_BYTES or path.name.endswith(LOG_ENDINGS)


def _walk(directory: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """``os.walk`` of a directory on which nothing is mounted any more and whose folders may be
    read: a test that was killed may have left it otherwise.
    """
    for mount in mounts_below(directory, (PROC / "mounts").read_text("utf-8")):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
    for folder, folders, names in os.walk(directory):
        for path in (Path(folder, name) for name in folders):
            if not path.is_symlink():
                path.chmod(0o700)
        yield folder, folders, names


def mounts_below(directory: Path, mounts: str) -> list[str]:
    """Where something is mounted below a directory, the innermost first. ``mounts``: the text of
    /proc/mounts, in which a blank is ``\\040``.
    """
    places = [
        re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[1])
        for line in mounts.splitlines()
    ]
    below = [place for place in places if directory in Path(place).parents]
    return sorted(below, key=len, reverse=True)


def end_processes(
    run: str, grace_s: float = GRACE_S, term_s: float = TERM_S, kill_s: float = KILL_S
) -> list[str]:
    """End what is still there of a run after ``grace_s``: by SIGTERM, and what is there after
    ``term_s`` more, by SIGKILL. Returns the number, the command and the test of each that was
    ended.
    """
    _await_end(run, grace_s)
    ended: dict[int, str] = {}
    for number, patience_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        with _processes(run) as handles:
            for pid, handle in handles.items():
                ended.setdefault(pid, f"{pid} {_told(pid)}")
                with suppress(ProcessLookupError):  # it ended by itself
                    signal.pidfd_send_signal(handle, number)
        _await_end(run, patience_s)
    return list(ended.values())


def _await_end(run: str, seconds: float) -> None:
    """Until the processes that a run has now have ended, at most so long."""
    end = time.monotonic() + seconds
    with _processes(run) as handles:
        for handle in handles.values():
            select.select([handle], [], [], max(0.0, end - time.monotonic()))


@contextmanager
def _processes(run: str) -> Iterator[dict[int, int]]:
    """The processes of a run with a handle each, which never means another process that has got
    the same number meanwhile.
    """
    found: dict[int, int] = {}
    try:
        for process in PROC.glob("[0-9]*"):
            handle = _handle_if(process, f"{RUN}={run}".encode())
            if handle is not None:
                found[int(process.name)] = handle
        yield found
    finally:
        for handle in found.values():
            os.close(handle)


def _handle_if(process: Path, has: bytes) -> int | None:
    """A handle of a process in whose environment ``has`` was read; None of every other one, also
    where it cannot be read: of another user, of the kernel, of what has just ended.
    """
    try:
        handle = os.pidfd_open(int(process.name))
    except OSError:
        return None
    is_it = False
    with suppress(OSError):
        is_it = has in (process / "environ").read_bytes().split(b"\0")
    if is_it:
        return handle
    os.close(handle)
    return None


def _told(pid: int) -> str:
    """Its command, and the test that started it, where one did."""
    try:
        words, settings = (
            (PROC / str(pid) / file).read_bytes().decode("utf-8", "replace").split("\0")
            for file in ("cmdline", "environ")
        )
    except OSError:
        return "?"
    command = " ".join(words).strip()[:COMMAND_CHARS]
    tests = [word.removeprefix(f"{TEST}=") for word in settings if word.startswith(f"{TEST}=")]
    return f"{command} of {tests[0]}" if tests else command
