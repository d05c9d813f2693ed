"""A name server and brokers of a few lines, on real ports, that misbehave when told to. For tests
of clients.

One thread runs the loop with all listeners. A broker stores frames in a list, recognises repeats by
frame id as the real one does, and can lose answers, answer codes, close connections, stop and start
again on its port. No disk, no consume queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.record import Record, decode_record, offset_message_id
from rmq_ray.codec.record_batch import read_mark
from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.model.groups import Heartbeat
from rmq_ray.model.ids import Address, FrameId
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire.bodies import decode_heartbeat, encode_route
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.remoting.wire.records import pack_send_answer, unpack_send

SECRET = b"s" * 32
CLUSTER = "tiny"


@dataclass(slots=True)
class Arrival:
    """One send request as it came in, repeats included."""

    frame_id: FrameId | None
    topic: str
    queue_id: int
    records: list[Record]
    single: SendHeader | None = None
    oneway: bool = False


@dataclass
class Role:
    """One listening party of the cluster and what it was told to do wrong."""

    name: str
    address: Address = field(default=Address("127.0.0.1", 1))
    listener: Listener | None = None
    requests: Counter[int] = field(default_factory=Counter)


class TinyNameServer(Role):
    """Answers routes from a table; nothing at all while ``silent``."""

    def __init__(self, name: str, routes: dict[str, TopicRoute]) -> None:
        super().__init__(name)
        self.routes = routes
        self.asked: list[str] = []
        self.silent = False

    def handle(self, command: Command, peer: Any) -> Command | None:
        self.requests[command.code] += 1
        topic = (command.fields or {}).get("topic", "")
        self.asked.append(topic)
        if self.silent:
            return None
        found = self.routes.get(topic)
        if found is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        return command.answer(body=encode_route(found))

    def closed(self, peer: Any) -> None:
        """Nothing is kept about connections."""


class TinyBroker(Role):
    """Stores what is sent. ``fault(arrival, number)``: None = behave, an int = answer this code,
    "lose" = store but do not answer,

    "drop" = store and close the connection, "refuse" = do not store and close; what came on it
    behind that is not looked at. ``number`` counts send requests from 0.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.arrivals: list[Arrival] = []
        self.stored: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.seen: dict[FrameId, tuple[int, int]] = {}
        self.fault: Callable[[Arrival, int], int | str | None] = lambda _arrival, _number: None
        self.hold = threading.Event()
        self.hold.set()
        self.heartbeats: list[Heartbeat] = []
        self.unregistered: list[dict[str, str]] = []
        self.peers: list[Any] = []
        self._held: list[tuple[Command, Any]] = []
        self._hung_up: list[Any] = []
        self._log_end = 0

    @property
    def messages(self) -> int:
        """Messages stored, repeats not counted."""
        return sum(map(len, self.stored.values()))

    def handle(self, command: Command, peer: Any) -> Command | None:
        self.requests[command.code] += 1
        if peer in self._hung_up:
            return None
        if command.code == RequestCode.HEART_BEAT:
            self.heartbeats.append(decode_heartbeat(command.body_bytes()))
            self.peers.append(peer)
            return command.answer()
        if command.code == RequestCode.UNREGISTER_CLIENT:
            self.unregistered.append(dict(command.fields or {}))
            return command.answer()
        if command.code in (RequestCode.SEND_RECORDS, RequestCode.SEND_MESSAGE_V2):
            return self._take(command, peer)
        return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def closed(self, peer: Any) -> None:
        """Nothing is kept about connections."""

    def _take(self, command: Command, peer: Any) -> Command | None:
        arrival = _read(command)
        number = len(self.arrivals)
        self.arrivals.append(arrival)
        fault = self.fault(arrival, number)
        if isinstance(fault, int) and fault not in (10, 11, 12):
            return command.answer(fault, remark=f"told to answer {fault}")
        if fault in ("refuse", "drop"):
            self._hung_up.append(peer)
        if fault == "refuse":
            peer.close("told to")
            return None
        answer = self._store(command, arrival, fault if isinstance(fault, int) else 0)
        if fault == "drop":
            peer.close("told to")
        if fault in ("lose", "drop") or command.is_oneway:
            return None
        if not self.hold.is_set():
            self._held.append((answer, peer))
            return None
        return answer

    def _store(self, command: Command, arrival: Arrival, code: int) -> Command:
        queue = self.stored[arrival.topic, arrival.queue_id]
        known = self.seen.get(arrival.frame_id) if arrival.frame_id is not None else None
        base, log_offset = known or (len(queue), self._log_end)
        if known is None:
            queue.extend(arrival.records)
            self._log_end += sum(record.size for record in arrival.records)
            if arrival.frame_id is not None:
                self.seen[arrival.frame_id] = (base, log_offset)
        if arrival.single is None:
            return command.answer(
                code,
                body=pack_send_answer(base, log_offset, SYSTEM_CLOCK.now_ms(), known is not None),
            )
        fields = {
            "msgId": offset_message_id(self.address.host, self.address.port, log_offset),
            "queueId": str(arrival.queue_id),
            "queueOffset": str(base),
        }
        return command.answer(code, fields=fields)

    def release(self) -> None:
        """In the loop: answer what was held."""
        self.hold.set()
        held, self._held = self._held, []
        for answer, peer in held:
            peer.send(answer)


class TinyCluster:
    """Name servers and brokers. Use as a context manager; also a ``Discovery``."""

    def __init__(
        self,
        brokers: int = 1,
        name_servers: int = 1,
        topics: dict[str, int] | None = None,
        template_queues: int = 8,
    ) -> None:
        self.brokers = [TinyBroker(f"broker-{chr(ord('a') + n)}") for n in range(brokers)]
        self.routes: dict[str, TopicRoute] = {}
        self.name_servers = [TinyNameServer(f"ns-{n}", self.routes) for n in range(name_servers)]
        self._topics = {"TBW102": template_queues} | (topics or {})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tiny-cluster", daemon=True
        )
        self.lookups = 0

    @property
    def broker(self) -> TinyBroker:
        """The first one."""
        return self.brokers[0]

    def __enter__(self) -> TinyCluster:
        self._thread.start()
        for role in (*self.name_servers, *self.brokers):
            self.start(role)
        for topic, queues in self._topics.items():
            self.add_topic(topic, queues)
        return self

    def __exit__(self, *_exc: object) -> None:
        for role in (*self.name_servers, *self.brokers):
            self.stop(role)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def add_topic(self, topic: str, queues: int, permission: int = 6) -> None:
        """A route of every broker for the topic."""
        self.routes[topic] = TopicRoute(
            tuple(QueueData(broker.name, queues, queues, permission) for broker in self.brokers),
            tuple(
                BrokerData(CLUSTER, broker.name, {0: str(broker.address)})
                for broker in self.brokers
            ),
        )

    def start(self, role: TinyNameServer | TinyBroker) -> None:
        """Listen, on the port that it had before."""
        kind = "name_server" if isinstance(role, TinyNameServer) else "broker"
        role.listener = Listener(
            role,
            Credentials(CLUSTER, kind, SECRET),
            ForeignClients.CLOSED,
            RemotingLimits(),
            SYSTEM_CLOCK,
            role.name,
        )
        role.address = self.run(
            role.listener.start("127.0.0.1", role.address.port if role.address.port > 1 else 0)
        )

    def stop(self, role: TinyNameServer | TinyBroker) -> None:
        """Close the port and every connection."""
        if role.listener is not None:
            self.run(role.listener.close())
            role.listener = None

    def release(self, broker: TinyBroker) -> None:
        """Answer what ``broker.hold.clear()`` held back."""

        async def do() -> None:
            broker.release()

        self.run(do())

    def push(self, broker: TinyBroker, command: Command) -> None:
        """Send the broker's own request once to every client that has sent heartbeats."""

        async def do() -> None:
            for peer in dict.fromkeys(broker.peers):
                peer.send(command)

        self.run(do())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run in the cluster's loop and wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def lookup(self) -> ClusterAddress:
        """As a ``Discovery``."""
        self.lookups += 1
        return ClusterAddress(
            CLUSTER, tuple(str(role.address) for role in self.name_servers), SECRET
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (FixedDiscovery, (self.lookup(),))


@dataclass(frozen=True)
class FixedDiscovery:
    """Always the same answer: what a pickled producer carries."""

    address: ClusterAddress

    def lookup(self) -> ClusterAddress:
        """See ``Discovery``."""
        return self.address


def _read(command: Command) -> Arrival:
    if command.code == RequestCode.SEND_MESSAGE_V2:
        header = SendHeader.from_v2(command.fields)
        body = command.body_bytes()
        record = Record(
            header.topic,
            header.queue_id,
            body,
            header.properties or "",
            header.flag,
            size=len(body),
        )
        return Arrival(
            header.frame_id, header.topic, header.queue_id, [record], header, command.is_oneway
        )
    records, sizes = unpack_send(command.body)
    found, at = [], 0
    for size in sizes:
        found.append(decode_record(records, at))
        at += int(size)
    mark = read_mark(found[0].properties.encode())
    return Arrival(
        mark.frame_id if mark else None,
        found[0].topic,
        found[0].queue_id,
        found,
        None,
        command.is_oneway,
    )
