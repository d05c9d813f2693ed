"""Other releases of Apache RocketMQ's Java client, old and new, with either serialisation of
headers: each does to our cluster what 4.9.7 does, and is told the same.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.interop.test_client_interop import CHECK_TIMEOUT_S, Lines, _told, one, ours, steady
from tools import interop

BINARY = "-Drocketmq.serialize.type=ROCKETMQ"
RELEASES = {
    "4.5.2": (),
    "4.9.0": (),
    "4.9.7": (),
    "4.9.8 with binary headers": (BINARY,),
    "5.3.3": (),
    "5.3.3 with binary headers": (BINARY,),
}
FIVE_DIFFERS = {"progress"}
"""Of what 5.3's tools ask otherwise."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lines]:
    """What each release told, each of a cluster of its own; three at a time."""
    found: dict[str, Lines] = {}
    names = list(RELEASES)
    for some in (names[:3], names[3:]):
        found |= _told_beside_one_another(some, tmp_path_factory)
    return found


def _told_beside_one_another(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Lines]:
    opened = [ours(tmp_path_factory.mktemp("release")) for _ in names]
    running = []
    try:
        for name, cluster in zip(names, opened, strict=True):
            release = name.split()[0]
            command = interop.command(
                "ClientCheck",
                cluster.__enter__(),
                flags=(*interop.SHORT_LIVED, *RELEASES[name]),
                release="" if release == "4.9.7" else release,
            )
            running.append(
                subprocess.Popen(
                    command,
                    cwd=interop.TARGET,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return {name: _told(process) for name, process in zip(names, running, strict=True)}
    finally:
        for process in running:
            process.kill()
        for cluster in opened:
            cluster.__exit__(None, None, None)


@pytest.mark.timeout(2 * CHECK_TIMEOUT_S + 60)
@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_told_what_4_9_7_is_told(told: dict[str, Lines], name: str) -> None:
    apart = FIVE_DIFFERS if name.startswith("5") else set()
    mine, other = (
        [line for line in steady(told[one_]) if line["check"] not in apart]
        for one_ in (name, "4.9.7")
    )
    assert mine == other
    assert one(told[name], "pull")["total"] == 16 and one(told[name], "retry")["came"] == 1
