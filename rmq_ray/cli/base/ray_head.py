"""Ray heads on this machine: which one a command means, starting one, stopping exactly the one that
was started.

    <temporary directory>/rmq_ray-heads-<uid>/<port>.json  {"port": 6379, "session_id": 4711}, one
                                                           for each head that ``up`` started

``ray stop`` ends every Ray process of the machine, other people's clusters too; so a head is
started in a session of the operating system's own (``setsid``), and stopping ends that session.
``ray.init(address="auto")`` waits for minutes where a head was killed and its address file stayed
behind; so addresses are looked up and tried here first.

Decides: that. Does not decide: when a head may be stopped (``cluster``). Linux
only (reads ``/proc``).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from rmq_ray.actors.remembered import directory_of_user
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import environment, put_environment
from rmq_ray.errors import ClusterError, ConfigError

AUTO = "auto"
DEFAULT_PORT = 6379
DASHBOARD_HOST, DASHBOARD_PORT = "127.0.0.1", 8265
DASHBOARD_NEEDS = ("aiohttp", "aiohttp_cors", "opencensus", "prometheus_client", "colorful")
"""Of ``ray[default]``; without them Ray starts none, and says so in a log only."""
CLIENT_PORT, CLIENT_NEEDS = 10001, "grpc"
"""Where Ray Client is served, and what it needs; the second head of a machine has none, silently,
unless it is told another port.
"""
AGENT_PORT = 52365
"""Of what starts jobs on a node; without it Ray says of each job to "try again later". The same
holds for it.
"""
GRPC_AT_FORK = "GRPC_ENABLE_FORK_SUPPORT"
WORKER_PORTS = range(10002, 20000)
"""Ray's workers listen here: a head on such a port dies when one of them takes it."""
RAY_NICENESS = 15
"""What Ray gives its workers unless RAY_worker_niceness says otherwise."""
START_TIMEOUT_S = 120
CONNECT_TIMEOUT_S = 3.0
TERMINATE_MS = 8_000
KILL_MS = 5_000
_POLL_MS = 50
_PORT_TRIES = 100


@dataclass(frozen=True, slots=True)
class Head:
    """A running head. ``session_id``: of the operating system, shared by everything that belongs to
    a head that ``start`` started; ``directory``: Ray's session directory; ``dashboard``: URL of the
    dashboard that ``start`` started, ``client``: what Ray Client joins it by; empty where there is
    none.
    """

    host: str
    port: int
    session_id: int
    directory: str
    demands_token: bool = False
    dashboard: str = ""
    client: str = ""

    @property
    def address(self) -> str:
        """As Ray takes it."""
        return f"{self.host}:{self.port}"

    def is_at(self, address: str) -> bool:
        """Whether this address of it, or of this machine, is meant."""
        host, _, port = address.rpartition(":")
        return address == self.address or (
            host in ("127.0.0.1", "localhost") and port == str(self.port)
        )


def running() -> list[Head]:
    """Heads of this user on this machine, by port."""
    found = []
    for process in _processes():
        arguments = process.arguments
        if not arguments or not arguments[0].endswith("/gcs_server"):
            continue
        options = dict(
            argument[2:].split("=", 1)
            for argument in arguments[1:]
            if argument.startswith("--") and "=" in argument
        )
        port, host = options.get("gcs_server_port", ""), options.get("node-ip-address", "127.0.0.1")
        if port.isdigit() and int(port):
            demands_token = _setting(process.pid, "RAY_AUTH_MODE") == "token"
            found.append(
                Head(
                    host,
                    int(port),
                    process.session_id,
                    options.get("session-dir", ""),
                    demands_token,
                )
            )
    return sorted(found, key=lambda head: head.port)


def find(address: str, port: int | None = None) -> str | None:
    """The address of the Ray cluster that is meant, None where none runs here.

    An explicit address; else ``port`` on this machine; else RAY_ADDRESS; else what ``ray start``
    wrote down last; else the only head that runs. ``ClusterError`` where an address does not
    answer, or several heads could be meant.
    """
    if address != AUTO:
        return _answering(address)
    heads = running()
    if port is not None:
        return next((head.address for head in heads if head.port == port), None)
    named = environment("RAY_ADDRESS")
    if named and named != AUTO:
        return _answering(named)
    latest = _latest()
    if latest and (any(head.address == latest for head in heads) or _reaches(latest)):
        return latest
    if len(heads) > 1:
        raise ClusterError(
            f"several Ray clusters run on this machine: choose one with --address, of "
            f"{', '.join(head.address for head in heads)}"
        )
    return heads[0].address if heads else None


def needs_token(address: str) -> bool:
    """Whether a head on this machine demands Ray's token (RAY_AUTH_MODE=token), and this process
    was not told to send one.
    """
    return environment("RAY_AUTH_MODE") is None and any(
        head.is_at(address) and head.demands_token for head in running()
    )


def start(port: int | None, dashboard: bool = False) -> Head:
    """Start a head and write down that it is ours. ``port`` None: 6379, or any free one where that
    is taken. ``dashboard``: Ray's, on loopback, at 8265 or any free port; ``ConfigError`` where its
    packages are missing.

    Called inside ``alone``. Raises ``ClusterError`` with Ray's own words where it fails.
    """
    chosen = _checked_port(port)
    _put_environment()
    client_port = _client_port()
    command = [
        _ray(),
        "start",
        "--head",
        f"--port={chosen}",
        "--disable-usage-stats",
        *([f"--ray-client-server-port={client_port}"] if client_port else []),
        *_dashboard_options(dashboard),
    ]
    with tempfile.TemporaryFile(
        "w+"
    ) as output:  # not a pipe: what Ray leaves running would hold its other end
        starter = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            # before it serves: whatever ends this process, ``down`` ends the head
            _note(chosen).write_text(json.dumps({"port": chosen, "session_id": starter.pid}))
            head = _started(starter, command, output, chosen)
        except BaseException:  # Ctrl-C, too
            _end_session(starter.pid)
            _note(chosen).unlink(missing_ok=True)
            raise
    if client_port:
        head = replace(head, client=f"ray://{head.host}:{client_port}")
    if not dashboard:
        return head
    ports = [part.partition("=")[2] for part in command if part.startswith("--dashboard-port=")]
    return replace(head, dashboard=f"http://{DASHBOARD_HOST}:{ports[0]}")


@contextmanager
def alone() -> Iterator[None]:
    """One command at a time of this user's looks for a head and starts one."""
    path = _note(0).with_name("lock")
    deadline = SYSTEM_CLOCK.monotonic_ms() + START_TIMEOUT_S * 1000
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if SYSTEM_CLOCK.monotonic_ms() > deadline:
                    raise ClusterError(
                        f"another `rmq-ray up` has been starting Ray for {START_TIMEOUT_S} "
                        f"s: end it, then try again"
                    ) from None
                SYSTEM_CLOCK.sleep_ms(_POLL_MS)
            else:
                break
        yield


def ours(address: str) -> Head | None:
    """The head at an address if ``start`` started it and it still runs."""
    for head in running():
        if head.is_at(address):
            note = _note(head.port)
            if note.is_file() and json.loads(note.read_text()).get("session_id") == head.session_id:
                return head
    return None


def stop(head: Head) -> None:
    """End everything that belongs to a head of ours; nothing of it runs on return."""
    _end_session(head.session_id)
    _note(head.port).unlink(missing_ok=True)
    written = _address_file(Path(head.directory).parent)
    if written.is_file() and written.read_text().strip() == head.address:
        written.unlink()


def worker_niceness(head: Head) -> int | None:
    """Niceness that a head gives its workers, None where that cannot be read. Ray's default
    is 15.
    """
    for process in _processes():
        if (
            process.session_id == head.session_id
            and process.arguments[0].endswith("/raylet")
            and f"--session-name={Path(head.directory).name}" in process.arguments
        ):
            given = _setting(process.pid, "RAY_worker_niceness") or ""
            return int(given) if given.lstrip("-").isdigit() else RAY_NICENESS
    return None


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    session_id: int
    arguments: list[str]


def _processes() -> list[_Process]:
    """This user's processes."""
    found, user = [], os.getuid()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            if directory.stat().st_uid != user:
                continue
            arguments = (directory / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            state = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if state[0] != "Z":
            found.append(_Process(int(directory.name), int(state[3]), arguments))
    return found


def _end_session(session_id: int) -> None:
    """The raylet first, with its workers; then the rest; what does not end by itself is killed."""
    for kind, number, limit_ms in (
        ("/raylet", signal.SIGTERM, TERMINATE_MS),
        ("", signal.SIGTERM, TERMINATE_MS),
        ("", signal.SIGKILL, KILL_MS),
    ):
        members = [process for process in _processes() if process.session_id == session_id]
        for process in members:
            if process.arguments[0].endswith(kind):
                _signal(process.pid, number)
        deadline = SYSTEM_CLOCK.monotonic_ms() + limit_ms
        while any(
            p.session_id == session_id
            and (not kind or p.arguments[0].endswith(kind) or p.arguments[0].startswith("ray::"))
            for p in _processes()
        ):
            if SYSTEM_CLOCK.monotonic_ms() > deadline:
                break
            SYSTEM_CLOCK.sleep_ms(_POLL_MS)


def _setting(pid: int, name: str) -> str | None:
    """A variable of the environment that a process was started with."""
    try:
        settings = (
            (Path("/proc") / str(pid) / "environ")
            .read_bytes()
            .decode("utf-8", "replace")
            .split("\0")
        )
    except OSError:
        return None
    return next(
        (setting.partition("=")[2] for setting in settings if setting.startswith(f"{name}=")), None
    )


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _put_environment() -> None:
    """What the head's processes inherit. Niceness 0 for its workers: restarts of a killed broker
    are three times as quick. This interpreter is first on its PATH: the `python` of a job is that
    one, and its pip. gRPC does nothing at a fork, unless it is told to: Ray Client's server forks
    for each driver, and some died of it (Ray's issue 63202).
    """
    put_environment("RAY_worker_niceness", "0")
    beside = str(Path(sys.executable).parent)
    put_environment("PATH", os.pathsep.join(filter(None, (beside, environment("PATH")))))
    put_environment(GRPC_AT_FORK, environment(GRPC_AT_FORK) or "0")


def _dashboard_options(dashboard: bool) -> list[str]:
    if not dashboard:
        return ["--include-dashboard=false"]
    missing = [name for name in DASHBOARD_NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"Ray's dashboard needs {', '.join(missing)}: pip install 'rmq_ray[dashboard]'",
            *missing,
        )
    return [
        "--include-dashboard=true",
        f"--dashboard-host={DASHBOARD_HOST}",
        f"--dashboard-port={_this_or_free(DASHBOARD_PORT)}",
        f"--dashboard-agent-listen-port={_this_or_free(AGENT_PORT)}",
    ]


def _client_port() -> int | None:
    """Of Ray Client; None where this Ray has none."""
    if find_spec(CLIENT_NEEDS) is None:
        return None
    return _this_or_free(CLIENT_PORT)


def _checked_port(port: int | None) -> int:
    if port is None:
        return _this_or_free(DEFAULT_PORT)
    if not 1024 <= port < 65536 or port in WORKER_PORTS:
        raise ConfigError(
            f"--ray-port must be 1024 to 65535 and outside of Ray's worker ports 10002 to "
            f"19999, not {port}",
            port,
        )
    if not _is_free(port):
        raise ClusterError(
            f"port {port} is taken by another program: choose another --ray-port", port
        )
    return port


def _this_or_free(port: int) -> int:
    return port if _is_free(port) else _free_port()


def _free_port() -> int:
    for _ in range(_PORT_TRIES):
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        if port not in WORKER_PORTS:
            return port
    raise ClusterError(
        "no free port outside of 10002 to 19999 was found for Ray: give one with --ray-port"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _answering(address: str) -> str:
    where = address.removeprefix("ray://")  # of Ray Client, which would try for half a minute
    if "://" not in where and not _reaches(where):
        raise ClusterError(
            f"no Ray cluster answers at {address}: check --address and RAY_ADDRESS, or start "
            f"one with `rmq-ray up`",
            address,
        )
    return address


def _reaches(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise ConfigError(f"address {address!r} is not host:port", address)
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _latest() -> str | None:
    """Address of the head that ``ray start`` started last; it may be gone."""
    written = _address_file(Path(environment("RAY_TMPDIR") or tempfile.gettempdir()) / "ray")
    return written.read_text().strip() if written.is_file() else None


def _address_file(directory: Path) -> Path:
    """Where ``ray start`` writes the address of the last cluster that it started."""
    return directory / "ray_current_cluster"


def _started(
    starter: subprocess.Popen[bytes], command: list[str], output: IO[str], port: int
) -> Head:
    try:
        code = starter.wait(START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        code = -1
    head = next((head for head in running() if head.port == port), None)
    if code or head is None:
        output.seek(0)
        said = output.read().strip()
        last = said.rpartition("\n")[2]  # of a traceback: what is wrong
        raise ClusterError(
            f"`{' '.join(command[1:])}` failed "
            f"({'no end within 120 s' if code == -1 else code}): {last[-200:]}",
            said[-2_000:],
        )
    return head


def _note(port: int) -> Path:
    """Where it is written down that a head on this port is ours."""
    return directory_of_user() / f"{port}.json"


def _ray() -> str:
    beside = Path(sys.executable).with_name("ray")
    program = str(beside) if beside.exists() else shutil.which("ray")
    if program is None or find_spec("ray") is None:  # another python's is not joined from here
        raise ClusterError(
            "this python has no Ray, or no program `ray` beside it and on PATH: "
            "pip install 'rmq_ray[ray]' brings it"
        )
    return program
