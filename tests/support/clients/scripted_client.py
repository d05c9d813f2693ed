"""A client instance without connections: it keeps what was sent and answers as a test says. For the
parts of consumers.

``answer(code, function)`` sets what a request code is answered with: ``function(command, address)
-> Command | RemotingError``. Pulls (``invoke_async``) wait in ``pulls`` until the test answers them
with ``reply``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.route_cache import RouteCache
from rmq_ray.clock import ManualClock
from rmq_ray.codec.record import Record, encode_record
from rmq_ray.errors import ConnectFailed, RemotingError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.protocol.routing.similar_topics import similar_topics
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.records import PullRecords, pack_pull_answer, unpack_pull

Answer = Callable[[Command, Address], Command | RemotingError]
ADDRESS = Address("10.0.0.1", 10911)
SLAVE = Address("10.0.0.2", 10911)


@dataclass
class WaitingPull:
    """A pull under way. ``request`` is what it asked, ``timeout_ms`` how long the client waits for
    the answer.
    """

    address: Address
    request: PullRecords
    callback: Callable[[Command | RemotingError], None]
    command: Command
    timeout_ms: float = 0

    def reply(
        self,
        code: int,
        next_offset: int,
        records: Sequence[bytes] = (),
        *,
        low: int = 0,
        high: int = 100,
        epoch: int = 1,
        suggested: int = 0,
    ) -> None:
        import numpy as np

        sizes = np.array([len(record) for record in records], ">i4")
        body = pack_pull_answer(
            next_offset, low, high, epoch, suggested, sizes, (b"".join(records),) if records else ()
        )
        self.callback(self.command.answer(code, body=b"".join(body)))

    def fail(self, error: RemotingError) -> None:
        self.callback(error)

    def refuse(self, code: int) -> None:
        self.callback(self.command.answer(code, remark="refused by the test"))


class ScriptedClient(ClientInstance):
    """Has routes of its own (``add_topic``); everything else as the test says. The default answer
    is success without fields.
    """

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.client_id = "10.0.0.9@1#1"
        self.known: dict[str, TopicRoute] = {}
        self.routes = RouteCache(lambda topic, _until_ms: self.known.get(topic))
        self.link: Any = self
        self.sent: list[tuple[Address, Command]] = []
        self.pulls: list[WaitingPull] = []
        self.answers: dict[int, Answer] = {}
        self.down: set[Address] = set()
        self.heartbeats = 0
        self.refreshed: list[str] = []
        self._losses = ()

    def add_topic(
        self,
        topic: str,
        queues: int = 4,
        brokers: Sequence[str] = ("broker-a",),
        slave: bool = False,
    ) -> list[MessageQueue]:
        addresses = {0: str(ADDRESS)} | ({1: str(SLAVE)} if slave else {})
        self.known[topic] = TopicRoute(
            tuple(QueueData(name, queues, queues, 6) for name in brokers),
            tuple(BrokerData("c", name, addresses) for name in brokers),
        )
        self.routes.refresh(topic)
        return list(self.routes.subscribe(topic))

    def answer(self, code: int, answer: Answer) -> None:
        self.answers[code] = answer

    def requests(self, code: int) -> list[Command]:
        """Everything that was sent with this request code."""
        return [command for _, command in self.sent if command.code == code]

    # --- the client instance's --------------------------------------------------------------------

    def invoke(self, address: Address, command: Command, timeout_ms: int = 3_000) -> Command:
        self._check(address)
        self.sent.append((address, command))
        found = self.answers.get(command.code, lambda asked, _address: asked.answer())(
            command, address
        )
        if isinstance(found, RemotingError):
            raise found
        return found

    def invoke_async(
        self,
        address: Address,
        command: Command,
        timeout_ms: int,
        callback: Callable[[Command | RemotingError], None],
    ) -> None:
        self._check(address)
        self.sent.append((address, command))
        body: Any = command.body
        self.pulls.append(WaitingPull(address, unpack_pull(body), callback, command, timeout_ms))

    def oneway(self, address: Address, command: Command) -> None:
        self._check(address)
        self.sent.append((address, command))

    def heartbeat(self) -> None:
        self.heartbeats += 1

    def similar_topics(self, topic: str) -> list[str]:
        return similar_topics(topic, self.known)

    def refresh_route_soon(self, topic: str) -> None:
        self.refreshed.append(topic)

    watch_route = refresh_route_soon

    def _check(self, address: Address) -> None:
        if address in self.down:
            raise ConnectFailed(f"{address} is down in this test", str(address))


def record(
    queue: MessageQueue, offset: int, body: bytes = b"body", properties: str = "", **fields: Any
) -> bytes:
    """The bytes of a stored record at ``offset``."""
    return encode_record(
        Record(
            queue.topic,
            queue.queue_id,
            body,
            properties,
            queue_offset=offset,
            log_offset=1_000 + 100 * offset,
            born_ms=1_700_000_000_000,
            store_ms=1_700_000_000_005,
            born_host=("192.168.0.10", 51000),
            store_host=("10.0.0.1", 10911),
            **fields,
        )
    )
