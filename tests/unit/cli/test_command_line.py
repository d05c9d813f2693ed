"""The command line without a cluster: help, wrong usage, exit codes, output formats, the store's
inspector, the doctor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import rmq_ray
from rmq_ray.actors.control.survey import look
from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.cli import brokers, doctor
from rmq_ray.cli.base import context, ray_head
from rmq_ray.cli.main import hoisted, main
from rmq_ray.clock import local_time
from rmq_ray.config import GIB
from rmq_ray.errors import AdminError, ClusterError, ConfigError
from rmq_ray.files import DiskSpace, FileSystem
from rmq_ray.model.topics import BrokerData
from tests.support import command_walk
from tests.support.stores import small_store
from tests.support.stores.small_store import flip, log_at

ROOT = Path(__file__).parents[3]
WITHOUT_RAY = {"completion", "store dump", "store verify", "tls check", "tls init"}


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=text)


def every_command(group: click.Group = main, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += every_command(command, (*path, name))
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "broker-a"
    small_store.fill(path)
    return path


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where no Ray runs."""
    monkeypatch.setattr(ray_head, "find", lambda address, port=None: None)
    monkeypatch.setattr(ray_head, "running", lambda: [])


# --- help and usage -------------------------------------------------------------------------------


def test_help_lists_every_command_of_the_first_version() -> None:
    shown = run("--help")
    assert shown.exit_code == 0
    wanted = (
        "up down status health doctor topic group produce consume message broker store bench"
    ).split()
    assert [name for name in wanted if f"\n  {name} " not in shown.output] == []


def test_help_waits_for_no_command() -> None:
    code = (
        "import sys; from rmq_ray.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout
    assert not {"rmq_ray.cli.topics", "pyarrow", "ray"} & {*done.stdout.split()}


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()[2].strip()) > 10, "no description"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("topic",),
        ("topic", "create"),
        ("topic", "create", "x", "--queues", "0"),
        ("topic", "create", "x", "--perm", "5"),
        ("topic", "create", "x", "--retention", "-1"),
        ("topic", "alter", "x"),
        ("topic", "alter", "x", "--retention", "a day"),
        ("--format", "yaml", "status"),
        ("consume",),
        ("consume", "t", "--max", "0"),
        ("produce", "t", "x", "--property", "no-value"),
        ("group", "seek", "g", "t"),
        ("group", "seek", "g", "t", "--to", "yesterday"),
        ("group", "seek", "g", "t", "--to", "offset:x"),
        ("group", "skip", "g"),
        ("group", "clone", "g", "h"),
        ("run", "billing"),
        ("run", "no_such_module:bill"),
        ("run", "billing:bill", "--detach"),
        ("store", "verify", "/does/not/exist"),
        ("store", "dump", ".", "--from-offset", "-1"),
        ("up", "--flush", "often"),
        ("up", "--brokers", "0"),
        ("up", "--replicas", "10"),
        ("up", "--replicas", "1", "--replication", "often"),
        ("up", "--broker-port", "70000"),
        ("--timeout", "0", "status"),
        ("up", "--ray-port", "10010"),
        ("--address", "127.0.0.1:1", "up", "--ray-port", "20000"),
        ("--address", "nowhere", "status"),
        ("--cluster", "a/b", "up"),
        ("bench", "produce", "--messages", "0"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("no_ray_to_start")
def test_wrong_usage_ends_with_exit_code_2_and_one_sentence(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output


@pytest.fixture
def no_ray_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No head is there, and looking for ``ray`` would be a fault of the test."""
    monkeypatch.setattr(ray_head, "running", lambda: [])
    monkeypatch.setattr(ray_head, "_latest", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_head, "_ray", lambda: pytest.fail("a wrong command must not start Ray"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("health",),
        ("down",),
        ("topic", "list"),
        ("group", "lag", "g"),
        ("produce", "t", "x"),
        ("consume", "t"),
        ("message", "get", "0" * 32),
        ("broker", "list"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("no_ray")
def test_without_ray_a_command_fails_with_one_line_that_names_the_remedy(
    arguments: tuple[str, ...],
) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.output.count("\n") == 1 and "rmq-ray up" in result.output


def test_an_address_that_does_not_answer_is_an_error_at_once() -> None:
    result = run("--address", "127.0.0.1:1", "status")
    assert result.exit_code == 1
    assert "no Ray cluster answers at 127.0.0.1:1" in result.output


class Fragment:
    """What ``health`` and ``status`` ask of a cluster; told what to say."""

    def __init__(self, broker_state: str, registered: bool, weak: str = "") -> None:
        self.broker_state, self.registered, self.weak = broker_state, registered, weak
        self.discovery = StaticDiscovery("127.0.0.1:9876")
        self.since_ms, self.error, self.fault = 0, "", ""

    def status(self) -> dict[str, object]:
        actors: dict[str, dict[str, object]] = {
            "name-server-0": {"pid": 1},
            "broker-a/0": {"state": self.broker_state, "pid": 2, "odd": b"\xff"},
        }
        if self.since_ms:
            actors["broker-a/0"]["since_ms"] = self.since_ms
        if self.error:
            actors["broker-a/0"]["error"] = self.error
        row = {"broker": "broker-a", "replica": 0, "in_sync": True, "state": self.broker_state}
        rows = [{**row, "error": self.fault}]
        return {
            "controller": "serving",
            "supervision": {},
            "elections": {"broker-a": {}} if self.weak else {},
            **actors,
            "replicas": rows,
        }

    def weak_brokers(self, _status: object) -> dict[str, str]:
        return {"broker-a": self.weak} if self.weak else {}

    def brokers(self) -> list[BrokerData]:
        return [BrokerData("default", "broker-a", {0: "127.0.0.1:1"})] if self.registered else []


@pytest.mark.parametrize(
    ("state", "registered", "missing"),
    [
        ("serving", True, ""),
        ("starting", True, "broker-a/0"),
        ("not answering", True, "broker-a/0"),
        ("serving", False, "registration of broker-a"),
    ],
)
def test_health_names_what_does_not_serve(
    state: str, registered: bool, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Fragment(state, registered)
    monkeypatch.setattr(context.Options, "connect", lambda self: cluster)
    monkeypatch.setattr(context.Options, "admin", property(lambda self: cluster))
    result = run("health", "--format", "json")
    assert result.exit_code == (1 if missing else 0)
    assert [row["part"] for row in json.loads(result.stdout) if row["state"] != "serving"] == (
        [missing] if missing else []
    )
    assert missing in result.stderr
    shown = run("--format", "json", "status")
    assert shown.exit_code == result.exit_code and list(json.loads(shown.stdout)["wrong"]) == (
        [missing] if missing else []
    )
    assert json.loads(shown.stdout)["broker-a/0"] == {
        "state": state,
        "pid": 2,
        "odd": "base64:/w==",
    }
    table = run("status")
    assert "127.0.0.1:9876" in table.stdout and table.exit_code == result.exit_code
    assert table.stdout.splitlines()[0] == (
        "cluster default: not everything serves" if missing else "cluster default: serving"
    )


def test_status_and_health_say_since_when_and_which_command_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Fragment("stopped", True)
    cluster.since_ms = 1_700_000_000_000
    monkeypatch.setattr(context.Options, "connect", lambda self: cluster)
    monkeypatch.setattr(context.Options, "admin", property(lambda self: cluster))
    said = (
        f"broker-a/0: stopped since {local_time(cluster.since_ms)}: "
        f"`rmq-ray broker start broker-a --replica 0` starts it"
    )
    assert run("status").stdout.splitlines()[1] == said
    assert run("health").stderr == f"Error: not serving: {said}\n"
    cluster.broker_state, cluster.since_ms, cluster.error = "broken", 0, "StoreMissing: no store"
    assert "broker-a/0: broken (StoreMissing: no store): when that is mended, `rmq-ray broker" in (
        run("status").stdout
    )
    cluster.broker_state, cluster.error, cluster.fault = "serving", "", "its log does not fit"
    assert run("health").exit_code == run("status").exit_code == 1
    assert "copying of broker-a/0: broken: its log does not fit" in run("status").stdout


def test_health_says_which_broker_has_too_few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Fragment("serving", True, "1 of 2 copies in sync: none to take over")
    monkeypatch.setattr(context.Options, "connect", lambda self: cluster)
    monkeypatch.setattr(context.Options, "admin", property(lambda self: cluster))
    result = run("health", "--format", "json")
    assert result.exit_code == 1 and {
        "part": "copies of broker-a",
        "state": cluster.weak,
    } in json.loads(result.stdout)
    assert "copies of broker-a" in result.stderr
    lines = run("status").stdout.splitlines()
    assert lines[1] == f"copies of broker-a: {cluster.weak}" and "replica" in lines[-2]
    assert json.loads(run("--format", "json", "status").stdout)["weak"] == {
        "broker-a": cluster.weak
    }


class Stopping(rmq_ray.Cluster):
    """A cluster of two brokers without slaves, told which states they are in."""

    def __init__(self, *states: str) -> None:
        super().__init__("orders")
        self.states = states
        self.stopped: list[tuple[str, bool]] = []

    def replicas(self) -> list[dict[str, Any]]:
        return [
            {"broker": f"broker-{letter}", "replica": 0, "state": state}
            for letter, state in zip("ab", self.states, strict=True)
        ]

    def _copy(self, method: str, name: str, *arguments: Any) -> dict[str, Any]:
        assert method == "stop_copy"
        self.stopped.append((name, arguments[-1]))
        return {"broker": name, "replica": arguments[0], "was": "running"}


@pytest.mark.parametrize(
    ("states", "arguments", "typed", "answer", "outcome"),
    [
        (("serving", "stopped"), (), False, "", "--force"),
        (("draining", "broken"), ("--replica", "0"), False, "", "--force"),
        (("serving", "stopped"), ("-y",), False, "", "--force"),
        (("serving", "stopped"), ("--force",), False, "", "stopped"),
        (("serving", "stopped"), (), True, "n\n", "Aborted"),
        (("serving", "stopped"), (), True, "y\n", "stopped"),
        (("serving", "serving"), (), False, "", "stopped"),
        (("stopped", "serving"), (), False, "", "stopped"),
    ],
)
def test_the_last_broker_that_serves_is_stopped_only_when_that_is_meant(
    states: tuple[str, str],
    arguments: tuple[str, ...],
    typed: bool,
    answer: str,
    outcome: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Stopping(*states)
    monkeypatch.setattr(context.Options, "connect", lambda self: cluster)
    monkeypatch.setattr(brokers, "on_terminal", lambda: typed)
    result = run("broker", "stop", "broker-a", *arguments, text=answer)
    if outcome == "stopped":
        assert result.exit_code == 0 and cluster.stopped == [
            ("broker-a", "--force" in arguments or answer == "y\n")
        ]
    else:
        assert result.exit_code == 1 and outcome in result.stderr and not cluster.stopped


def test_python_stops_the_last_broker_that_serves_only_by_force() -> None:
    cluster = Stopping("serving", "stopped")
    with pytest.raises(ClusterError, match="broker-a is the last broker.*force=True"):
        cluster.stop_broker("broker-a")
    assert cluster.stopped == []
    cluster.stop_broker("broker-a", force=True)
    assert cluster.stopped == [("broker-a", True)]
    Stopping("serving", "serving").stop_broker("broker-a")


def test_general_options_may_stand_behind_the_verb_but_not_behind_two_dashes() -> None:
    assert hoisted(["topic", "list", "--format=json", "--cluster", "x"]) == [
        "--format=json",
        "--cluster",
        "x",
        "topic",
        "list",
    ]
    assert hoisted(["produce", "t", "--tag", "a", "-y", "--", "-y", "--format"]) == [
        "-y",
        "produce",
        "t",
        "--tag",
        "a",
        "--",
        "-y",
        "--format",
    ]
    assert hoisted(["--timeout"]) == ["--timeout"]
    assert run("status", "--format", "yaml").exit_code == 2
    assert run("status", "--format").exit_code == 2


def test_our_errors_become_exit_codes_and_one_line() -> None:
    def failing(error: Exception) -> click.ClickException:
        @context.told
        def command() -> None:
            raise error

        with pytest.raises(click.ClickException) as caught:
            command()
        return caught.value

    refused = failing(AdminError("the broker\nsays  no"))
    assert (refused.exit_code, refused.format_message()) == (1, "the broker says no [AdminError]")
    assert failing(ClusterError("gone")).exit_code == 1
    assert failing(ConfigError("brokers must be 1 to 26")).exit_code == 2


def test_deleting_asks_first_and_no_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        context.Options, "admin", property(lambda self: pytest.fail("deleted without an answer"))
    )
    for command in (("topic", "delete", "t"), ("group", "delete", "g")):
        refused = run(*command, text="n\n")
        assert refused.exit_code == 1 and "Delete" in refused.output


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Every call of every command; see ``command_walk``."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.command_walk"],
        cwd=tmp_path_factory.mktemp("walk"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_no_command_imports_ray_before_it_is_known_which_one_is_meant(
    walked: list[dict[str, Any]],
) -> None:
    """Ray takes its token mode from the environment when it is imported, and its import takes
    longer than everything else.
    """
    assert [row for row in walked if row["imported"]] == []


def test_every_command_was_called_so_that_it_asks_for_its_ray(walked: list[dict[str, Any]]) -> None:
    outcomes: dict[str, list[str]] = {}
    for row in walked:
        outcomes.setdefault(" ".join(row["path"]), []).append(row["outcome"])
    assert {" ".join(path) for path, _ in command_walk.leaves(main)} == {*outcomes}
    asked = {path for path, found in outcomes.items() if "reached" in found}
    assert {*outcomes} - asked == WITHOUT_RAY, outcomes
    assert [row for row in walked if row["outcome"].startswith("raised")] == []


# --- store ----------------------------------------------------------------------------------------


def test_store_verify_prints_what_it_counted(store: Path) -> None:
    result = run("store", "verify", str(store))
    assert result.exit_code == 0, result.output
    assert "records        665" in result.output and "faults         0" in result.output
    as_json = json.loads(run("--format", "json", "store", "verify", str(store)).stdout)
    assert (as_json["records"], as_json["faults"], as_json["broker"]) == (665, 0, "broker-a")


def test_store_verify_ends_with_exit_code_1_and_names_the_damage(store: Path) -> None:
    flipped = int(
        json.loads(run("--format", "json", "store", "dump", str(store), "--max", "30").stdout)[-1][
            "log_offset"
        ]
    )
    file, position = log_at(store, flipped)
    flip(file, position + 95)
    try:
        result = run("--format", "json", "store", "verify", str(store))
        assert result.exit_code == 1
        assert json.loads(result.stdout)["faults"] == 1
        assert f"log offset {flipped}" in result.stderr
    finally:
        flip(file, position + 95)


def test_store_verify_refuses_the_store_of_a_running_broker(tmp_path: Path) -> None:
    running = small_store.opened(tmp_path / "busy", create=True)
    result = run("store", "verify", str(tmp_path / "busy"))
    running.shutdown()
    assert result.exit_code == 1
    assert "StoreInUse" in result.output and "rmq-ray down" in result.output


def test_store_dump_shows_a_table_or_json(store: Path) -> None:
    table = run("store", "dump", str(store), "--max", "2", "--topic", "refunds").stdout.splitlines()
    assert (
        table[0].split()
        == "log_offset size topic queue queue_offset tag keys properties body".split()
    )
    assert len(table) == 3 and all(len(line) < 250 for line in table)
    rows = json.loads(
        run(
            "--format", "json", "store", "dump", str(store), "--max", "2", "--topic", "refunds"
        ).stdout
    )
    assert [row["queue_offset"] for row in rows] == [0, 1]
    assert rows[0]["body"].startswith("base64:") and rows[0]["keys"] == ["o-41", "all"]
    assert (
        json.loads(run("--format", "json", "store", "dump", str(store), "--topic", "none").stdout)
        == []
    )


# --- doctor ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_ray")
def test_doctor_looks_at_everything_and_is_content_here(tmp_path: Path) -> None:
    result = run("--format", "json", "doctor", "--store", str(tmp_path / "not" / "there"))
    found = {row["check"]: row for row in json.loads(result.stdout)}
    assert {"python", "packages", "spark", "ray", "token", "java", "disk", "open files"} <= set(
        found
    )
    assert found["python"]["state"] == found["packages"]["state"] == "ok"
    assert all(row["remedy"] for row in found.values() if row["state"] != "ok")


@pytest.mark.usefixtures("no_ray")
def test_doctor_and_the_plan_measure_a_disk_as_brokers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = DiskSpace(0.97, 3 * GIB, 1_000 * GIB)
    monkeypatch.setattr(FileSystem, "disk_space", lambda _files, _path: space)
    result = run("--format", "json", "doctor", "--store", str(tmp_path))
    [row] = [row for row in json.loads(result.stdout) if row["check"] == "disk"]
    assert row["found"] == f"3.0 GiB free at {tmp_path}, 97% used" and row["state"] == "fail"
    assert look(str(tmp_path)).free_bytes == look(str(tmp_path / "new")).free_bytes == 3 * GIB


def test_doctor_ends_with_exit_code_1_when_something_cannot_work(
    monkeypatch: pytest.MonkeyPatch, no_ray: None
) -> None:
    monkeypatch.setattr(doctor, "PYTHONS", ((2, 7),))
    result = run("doctor")
    assert result.exit_code == 1 and "use Python 3.11" in result.output


def test_doctor_warns_of_niceness(monkeypatch: pytest.MonkeyPatch) -> None:
    head = ray_head.Head("127.0.0.1", 7001, 1, "/tmp/ray/session_x")
    monkeypatch.setattr(ray_head, "running", lambda: [head])
    monkeypatch.setattr(ray_head, "find", lambda address, port=None: head.address)
    machine = ("--format", "json", "doctor", "--machine")  # nothing runs at that address
    for nice, state in ((15, "warn"), (0, "ok")):
        monkeypatch.setattr(ray_head, "worker_niceness", lambda _head, nice=nice: nice)
        found = {row["check"]: row for row in json.loads(run(*machine).stdout)}
        assert (found["niceness"]["state"], found["niceness"]["found"]) == (state, str(nice))
        assert ("RAY_worker_niceness=0" in found["niceness"]["remedy"]) is (nice != 0)


def test_audit_shows_lines_of_all_servers_and_says_when_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = [
        {
            "time": "2026-11-22T10:00:00.000Z",
            "event": "changed",
            "party": "broker broker-a",
            "account": "",
            "address": "127.0.0.1:4711",
            "request": "DELETE_TOPIC_IN_BROKER",
            "resources": ["topic:orders"],
            "old": {"perm": "4", "order": "false"},
            "new": {"perm": "6", "order": "false"},
        }
    ]

    class Attached:
        def audit(self, **question: Any) -> list[dict[str, Any]]:
            asked.append(question)
            return lines

    monkeypatch.setattr(context.Options, "connect", lambda _self: Attached())
    shown = run(
        *("audit", "--refused", "--who", "127.", "--lines", "7", "--request", "delete_topic")
    ).output
    assert "topic:orders" in shown and "127.0.0.1:4711" in shown
    assert "perm=6 (was 4)" in shown and "order" not in shown.replace("topic:orders", "")
    assert asked == [
        {"lines": 7, "since": "", "who": "127.", "refused": True, "request": "delete_topic"}
    ]
    (line,) = json.loads(run("--format", "json", "audit").output)
    assert line["new"] == {"perm": "6", "order": "false"}
    lines.clear()
    assert "nothing was refused or changed yet" in run("audit").output
    assert json.loads(run("--format", "json", "audit").output) == []


def test_metrics_prints_the_address_alone_for_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class Attached:
        def metrics(self, **where: Any) -> str:
            asked.append(where)
            return "http://10.0.0.4:5557/metrics"

    monkeypatch.setattr(context.Options, "connect", lambda _self: Attached())
    assert run("metrics").output == "http://10.0.0.4:5557/metrics\n"
    assert json.loads(run("--format", "json", "metrics", "--port", "0").output) == {
        "address": "http://10.0.0.4:5557/metrics"
    }
    assert asked == [{"host": "", "port": 5557}, {"host": "", "port": 0}]


def test_a_command_is_the_account_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    def connect(_name: str, **keys: str) -> Any:
        asked.append(keys)
        raise ClusterError("not here")

    monkeypatch.setattr(context.Options, "connect_ray", lambda self: None)
    monkeypatch.setattr(context.rmq_ray, "connect", connect)
    monkeypatch.delenv("RMQ_SECRET_KEY", raising=False)
    monkeypatch.delenv("RMQ_CREDENTIALS", raising=False)
    told = run("topic", "list", "--access-key", "web-shop")
    assert told.exit_code == 2 and "RMQ_SECRET_KEY" in told.output and not asked
    monkeypatch.setenv("RMQ_SECRET_KEY", "the secret of the shop")
    assert run("broker", "list", "--access-key", "web-shop").exit_code == 1
    assert run("broker", "list").exit_code == 1
    assert asked == [
        {"access_key": "web-shop", "secret_key": "the secret of the shop"},
        {"access_key": "", "secret_key": ""},
    ]
