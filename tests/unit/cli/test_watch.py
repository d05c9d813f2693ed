"""``--watch`` shows a state round after round; the cluster is a fragment that is told what to say,
and the clock ends the watch as Ctrl-C does.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq_ray.cli.base import context
from rmq_ray.cli.main import main
from rmq_ray.cli.shell import watch
from rmq_ray.clock import ManualClock, local_time
from rmq_ray.errors import ConfigError, ConnectionLost

ROUNDS = 3


class Clock(ManualClock):
    """Somebody presses Ctrl-C in the last pause."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep_ms(self, duration_ms: float) -> None:
        self.pauses.append(duration_ms)
        if len(self.pauses) == ROUNDS:
            raise KeyboardInterrupt
        super().sleep_ms(duration_ms)


class Fragment:
    """One backlog that shrinks, or what is to be raised instead."""

    def __init__(self) -> None:
        self.left = [30, 20, 10]
        self.closed = 0
        self.fails: dict[int, Exception] = {}

    def group_lag(self, group: str) -> list[dict[str, Any]]:
        left = self.left.pop(0)
        if left in self.fails:
            raise self.fails[left]
        return [{"topic": group, "broker": "broker-a", "queue": 0, "lag": left}]

    def waiting(self) -> dict[str, dict[str, int]]:
        return {"delayed": {}, "uncommitted": {}}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "SYSTEM_CLOCK", clock)
    return clock


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Fragment:
    fragment = Fragment()

    def admin(options: context.Options) -> Fragment:
        options._admin = fragment  # type: ignore[assignment]
        return fragment

    monkeypatch.setattr(context.Options, "admin", property(admin))
    return fragment


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="rmq-ray")


def documents(text: str) -> list[Any]:
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


def test_each_round_stands_below_its_time_and_command(cluster: Fragment, clock: Clock) -> None:
    began = clock.now_ms()
    done = run("group", "lag", "billing", "--watch", "5")
    assert done.exit_code == 0, done.output
    blocks = [block.splitlines() for block in done.stdout.strip().split("\n\n")]
    assert [block[0] for block in blocks] == [
        f"{local_time(began + 5_000 * i)}  every 5 s: rmq-ray group lag billing" for i in range(3)
    ]
    assert [block[-1].split()[-2] for block in blocks] == ["30", "20", "10"]
    assert clock.pauses == [5_000] * ROUNDS and cluster.closed == 0, "connections stay open"


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("words", [("--watch", "billing"), ("billing", "--watch")], ids=" ".join)
def test_two_seconds_where_none_are_given_wherever_the_option_stands(
    words: tuple[str, ...], clock: Clock
) -> None:
    done = run("group", "lag", *words)
    assert (done.exit_code, clock.pauses) == (0, [2_000] * ROUNDS), done.output


@pytest.mark.usefixtures("clock")
def test_as_json_each_round_is_one_document(cluster: Fragment) -> None:
    cluster.fails[20] = ConnectionLost("broker-a is gone")
    done = run("group", "lag", "billing", "--watch", "--format", "json")
    assert [document[0]["lag"] for document in documents(done.stdout)] == [30, 10]
    assert json.loads(done.stderr) == {"type": "ConnectionLost", "message": "broker-a is gone"}


@pytest.mark.usefixtures("clock")
def test_an_error_is_shown_and_the_next_round_finds_the_cluster_anew(cluster: Fragment) -> None:
    cluster.fails[20] = ConnectionLost("broker-a is gone")
    done = run("group", "lag", "billing", "--watch")
    assert done.exit_code == 0 and not cluster.left
    assert "Error: broker-a is gone [ConnectionLost]" in done.stderr and cluster.closed == 1


def test_what_can_never_be_right_ends_the_watch(cluster: Fragment, clock: Clock) -> None:
    cluster.fails[30] = ConfigError("there is no such account")
    done = run("group", "lag", "billing", "--watch")
    assert done.exit_code == 2 and clock.pauses == [] and "no such account" in done.stderr


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_waits_for_what_is_being_asked_and_a_second_one_does_not(
    cluster: Fragment, clock: Clock, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    ask, handler = cluster.group_lag, signal.getsignal(signal.SIGINT)

    def pressed(group: str) -> list[dict[str, Any]]:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return ask(group)

    monkeypatch.setattr(cluster, "group_lag", pressed)
    done = run("group", "lag", "billing", "--watch", "--format", "json")
    assert (done.exit_code, clock.pauses, len(cluster.left)) == (0, [], 1 + times)
    assert len(documents(done.stdout)) == 2 - times
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_terminal_is_redrawn_with_hints_and_errors_in_the_picture(
    cluster: Fragment, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.fails[20] = ConnectionLost("broker-a is gone")
    began = clock.now_ms()
    monkeypatch.setattr(watch.click, "clear", lambda: watch.click.echo("<clear>"))
    with CliRunner().isolation() as (out, err, _both):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert main.main(["group", "lag", "b", "--watch"], "rmq-ray", standalone_mode=False) is None
        shown, errors = out.getvalue().decode(), err.getvalue()
    pictures = shown.split("<clear>\n")[1:]
    assert [picture.splitlines()[0] for picture in pictures] == [
        f"{local_time(began + 2_000 * i)}  every 2 s: rmq-ray group lag b" for i in range(3)
    ]
    assert "committed_age_ms: since" in pictures[0] and not errors
    assert pictures[1].splitlines()[1] == "Error: broker-a is gone [ConnectionLost]"


@pytest.mark.parametrize(
    "words",
    [
        ("group", "lag", "billing", "--watch", "0"),
        ("group", "lag", "billing", "--watch=often"),
        ("topic", "delete", "orders", "--watch"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("cluster", "clock")
def test_a_pause_that_is_none_and_a_command_that_changes_things_are_wrong_usage(
    words: tuple[str, ...],
) -> None:
    done = run(*words)
    assert done.exit_code == 2 and "--watch" in done.stderr


@pytest.mark.parametrize(
    "words",
    "status|health|topic list|topic describe|group list|group describe|group lag|client list|"
    "client describe|broker list|acl list|acl user list|workers status|audit".split("|"),
)
def test_commands_that_show_a_state_can_be_watched(words: str) -> None:
    assert "--watch" in run(*words.split(), "--help").stdout
