"""Apache RocketMQ's unmodified Java clients with their ACL hook, and mqadmin with its keys, against
a cluster that asks for accounts.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.rules import AccessRules
from tests.support.brokers.live_cluster import LiveCluster
from tools import interop

SECRET = "the secret of all"
CHECK_TIMEOUT_S = 150
ACCOUNTS = (
    Account("operator", SECRET, admin=True),
    Account("web-shop", SECRET, topics={"orders": Right.PUB}),
    Account("billing", SECRET, topics={"orders": Right.SUB}, groups={"bills": Right.SUB}),
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the clients told, and at the end which topics there are."""
    directory = tmp_path_factory.mktemp("access")
    rules = AccessRules({one.access_key: one for one in ACCOUNTS}, version=1)
    with LiveCluster(directory, rules=rules) as cluster:
        address = cluster.brokers[0].address
        (name_server,) = cluster.lookup().name_servers
        done = subprocess.run(
            interop.command(
                "AccessCheck", name_server, SECRET, str(address), str(directory / "home")
            ),
            cwd=interop.TARGET,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{done.stdout[-1000:]}"
        core = cluster.brokers[0]._core
        assert core is not None
        topics = core.tables.topics.names()
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["check"]: line["told"] for line in lines} | {"topics": " ".join(topics)}


def test_who_has_the_right_sends_consumes_and_looks(told: dict[str, str]) -> None:
    assert (told["send"], told["batch"], told["consumed"]) == ("SEND_OK", "SEND_OK", "3")
    assert told["by id"] == "one", "a query by unique key, which the client signs"
    assert "made-by-mqadmin" in told["topics"]


def test_an_operator_changes_accounts_and_no_secret_is_told(told: dict[str, str]) -> None:
    assert "warehouse=******=[orders=SUB]" in told["accounts"]
    assert "web-shop=******=[orders=PUB]" in told["accounts"]
    assert told["version"] == "broker-a"
    assert told["left"] == "operator web-shop billing [10.9.9.9]"


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        ("other topic", "may not PUB on topic payroll"),
        ("wrong secret", "Check signature failed for accessKey=web-shop"),
        ("unknown key", "No acl config for nobody-at-all"),
        ("no keys", "No accessKey is configured"),
        ("route with a wrong secret", "No route info of this topic"),
        ("other group", "may not SUB on group others"),
        ("deleted twice", "there is no account 'warehouse'"),
        ("accounts by a reader", "the account billing is no administrator"),
        ("delete by a reader", "the account billing is no administrator"),
    ],
)
def test_who_has_not_is_told_so(told: dict[str, str], attempt: str, words: str) -> None:
    assert words in told[attempt]
    assert SECRET not in " ".join(told.values())
