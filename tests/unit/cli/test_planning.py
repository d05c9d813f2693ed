"""``plan`` and ``up --config`` without a cluster: wrong files and options that contradict them end
before anything starts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_ray.actors.control.survey import Disk, judge, look
from rmq_ray.cli.base import ray_head
from rmq_ray.cli.main import main
from rmq_ray.errors import RmqError, StoreCorrupt, StoreForeign, StoreMissing, StoreUnwritable

FILE = 'cluster = "prod"\n[[brokers]]\nname = "broker-a"\nstore = { path = "data" }\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ray_head, "find", lambda *_: None)
    monkeypatch.setattr(ray_head, "start", lambda *_: pytest.fail("Ray was started"))
    (tmp_path / "rmq.toml").write_text(FILE)
    return tmp_path / "rmq.toml"


def test_a_plan_where_no_ray_runs_says_so_and_that_the_file_is_right(file: Path) -> None:
    result = CliRunner().invoke(main, ["plan", "--config", str(file)])
    assert (
        result.exit_code == 0 and "prod" in result.output and "`up` starts a head" in result.output
    )


def test_a_plan_notes_a_broker_that_needs_both_of_its_copies(file: Path) -> None:
    slave = '[[brokers.replicas]]\nstore = { path = "copy" }\n'
    settings = 'replication = "sync"\nallow_same_node = true\n'
    file.write_text(FILE + settings + slave)
    result = CliRunner().invoke(main, ["plan", "--config", str(file)])
    assert result.exit_code == 0, result.output
    (note,) = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    assert "broker-a has replication='sync', one slave" in note and "replicas=2" in note
    file.write_text(FILE + settings.replace("sync", "async") + slave)
    assert "note: " not in CliRunner().invoke(main, ["plan", "--config", str(file)]).stderr


@pytest.mark.parametrize("command", ["plan", "up"])
def test_a_wrong_file_ends_the_command_with_its_line(file: Path, command: str) -> None:
    file.write_text(FILE.replace("store =", "stor ="))
    result = CliRunner().invoke(main, [command, "--config", str(file)])
    assert result.exit_code == 2 and "rmq.toml, line 4: unknown key 'stor'" in result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "x"], "--store: the topology file says that"),
        (
            ["--replicas", "1", "--replication", "sync"],
            "--replicas, --replication: the topology file says that",
        ),
        (["--cluster", "b"], "--cluster b is not the cluster of"),
    ],
)
def test_options_that_contradict_the_file_are_refused(
    file: Path, options: list[str], said: str
) -> None:
    result = CliRunner().invoke(main, ["up", "--config", str(file), *options])
    assert result.exit_code == 2 and said in result.output


@pytest.mark.parametrize(
    ("disk", "known", "said"),
    [
        (Disk(False, True), None, "made new"),
        (Disk(True, True), None, "made new"),
        (Disk(True, True, has_log=True), None, "log of Apache RocketMQ, taken over"),
        (Disk(True, True, "1f", "broker-a"), None, "found 1f"),
        (Disk(True, True, "1f", "broker-a"), "1f", "found 1f"),
        (Disk(False, True), "1f", StoreMissing),
        (Disk(True, True), "1f", StoreMissing),
        (Disk(True, True, has_log=True), "1f", StoreMissing),
        (Disk(True, True, "2e", "broker-a"), "1f", StoreForeign),
        (Disk(True, True, "1f", "broker-b"), None, StoreForeign),
        (Disk(True, True, others=("a.txt",)), None, StoreForeign),
        (Disk(True, False), None, StoreUnwritable),
        (Disk(True, True, damaged="x is no identity"), None, StoreCorrupt),
    ],
)
def test_a_disk_is_judged_by_what_it_holds_and_what_is_expected(
    disk: Disk, known: str | None, said: str | type[RmqError]
) -> None:
    if isinstance(said, str):
        assert judge(disk, "broker-a", "/data", known) == said
        return
    with pytest.raises(said, match="/data|no identity"):
        judge(disk, "broker-a", "/data", known)


def test_looking_at_a_directory_changes_nothing_and_sees_what_is_there(tmp_path: Path) -> None:
    assert (
        look(str(tmp_path / "none" / "deep")).exists is False and not (tmp_path / "none").exists()
    )
    assert look(str(tmp_path)).others == () and look(str(tmp_path)).writable
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "photo.jpg").touch()
    assert look(str(tmp_path)).others == ("photo.jpg",)
    (tmp_path / "commitlog").mkdir()
    assert look(str(tmp_path)).has_log
    (tmp_path / "rmq_ray").mkdir()
    (tmp_path / "rmq_ray" / "identity").write_text('{"identity": "1f", "broker_name": "broker-a"}')
    seen = look(str(tmp_path))
    assert (seen.identity, seen.owner, seen.damaged) == ("1f", "broker-a", None)
    (tmp_path / "rmq_ray" / "identity").write_text("{")
    assert "is no identity" in str(look(str(tmp_path)).damaged)
