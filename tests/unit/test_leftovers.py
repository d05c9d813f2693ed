"""``tools.leftovers``: what a run of the tests leaves on disk and in the table of processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools import leftovers
from tools.leftovers import (
    RUN,
    SMALL_BYTES,
    NoRoom,
    OwnDirectory,
    RunsAlready,
    basetemp,
    clean,
    directory_of,
    end_processes,
    environment,
    keep_logs_only,
    leave,
    make,
    mounts_below,
    own_directory,
    require_room,
)

LARGE = b"x" * (SMALL_BYTES + 1)
RAYS_PATH = "/ray/session_2026-11-27_18-36-50_123456_1234567/sockets/plasma_store"
SOCKET_PATH_BYTES_MAX = 107
PAUSE = "import signal; print('here', flush=True); signal.pause()"


@pytest.fixture
def place(tmp_path: Path) -> OwnDirectory:
    made = OwnDirectory(tmp_path / "mqt" / "abcdef", f"of-{tmp_path.name}")
    make(made.directory)
    return made


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout whose runs write below it and have no processes to wait for."""
    monkeypatch.setattr(leftovers, "directory_of", lambda _root: tmp_path / "mqt" / "abcdef")
    return tmp_path


@pytest.fixture(autouse=True)
def proc(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A /proc in which no processes are but those that a test started: a mistake in here must not
    reach those of the machine.
    """
    made = tmp_path_factory.mktemp("proc")
    (made / "mounts").write_text("")
    monkeypatch.setattr(leftovers, "PROC", made)
    return made


@contextmanager
def running(proc: Path, run: str, code: str = PAUSE) -> Iterator[subprocess.Popen[str]]:
    """A process of a run, which has begun."""
    environment, program = {**os.environ, RUN: run}, [sys.executable, "-c", code]
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "here\n"
            (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            yield process
        finally:
            process.kill()


def files(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()
    }


def test_rays_sockets_below_the_directory_have_paths_that_are_short_enough() -> None:
    directory = directory_of(Path("/home/somebody/with/a/long/path" * 9))
    longest = f"{directory}/cli-12345678{RAYS_PATH}".replace(f"-{os.getuid()}/", "-1234567/")
    assert len(longest) <= SOCKET_PATH_BYTES_MAX
    assert directory_of(Path("/a")) != directory_of(Path("/b"))


def test_a_run_has_its_directories_in_its_environment_and_nothing_of_it_stays(here: Path) -> None:
    before = dict(os.environ)
    with own_directory(here, gib=0) as place:
        place.green = True
        told = subprocess.check_output(
            [sys.executable, "-c", "import os, tempfile as t; print(t.gettempdir(), os.getpid())"]
        )
        assert told.split()[0].decode() == str(place.directory) == os.environ["RAY_TMPDIR"]
        assert basetemp("ray") == ["--basetemp", f"{place.directory}/pytest-ray"]
        assert len(Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()) == 32
        (place.directory / "store").mkdir()
        (place.directory / "store" / "broker.log").write_text("said")
    assert dict(os.environ) == before
    assert files(here) == {"build/run.lock"} and not (here / "mqt").exists()


def test_of_a_red_run_logs_stay_until_the_next(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), own_directory(here, gib=0) as place:
        (place.directory / "broker.log").write_bytes(LARGE)
        (place.directory / "00000000000000000000").write_bytes(LARGE)
        raise KeyboardInterrupt
    assert not place.directory.exists()
    assert files(here / "build" / "kept") == {"broker.log"}
    assert str(here / "build" / "kept") in capsys.readouterr().out
    with own_directory(here, gib=0) as place:
        assert not (here / "build" / "kept").exists()
        place.green = True


def test_a_run_that_is_terminated_leaves_nothing_either(here: Path) -> None:
    with pytest.raises(SystemExit) as ended, own_directory(here, gib=0) as place:
        place.green = True
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM and not place.directory.exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_checkout_has_one_run_at_a_time(here: Path) -> None:
    with (
        own_directory(here, gib=0) as place,
        pytest.raises(RunsAlready, match="already"),
        own_directory(here, gib=0),
    ):
        pytest.fail("two runs share a directory")
    place.green = True


def test_without_a_run_pytest_writes_where_it_always_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN, raising=False)
    assert basetemp("ray") == []


def test_javas_own_options_of_whoever_runs_the_tests_stay(place: OwnDirectory) -> None:
    found = environment(place, {"JAVA_TOOL_OPTIONS": "-Xss4m"})["JAVA_TOOL_OPTIONS"]
    assert found.startswith("-Xss4m -Djava.io.tmpdir=/")


def test_a_disk_that_is_too_full_is_told_with_what_is_needed(tmp_path: Path) -> None:
    require_room(0, tmp_path / "not" / "there")
    with pytest.raises(NoRoom, match=r"need 1e\+06 GiB of disk at .*; \d+\.\d GiB are free") as no:
        require_room(1e6, tmp_path / "not" / "there")
    assert no.value.code and str(tmp_path) in str(no.value)


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    above = tmp_path / "mqt"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(RuntimeError, match="remove it"):
        make(above / "abcdef")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(RuntimeError, match="remove it"):
        make(tmp_path / "link" / "abcdef")


def test_what_an_earlier_run_left_goes_and_what_links_lead_to_stays(tmp_path: Path) -> None:
    left, elsewhere = tmp_path / "left", tmp_path / "elsewhere"
    (left / "deep" / "closed").mkdir(parents=True)
    (left / "deep" / "closed" / "file").write_text("x")
    (left / "deep" / "closed").chmod(0)
    elsewhere.mkdir(mode=0o750)
    (elsewhere / "file").write_text("x")
    (left / "link").symlink_to(elsewhere)
    clean(left)
    clean(left)
    assert files(tmp_path) == {"elsewhere/file"} and not left.exists()
    assert elsewhere.stat().st_mode & 0o777 == 0o750
    (tmp_path / "link").symlink_to(elsewhere)
    clean(tmp_path / "link")
    assert (elsewhere / "file").exists()


def test_mounts_below_a_directory_are_found_the_innermost_first() -> None:
    mounts = (
        "tmpfs /t/mq/a tmpfs rw 0 0\nfuse /t/mq/a/b\\040c fuse rw 0 0\n"
        "tmpfs /t/mq tmpfs rw 0 0\ntmpfs /t/mqx/a tmpfs rw 0 0\n"
    )
    assert mounts_below(Path("/t/mq"), mounts) == ["/t/mq/a/b c", "/t/mq/a"]


def test_of_kept_directories_logs_and_small_files_stay(tmp_path: Path) -> None:
    for name, data in {
        "store/commitlog/00000000000000000000": LARGE,
        "store/config/topics.json": b"{}",
        "ray/session_1/logs/raylet.out": LARGE,
        "empty/commitlog/00000000000000000000": LARGE,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "ray" / "session_latest").symlink_to(tmp_path / "ray" / "session_1")
    (tmp_path / "ray" / "session_1").chmod(0)
    with socket.socket(socket.AF_UNIX) as bound, tempfile.TemporaryDirectory() as short:
        bound.bind(f"{short}/s")
        os.rename(f"{short}/s", tmp_path / "plasma_store")
    assert keep_logs_only(tmp_path) == len(LARGE) + 2
    assert files(tmp_path) == {"store/config/topics.json", "ray/session_1/logs/raylet.out"}
    assert not (tmp_path / "empty").exists()
    assert (tmp_path / "ray" / "session_1").stat().st_mode & 0o777 == 0o700


def test_the_newest_logs_stay_where_not_all_have_room(tmp_path: Path) -> None:
    for age in range(4):
        path = tmp_path / f"{age}.log"
        path.write_bytes(b"x" * 10)
        os.utime(path, (1_000 - age, 1_000 - age))
    assert keep_logs_only(tmp_path, bytes_max=25) == 20
    assert files(tmp_path) == {"0.log", "1.log"}


def test_processes_that_outlive_a_run_are_ended_and_told_and_no_others(
    place: OwnDirectory, proc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.green = True
    with running(proc, f"{place.run}-other") as bystander, running(proc, place.run) as leaked:
        leave(place, tmp_path / "kept", grace_s=0)
        assert leaked.wait(10) == -signal.SIGTERM and bystander.poll() is None
    told = capsys.readouterr().out
    assert told.startswith("LEAK 1 processes") and f" {leaked.pid} {sys.executable} -c" in told
    assert " of tests/unit/test_leftovers.py::test_processes_that_outlive_a_run" in told


def test_a_process_whose_environment_cannot_be_read_is_of_no_run(proc: Path) -> None:
    """The kernel's threads, those of other users, what is just ending."""
    with running(proc, "a") as mine:
        (proc / str(mine.pid)).unlink()
        for environ, is_found in (None, False), (f"B=c\0{RUN}=a\0", True), (f"{RUN}=a2\0", False):
            (proc / str(mine.pid)).mkdir(exist_ok=True)
            if environ is not None:
                (proc / str(mine.pid) / "environ").write_text(environ)
            with leftovers._processes("a") as found:
                assert [*found] == [mine.pid] * is_found


def test_a_process_that_ignores_the_signal_is_killed(proc: Path) -> None:
    deaf = f"import signal; signal.signal(15, signal.SIG_IGN); {PAUSE}"
    with running(proc, "a", deaf) as stubborn:
        (told,) = end_processes("a", grace_s=0, term_s=0.05)
        assert stubborn.wait(10) == -signal.SIGKILL and told.startswith(f"{stubborn.pid} ")


def test_where_nothing_is_left_nothing_is_told_or_waited_for() -> None:
    assert end_processes("nobody", 1_000, 1_000, 1_000) == []
