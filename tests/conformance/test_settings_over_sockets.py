"""Settings and limits through our clients, over sockets, in one process."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_ray.cli.base.context import Options
from rmq_ray.cli.main import main
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.errors import AdminError, BrokerBusy, ClientError, GroupNotFound
from tests.support.brokers.live_cluster import LiveCluster, LiveProcess
from tests.support.clients.collecting import Collector
from tests.support.pages import all_blocks

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as made:
        yield made


@pytest.fixture
def admin(cluster: LiveCluster) -> Iterator[Admin]:
    made = Admin(cluster)
    yield made
    made.close()


def test_settings_are_told_changed_and_refused(admin: Admin) -> None:
    assert admin.set_broker(None, {"fileReservedTime": 48, "slave_reads": True}) == ["broker-a"]
    rows = {row["name"]: row for row in admin.broker_settings("broker-a")}
    assert (rows["store.reserved_hours"]["value"], rows["slave_reads"]["value"]) == ("48", "true")
    assert rows["pull_bytes_max"]["source"] == "configured"
    with pytest.raises(AdminError, match="1 to 15728640 bytes are possible"):
        admin.set_broker("broker-a", {"pull_bytes_max": 0, "slave_reads": False})
    with pytest.raises(AdminError, match="there are broker-a"):
        admin.set_broker("broker-z", {"pull_bytes_max": 5})
    with pytest.raises(ClientError):
        admin.set_broker(None, {})
    admin.set_broker(None, {"fileReservedTime": None, "slave_reads": ""})
    assert {row["source"] for row in admin.broker_settings()} == {"configured"}


def test_a_producer_over_a_limit_sends_again_within_its_time_out(
    cluster: LiveCluster, admin: Admin
) -> None:
    admin.create_topic("orders", queues=1)
    admin.set_limit("topic", "orders", messages_per_s=10)
    with Producer("p", discovery=cluster) as producer:
        began = time.monotonic()
        for number in range(25):
            producer.send("orders", str(number).encode(), timeout=10)
        assert time.monotonic() - began > 1.0, "10 at once, then 10 a second"
        admin.set_limit("topic", "orders", messages_per_s=0, bytes_per_s=10)
        producer.send("orders", b"x" * 1_000)
        with pytest.raises(BrokerBusy, match="topic orders is over its limit"):
            producer.send("orders", b"late", timeout=1.5)
    (row,) = admin.limits()
    assert (row["bytes_per_s"], row["messages_per_s"]) == (10, None)
    status = admin.broker_status("broker-a")
    assert status["limited_sends"] > 0 and status["limits"][0]["name"] == "orders"


def test_a_limited_group_gets_everything_at_its_rate(cluster: LiveCluster, admin: Admin) -> None:
    admin.create_topic("orders", queues=1)
    with Producer("p", discovery=cluster) as producer:
        for number in range(30):
            producer.send("orders", str(number).encode())
    admin.set_limit("group", "billing", messages_per_s=10)
    seen = Collector()
    began = time.monotonic()
    with PushConsumer(
        "billing",
        listener=seen,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
    ):
        seen.wait_for(30)
    assert time.monotonic() - began > 1.0
    assert sorted(map(int, seen.bodies)) == list(range(30))


def test_a_limited_group_of_workers_gets_everything_at_its_rate(
    cluster: LiveCluster, admin: Admin
) -> None:
    admin.create_topic("jobs", queues=1)
    admin.set_limit("group", "workers", messages_per_s=10)
    with SimpleConsumer("jobs", "workers", discovery=cluster, start_from="first") as consumer:
        with Producer("p", discovery=cluster) as producer:
            for number in range(30):
                producer.send("jobs", str(number).encode())
        began, found = time.monotonic(), []
        while len(found) < 30 and time.monotonic() - began < 20:
            messages = consumer.receive(32, wait=5)
            found += [int(message.body) for message in messages]
            consumer.ack_all(messages)
    assert sorted(found) == list(range(30)) and time.monotonic() - began > 1.0


def test_a_group_is_altered_and_what_is_not_given_stays(admin: Admin) -> None:
    with pytest.raises(GroupNotFound):
        admin.alter_group("billing", retries=3)
    admin._make_known("billing")
    admin.alter_group("billing", retries=3)
    admin.alter_group("billing", consume=False)
    (config,) = admin._group_configs("billing").values()
    assert (config.retry_max_times, config.consume_enable, config.retry_queues) == (3, False, 1)
    with pytest.raises(ClientError, match="retries must be"):
        admin.alter_group("billing", retries=-5)


def test_changes_and_limits_survive_kill_9(tmp_path: Path) -> None:
    life = LiveProcess(tmp_path)
    admin = Admin(life)
    admin.set_broker("broker-a", {"fileReservedTime": 48, "flushIntervalCommitLog": 700})
    admin.set_limit("topic", "orders", messages_per_s=100)
    admin.close()
    life.kill()
    again = LiveProcess(tmp_path)
    admin = Admin(again)
    try:
        rows = {row["name"]: row for row in admin.broker_settings("broker-a")}
        assert rows["store.reserved_hours"]["value"] == "48"
        late = rows["store.flush_interval_ms"]
        assert (late["value"], late["source"]) == ("700", "changed"), "it was the next start"
        assert admin.limits()[0]["messages_per_s"] == 100
    finally:
        admin.close()
        again.kill()


# --- the command line ---


@pytest.fixture
def rmq_ray(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command against the cluster; its output."""
    monkeypatch.setattr(Options, "admin", property(lambda _options: admin))

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, list(words))
        assert done.exit_code == 0, (words, done.output)
        return done.stdout

    return run


def test_the_pages_commands_do_what_it_says(rmq_ray: Callable[..., str], admin: Admin) -> None:
    for language, text in all_blocks("docs/settings.md"):
        assert language == "sh"
        for line in text.splitlines():
            said = rmq_ray(*shlex.split(line)[1:])
            if "--changed" in line:
                assert "store.reserved_hours" in said and "pull_bytes_max" in said
            if line.endswith("limit list"):
                assert "orders" in said and "10485760" in said and "billing" in said
    assert admin.limits() == []
    assert {row["source"] for row in admin.broker_settings()} == {"configured"}


def test_a_setting_of_the_next_start_is_said_to_be_one(rmq_ray: Callable[..., str]) -> None:
    done = CliRunner().invoke(main, ["broker", "set", "broker-a", "offset_persist_ms=7000"])
    assert "offset_persist_ms=7000 takes effect at the broker's next start" in done.output
    wrong = CliRunner().invoke(main, ["broker", "set", "broker-a", "nonsense=1"])
    assert wrong.exit_code == 1 and "there is no setting 'nonsense'" in wrong.output
    assert CliRunner().invoke(main, ["broker", "set", "broker-a", "nonsense"]).exit_code == 2


def test_top_shows_what_is_stored_and_who_lags(
    rmq_ray: Callable[..., str], cluster: LiveCluster, admin: Admin
) -> None:
    admin.create_topic("orders", queues=1)
    with Producer("p", discovery=cluster) as producer:
        for number in range(5):
            producer.send("orders", str(number).encode())
    found = json.loads(rmq_ray("--format", "json", "top", "--once"))
    (row,) = [one for one in found["topics"] if one["topic"] == "orders"]
    assert (row["messages"], row["stored_per_s"]) == (5, 0.0)
    assert "stored_per_s" in rmq_ray("top", "--once")
