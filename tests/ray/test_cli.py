"""The real commands against a cluster of the tests' Ray, in this process and in some of their own,
and once with a Ray head that ``up`` starts and ``down`` stops.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray.actors import gateway
from rmq_ray.cli.main import main
from tests.support.brokers.failing_over import store_of
from tests.support.outcomes import judging
from tests.support.programs import (
    COMMAND_S,
    Program,
    free_port,
    machine_alone,
    processes_that_name,
)
from tests.support.waiting import eventually


class Cli(Program):
    """The same inside this process, which has joined the Ray cluster already: a second instead of
    three. What waits for signals is run by ``outside``.
    """

    def __init__(self, *general: str) -> None:
        super().__init__(*general)
        self.outside = Program(*general)

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        words = [*self.general, *arguments]
        done = CliRunner().invoke(main, words, input=text)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def mq(own: rmq.Cluster) -> rmq.Cluster:
    """Some of these tests change it."""
    return own


@pytest.fixture(scope="module")
def cli(mq: rmq.Cluster) -> Cli:
    return Cli("--address", ray.get_runtime_context().gcs_address, "--cluster", mq.name)


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def test_topics_are_created_listed_described_and_deleted(cli: Cli) -> None:
    topic = name("t")
    assert cli.json("topic", "create", topic, "--queues", "2") == {
        "topic": topic,
        "queues": 2,
        "perm": 6,
    }
    assert {"topic": topic} in cli.json("topic", "list")
    assert {"topic": "TBW102"} in cli.json("topic", "list", "--system")
    assert [(row["queue"], row["messages"]) for row in cli.json("topic", "describe", topic)] == [
        (0, 0),
        (1, 0),
    ]
    cli.ok("topic", "create", topic, "--queues", "3")
    assert len(cli.json("topic", "describe", topic)) == 3
    altered = cli.json("topic", "alter", topic, "--retention", "24")
    assert altered == {"topic": topic, "retention_hours": 24}
    assert {row["retention_hours"] for row in cli.json("topic", "describe", topic)} == {24}
    assert "1 to 72 are possible" in cli.fails("topic", "alter", topic, "--retention", "73")
    cli.ok("topic", "delete", topic, "-y")
    assert "does not exist" in cli.fails("topic", "describe", topic)
    assert cli.run("topic", "delete", topic, text="n\n").returncode == 1


def test_a_traced_message_tells_what_became_of_it(cli: Cli) -> None:
    topic = name("t")
    cli.json("topic", "create", topic, "--queues", "1")
    sent = cli.json("produce", topic, "x", "--key", "traced", "--trace")
    eventually(lambda: cli.json("message", "find", "RMQ_SYS_TRACE_TOPIC", sent["message_id"]) != [])
    (row,) = cli.json("message", "trace", sent["message_id"])
    assert (row["kind"], row["topic"], row["keys"], row["success"]) == (
        "Pub",
        topic,
        "traced",
        True,
    )
    assert "nobody traced it" in cli.fails("message", "trace", "0" * 32)


def test_what_is_produced_is_consumed_once_and_found_again(cli: Cli) -> None:
    topic, group = name("t"), name("g")
    cli.json("topic", "create", topic, "--queues", "1")
    sent = cli.json(
        "produce",
        topic,
        "größe 標",
        "--tag",
        "paid",
        "--key",
        "o-1",
        "--key",
        "both",
        "--property",
        "region=eu",
    )
    assert (sent["status"], sent["queue_offset"]) == ("SEND_OK", 0)
    assert json.loads(cli.ok("--format", "json", "produce", topic, text="one\n\ntwo\n\nthree")) == {
        "topic": topic,
        "messages": 3,
    }
    first = [
        json.loads(line)
        for line in cli.outside.ok(
            "--format", "json", "consume", topic, "--group", group, "--max", "2"
        ).splitlines()
    ]
    assert [row["body"] for row in first] == ["größe 標", "one"]
    assert (first[0]["tag"], first[0]["keys"], first[0]["properties"], first[0]["message_id"]) == (
        "paid",
        ["o-1", "both"],
        {"region": "eu"},
        sent["message_id"],
    )
    assert cli.outside.ok("consume", topic, "--group", group, "--idle", "5").splitlines() == [
        "two",
        "three",
    ], "nothing twice, nothing left out"
    for found in (
        cli.json("message", "find", topic, "both")[0],
        cli.json("message", "get", sent["message_id"], "--topic", topic),
        cli.json("message", "get", sent["offset_message_id"]),
    ):
        assert (found["body"], found["message_id"], found["queue_offset"], found["broker"]) == (
            "größe 標",
            sent["message_id"],
            0,
            "broker-a",
        )
    assert cli.json("message", "find", topic, "nobody") == []
    dry = cli.run(
        "--format", "json", "message", "resend", "--topic", topic, "--id", sent["message_id"]
    )
    assert [row["body"] for row in json.loads(dry.stdout)] == [
        "größe 標"
    ] and "nothing was sent" in dry.stderr
    (again,) = cli.json(
        "message", "resend", "--topic", topic, "--id", sent["message_id"], "--execute"
    )
    assert (
        again["resent_as"] != sent["message_id"]
        and cli.json("message", "get", again["resent_as"], "--topic", topic)["body"] == "größe 標"
    )
    assert "no message with key" in cli.fails(
        "message", "resend", "--topic", topic, "--key", "nobody"
    )
    assert cli.run("message", "resend", "--topic", topic).returncode == 2
    assert "never stored" in cli.fails("message", "get", "0" * 32, "--topic", topic)


def test_a_group_is_described_moved_and_deleted(cli: Cli) -> None:
    topic, group = name("t"), name("g")
    cli.json("topic", "create", topic, "--queues", "1")
    cli.ok("produce", topic, text="\n".join(str(i) for i in range(10)))
    consumer = cli.start("--format", "json", "consume", topic, "--group", group)
    assert consumer.stdout is not None
    assert [json.loads(consumer.stdout.readline())["body"] for _ in range(10)] == [
        str(i) for i in range(10)
    ]
    (member,) = cli.json("group", "describe", group)
    assert member["broker"] == "broker-a" and str(consumer.pid) in member["client_id"]
    (listed,) = cli.json("client", "list", "--group", group)
    assert (listed["client_id"], listed["brokers"]) == (member["client_id"], ["broker-a"])
    assert topic in str(cli.json("client", "describe", group, member["client_id"]))
    assert "stop them first" in cli.fails("group", "clone", group, group, topic, "--execute")
    assert "stop them first" in cli.fails("group", "delete", group, "-y")
    consumer.send_signal(signal.SIGINT)
    assert consumer.wait(30) == 0
    consumer.communicate()
    assert {"group": group, "retries": 0} in cli.json("group", "list")
    (row,) = [row for row in cli.json("group", "lag", group) if row["topic"] == topic]
    assert (row["committed"], row["lag"]) == (10, 0) and row["committed_age_ms"] >= 0
    dry = cli.json("group", "seek", group, topic, "--to", "first")
    assert [(row["target"], row["moved_by"]) for row in dry] == [(0, -10)] and cli.json(
        "group", "seek", group, topic, "--to", "last"
    )[0]["moved_by"] == 0
    assert cli.json("group", "seek", group, topic, "--to", "first", "--execute") == dry
    assert len(cli.outside.ok("consume", topic, "--group", group, "--idle", "5").splitlines()) == 10
    assert cli.json("group", "seek", group, topic, "--to", str(int(time.time() * 1000) + 60_000))[
        0
    ]["target"] in (9, 10)
    assert (
        cli.json("group", "seek", group, topic, "--to", "offset:3", "--execute")[0]["moved_by"]
        == -7
    )
    assert cli.json("group", "clone", group, f"{group}-copy", topic, "--execute")[0]["target"] == 3
    assert (
        cli.json("group", "seek", group, topic, "--to", f"group:{group}-copy")[0]["moved_by"] == 0
    )
    assert cli.json("group", "skip", group, topic, "--execute")[0]["target"] == 10
    cli.ok("group", "delete", group, "-y")
    assert group not in [row["group"] for row in cli.json("group", "list")]
    assert "no broker knows" in cli.fails("group", "lag", group)


def test_dead_letters_are_listed_shown_exported_and_resent(
    cli: Cli, mq: rmq.Cluster, tmp_path: Path
) -> None:
    topic, group = name("t"), name("g")
    cli.json("topic", "create", topic, "--queues", "1")
    sent = [
        cli.json(
            "produce",
            topic,
            f"größe {i}",
            "--tag",
            "paid",
            "--key",
            f"k{i}",
            "--property",
            "region=eu",
        )["message_id"]
        for i in range(3)
    ]

    def reject(messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> rmq.Reject:
        return rmq.Reject("no address")

    with rmq.PushConsumer(
        group, listener=reject, subscriptions={topic: "*"}, start_from="first", cluster=mq.name
    ) as consumer:
        eventually(lambda: consumer.stats()["sent_back"] == 3)
    (row,) = [row for row in cli.json("dlq", "list") if row["group"] == group]
    assert (row["messages"], row["left"]) == (3, 3) and row["last"].startswith("20")
    shown = cli.json("dlq", "show", group, "--max", "2")
    assert len(shown) == 2 and {
        (line["topic"], line["tag"], line["reconsume_times"], line["failed_with"]) for line in shown
    } == {(topic, "paid", 1, "Reject: no address")}
    assert all(f"@{os.getpid()}" in line["failed_on"] for line in shown)
    assert "größe" in cli.ok("dlq", "show", group)
    exported = [json.loads(line) for line in cli.ok("dlq", "export", group).splitlines()]
    assert sorted(line["message_id"] for line in exported) == sorted(sent) and exported[0][
        "properties"
    ] == {"region": "eu"}
    file = tmp_path / "dead.jsonl"
    cli.ok("dlq", "export", group, "--out", str(file))
    assert [json.loads(line) for line in file.read_text().splitlines()] == exported
    dry = cli.run("--format", "json", "dlq", "resend", group)
    assert (
        json.loads(dry.stdout) == [{"topic": topic, "messages": 3}]
        and "nothing was sent" in dry.stderr
    )
    assert cli.json("dlq", "resend", group, "--id", sent[0], "--execute") == [
        {"topic": topic, "messages": 1}
    ]
    assert cli.json("dlq", "resend", group, "--execute") == [{"topic": topic, "messages": 3}]
    assert (
        cli.json("dlq", "resend", group, "--execute") == []
        and cli.json("dlq", "show", group, "--new") == []
    )
    assert sum(line["messages"] for line in cli.json("topic", "describe", topic)) == 7
    assert "no dead letters" in cli.fails("dlq", "show", "nobody-here")
    assert cli.run("dlq", "resend", group, "--id", "x", "--again").returncode == 2


def test_a_reader_that_goes_away_loses_no_message(cli: Cli) -> None:
    topic, group = name("t"), name("g")
    cli.json("topic", "create", topic, "--queues", "1")
    cli.ok("produce", topic, text="\n".join(f"{i:0100}" for i in range(5_000)))
    with cli.start("consume", topic, "--group", group, "--format", "json") as consumer:
        assert consumer.stdout is not None and consumer.stderr is not None
        seen = [json.loads(consumer.stdout.readline()) for _ in range(3)]
        consumer.stdout.close()
        assert consumer.wait(30) == 0 and "Traceback" not in consumer.stderr.read()
    rest = [
        json.loads(line)
        for line in cli.outside.ok(
            "consume", topic, "--group", group, "--idle", "5", "--format", "json"
        ).splitlines()
    ]
    with judging():
        assert [row["queue_offset"] for row in seen] == [0, 1, 2]
    offsets = [
        row["queue_offset"] for row in rest
    ]  # one queue, one thread: in their order (which batches of a producer need not keep)
    assert offsets[-1] == 4_999 and len(rest) >= 5_000 - 3 - 2_000, (
        "what the pipe had taken may be missing, nothing behind it"
    )
    with judging():
        assert offsets == list(range(offsets[0], 5_000))
    assert len({row["body"] for row in rest}) == len(rest) and all(
        len(row["body"]) == 100 for row in rest
    )


def test_status_and_health_name_every_part(cli: Cli, mq: rmq.Cluster) -> None:
    found = cli.json("status")
    assert (found["cluster"], found["controller"], found["broker-a/0"]["state"]) == (
        mq.name,
        "serving",
        "serving",
    )
    table = cli.ok("status").splitlines()
    assert table[0] == f"cluster {mq.name}: serving"
    assert [line.split()[0] for line in table[2:]] == [
        "name-server-0",
        "broker-a/0",
        "broker-a/hold",
    ]
    assert {row["state"] for row in cli.json("health")} == {"serving"}
    (broker,) = cli.json("broker", "list")
    assert (broker["broker"], broker["id"], broker["address"]) == (
        "broker-a",
        0,
        mq.addresses["broker-a"][0],
    )


def test_a_stopped_broker_is_told_by_status_and_health_and_looks_for_its_store_at_each_start(
    cli: Cli, mq: rmq.Cluster
) -> None:
    plan = gateway.call(gateway.controller(mq.name), "plan")
    store = Path(plan.brokers[0].store.path)
    away = store.with_name("away")

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        return cli.run("--format", "json", *arguments)

    assert "--force" in ran("broker", "stop", "broker-a").stderr
    try:
        assert cli.json("broker", "stop", "broker-a", "--force")["was"] == "running"
        for command in ("status", "health"):
            said = ran(command)
            assert said.returncode == 1 and "stopped" in said.stdout
        assert "`rmq-ray broker start broker-a --replica 0`" in ran("health").stderr
        for command in (("group", "lag", "billing"), ("produce", "orders", "x")):
            began = time.monotonic()
            refused = ran(*command)
            assert refused.returncode == 1 and time.monotonic() - began < 5, "at once"
            assert (
                "broker-a stopped: start it with `rmq-ray broker start broker-a`"
                in (json.loads(refused.stderr)["message"])
            )
        store.rename(away)
        assert "StoreMissing" in ran("broker", "start", "broker-a").stderr
        assert "StoreMissing" in json.loads(ran("status").stdout)["wrong"]["broker-a/0"]
    finally:
        if away.exists():
            if store.exists():
                store.rename(store.with_name("left"))
            away.rename(store)
        began = cli.json("broker", "start", "broker-a")
    assert began["was"] == "failed"
    assert ran("status").returncode == ran("health").returncode == 0


def test_a_broker_is_drained_taken_back_and_cleaned(cli: Cli, mq: rmq.Cluster) -> None:
    topic = name("drained")
    mq.admin.create_topic(topic, queues=1)
    try:
        assert cli.json("broker", "drain", "broker-a") == {
            "broker": "broker-a",
            "address": str(mq.admin.masters()["broker-a"]),
            "draining": True,
            "was": False,
        }
        assert mq.status()["broker-a/0"]["draining"] and [
            queue.permission for queue in mq.admin.route(topic).queues
        ] == [4]
        with rmq.Producer("drained", cluster=mq.name) as producer, pytest.raises(rmq.TopicNotFound):
            producer.send(topic, b"refused")
    finally:
        assert not cli.json("broker", "undrain", "broker-a")["draining"]
    with rmq.Producer("taken-back", cluster=mq.name) as producer:
        producer.send(topic, b"taken")
    assert "no broker 'broker-z' is registered" in cli.fails("broker", "drain", "broker-z")
    assert "removes expired segments" in cli.run("-y", "broker", "clean", "broker-a").stderr


def test_failures_name_the_cluster_or_the_rule(cli: Cli) -> None:
    assert "rmq-ray up" in Cli("--address", cli.general[1], "--cluster", "nowhere").fails(
        "topic", "list"
    )
    assert "does not exist" in cli.fails("consume", "no-such-topic")
    assert "at least one byte" in cli.fails("produce", "t", "")
    assert cli.run("produce", "bad topic", "x").returncode == 2


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_bench_prints_its_figures(cli: Cli, command: str) -> None:
    found = cli.json("bench", command, "--messages", "2000", "--topic", name("bench"))
    assert found["messages"] == 2000 and found["messages_per_s"] > 100


def test_bench_e2e_measures_times_and_leaves_no_group_behind(cli: Cli) -> None:
    found = cli.json("bench", "e2e", "--messages", "20")
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    eventually(lambda: not [row for row in cli.json("group", "list") if "e2e" in row["group"]])


# --- a Ray head of its own ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> Iterator[tuple[Program, Path, int]]:
    """A machine, and a port for its head. The test that leaves no head there is the first one."""
    with machine_alone("cli") as (cli, directory):
        yield cli, directory, free_port()


@pytest.mark.slow
@pytest.mark.calm  # Ray gives a head half a minute to start
@pytest.mark.timeout(900)
def test_an_up_that_fails_stops_the_head_that_it_started(
    alone: tuple[Program, Path, int],
) -> None:
    cli, directory, port = alone
    blocked = directory / "file"
    blocked.write_text("no directory")
    assert Cli().run("up", "--ray-port", str(port), "--store", str(blocked)).returncode == 2
    message = cli.fails("up", "--ray-port", str(port), "--store", str(blocked / "below"))
    assert "file" in message and "[" in message
    assert processes_that_name(str(directory)) == []


@pytest.mark.slow
@pytest.mark.calm
@pytest.mark.timeout(900)
def test_up_starts_ray_and_the_cluster_and_down_stops_exactly_these(
    alone: tuple[Program, Path, int],
) -> None:
    cli, directory, port = alone
    store = directory / "stores"
    options = ("--ray-port", str(port), "--store", str(store))
    first = cli.json("up", *options)
    assert (first["state"], first["ray"]) == ("started", "started") and first[
        "ray_address"
    ].endswith(f":{port}")
    done = cli.run("--format", "json", "up", *options, "--ray-dashboard")
    again = json.loads(done.stdout)
    assert (
        done.returncode == 0
        and "Ray was running" in done.stderr
        and again["state"].startswith("was running")
        and again["ray"] == "was running"
        and again["broker-a"] == first["broker-a"]
    )
    assert "StoreInUse" in cli.fails("--cluster", "second", "up", *options)
    health, machine, second, _, first_down, up, kept, next_down = cli.session(
        f"--address {first['ray_address']} health",
        f"--address {first['ray_address']} doctor --machine",
        f"--cluster second up --ray-port {port} --store {directory / 'stores-2'} --replicas 1 "
        "--replication sync",
        "produce kept hello",
        "down",
        " ".join(("up", *options)),
        "topic describe kept",
        "down",
    )
    assert {row["state"] for row in health} == {"serving"}, (
        "a failed up stops nothing that it did not start"
    )
    assert {row["check"]: row["found"] for row in machine}["niceness"] == "0"
    assert (second["state"], second["ray"]) == ("started", "was running")
    assert len(second["broker-a"]) == 2
    assert (up["state"], up["ray"]) == ("started", "was running")
    with judging():
        assert sum(row["messages"] for row in kept) == 1
    for down in (first_down, next_down):
        assert down == {"cluster": "default", "state": "stopped", "ray": "left running for second"}
    assert processes_that_name(f"--gcs_server_port={port} ")
    last = cli.json("--address", first["ray_address"], "--cluster", "second", "down")
    assert last == {"cluster": "second", "state": "stopped", "ray": "stopped"}
    assert eventually(lambda: not processes_that_name(str(directory)), 10), processes_that_name(
        str(directory)
    )
    verified = Cli().json("store", "verify", str(store / "broker-a"))
    with judging():
        assert verified["records"] == 1
    assert ray.is_initialized() and ray.nodes(), "the Ray cluster of the tests was left alone"


def test_a_consumer_in_a_module_is_run_scaled_and_drained_from_the_shell(
    cli: Cli, mq: rmq.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"run-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(topic, queues=2)
    seen = tmp_path / "seen"
    (tmp_path / "billing.py").write_text(
        f"import rmq_ray as rmq\n@rmq.consumer({topic!r}, group={topic!r}, start_from='first')\n"
        f"def bill(msg):\n    open({str(seen)!r}, 'ab').write(msg.body + b'\\n')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = cli.fails("run", "billing:bill", "--actors", "9", "--cpus", "2")
    sys.modules.pop("billing")
    assert "9 actors x CPU 2 = CPU 18 asked for" in said, said
    assert "CPU 4 in total" in said and "[TooFewResources]" in said
    running = cli.start("run", "billing:bill", "--cpus", "0.1", "--name", topic, cwd=tmp_path)
    try:
        cli.ok("produce", topic, text="a\nb\n")
        eventually(lambda: seen.exists() and sorted(seen.read_bytes().split()) == [b"a", b"b"], 120)
        assert len(cli.json("workers", "status", topic)) == 1
        assert cli.json("workers", "scale", topic, "2")["actors"] == 2
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=COMMAND_S)
    finally:
        running.kill()
    assert running.returncode == 0, out + err
    assert topic in out and "draining" in err
    assert mq.admin.group_clients(topic) == []
    assert "no workers are deployed" in cli.fails("workers", "status", topic)
    assert cli.run("run", "nothing:here").returncode == 2


def test_a_running_brokers_store_is_dumped_but_not_verified(cli: Cli, mq: rmq.Cluster) -> None:
    """The last one here: it stops the cluster."""
    topic = name("dumped")
    with rmq.Producer(cluster=mq.name) as producer:
        producer.send(topic, b"hello", tag="t")
    store = store_of(mq, 0)
    rows = cli.json("store", "dump", str(store), "--topic", topic)
    assert [(row["topic"], row["body"]) for row in rows] == [(topic, "hello")]
    assert "StoreInUse" in cli.fails("store", "verify", str(store))
    mq.stop()
    report = cli.json("store", "verify", str(store))
    assert (report["faults"], report["clean"]) == (0, True)
    assert report["records"] == len(cli.json("store", "dump", str(store), "--max", "1000000"))
    assert "broker-a" in cli.fails("store", "verify", str(store.parent))
