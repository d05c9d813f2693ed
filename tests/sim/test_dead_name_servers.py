"""All name servers are dead for a quarter of an hour of simulated time: producers and consumers
that know their routes go on, also through the death and the restart of a broker.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import RmqError
from rmq_ray.model.message import Message
from tests.support.simulation.broker import NAME_SERVER, SimNameServer
from tests.support.simulation.history import TOPIC, Discovery, History, Plan
from tests.support.simulation.scheduler import Process
from tests.support.simulation.wire import SimPool

MINUTES = 16.0
KNOWN_MS = 20_000
DEAD_MS = 15 * 60_000
SEND_EVERY_MS = 5_000
BROKER_DIES_MS, BROKER_DOWN_MS = 8 * 60_000, 3_000


class Outage(History):
    """A history without other faults. ``sends``: (when it ended in ms, what it was, how long it
    took).
    """

    def __init__(self, seed: int, *, broker_dies: bool) -> None:
        plan = replace(
            Plan.drawn(seed),
            orderly=bool(seed % 2),
            popping=False,
            brokers=2,
            queues=2,
            consumers=2,
            failing=0.0,
            minutes=MINUTES,
            messages=0,
            actions=0,
            faults=(),
        )
        super().__init__(seed, plan)
        self._broker_dies = broker_dies
        self.sends: list[tuple[float, str, float]] = []
        self.all_consumed = False
        """Whether everything was, before a name server was back."""

    @property
    def name_server(self) -> SimNameServer:
        found = self.network.servers[NAME_SERVER]
        assert isinstance(found, SimNameServer)
        return found

    def die(self) -> None:
        """The name server's process; its connections end."""
        self.name_server.life = 0
        clients: list[Process] = [member.process for member in self.members] + [self.producer]
        for process in clients:
            for connection in list(process.connections):
                if connection.address == NAME_SERVER:
                    connection.break_soon("the name server died")

    def _produce(self) -> None:
        pool = SimPool(self.network, None, lambda *_: None)
        for number in range(8):  # both brokers make the topic
            self._send(pool, number)
        producer = Producer("billing", discovery=Discovery(), clock=self.scheduler.clock)
        self._one(producer, 8)
        self.scheduler.after(KNOWN_MS, self.die)
        if self._broker_dies:
            self.scheduler.after(BROKER_DIES_MS, self._kill_a_broker)
        number = 9
        while self.scheduler.now_ms < KNOWN_MS + DEAD_MS:
            self._one(producer, number)
            number += 1
            self.scheduler.sleep(SEND_EVERY_MS)
        self.all_consumed = self.ledger.at_rest()
        self.name_server.life = 2
        producer.close()

    def _one(self, producer: Producer, number: int) -> None:
        since_ms = self.scheduler.now_ms
        try:
            result = producer.send(Message(TOPIC, b"%d" % number, tag="a"))
        except RmqError as error:
            outcome = type(error).__name__
        else:
            outcome = result.status.name
            self.ledger.sent[number] = (
                result.queue.broker_name,
                result.queue.queue_id,
                result.queue_offset,
            )
        self.sends.append((self.scheduler.now_ms, outcome, self.scheduler.now_ms - since_ms))

    def _kill_a_broker(self) -> None:
        broker = self.brokers[0]
        broker.kill()
        for process in [member.process for member in self.members] + [self.producer]:
            for connection in list(process.connections):
                if connection.address == broker.address:
                    connection.break_soon("the broker died")
        self.scheduler.after(BROKER_DOWN_MS, broker.start)


@pytest.mark.parametrize("broker_dies", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_clients_that_know_their_routes_go_on_for_a_quarter_of_an_hour(
    seed: int, broker_dies: bool
) -> None:
    history = Outage(seed, broker_dies=broker_dies)
    assert history.run() == []
    assert history.all_consumed
    dead = [(outcome, took) for at, outcome, took in history.sends if at > KNOWN_MS]
    assert len(dead) >= DEAD_MS / SEND_EVERY_MS * 0.9
    assert {outcome for outcome, _ in dead} == {"SEND_OK"}
    waits_ms = BROKER_DOWN_MS if broker_dies else 0
    assert max(took for _, took in dead) < waits_ms + 1_000, "no send waits for a name server"
