"""What a cluster's own work costs at 1, 10 and 100 brokers: registrations, routes, heartbeats,
divisions of queues; CPU and bytes a second of one process of each role. ``python -m benchmarks
scale``.

10,000 topics on up to four brokers each, 2,000 clients in groups of twenty with five topics each,
all of them idle. Each request is made and served in this process as its role serves it, on the
role's real tables; the figure is CPU of one of them times how often it comes in a second at the
default periods. Sockets are left out, and so are the controller's calls, which Ray carries.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench_derived import best_us
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import NameServerConfig
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import DataVersion, TopicConfig
from rmq_ray.protocol.allocation.strategies import Averagely
from rmq_ray.protocol.filters.subscriptions import parse_subscription
from rmq_ray.protocol.rebalance import Membership, allot
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import RegisterBrokerHeader
from rmq_ray.server.broker.registration import RegistrationBody
from rmq_ray.server.namesrv.name_server import NameServer

if TYPE_CHECKING:
    from benchmarks.scene import Scene

SIZES = (1, 10, 100)
TOPICS, COPIES_OF_A_TOPIC, QUEUES = 10_000, 4, 8
CLIENTS, GROUP, TOPICS_OF_A_CLIENT = 2_000, 20, 5
PERIOD_S, REBALANCE_S = 30.0, 20.0
ROUNDS = 3


@dataclass(frozen=True)
class Cost:
    """Of one role: what it does, CPU (us) and bytes of one request, and how many a second."""

    what: str
    us: float
    size: int
    a_second: float

    @property
    def cpu_ms(self) -> float:
        """Of every second."""
        return self.us * self.a_second / 1000

    @property
    def kilobytes(self) -> float:
        """Every second."""
        return self.size * self.a_second / 1000


class Layout:
    """Which broker has which topic, which client uses which."""

    def __init__(self, brokers: int) -> None:
        self.brokers = [f"broker-{number:03}" for number in range(brokers)]
        self._spread = min(brokers, COPIES_OF_A_TOPIC)
        self.topics_of: dict[str, dict[str, TopicConfig]] = {name: {} for name in self.brokers}
        for number in range(TOPICS):
            topic = TopicConfig(f"topic-{number:05}", QUEUES, QUEUES)
            for name in self.brokers_of(number):
                self.topics_of[name][topic.name] = topic

    def brokers_of(self, topic: int) -> list[str]:
        """Names of those that have it."""
        return [self.brokers[(topic + step) % len(self.brokers)] for step in range(self._spread)]

    def topics(self, client: int) -> list[int]:
        """That its group consumes."""
        first = client // GROUP * TOPICS_OF_A_CLIENT
        return [(first + step) % TOPICS for step in range(TOPICS_OF_A_CLIENT)]

    def clients_of(self, broker: str) -> list[int]:
        """Who sends it heartbeats."""
        return [
            client
            for client in range(CLIENTS)
            if any(broker in self.brokers_of(topic) for topic in self.topics(client))
        ]


def cpu_us(work: Callable[[], object], calls: int) -> float:
    """Microseconds of CPU a call."""
    return best_us(work, ROUNDS, calls, time.process_time)


def name_server(layout: Layout) -> Iterator[Cost]:
    """And what a broker spends on telling it."""
    from tests.support.faults.fake_peer import FakePeer

    server = NameServer(NameServerConfig(), SYSTEM_CLOCK)
    tables = {name: RegistrationBody() for name in layout.brokers}
    commands = {}
    for number, name in enumerate(layout.brokers):
        body = tables[name].of(layout.topics_of[name], DataVersion(1, 1))
        commands[name] = _registration(name, f"10.0.{number}.1:10911", body)
        answer = server.handle(commands[name], FakePeer())
        assert answer is not None and answer.code == 0, answer
    one, line = layout.brokers[0], FakePeer()
    topics, version = layout.topics_of[one], DataVersion(1, 1)
    size = len(commands[one].body)
    again = cpu_us(lambda: server.handle(commands[one], line), 20)
    yield Cost("name server: registrations", again, size, len(layout.brokers) / PERIOD_S)
    told = cpu_us(lambda: tables[one].of(topics, version), 20)
    yield Cost("broker: registers with three name servers", told, size, 3 / PERIOD_S)
    asked = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, 0, {"topic": "topic-00000"})
    answer = server.handle(asked, line)
    assert answer is not None and answer.code == 0
    route = cpu_us(lambda: server.handle(asked, line), 300)
    a_second = CLIENTS * TOPICS_OF_A_CLIENT / PERIOD_S
    yield Cost("name server: routes, all clients", route, len(answer.body), a_second)


def _registration(name: str, address: str, body: bytes) -> Command:
    header = RegisterBrokerHeader(
        name, address, "default", address, 0, False, bodies.body_crc(body), None
    )
    fields = header.to_fields()
    return Command(RequestCode.REGISTER_BROKER, 1, 0, fields, bytearray(body))


def broker(layout: Layout) -> Iterator[Cost]:
    """Heartbeats of the clients that use its topics, and who its groups' members are."""
    from tests.support.brokers.broker_bench import Bench
    from tests.support.faults.fake_peer import FakePeer

    name = layout.brokers[0]
    clients = layout.clients_of(name)
    with tempfile.TemporaryDirectory(prefix="rmq-scale-") as directory:
        bench = Bench(Path(directory)).open()
        bench.offload.held = True  # tables are written behind what is timed
        for topic in layout.topics_of[name].values():
            bench.core.tables.topics.put(topic)
        peers = {client: FakePeer(port=1_000 + client) for client in clients}

        sent = {client: heartbeat(layout, client) for client in clients}

        def beat(client: int) -> None:
            bench.ask(RequestCode.HEART_BEAT, None, sent[client], peers[client])

        for client in clients:
            beat(client)
        one = clients[0]
        us = cpu_us(lambda: beat(one), 100)
        yield Cost("broker: heartbeats", us, len(sent[one]), len(clients) / PERIOD_S)
        members = {"consumerGroup": f"group-{clients[0] // GROUP}"}
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        answer = bench.ask(code, members)
        us = cpu_us(lambda: bench.ask(code, members), 100)
        a_second = CLIENTS * TOPICS_OF_A_CLIENT / len(layout.brokers) / REBALANCE_S
        yield Cost("broker: members of groups", us, len(answer.body), a_second)
        bench.close()


def heartbeat(layout: Layout, client: int) -> bytes:
    """Of one consumer with all its topics."""
    data = ConsumerData(
        f"group-{client // GROUP}",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        tuple(parse_subscription(f"topic-{n:05}", "*", 1) for n in layout.topics(client)),
    )
    return bodies.encode_heartbeat(Heartbeat(f"10.0.0.9@{client}", (), (data,)))


def client(layout: Layout) -> Iterator[Cost]:
    """One consumer: its heartbeats to all brokers that it uses, its divisions of queues."""
    topics = layout.topics(0)
    used = {name for topic in topics for name in layout.brokers_of(topic)}
    queues: Sequence[MessageQueue] = sorted(
        MessageQueue("topic-00000", name, queue)
        for name in layout.brokers_of(0)
        for queue in range(QUEUES)
    )
    ids = [f"10.0.0.9@{number}" for number in range(GROUP)]
    member = Membership("group-0", ids[0], MessageModel.CLUSTERING, Averagely())
    us = cpu_us(lambda: allot(member, queues, ids), 200)
    a_second = TOPICS_OF_A_CLIENT / REBALANCE_S
    yield Cost("client: divisions of queues", us, 0, a_second)
    us, size = cpu_us(lambda: heartbeat(layout, 0), 100), len(heartbeat(layout, 0))
    yield Cost("client: heartbeats", us, size, len(used) / PERIOD_S)


def costs(brokers: int) -> list[Cost]:
    """Of a cluster of so many brokers."""
    layout = Layout(brokers)
    return [*name_server(layout), *broker(layout), *client(layout)]


def run(scene: Scene) -> None:
    """As a part of ``python -m benchmarks``: no goals, the growth is what is told."""
    from benchmarks.report import Figure

    found = {brokers: costs(brokers) for brokers in SIZES}
    for number, first in enumerate(found[SIZES[0]]):
        for brokers in SIZES:
            cost = found[brokers][number]
            figure = Figure(
                f"{first.what}, {brokers} brokers: CPU a second",
                cost.cpu_ms,
                "ms",
                f"{SIZES[0]} broker",
                first.cpu_ms if brokers > SIZES[0] else None,
            )
            scene.report.add(figure)
            scene.report.add(
                Figure(f"{first.what}, {brokers} brokers: a second", cost.kilobytes, "KB")
            )
