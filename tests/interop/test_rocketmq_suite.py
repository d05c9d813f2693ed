"""Apache RocketMQ 4.9.7's own integration tests, run by its unmodified Java client and helpers
against two masters of ours, which take plain connections and TLS.

The jars are RocketMQ's (``rocketmq-test``, classifier ``tests``); only their ``BaseConf``, which
would start Apache's brokers, is replaced by ``interop/rocketmq-tests``. Several JVMs share the
classes among them, since most tests wait.
"""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.interop.test_client_interop import ours
from tests.support.brokers.open_cluster import CLUSTER
from tools import interop

JVMS = 6
TIMEOUT_S = 400
NOT_TESTS = {"BaseBroadCastIT", "DLedgerProduceAndConsumeIT"}
"""A base class; tests of Apache's own replicated log, which start Apache's brokers themselves."""
TESTS = 108  # of 48 classes; three of them over TLS
FLAGS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "-Dfile.encoding=UTF-8",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What JUnit printed in each JVM."""
    folder = tmp_path_factory.mktemp("suite")
    classpath = interop.build(interop.SUITE)
    classes = integration_tests(classpath)
    with ours(folder, masters=2) as name_server:
        command = [
            "java",
            *interop.SHORT_LIVED,
            *FLAGS,
            f"-Dsuite.nameServer={name_server}",
            f"-Dsuite.cluster={CLUSTER}",
            "-Dsuite.broker1=broker-a",
            "-Dsuite.broker2=broker-b",
            f"-Duser.home={folder}",  # where Java clients write their logs
            "-cp",
            classpath,
            "org.junit.runner.JUnitCore",
        ]
        running = [
            subprocess.Popen(
                [*command, *classes[index::JVMS]],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
            )
            for index in range(JVMS)
        ]
        try:
            return [process.communicate(timeout=TIMEOUT_S)[0] for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait(30)


def integration_tests(classpath: str) -> list[str]:
    """Names of the test classes in RocketMQ's jar, those of one kind spread over the JVMs."""
    jar = next(path for path in classpath.split(":") if path.endswith("-tests.jar"))
    with zipfile.ZipFile(Path(jar)) as files:
        names = [name for name in files.namelist() if name.endswith("IT.class")]
    found = [name.removesuffix(".class").replace("/", ".") for name in sorted(names)]
    return [name for name in found if name.split(".")[-1] not in NOT_TESTS]


@pytest.mark.slow
def test_rocketmqs_own_integration_tests_pass(outputs: list[str]) -> None:
    failed = [
        line
        for output in outputs
        for line in re.findall(r"^\d+\) .*\n(?:.*\n){0,4}", output, re.MULTILINE)
    ]
    assert not failed, "\n".join(failed)
    passed = [re.search(r"^OK \((\d+) tests?\)", output, re.MULTILINE) for output in outputs]
    assert all(passed), "\n".join(output[-2000:] for output in outputs)
    assert sum(int(found[1]) for found in passed if found) == TESTS
