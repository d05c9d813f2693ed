"""A changed topology file is applied to a cluster that runs, while a producer sends and a consumer
takes: settings are set or cost a restart, a broker and slaves are added, and nobody notices.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray.actors import gateway
from rmq_ray.cli.main import main
from rmq_ray.cluster import start_from
from rmq_ray.errors import ClusterError
from tests.support.outcomes import judging
from tests.support.waiting import eventually

ALONE = """\
[[brokers]]
name = "broker-a"
store = { path = "a" }
"""
FILE = f"""\
cluster = "grown"
[defaults.store]
segment_bytes = 1048576
reserved_hours = 48
{ALONE}"""
SLAVE = 'allow_same_node = true\n[[brokers.replicas]]\nstore = { path = "a-1" }\n'
SECOND = '[[brokers.replicas]]\nstore = { path = "a-2" }\n'
PAUSE_S = 0.005
MORE = '[[brokers]]\nname = "broker-b"\nstore = { path = "b" }\n'


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the cluster has grown to is in it, test by test."""
    path = tmp_path_factory.mktemp("grown") / "rmq.toml"
    path.write_text(FILE)
    yield path
    if "grown" in gateway.clusters():
        rmq.connect("grown").stop()


@pytest.fixture(scope="module")
def mq(file: Path) -> rmq.Cluster:
    cluster = start_from(file)
    for topic in ("orders", "copied"):
        cluster.admin.create_topic(topic, queues=2)
    return cluster


def status(mq: rmq.Cluster, copy: str) -> dict[str, Any]:
    """What this copy says of itself."""
    found: dict[str, Any] = mq.status()[copy]
    return found


def setting(mq: rmq.Cluster, broker: str, name: str) -> tuple[str, str]:
    """(value, source)."""
    rows = {row["name"]: row for row in mq.admin.broker_settings(broker)}
    return rows[name]["value"], rows[name]["source"]


def up(*words: str) -> str:
    here = ray.get_runtime_context().gcs_address
    done = CliRunner().invoke(main, ["--address", here, "-y", "up", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@dataclass
class Traffic:
    """``failed``: errors of sends; ``got``: body -> how often the listener had it."""

    stored: list[bytes] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)
    got: Counter[bytes] = field(default_factory=Counter)

    def wait_for_more(self, count: int = 20) -> None:
        until = len(self.stored) + count
        assert eventually(lambda: len(self.stored) >= until or bool(self.failed), 60)
        assert not self.failed

    def all_delivered(self) -> bool:
        return set(self.stored) <= self.got.keys()


@contextmanager
def traffic(mq: rmq.Cluster, topic: str = "orders") -> Iterator[Traffic]:
    """One producer and one consumer, all the time, 200 messages a second at most."""
    found, done, name = Traffic(), threading.Event(), uuid.uuid4().hex[:6]

    def send() -> None:
        with mq.producer() as producer:
            while not done.wait(PAUSE_S):
                body = f"{name}-{len(found.stored)}".encode()
                try:
                    producer.send(topic, body, timeout=120)
                    found.stored.append(body)
                except Exception as error:  # noqa: BLE001 - the test tells
                    found.failed.append(error)
                    return

    def take(messages: list[rmq.MessageExt], _context: Any) -> None:
        bodies = (bytes(message.body) for message in messages)
        found.got.update(body for body in bodies if body.startswith(name.encode()))

    sender = threading.Thread(target=send)
    with mq.push_consumer(
        f"billing-{name}", listener=take, subscriptions={topic: "*"}, start_from="first"
    ):
        sender.start()
        try:
            yield found
        finally:
            done.set()
            sender.join(60)
        assert not found.failed
        assert eventually(found.all_delivered, 60)
    assert sum(found.got.values()) < 1.5 * len(found.stored)


def test_a_setting_is_moved_while_messages_flow_and_holds_over_a_crash(
    mq: rmq.Cluster, file: Path
) -> None:
    pid = status(mq, "broker-a/0")["pid"]
    with traffic(mq) as flow:
        flow.wait_for_more()
        file.write_text(FILE.replace("= 48", "= 24"))
        shown = up("--config", str(file), "--dry-run")
        assert "set" in shown and "reserved_hours 48 -> 24" in shown
        assert setting(mq, "broker-a", "store.reserved_hours") == ("48", "configured")
        assert "changed as the file says" in up("--config", str(file))
        assert setting(mq, "broker-a", "store.reserved_hours") == ("24", "configured")
        (told,) = [line for line in mq.audit() if "configuration:file" in line["resources"]]
        assert told["event"] == "changed" and told["party"] == "broker broker-a"
        assert told["old"] == {"store.reserved_hours": "48"}
        assert told["new"] == {"store.reserved_hours": "24"} and "@" in told["address"]
        assert status(mq, "broker-a/0")["pid"] == pid, "nothing is restarted for it"
        gateway.kill("grown/broker-a/0", for_good=False)
        assert eventually(lambda: status(mq, "broker-a/0").get("pid", pid) != pid, 60)
        flow.wait_for_more()
        assert setting(mq, "broker-a", "store.reserved_hours") == ("24", "configured")


def test_a_broker_is_restarted_for_its_settings_and_one_is_added_while_messages_flow(
    mq: rmq.Cluster, file: Path
) -> None:
    pid = status(mq, "broker-a/0")["pid"]
    with traffic(mq) as flow:
        flow.wait_for_more()
        file.write_text(FILE.replace("= 48", "= 48\ncheckpoint_interval_ms = 900") + MORE)
        with pytest.raises(ClusterError, match="carry them out with `rmq-ray up --config`"):
            start_from(file)
        assert "changed as the file says" in up("--config", str(file))
        flow.wait_for_more()
        assert status(mq, "broker-a/0")["pid"] != pid
        for name in ("broker-a", "broker-b"):
            assert status(mq, f"{name}/0")["state"] == "serving"
            assert setting(mq, name, "store.checkpoint_interval_ms")[0] == "900"
        mq.admin.create_topic("orders", queues=2)
        found = {row["broker"] for row in mq.admin.describe_topic("orders")}
        assert found == {"broker-a", "broker-b"}
        again = up("--config", str(file))
        assert "was running" in again and "changed" not in again
    grown = file.read_text()
    file.write_text(FILE)
    with pytest.raises(ClusterError, match="rmq-ray broker drain"):
        start_from(file, apply_changes=True)
    file.write_text(grown)
    assert status(mq, "broker-b/0")["state"] == "serving"


def test_slaves_are_added_and_settings_of_all_copies_moved_while_messages_flow(
    mq: rmq.Cluster, file: Path
) -> None:
    def in_sync(copies: int) -> bool:
        rows = [row for row in mq.replicas() if row["broker"] == "broker-a"]
        return len(rows) == copies and all(row["in_sync"] for row in rows)

    head, tail = file.read_text().split(ALONE)
    with traffic(mq, "copied") as flow:
        for slaves, copies in ((SLAVE, 2), (SLAVE + SECOND, 3)):
            flow.wait_for_more()
            file.write_text(head + ALONE + slaves + tail)
            assert "changed as the file says" in up("--config", str(file))
            assert eventually(lambda copies=copies: in_sync(copies), 60)  # type: ignore[misc]
        pids = {copy: status(mq, f"broker-a/{copy}")["pid"] for copy in range(3)}
        file.write_text(file.read_text().replace("segment", "flush_interval_ms = 400\nsegment"))
        assert "changed as the file says" in up("--config", str(file))
        assert eventually(lambda: in_sync(3), 60)
        flow.wait_for_more()
        assert all(status(mq, f"broker-a/{copy}")["pid"] != pids[copy] for copy in range(3))
    with judging():
        assert mq.admin.to_arrow("copied").num_rows >= len(flow.stored)
