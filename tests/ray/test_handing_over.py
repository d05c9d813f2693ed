"""A master is taken out of service in good order while others send and read: no send fails, nothing
is lost, nothing comes twice.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray.cli.main import main
from tests.support.brokers.failing_over import (
    BROKER,
    Numbered,
    check_all_came,
    election,
    settled,
)
from tests.support.clients.collecting import Collector
from tests.support.outcomes import judging
from tests.support.waiting import eventually

SMALL = {"segment_bytes": 16 << 20}
STANDS_STILL_S_MAX = 2.0
"""Of sends; 0.3 to 0.6 s on an idle machine."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rmq.Cluster]:
    """SYNC_MASTER with two slaves: one copy may be stopped at a time."""
    name = f"over{uuid.uuid4().hex[:6]}"
    cluster = rmq.start(
        name,
        store_path=str(tmp_path_factory.mktemp("store")),
        replicas=2,
        replication="sync",
        store_settings=SMALL,
    )
    yield cluster
    cluster.stop()


def command(mq: rmq.Cluster, *arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(
        main, ["--cluster", mq.name, "--format", "json", "broker", *arguments]
    )
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def state_of(mq: rmq.Cluster, replica: int) -> str:
    return str(mq.replicas()[replica]["state"])


def stands_still(senders: list[Numbered], begin: float) -> float:
    """The longest time without an acknowledgement since then, of any sender."""
    times = [[at for at in sender.times if at > begin - 0.1] for sender in senders]
    return max(
        later - earlier for found in times for earlier, later in zip(found, found[1:], strict=False)
    )


def all_in_sync(mq: rmq.Cluster) -> None:
    """Everybody may be elected; while others send, their logs never end alike."""

    def check() -> bool:
        found = election(mq)
        return bool(found["serving"]) and len(found["sync_state_set"]) == 3

    eventually(check, 60)


def go_on(senders: list[Numbered]) -> None:
    for sender in senders:
        sender.goes_on()


@pytest.mark.ray
@pytest.mark.alone
def test_drained_handed_over_stopped_and_started_again_while_two_send_and_one_reads(
    trio: rmq.Cluster,
) -> None:
    old = settled(trio)["master"]
    collectors = [Collector(), Collector()]
    topics = ["handed-0", "handed-1"]
    for topic in topics:
        trio.admin.create_topic(topic, queues=2)
    consumers = [
        rmq.PushConsumer(
            f"{topic}-group",
            listener=collector,
            subscriptions={topic: "*"},
            start_from="first",
            cluster=trio.name,
        )
        for topic, collector in zip(topics, collectors, strict=True)
    ]
    outages: dict[str, float] = {}
    with (
        consumers[0],
        consumers[1],
        Numbered(trio, topics[0]) as first,
        Numbered(trio, topics[1]) as second,
    ):
        senders = [first, second]
        begin = time.monotonic()
        assert trio.admin.drain_broker(BROKER)["draining"]
        assert state_of(trio, old) == "draining"
        trio.promote(BROKER)
        go_on(senders)
        drained = time.monotonic()
        assert command(trio, "stop", BROKER, "--replica", str(old))["was"] == "running"
        assert state_of(trio, old) == "stopped" and not trio.weak_brokers()
        go_on(senders)
        outages["slave stopped"] = stands_still(senders, drained)
        begun_again = time.monotonic()
        assert command(trio, "start", BROKER, "--replica", str(old))["was"] == "stopped"
        all_in_sync(trio)
        go_on(senders)
        outages["slave started"] = stands_still(senders, begun_again)
        master = election(trio)["master"]
        stopped = time.monotonic()
        assert command(trio, "stop", BROKER, "--replica", str(master))["master"] != master
        go_on(senders)
        outages["master stopped"] = stands_still(senders, stopped)
        assert command(trio, "start", BROKER, "--replica", str(master))["was"] == "stopped"
        all_in_sync(trio)
        for sender, collector in zip(senders, collectors, strict=True):
            with judging():
                check_all_came(sender, collector, repeats_max=0)
    print(
        "stood still:",
        {what: round(seconds, 2) for what, seconds in outages.items()},
        "drained, then promoted:",
        round(stands_still(senders, begin), 2),
    )
    assert all(seconds < STANDS_STILL_S_MAX for seconds in outages.values()), outages
    for sender, collector in zip(senders, collectors, strict=True):
        assert not sender.failed and sender.acknowledged == list(range(len(sender.acknowledged)))
        with judging():
            assert max(Counter(collector.bodies).values()) == 1
