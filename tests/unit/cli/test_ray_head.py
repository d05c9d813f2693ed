"""Which Ray cluster a command means, and what ``down`` may end: rules of ``ray_head`` on heads that
are made up, and on real processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.cli.base import ray_head
from rmq_ray.cli.base.ray_head import AUTO, Head
from rmq_ray.errors import ClusterError, ConfigError

ONE, TWO = (
    Head("10.0.0.1", 6379, 11, "/tmp/ray/session_1"),
    Head("10.0.0.1", 7001, 22, "/tmp/ray/session_2", demands_token=True),
)


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Head]:
    """The heads that run; tests put some in. The temporary directories are the test's own."""
    running: list[Head] = []
    monkeypatch.setattr(ray_head, "running", lambda: list(running))
    monkeypatch.setattr(ray_head, "_reaches", lambda address: False)
    monkeypatch.setattr(ray_head.tempfile, "gettempdir", lambda: str(tmp_path))
    for name in ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    return running


def write_latest(tmp_path: Path, address: str) -> Path:
    (tmp_path / "ray").mkdir(exist_ok=True)
    path = tmp_path / "ray" / "ray_current_cluster"
    path.write_text(address)
    return path


def test_without_any_head_none_is_found_even_where_an_old_address_was_left(
    heads: list[Head], tmp_path: Path
) -> None:
    assert ray_head.find(AUTO) is None
    write_latest(tmp_path, "10.0.0.1:6379")
    assert ray_head.find(AUTO) is None


def test_the_only_head_the_latest_or_the_one_at_a_port_is_found(
    heads: list[Head], tmp_path: Path
) -> None:
    heads.append(ONE)
    assert ray_head.find(AUTO) == "10.0.0.1:6379"
    heads.append(TWO)
    with pytest.raises(ClusterError, match="10.0.0.1:6379, 10.0.0.1:7001"):
        ray_head.find(AUTO)
    write_latest(tmp_path, "10.0.0.1:7001\n")
    assert ray_head.find(AUTO) == "10.0.0.1:7001"
    assert ray_head.find(AUTO, 6379) == "10.0.0.1:6379"
    assert ray_head.find(AUTO, 9999) is None


def test_an_address_that_was_given_is_taken_if_it_answers(
    heads: list[Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match="no Ray cluster answers at 10.9.9.9:1"):
        ray_head.find("10.9.9.9:1")
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:2")
    with pytest.raises(ClusterError, match="RAY_ADDRESS"):
        ray_head.find(AUTO)
    monkeypatch.setattr(ray_head, "_reaches", lambda address: True)
    assert ray_head.find(AUTO) == "10.9.9.9:2"
    assert ray_head.find("10.9.9.9:1") == "10.9.9.9:1"


def test_another_pythons_ray_is_not_started_by_one_that_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its head would stay, and nobody could join it from here."""
    monkeypatch.setattr(ray_head, "find_spec", lambda _name: None)
    with pytest.raises(ClusterError, match=r"pip install 'rmq_ray\[ray\]'"):
        ray_head.start(None)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_head_whose_start_does_not_come_to_its_end_is_ended(
    error: type[BaseException],
    heads: list[Head],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It is noted before it serves, so that ``down`` ends it where this process cannot."""
    note = tmp_path / "7001.json" if error is KeyboardInterrupt else tmp_path / "no" / "room"
    noted: list[str] = []
    ended: list[int] = []

    class Starter:
        pid = 4711

        def __init__(self, _command: list[str], **_: Any) -> None: ...

        def wait(self, _timeout_s: float) -> int:
            noted.append(note.read_text())
            raise error

    monkeypatch.setattr(ray_head, "_checked_port", lambda _port: 7001)
    monkeypatch.setattr(ray_head, "_note", lambda _port: note)
    monkeypatch.setattr(ray_head.subprocess, "Popen", Starter)
    monkeypatch.setattr(ray_head, "_end_session", ended.append)
    with pytest.raises(error):
        ray_head.start(None)
    assert ended == [4711] and not note.exists()
    assert [json.loads(one)["session_id"] for one in noted] == [4711] * note.parent.exists()


def test_an_address_of_ray_client_is_tried_before_ray_tries_it_for_half_a_minute(
    heads: list[Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match="no Ray cluster answers at ray://10.9.9.9:10001"):
        ray_head.find("ray://10.9.9.9:10001")
    monkeypatch.setattr(ray_head, "_reaches", lambda address: address == "10.9.9.9:10001")
    assert ray_head.find("ray://10.9.9.9:10001") == "ray://10.9.9.9:10001"


def test_ray_client_has_a_port_on_every_head_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "find_spec", lambda name: name)
    monkeypatch.setattr(ray_head, "_is_free", lambda port: True)
    assert ray_head._client_port() == 10_001
    monkeypatch.setattr(ray_head, "_is_free", lambda port: False)
    monkeypatch.setattr(ray_head, "_free_port", lambda: 45_678)
    assert ray_head._client_port() == 45_678
    monkeypatch.setattr(ray_head, "find_spec", lambda name: None)
    assert ray_head._client_port() is None, "Ray refuses the option then"


def test_a_token_is_sent_only_to_a_head_here_that_demands_it_and_where_nothing_else_was_said(
    heads: list[Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads += [ONE, TWO]
    assert (
        ray_head.needs_token(TWO.address)
        and ray_head.needs_token("127.0.0.1:7001")
        and ray_head.needs_token("localhost:7001")
    )
    assert (
        not ray_head.needs_token(ONE.address)
        and not ray_head.needs_token("10.9.9.9:1")
        and not ray_head.needs_token("127.0.0.1:6379")
    )
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert not ray_head.needs_token(TWO.address)


def test_only_a_head_that_was_noted_with_its_session_is_ours(
    heads: list[Head], tmp_path: Path
) -> None:
    heads.append(ONE)
    assert ray_head.ours(ONE.address) is None
    note = ray_head._note(ONE.port)
    note.write_text(json.dumps({"port": ONE.port, "session_id": 99}))
    assert ray_head.ours(ONE.address) is None, "an older head on the same port"
    note.write_text(json.dumps({"port": ONE.port, "session_id": ONE.session_id}))
    assert ray_head.ours(ONE.address) == ray_head.ours("127.0.0.1:6379") == ONE
    assert ray_head.ours("10.0.0.1:7001") is None


@pytest.mark.parametrize("port", [0, 80, 10_002, 19_999, 65_536])
def test_ports_that_ray_cannot_use_are_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="10002 to 19999"):
        ray_head._checked_port(port)


def test_a_taken_default_port_gives_way_to_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "_is_free", lambda port: False)
    with pytest.raises(ClusterError, match="20000 is taken"):
        ray_head._checked_port(20_000)
    chosen = ray_head._checked_port(None)
    assert chosen != ray_head.DEFAULT_PORT and chosen not in ray_head.WORKER_PORTS


def test_a_port_that_is_listened_on_is_not_free() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not ray_head._is_free(taken.getsockname()[1])


def test_stopping_ends_the_session_with_everything_in_it_and_nothing_else(
    heads: list[Head], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session leader that ignores SIGTERM with a child; beside it a process of another
    session.
    """
    monkeypatch.setattr(ray_head, "TERMINATE_MS", 300)
    stubborn = (
        "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN); "
        "subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    )
    leader = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True
    )
    try:
        while sum(process.session_id == leader.pid for process in ray_head._processes()) < 2:
            assert leader.poll() is None
        head = Head("10.0.0.1", 6379, leader.pid, str(tmp_path / "ray" / "session_1"))
        note = ray_head._note(6379)
        note.write_text("{}")
        latest = write_latest(tmp_path, head.address)
        ray_head.stop(head)
        assert leader.wait(5) == -signal.SIGKILL
        assert not any(process.session_id == leader.pid for process in ray_head._processes())
        assert bystander.poll() is None
        assert not note.exists() and not latest.exists()
    finally:
        for process in (leader, bystander):
            process.kill()
            process.wait(5)


def test_another_heads_address_file_stays(
    heads: list[Head], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_head, "_end_session", lambda session_id: None)
    latest = write_latest(tmp_path, TWO.address)
    ray_head.stop(Head("10.0.0.1", 6379, 1, str(tmp_path / "ray" / "session_1")))
    assert latest.read_text() == TWO.address


def test_notes_are_not_kept_where_others_could_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_head.tempfile, "gettempdir", lambda: str(tmp_path))
    directory = ray_head._note(1).parent
    assert directory.stat().st_mode & 0o077 == 0
    directory.chmod(0o722)
    with pytest.raises(ClusterError, match="others may write there"):
        ray_head._note(1)
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match="remove it"):
        ray_head._note(1)
    mine = os.getuid()
    monkeypatch.setattr(ray_head.os, "getuid", lambda: mine + 1)
    (tmp_path / f"rmq_ray-heads-{mine + 1}").mkdir()
    with pytest.raises(ClusterError, match="belongs to another user"):
        ray_head._note(1)


def test_a_dashboard_is_asked_for_only_where_its_packages_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ray_head._dashboard_options(False) == ["--include-dashboard=false"]
    monkeypatch.setattr(ray_head, "_is_free", lambda port: port != ray_head.DASHBOARD_PORT)
    monkeypatch.setattr(ray_head, "_free_port", lambda: 45_678)
    monkeypatch.setattr(ray_head, "find_spec", lambda name: name)
    with_one = ray_head._dashboard_options(True)
    assert with_one[0] == "--include-dashboard=true" and "--dashboard-port=45678" in with_one
    assert "--dashboard-host=127.0.0.1" in with_one, "nobody else's business"
    assert "--dashboard-agent-listen-port=52365" in with_one
    monkeypatch.setattr(ray_head, "_is_free", lambda port: port != ray_head.AGENT_PORT)
    beside_another = ray_head._dashboard_options(True)
    assert "--dashboard-agent-listen-port=45678" in beside_another, "jobs start there, too"
    monkeypatch.setattr(ray_head, "find_spec", lambda name: None if name == "aiohttp" else name)
    with pytest.raises(ConfigError, match=r"needs aiohttp: pip install 'rmq_ray\[dashboard\]'"):
        ray_head._dashboard_options(True)


def test_a_head_that_does_not_start_is_told_by_the_last_line_that_ray_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ray"
    program.write_text(
        "#!/bin/sh\necho $GRPC_ENABLE_FORK_SUPPORT $PATH\necho 'RuntimeError: no GCS in 30 s'\n"
        "exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(ray_head, "_ray", lambda: str(program))
    monkeypatch.setattr(ray_head, "running", list)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv(ray_head.GRPC_AT_FORK, "")
    with pytest.raises(ClusterError, match=r"failed \(1\): RuntimeError: no GCS in 30 s$") as told:
        ray_head.start(None)
    at_fork, path = told.value.args[1].partition("\n")[0].split()
    assert at_fork == "0", "else Ray Client's server does not always survive its forks"
    assert path.split(os.pathsep)[0] == str(Path(sys.executable).parent), "of jobs, too"
    monkeypatch.setenv(ray_head.GRPC_AT_FORK, "1")
    with pytest.raises(ClusterError) as told:
        ray_head.start(None)
    assert told.value.args[1].startswith("1 "), "as its user says"
