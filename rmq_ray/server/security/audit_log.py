"""The audit log of one server: a line of JSON for each refusal and for each change of how the
cluster is set up.

    {"time": "2026-11-22T10:00:00.000Z", "event": "refused", "party": "broker broker-a",
     "account": "orders-app", "member": false, "address": "10.0.0.7:40112",
     "request": "SEND_MESSAGE_V2", "code": 310, "resources": ["topic:payments"],
     "reason": "account 'orders-app' may not PUB topic 'payments': ..."}

``event``: ``refused`` (somebody may not), ``changed``, ``failed`` (allowed, and did not work). A
change has ``old`` and ``new`` where it has values. A repeat of one refusal within ``fold_ms`` is
counted, not written: ``"repeats": 4211`` and ``"since"`` tell of them afterwards.

Decides: what a line holds, how much may wait, when a file is full, what is folded. Does not decide
what is refused or audited: the request table and the guard do.

Invariants: no call waits for the disk: lines are written by one thread, in batches. Neither bodies
of messages nor secrets get here. Memory and disk are bounded, whatever strangers do: lines beyond
that are counted as lost, and the next line that is written tells how many. A disk that fails stops
nobody from being served.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from rmq_ray.clock import Clock
from rmq_ray.config import AuditConfig
from rmq_ray.errors import RmqError, StoreMissing
from rmq_ray.files import FileSystem
from rmq_ray.remoting.request_table import Row

log = logging.getLogger("rmq_ray.server.security")

WRITE_EVERY_S, REPEATS_EVERY_S = 0.2, 1.0
WAITING_MAX = 10_000
"""Lines that wait for the disk; also what is kept in memory where there is no file."""
FOLDED_MAX = 200
"""Different refusals that are told apart within ``fold_ms``; the rest is folded as one."""
FOLDED_OF_ONE_MAX = 20
"""Of them, those of one account or address: a flood must not push other lines off the disk."""
TEXT_MAX = 500
"""Characters of a name, a reason or a value that came from outside."""
RESOURCES_MAX = 20
SEARCHED_BYTES_MAX = 16 << 20
"""What one question reads, newest first."""
LINES_ASKED_MAX = 10_000
OTHERS, ANYBODY = "others", ""
AUDIT_FILE = "audit.log"
OF_ANYBODY = {"account": "", "member": False, "address": "many"}


class Asking(Protocol):
    """What a line says of who asked: any ``ports.Peer``."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class AuditQuestion:
    """Which lines are wanted: the newest ``lines`` of those that fit. ``since``: as in the lines,
    ``""`` = all; ``who``: a part of the account's name or of the address; ``request``: a part of
    the request's name, or its code.
    """

    lines: int = 100
    since: str = ""
    who: str = ""
    refused: bool = False
    request: str = ""

    def fits(self, line: Mapping[str, Any]) -> bool:
        """Whether a line is wanted."""
        if self.refused and line.get("event") != "refused":
            return False
        if str(line.get("time", "")) < self.since:
            return False
        if self.request and not (
            self.request.upper() in str(line.get("request", ""))
            or self.request == str(line.get("code", ""))
        ):
            return False
        return (
            not self.who
            or self.who in str(line.get("account", ""))
            or self.who in str(line.get("address", ""))
        )


@dataclass(slots=True)
class _Folded:
    """A refusal that was written, and how often it came again."""

    line: dict[str, Any]
    opened_ms: float
    repeats: int = 0


def stamp(now_ms: int) -> str:
    """A time as lines have it: UTC, to the millisecond; sorts as text."""
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now_ms % 1000:03d}Z"


class AuditLog:
    """``path``: the newest file; older ones are ``<path>.1`` and so on. ``None`` = no disk: the
    newest lines are kept in memory. The directory may come later: lines wait for it.

    Any thread may call; only ``flush`` and ``newest`` touch the disk.
    """

    def __init__(
        self,
        path: str | None,
        clock: Clock,
        config: AuditConfig | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._config = config or AuditConfig()
        self._files = files or FileSystem()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: deque[dict[str, Any]] = deque()
        self._kept: deque[dict[str, Any]] = deque(maxlen=WAITING_MAX)
        self._folded: OrderedDict[tuple[str, ...], _Folded] = OrderedDict()
        self._of_one: Counter[str] = Counter()
        self._wake = threading.Event()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False
        self._lost_untold = 0
        self._counts = {"refused": 0, "changed": 0, "failed": 0, "written": 0, "lost": 0}

    # --- what happened ----------------------------------------------------------------------------

    def refused(
        self,
        party: str,
        peer: Asking,
        row: Row | None,
        resources: Sequence[tuple[Any, str]],
        reason: str,
    ) -> None:
        """Somebody asked for what he may not. ``row``: None where it was the connection itself."""
        line = self._line("refused", party, peer, row, resources)
        line["reason"] = reason[:TEXT_MAX]
        with self._lock:
            self._counts["refused"] += 1
            if not self._fold(line, reason):
                self._add(line)

    def changed(
        self,
        party: str,
        peer: Asking,
        row: Row | None,
        resources: Sequence[tuple[Any, str]],
        old: object = None,
        new: object = None,
        outcome: str = "",
    ) -> None:
        """Somebody changed how the cluster is set up; ``outcome``: why it did not work, ``""`` = it
        did.
        """
        event = "failed" if outcome else "changed"
        line = self._line(event, party, peer, row, resources)
        for name, value in (("old", old), ("new", new)):
            if value is not None:
                line[name] = _bounded(value)
        if outcome:
            line["reason"] = outcome[:TEXT_MAX]
        with self._lock:
            self._counts[event] += 1
            self._add(line)

    def status(self) -> dict[str, int]:
        """How many refusals and changes there were, and how many lines are on disk or lost."""
        with self._lock:
            return dict(self._counts)

    # --- the disk ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Write beside the caller from now on, until ``close``."""
        self._thread = threading.Thread(target=self._run, name="rmq-audit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what waits, then end."""
        self._ends.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5.0)
        with self._lock:
            self._unfold(everything=True)
        self.flush()

    def flush(self) -> None:
        """Write what waits, in the calling thread; a disk that fails is told once."""
        with self._writing:
            with self._lock:
                self._unfold()
                lines = list(self._waiting)
                if not lines:
                    return
                if self._path is not None and not self._files.is_dir(_directory(self._path)):
                    return  # the store is not made yet
                self._waiting.clear()
            self._write(lines)

    def newest(self, question: AuditQuestion) -> list[dict[str, Any]]:
        """The newest lines that are asked for, oldest first; reads the disk in the calling thread,
        the newest 16 MiB at most.
        """
        self.flush()
        wanted = max(1, min(question.lines, LINES_ASKED_MAX))
        found: deque[dict[str, Any]] = deque()
        with self._writing:
            if self._path is None:
                lines: Sequence[dict[str, Any]] = list(self._kept)
                return [line for line in lines if question.fits(line)][-wanted:]
            left = SEARCHED_BYTES_MAX
            for path in self._paths():
                if left <= 0 or len(found) >= wanted:
                    break
                read = self._tail(path, left)
                left -= len(read)
                for text in reversed(read.splitlines()):
                    line = _parsed(text)
                    if line is not None and question.fits(line):
                        found.appendleft(line)
                        if len(found) >= wanted:
                            break
        return list(found)

    # --- parts ------------------------------------------------------------------------------------

    def _line(
        self,
        event: str,
        party: str,
        peer: Asking,
        row: Row | None,
        resources: Sequence[tuple[Any, str]],
    ) -> dict[str, Any]:
        return {
            "time": stamp(self._clock.now_ms()),
            "event": event,
            "party": party,
            "account": str(getattr(peer, "account", ""))[:TEXT_MAX],
            "member": bool(getattr(peer, "member", False)),
            "address": f"{peer.host}:{peer.port}",
            "request": row.code.name if row is not None else "",
            "code": int(row.code) if row is not None else 0,
            "resources": [_named(kind, name) for kind, name in resources[:RESOURCES_MAX]],
        }

    def _add(self, line: dict[str, Any]) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._lose(1)
        self._waiting.append(line)
        self._wake.set()

    def _lose(self, count: int) -> None:
        self._counts["lost"] += count
        self._lost_untold += count

    def _fold(self, line: dict[str, Any], reason: str) -> bool:
        """Whether this refusal is one more of those that were written; else it is remembered."""
        who = line["account"] or line["address"].rpartition(":")[0]
        key: tuple[str, ...] = (who, line["request"], *line["resources"], reason)
        if key not in self._folded and self._of_one[who] >= FOLDED_OF_ONE_MAX:
            key, line = (who, OTHERS), _of_others(line)
        if key not in self._folded and len(self._folded) >= FOLDED_MAX:
            key, line = (ANYBODY, OTHERS), _of_others(line) | OF_ANYBODY
        entry = self._folded.get(key)
        if entry is not None:
            entry.repeats += 1
            return True
        self._folded[key] = _Folded(line, self._clock.monotonic_ms())
        self._of_one[key[0]] += 1
        return False

    def _unfold(self, *, everything: bool = False) -> None:
        """Tell of the repeats whose time is over."""
        now_ms = self._clock.monotonic_ms()
        while self._folded:
            key, entry = next(iter(self._folded.items()))
            if now_ms - entry.opened_ms < self._config.fold_ms and not everything:
                return  # the others are younger
            del self._folded[key]
            self._of_one[key[0]] -= 1
            if not self._of_one[key[0]]:
                del self._of_one[key[0]]
            if entry.repeats:
                self._add(
                    entry.line
                    | {
                        "time": stamp(self._clock.now_ms()),
                        "since": entry.line["time"],
                        "repeats": entry.repeats,
                    }
                )

    def _write(self, lines: list[dict[str, Any]]) -> None:
        with self._lock:
            lost, self._lost_untold = self._lost_untold, 0
        if lost:
            lines.append({"time": stamp(self._clock.now_ms()), "event": "lost", "repeats": lost})
        if self._path is None:
            self._kept.extend(lines)
        else:
            try:
                self._append(self._path, [json.dumps(line).encode() + b"\n" for line in lines])
            except RmqError as error:
                with self._lock:
                    self._lose(len(lines) - bool(lost))
                    self._lost_untold += lost
                if not self._failing:
                    log.error("audit lines are lost until this works again: %s", error)
                self._failing = True
                return
        self._failing = False
        with self._lock:
            self._counts["written"] += len(lines)

    def _append(self, path: str, lines: list[bytes]) -> None:
        file = self._files.open_private(path)
        try:
            size = file.size()
            if size and file.pread(1, size - 1) != b"\n":  # the process was killed within a line
                lines.insert(0, b"\n")
            data = b"".join(lines)
            if size and size + len(data) > self._config.file_bytes_max:
                file.close()
                self._rotate(path)
                file, size = self._files.open_private(path), 0
            file.pwrite(data, size)
        finally:
            file.close()

    def _rotate(self, path: str) -> None:
        names = [path, *(f"{path}.{i}" for i in range(1, self._config.files_max))]
        if len(names) == 1:
            self._files.unlink(path)
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if self._files.exists(newer):
                self._files.rename(newer, older)

    def _paths(self) -> list[str]:
        assert self._path is not None
        return [self._path, *(f"{self._path}.{i}" for i in range(1, self._config.files_max))]

    def _tail(self, path: str, most: int) -> bytes:
        try:
            file = self._files.open_to_read(path)
        except StoreMissing:
            return b""
        try:
            size = file.size()
            return file.pread(min(size, most), max(0, size - most))
        finally:
            file.close()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._wake.wait(REPEATS_EVERY_S)
            self._wake.clear()
            try:
                self.flush()
            except Exception:
                log.exception("the audit log met the unexpected; it goes on")
            self._ends.wait(WRITE_EVERY_S)


def _named(kind: Any, name: str) -> str:
    return f"{str(getattr(kind, 'name', kind)).lower()}:{name[:TEXT_MAX]}"


def _of_others(line: dict[str, Any]) -> dict[str, Any]:
    """What stands for refusals that are not told apart any more."""
    return line | {"request": OTHERS, "code": 0, "resources": [], "reason": "too many kinds"}


def _bounded(value: object) -> object:
    text = json.dumps(value, default=str)
    return value if len(text) <= TEXT_MAX * 4 else text[: TEXT_MAX * 4]


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:  # cut by a crash, or by where reading began
        return None
    return line if isinstance(line, dict) else None


def _directory(path: str) -> str:
    return path.rpartition("/")[0] or "/"
