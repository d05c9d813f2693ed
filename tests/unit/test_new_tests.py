"""``tools.new_tests``: which tests a branch adds, and how the new ones run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools import deflake, new_tests
from tools.deflake import Turn
from tools.new_tests import COUNT, NEW_MAX, NoBase, added, parted, red_in, under_load

KNOWN = "def test_old(): assert 1\n"
OF_ALL_KINDS = (
    KNOWN
    + """
async def test_async(): assert 1
class TestIt:
    def test_method(self): assert 1
    def helper(self): return 1
    class TestInner:
        def test_inner(self): assert 1
class Other:
    def test_not_collected(self): assert 1
if True:
    def test_below_if(): assert 1
def helper():
    def test_local(): assert 1
@pytest.mark.parametrize("x", [1, 2])
def test_parameters(x): assert x
"""
)


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository on a branch that has just left main."""
    git(tmp_path, "init", "--initial-branch=main")
    write(tmp_path, "tests/unit/test_a.py", KNOWN)
    write(
        tmp_path, "tests/unit/test_b.py", KNOWN + "# a line that makes the file one of a kind\n" * 9
    )
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "checkout", "-b", "branch")
    return tmp_path


def test_new_are_functions_and_methods_that_pytest_collects() -> None:
    assert added(KNOWN, OF_ALL_KINDS) == [
        "test_async",
        "TestIt::test_method",
        "TestIt::TestInner::test_inner",
        "test_below_if",
        "test_parameters",
    ]
    assert added(OF_ALL_KINDS, OF_ALL_KINDS) == []


def test_tests_that_are_committed_and_those_that_are_not_are_new(root: Path) -> None:
    assert new_tests.new_tests(root=root) == []
    write(root, "tests/unit/test_a.py", KNOWN + "def test_committed(): assert 1\n")
    git(root, "commit", "-am", "second")
    write(root, "tests/unit/test_b.py", "def test_changed(): assert 1\n")
    write(root, "tests/ray/test_c.py", "def test_untracked(): assert 1\n")
    write(root, "tests/support/help.py", "def test_of_no_test_file(): assert 1\n")
    assert new_tests.new_tests(root=root) == [
        "tests/ray/test_c.py::test_untracked",
        "tests/unit/test_a.py::test_committed",
        "tests/unit/test_b.py::test_changed",
    ]


def test_of_a_file_that_moved_only_what_is_added_is_new(root: Path) -> None:
    git(root, "mv", "tests/unit/test_b.py", "tests/unit/test_d.py")
    git(root, "rm", "tests/unit/test_a.py")
    assert new_tests.new_tests(root=root) == []
    moved = root / "tests" / "unit" / "test_d.py"
    moved.write_text(moved.read_text() + "def test_added(): assert 1\n")
    assert new_tests.new_tests(root=root) == ["tests/unit/test_d.py::test_added"]


def test_what_the_base_did_since_the_branch_left_it_is_not_new_here(root: Path) -> None:
    git(root, "checkout", "main")
    write(root, "tests/unit/test_a.py", "def test_of_another_name(): assert 1\n")
    git(root, "commit", "-am", "on main")
    git(root, "checkout", "branch")
    assert new_tests.new_tests(root=root) == []


def test_a_base_is_also_looked_for_where_the_clone_came_from(root: Path) -> None:
    git(root, "update-ref", "refs/remotes/origin/release", "main")
    assert new_tests.new_tests("release", root) == []
    with pytest.raises(NoBase, match="no commit nowhere"):
        new_tests.new_tests("nowhere", root)


def test_the_command_says_so_where_the_base_is_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert new_tests.main(["no-such-commit"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "not known" in said.err


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[list[str], int]]]:
    """What is run, and how often; nothing is."""
    calls: list[tuple[list[str], int]] = []

    def repeat(tests: Sequence[str], times: int) -> Iterator[Turn]:
        calls.append((list(tests), times))
        for number in range(1, times + 1):
            is_red = number == 2 and "tests/ray/test_c.py::test_c" in tests
            yield Turn(number, False, 1, is_red, "FAILED tests/ray/test_c.py::test_c - no")

    monkeypatch.setattr(deflake, "repeat", repeat)
    monkeypatch.delenv(COUNT, raising=False)
    yield calls


def found(monkeypatch: pytest.MonkeyPatch, *tests: str) -> None:
    monkeypatch.setattr(new_tests, "new_tests", lambda _base: list(tests))


def test_light_ones_run_ten_times_and_heavy_ones_twice(
    ran: list[tuple[list[str], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    light, heavy = "tests/unit/test_a.py::test_a", "tests/ray/test_c.py::test_c"
    assert parted([heavy, light]) == ([light], [heavy])
    found(monkeypatch, heavy, light)
    told: list[str] = []
    assert under_load("main", told.append) == [
        "a new test is red in 1 of 2 turns: FAILED tests/ray/test_c.py::test_c"
    ]
    assert ran == [([light], 10), ([heavy], 2)]
    assert told[0] == f"NEW 1 tests since main run 10 times: {light}" and len(told) == 14
    monkeypatch.setenv(COUNT, "3")
    under_load("main", told.append)
    assert ran[2:] == [([light], 3), ([heavy], 3)]


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ["NEW 0 tests since main"]), (NEW_MAX + 1, ["NEW 41 tests since main, over 40"])],
)
def test_none_and_too_many_run_nothing_and_say_so(
    count: int, said: list[str], ran: list[tuple[list[str], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = [f"tests/unit/test_a.py::test_{number}" for number in range(NEW_MAX + 1)]
    found(monkeypatch, *tests[:count])
    told: list[str] = []
    assert under_load("main", told.append) == [] and told == said and ran == []
    found(monkeypatch, *tests[:NEW_MAX])
    assert under_load("main", told.append) == [] and ran == [(tests[:NEW_MAX], 10)]


def test_without_a_base_nothing_runs(ran: list[tuple[list[str], int]]) -> None:
    told: list[str] = []
    assert under_load("", told.append) == [] and told == []
    assert under_load("no-such-commit", told.append) == [] and len(told) == 1 and ran == []


def test_turns_end_with_the_time() -> None:
    turns = (Turn(number, False, 1, 0, "") for number in range(1, 11))
    told: list[str] = []
    assert red_in(turns, 10, 0.0, told.append) == []
    assert told[1:] == ["NEW the time is over after 1 of 10 turns"]
