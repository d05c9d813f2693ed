"""Apache RocketMQ 4.9.7's own integration tests, run by its unmodified Java client and helpers
against two masters of ours, which take plain connections and TLS.

The jars are RocketMQ's (``rocketmq-test``, classifier ``tests``); only their ``BaseConf``, which
would start Apache's brokers, is replaced by ``interop/rocketmq-tests``. All of them run in one JVM
before the first of the results is judged, several classes at a time, since most tests wait. Their
names stand in ``interop/rocketmq-tests/tests.toml``. The classes of ``ALONE`` run when nothing else
does.

Where only a few of the tests are asked for, as in the second pass of ``tools.suite``, their classes
run one after the other, and those that fail once more.
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.open_cluster import CLUSTER, opened
from tools import interop, rocketmq_tests
from tools.rocketmq_tests import TIMEOUT_S

THREADS = 5
FEW = 12
NOT_TESTS = {"BaseBroadCastIT", "DLedgerProduceAndConsumeIT"}
"""A base class; tests of Apache's own replicated log, which start Apache's brokers themselves."""
ALONE = {"BroadCastNormalMsgRecvFailIT", "NormalMsgDelayIT", "NormalMsgTwoSameGroupConsumerIT"}
"""They can fail on a busy machine although the brokers did nothing wrong; docs/compatibility.md
says of each why.
"""
Test = tuple[str, str]
"""Class and method."""
TESTS = [(name, test) for name, tests in interop.suite_tests().items() for test in tests]
PARAMETERS = [
    pytest.param(
        test,
        id=interop.suite_id(*test),
        marks=[pytest.mark.alone] if test[0].rpartition(".")[2] in ALONE else [],
    )
    for test in TESTS
]

FLAKY = "failed, then passed"

pytestmark = [
    pytest.mark.timeout(2 * TIMEOUT_S + 200),  # the first test waits for all of them
    pytest.mark.filterwarnings(f"always:{FLAKY}"),
]


def test_the_list_names_what_junit_would_run(tmp_path: Path) -> None:
    told = rocketmq_tests.run(0, integration_tests(), tmp_path)
    found = [(line["class"], line["test"]) for line in told if line["outcome"] == "listed"]
    assert sorted(found) == sorted(TESTS)


@pytest.mark.slow
@pytest.mark.parametrize("test", PARAMETERS)
def test_a_test_of_rocketmqs_own_passes(test: Test, failures: dict[Test, str]) -> None:
    why = failures[test]
    if why:
        pytest.fail(why, pytrace=False)


@pytest.fixture(scope="module")
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Test, str]:
    """Why a test failed, or nothing when it passed: of those that this run of pytest asks for."""
    wanted = [
        item.callspec.params["test"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and "failures" in item.fixturenames
    ]
    few = len(wanted) <= FEW
    folder = tmp_path_factory.mktemp("suite")
    with opened(folder, 2 * TIMEOUT_S + 60, masters=2) as (name_server, _):
        found = outcomes(wanted, 1 if few else THREADS, name_server, folder)
        failed = [test for test in wanted if found[test]]
        if few and failed:
            again = outcomes(failed, 1, name_server, folder)
            for test in failed:
                if not again[test]:
                    warnings.warn(f"{FLAKY}: {test}: {found[test]}", stacklevel=1)
            found |= again
    return found


def outcomes(tests: list[Test], threads: int, name_server: str, folder: Path) -> dict[Test, str]:
    """Why each of the tests failed, or nothing, after a run of their classes."""
    classes = dict.fromkeys(name for name, _ in tests)
    told = rocketmq_tests.run(threads, classes, folder, *rocketmq_tests.where(name_server, CLUSTER))
    ended = {(line["class"], line.get("test")): line for line in told}
    return {test: _why(ended.get(test), ended.get((test[0], None))) for test in tests}


def _why(test: dict[str, Any] | None, of_class: dict[str, Any] | None) -> str:
    if of_class is not None:
        return str(of_class["message"])
    if test is None:
        return "JUnit did not tell how it ended; printed.log holds what the JVM said"
    return "" if test["outcome"] == "passed" else test["message"] or test["outcome"]


def integration_tests() -> list[str]:
    """Names of the test classes in RocketMQ's jar."""
    classpath = interop.build(interop.SUITE)
    jar = next(path for path in classpath.split(":") if path.endswith("-tests.jar"))
    with zipfile.ZipFile(Path(jar)) as files:
        names = [name for name in files.namelist() if name.endswith("IT.class")]
    found = [name.removesuffix(".class").replace("/", ".") for name in sorted(names)]
    return [name for name in found if name.split(".")[-1] not in NOT_TESTS]
