"""What a command remembers of a cluster for the next one, against a real name server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

import rmq_ray as rmq
from rmq_ray.actors import discovery as discovery_of_names
from rmq_ray.actors import remembered
from rmq_ray.actors.access_keys import AccountProof
from rmq_ray.actors.remembered import RememberedDiscovery, note, read, remember
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.config import Tls
from rmq_ray.errors import ClusterError, ConfigError
from rmq_ray.ports import ClusterAddress
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster
from tests.support.waiting import eventually


class Ray:
    """Stands for what joins Ray: says where the cluster is, and how often it was asked."""

    def __init__(self, address: ClusterAddress | None) -> None:
        self.address = address
        self.joined = 0

    def __call__(self) -> Ray:
        self.joined += 1
        return self

    def lookup(self) -> ClusterAddress:
        if self.address is None:
            raise ClusterError("no cluster 'live' runs here")
        return self.address


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine's name server is not taken for one that has gone."""
    monkeypatch.setattr(remembered, "PROOF_MS", 20_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return note(tmp_path, "127.0.0.1:6379", "live")


def discovery(path: Path, ray: Ray) -> RememberedDiscovery:
    return RememberedDiscovery(path, ray)  # type: ignore[arg-type]


def test_the_second_command_needs_no_ray(cluster: LiveCluster, path: Path) -> None:
    ray = Ray(cluster.lookup())
    assert discovery(path, ray).lookup() == cluster.lookup() and ray.joined == 1
    assert discovery(path, ray).lookup() == cluster.lookup() and ray.joined == 1
    assert path.stat().st_mode & 0o777 == 0o600, "it holds the cluster's secret"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("what", ["another secret", "no name server there"])
def test_a_cluster_that_was_started_anew_is_looked_for_in_ray(
    what: str, cluster: LiveCluster, path: Path
) -> None:
    now = cluster.lookup()
    before = (
        replace(now, secret=b"o" * 32)
        if what == "another secret"
        else replace(now, name_servers=("127.0.0.1:1",))
    )
    remember(path, before)
    ray = Ray(now)
    assert discovery(path, ray).lookup() == now and ray.joined == 1
    assert read(path) == now, "and it is remembered"


def test_an_account_stays_that_account(cluster: LiveCluster, path: Path) -> None:
    account = AccountProof.of("alice-key", "alice-secret", cluster.lookup().cluster)
    ray = Ray(cluster.lookup())
    for _ in range(2):
        found = RememberedDiscovery(path, ray, account).lookup()  # type: ignore[arg-type]
        assert found == account.at(cluster.lookup()) and found.access_key == "alice-key"
    assert ray.joined == 1 and "alice" not in path.read_text()


def test_a_cluster_that_is_gone_is_told_as_ray_tells_it(path: Path) -> None:
    remember(path, ClusterAddress("live", ("127.0.0.1:1",), b"s" * 32))
    with pytest.raises(ClusterError, match="no cluster 'live' runs here"):
        discovery(path, Ray(None)).lookup()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cluster": "live"}', "\0"])
def test_a_file_that_says_nothing_is_as_none(text: str, cluster: LiveCluster, path: Path) -> None:
    path.write_text(text)
    ray = Ray(cluster.lookup())
    assert discovery(path, ray).lookup() == cluster.lookup() and ray.joined == 1


def test_how_tls_is_spoken_is_remembered_and_an_account_is_not(path: Path) -> None:
    found = ClusterAddress("live", ("127.0.0.1:1",), b"s" * 32, Tls(ca="ca.pem"))
    remember(path, found)
    assert read(path) == found
    remember(path, replace(found, access_key="alice", secret=b"k" * 32))
    assert read(path) == found


def test_a_directory_that_takes_no_file_costs_time_only(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    ray = Ray(cluster.lookup())
    assert discovery(tmp_path / "missing" / "x.json", ray).lookup() == cluster.lookup()


@pytest.fixture
def noted(cluster: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a command has noted the cluster; this process has not joined Ray."""
    monkeypatch.setattr(remembered, "directory_of_user", lambda: tmp_path)
    monkeypatch.setattr(discovery_of_names, "_used", {})
    remember(note(tmp_path, "127.0.0.1:6379", CLUSTER), cluster.lookup())
    return tmp_path


@pytest.mark.usefixtures("noted")
def test_a_process_without_ray_finds_a_cluster_that_a_command_met() -> None:
    with rmq.Producer(cluster=CLUSTER) as producer:
        assert producer.send("noted", b"body").status is rmq.SendStatus.SEND_OK
    handle = rmq.connect(CLUSTER)
    with closing(handle.admin):
        assert handle.admin.topic_stats("noted") and not isinstance(handle, rmq.Cluster)


@pytest.mark.usefixtures("noted")
def test_of_a_cluster_that_nobody_noted_ray_is_asked() -> None:
    with pytest.raises(ClusterError, match=r"ray\.init\(\) first"):
        rmq.Producer(cluster="unknown").send("noted", b"body")
    with pytest.raises(ClusterError, match=r"ray\.init\(\) first"):
        rmq.connect("unknown")


def test_what_answers_no_more_is_not_found_and_of_two_neither(
    noted: Path, cluster: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = noted / "other.cluster.json"
    remember(other, replace(cluster.lookup(), secret=b"o" * 32))
    assert remembered.find(CLUSTER) == cluster.lookup(), "the other one was stopped"
    with LiveCluster(tmp_path / "second") as second:
        remember(other, second.lookup())
        note(noted, "127.0.0.1:6379", CLUSTER).unlink()
        assert remembered.find(CLUSTER) == second.lookup()
    assert remembered.find(CLUSTER) is None
    remember(note(noted, "127.0.0.1:6379", CLUSTER), replace(cluster.lookup(), secret=b"o" * 32))
    monkeypatch.setattr(remembered, "answers", lambda _told: True)
    with pytest.raises(ConfigError, match=r"several clusters 'live' .* name_servers= and secret="):
        remembered.find(CLUSTER)


COMMAND = """
import sys
from pathlib import Path
from typing import IO, Any
from rmq_ray.actors import remembered
from rmq_ray.cli.base import ray_head
from rmq_ray.cli.main import main
ray_head.find = lambda address, port=None: "127.0.0.1:6379"
remembered.directory_of_user = lambda: Path(sys.argv[1])
remembered.PROOF_MS = 20_000
try:
    main(sys.argv[2:])
finally:
    print(sorted({"ray", "pyspark"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("group", "list"),
        ("produce", "orders", "body"),
        ("consume", "orders", "--from", "first", "--max", "1"),
    ],
    ids=" ".join,
)
def test_commands_that_talk_to_brokers_alone_import_no_ray(
    command: tuple[str, ...], cluster: LiveCluster, tmp_path: Path
) -> None:
    found = cluster.lookup()
    remember(note(tmp_path, "127.0.0.1:6379", found.cluster), found)
    with Producer("told", discovery=cluster) as producer:
        producer.send("orders", b"to consume")
    done = subprocess.run(
        [
            *(sys.executable, "-c", COMMAND, str(tmp_path)),
            *("--format", "json", "--cluster", found.cluster, *command),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert json.loads(done.stdout) is not None


def test_a_watched_topic_shows_what_comes_until_ctrl_c_and_needs_no_ray(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    found = cluster.lookup()
    remember(note(tmp_path, "127.0.0.1:6379", found.cluster), found)
    with Producer("watched", discovery=cluster) as producer:
        producer.send("watched", b"1")
        words = ("topic", "describe", "watched", "--watch", "0.1", "--format", "json")
        watching = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(tmp_path), "--cluster", found.cluster, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert watching.stdout is not None
            assert sum(row["messages"] for row in document(watching.stdout)) == 1
            producer.send("watched", b"2")
            rounds = (document(watching.stdout) for _ in range(600))
            assert any(sum(row["messages"] for row in rows) == 2 for rows in rounds)
            watching.send_signal(signal.SIGINT)
            _, told = watching.communicate(timeout=60)
        finally:
            watching.kill()
            watching.communicate()
    assert (watching.returncode, told) == (0, "[]\n")


def document(lines: IO[str]) -> Any:
    """The next one; its last line is a bracket alone."""
    text = ""
    for line in lines:
        text += line
        if line == "]\n":
            return json.loads(text)
    raise AssertionError(f"the command ended: {text}")


def completed(directory: Path, address: ClusterAddress, *words: str) -> list[str]:
    """What a bash of this user is offered for the last word."""
    variables = {
        "COMP_WORDS": " ".join(["rmq-ray", "--cluster", address.cluster, *words]),
        "COMP_CWORD": str(len(words) + 2),
        "_RMQ_RAY_COMPLETE": "bash_complete",
    }
    code = COMMAND.replace("main(sys.argv[2:])", "main(prog_name='rmq-ray')")
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == "[]\n", "neither errors nor Ray"
    return [line.removeprefix("plain,") for line in done.stdout.split()]


@pytest.mark.alone
def test_a_shell_completes_names_of_topics_and_groups_of_a_remembered_cluster(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    found = cluster.lookup()
    with closing(Admin(cluster)) as admin:
        for name in ("complete-orders", "complete-refunds", "other"):
            admin.create_topic(name)
    consumer = PushConsumer(
        "complete-billing",
        listener=lambda _messages, _ctx: None,
        subscriptions={"other": "*"},
        discovery=cluster,
    )
    with consumer, closing(Admin(cluster)) as admin:
        eventually(lambda: "complete-billing" in admin.groups())
    assert completed(tmp_path, found, "topic", "describe", "complete-") == [], "not remembered"
    remember(note(tmp_path, "127.0.0.1:6379", found.cluster), found)
    topics = ["complete-orders", "complete-refunds"]

    def offered(*words: str) -> list[str]:
        return completed(tmp_path, found, *words)

    eventually(lambda: offered("topic", "describe", "complete-") == topics)
    eventually(lambda: offered("group", "seek", "g", "complete-o") == topics[:1])
    eventually(lambda: offered("group", "lag", "complete-") == ["complete-billing"])
    remember(note(tmp_path, "127.0.0.1:6379", found.cluster), replace(found, secret=b"o" * 32))
    assert completed(tmp_path, found, "topic", "describe", "") == [], "another cluster is there"
