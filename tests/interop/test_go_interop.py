"""Apache RocketMQ's unmodified Go client with its credentials against a cluster that asks for
accounts.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.rules import AccessRules
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.outcomes import judging
from tests.support.tools import obtained
from tools import interop

SECRET = "the secret of all"
BOTH = Right.PUB | Right.SUB
ACCOUNTS = (
    Account("web-shop", SECRET, topics={"orders": BOTH}, groups={"gophers": Right.SUB}),
    Account("billing", SECRET, topics={"orders": Right.SUB}),
)
SENT = 20
CHECK_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def program() -> Path:
    return obtained(interop.build_go)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    rules = AccessRules({one.access_key: one for one in ACCOUNTS}, version=1)
    with LiveCluster(tmp_path_factory.mktemp("go"), rules=rules) as running:
        with Producer("ours", discovery=running) as ours:
            ours.send(
                "orders", b"of Python", tag="snake", keys="key-p", properties={"city": "Bern"}
            )
        yield running


def told(
    program: Path, cluster: LiveCluster, group: str, sent: int, awaited: int, *keys: str
) -> dict[str, Any]:
    """What the client tells of each step."""
    (server,) = cluster.lookup().name_servers
    done = subprocess.run(
        [str(program), server, "orders", group, str(sent), str(awaited), *keys],
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        cwd=interop.TARGET,
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{done.stdout[-1000:]}"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["check"]: line["told"] for line in lines}


def stored(cluster: LiveCluster) -> int:
    store = cluster.store()
    return sum(store.bounds("orders", queue_id)[1] for queue_id in range(16))


def test_an_account_sends_and_consumes_what_each_side_sent(
    program: Path, cluster: LiveCluster
) -> None:
    found = told(program, cluster, "gophers", SENT, SENT + 1, "web-shop", SECRET)
    assert found["send"] == "OK"
    with judging():
        assert stored(cluster) == SENT + 1
    theirs = {f"go {n}": ["gopher", f"key-{n}", "Zürich"] for n in range(SENT)}
    assert found["consumed"] == {"of Python": ["snake", "key-p", "Bern"], **theirs}
    with PullConsumer("ours", discovery=cluster) as reader:
        came = [
            message
            for queue in reader.fetch_message_queues("orders")
            for message in reader.pull(queue, "*", 0, 64).messages
        ]
    read = {bytes(m.body).decode(): [m.tag, " ".join(m.keys), m.properties["city"]] for m in came}
    assert read == found["consumed"]
    admin = Admin(cluster)
    rows = [row for row in admin.group_lag("gophers") if row["topic"] == "orders"]
    admin.close()
    assert sum(row["committed"] for row in rows) == SENT + 1, "its shutdown committed"


ROUTE = "route info not found"
"""What the client makes of any refusal of a route."""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("billing", SECRET), "AclException: the account billing may not PUB on topic orders"),
        (("web-shop", "another secret"), ROUTE),
        (("nobody-at-all", SECRET), ROUTE),
        ((), ROUTE),
    ],
)
def test_who_has_no_right_is_refused_and_nothing_is_stored(
    program: Path, cluster: LiveCluster, keys: tuple[str, ...], words: str
) -> None:
    assert cluster.name_server is not None
    before, servers = stored(cluster), (cluster.brokers[0], cluster.name_server.server)
    refused = [server.status()["access"]["refused"] for server in servers]  # type: ignore[index]
    found = told(program, cluster, "", 1, 0, *keys)
    now = [server.status()["access"]["refused"] for server in servers]  # type: ignore[index]
    with judging():
        assert stored(cluster) == before
    assert words in found["send"]
    assert now[1 if words == ROUTE else 0] > refused[1 if words == ROUTE else 0], "and noted"
