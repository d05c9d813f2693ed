"""Our consumers and Apache RocketMQ's Java consumers in the same groups: queues are split, order,
retries and positions are kept while members of both kinds come, go and are killed; and each side
reads the same of a message.

Every member tells which queues it holds and what it got, with the time. One group consumes at once
and fails every tenth message at first, one in order.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.model.ids import MessageQueue
from tests.interop.test_client_interop import ROOT, ours
from tests.support.brokers.open_cluster import CLUSTER, SECRET
from tests.support.outcomes import judging
from tests.support.waiting import eventually
from tools import interop

QUEUES = 8
SENDS = 20
LOCK_MS = 6_000
"""A member that was killed holds its ordered queues so long, else a minute."""
FLAGS = (
    *interop.SHORT_LIVED,
    "-Drocketmq.client.rebalance.lockInterval=1000",
    "-Drocketmq.client.rebalance.lockMaxLiveTime=5000",
)
GROUPS = ("free", "ordered")
Row = dict[str, Any]


class Member:
    """A process that consumes with both groups."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.held: dict[str, frozenset[int]] = {}
        self.got: list[Row] = []
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def leave(self) -> None:
        """Stop as a member should."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(40) == 0
        self._ended()

    def kill(self) -> None:
        """SIGKILL, in the middle of its work."""
        self._process.kill()
        self._process.wait(10)
        self._ended()

    def _ended(self) -> None:
        self._reader.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what it was still told
                    stream.close()
        self.held = {}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                line = json.loads(text)
            except ValueError:  # cut off by a kill
                continue
            if line["kind"] == "held":
                self.held[line["group"]] = frozenset(line["queues"])
            elif line["kind"] == "got":
                self.got.append(line)


@dataclass
class Run:
    """What happened: the messages that were sent, by topic and queue, and all members."""

    discovery: StaticDiscovery
    members: list[Member] = field(default_factory=list)
    sent: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    splits: list[str] = field(default_factory=list)

    def rows(self, group: str) -> list[Row]:
        """What came, in the order of time."""
        rows = [row for member in self.members for row in list(member.got)]
        return sorted((row for row in rows if row["group"] == group), key=lambda row: row["at"])

    def settled(self, what: str, *members: Member) -> None:
        """Waits until these members, and nobody else, have all queues, each once."""

        def split() -> bool:
            for group in GROUPS:
                held = [queue for member in members for queue in member.held.get(group, ())]
                if sorted(held) != list(range(QUEUES)):
                    return False
                if not all(member.held.get(group) for member in members):
                    return False
            return True

        eventually(split, 120, 0.1)
        self.splits.append(what)


class Sender:
    """Sends to both topics until it is stopped, and notes what was acknowledged."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)

    def _send(self) -> None:
        sent = self._run.sent
        with Producer(
            "mixed-sender", discovery=self._run.discovery, send_timeout_ms=30_000
        ) as producer:
            number = 0
            while not self._stop.wait(0.01):
                for topic in ("Free", "Ordered"):
                    queue = MessageQueue(topic, "broker-a", number % QUEUES)
                    result = producer.send(topic, b"%d" % number, queue=queue)
                    offsets = sent.setdefault(topic, defaultdict(list))[queue.queue_id]
                    offsets.append(result.queue_offset)
                number += 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("mixed")
    with ours(directory, queue_lock_ms=LOCK_MS) as name_server:
        found = Run(StaticDiscovery(name_server, SECRET, CLUSTER))
        admin = Admin(found.discovery)
        for topic in ("Free", "Ordered"):
            admin.create_topic(topic, queues=QUEUES)
        try:
            _history(found, name_server)
            yield found
        finally:
            admin.close()
            for member in found.members:
                member.kill()


def _history(run: Run, name_server: str) -> None:
    """Members come, leave and are killed, of both kinds, while messages are sent."""

    def java(name: str) -> Member:
        command = interop.command("GroupMember", name_server, name, SENDS, flags=FLAGS)
        return _joined(run, Member(name, command))

    def python(name: str) -> Member:
        words = (name_server, name, SENDS, CLUSTER, SECRET.decode())
        module = "tests.support.clients.group_member"
        return _joined(run, Member(name, [sys.executable, "-m", module, *map(str, words)]))

    sender = Sender(run)
    java_a, python_a = java("java-a"), python("python-a")
    run.settled("one of each", java_a, python_a)
    java_b = java("java-b")
    run.settled("a Java member came", java_a, java_b, python_a)
    java_a.kill()
    run.settled("a Java member was killed", java_b, python_a)
    python_b = python("python-b")
    run.settled("a Python member came", java_b, python_a, python_b)
    python_a.kill()
    run.settled("a Python member was killed", java_b, python_b)
    java_b.leave()
    run.settled("the last Java member left", python_b)
    sender.stop()
    eventually(lambda: not _missing(run), 30, 0.2)
    time.sleep(5)  # retries of the last ones: delay level 1
    python_b.leave()


def _joined(run: Run, member: Member) -> Member:
    run.members.append(member)
    return member


def _missing(run: Run) -> list[tuple[str, int, int]]:
    """What was acknowledged and came to nobody."""
    missing = []
    for group, topic in (("free", "Free"), ("ordered", "Ordered")):
        came = {(row["queue"], row["offset"]) for row in run.rows(group) if row["topic"] == topic}
        missing += [
            (topic, queue, offset)
            for queue, offsets in run.sent[topic].items()
            for offset in offsets
            if (queue, offset) not in came
        ]
    return missing


def test_each_change_ends_in_a_split_where_every_queue_has_one_member(run: Run) -> None:
    assert len(run.splits) == 6


def test_every_message_came_at_least_once_and_each_kind_had_its_share(run: Run) -> None:
    with judging():
        assert not _missing(run)
    for group in GROUPS:
        shares = [sum(row["group"] == group for row in member.got) for member in run.members]
        assert len(shares) == 4 and all(share > 10 for share in shares), shares


def test_ordered_queues_stay_in_order_over_every_change_of_hands(run: Run) -> None:
    following: dict[int, int] = defaultdict(int)
    with judging():
        for row in run.rows("ordered"):
            assert row["offset"] <= following[row["queue"]], "something in front was passed over"
            following[row["queue"]] = max(following[row["queue"]], row["offset"] + 1)
        assert sum(following.values()) == sum(len(found) for found in run.sent["Ordered"].values())
    repeats = len(run.rows("ordered")) - sum(following.values())
    assert repeats <= 3 * QUEUES, "only what was in hand at a kill comes again"


def test_what_failed_once_came_again_whoever_had_it(run: Run) -> None:
    rows = run.rows("free")
    first = {row["id"] for row in rows if not row["times"] and row["offset"] % 10 == 5}
    again = {row["id"] for row in rows if row["times"]}
    assert len(first) > 10 and first <= again


def test_positions_end_where_the_queues_do(run: Run) -> None:
    admin = Admin(run.discovery)
    for group, topic in (("free", "Free"), ("ordered", "Ordered")):
        rows = [row for row in admin.group_lag(f"mixed-{group}") if row["topic"] == topic]
        assert len(rows) == QUEUES and all(row["lag"] == 0 for row in rows), rows
    admin.close()


def test_a_message_reads_the_same_in_java_python_and_arrow(run: Run) -> None:
    with PullConsumer("mixed-reader", discovery=run.discovery) as reader:
        reader.assign(reader.fetch_message_queues("Free"))
        for queue in reader.fetch_message_queues("Free"):
            reader.seek(queue, 0)
        table: dict[tuple[int, int], Row] = {}
        while batch := reader.poll(1_000, timeout=1.0):
            for row in batch.to_arrow().to_pylist():
                table[row["queue_id"], row["queue_offset"]] = row
    read = [row for row in run.rows("free") if not row["times"]]
    senders: dict[bool, set[str]] = {True: set(), False: set()}
    for row in read:
        other = table[row["queue"], row["offset"]]
        assert row["id"] == other["message_id"]
        assert row["body"].encode() == other["body"]
        assert row["tag"] == other["tag"]
        assert (row["keys"] or "").split() == (other["keys"] or [])
        assert dict(other["properties"]).get("city") == row["properties"].get("city")
        for told, kept in (("born", "born_ts"), ("stored", "store_ts")):
            assert row[told] == int(other[kept].timestamp() * 1000 + 0.5)
        by_java = any(row in member.got for member in run.members if "java" in member.name)
        senders[by_java].add(row["tag"] or "")
    assert senders[True] >= {"java", "python"} and senders[False] >= {"java", "python"}
