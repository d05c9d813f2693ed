"""The parties that listen: the real ``BrokerCore`` over the real store on a disk in memory, and a
name server that tells its routes.

A broker is killed (what it wrote stays, what it kept in memory is gone) and started again on the
same disk. Its work beside the loop runs at once; its timers run every ``TICK_MS`` of simulated
time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rmq_ray.codec.record import decode_record
from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.errors import RmqError
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import (
    DEFAULT_TOPIC,
    BrokerData,
    Permission,
    QueueData,
    TopicRoute,
)
from rmq_ray.remoting.wire.bodies import encode_route
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import CreateTopicHeader, TopicHeader
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.core.broker_core import BrokerCore
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.queue.dispatcher import DispatchRules
from tests.support.faults.crash_fs import CrashFileSystem
from tests.support.faults.fake_peer import FakePeer
from tests.support.simulation.ledger import Ledger
from tests.support.simulation.scheduler import Process, Scheduler
from tests.support.simulation.wire import SimPeer

TICK_MS = 500
MEMORY_BYTES = 2_500
"""Of the simulated host."""
YOUNG_BYTES = MEMORY_BYTES * 0.4
"""A queue whose first message lies further back, by a handful of messages, is not young to a group
that is new.
"""
QUEUE_OFFSET_AT = slice(20, 28)  # in a record
NAME_SERVER = Address("10.0.1.1", 9876)


class InlineOffload:
    """Work runs within the call; posts run as the next event."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler = scheduler
        self._process = process

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        outcome: Any
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - handed on as the outcome
            outcome = error
        done(outcome)

    def post(self, call: Callable[[], None]) -> None:
        self._scheduler.after(0, call, self._process)

    def soon(self, call: Callable[[], None]) -> None:
        call()


class SimDisk(CrashFileSystem):
    """Of a host with little memory."""

    def memory_bytes(self) -> int:
        return MEMORY_BYTES


class SimStore(MessageStore):
    """Without threads; tells the ledger what it stored and read, and which topics ended."""

    ledger: Ledger
    name: str

    def start(self, on_durable: Callable[[int], None], *, threads: bool = False) -> None:
        super().start(on_durable, threads=False)

    def append_message(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().append_message(message, *args, **kwargs)
        self.ledger.log_ends[self.name] = result.end_log_offset
        self.ledger.stored(
            self.name,
            result.topic,
            result.queue_id,
            result.base_queue_offset,
            message.body,
            message.reconsume_times,
        )
        return result

    def append_frame(self, records: Any, sizes: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().append_frame(records, sizes, *args, **kwargs)
        self.ledger.log_ends[self.name] = result.end_log_offset
        at = 0
        for row, size in enumerate([] if result.repeat else sizes):
            body = decode_record(bytes(records[at : at + size]), 0).body
            self.ledger.stored(
                self.name, result.topic, result.queue_id, result.base_queue_offset + row, body, 0
            )
            at += size
        return result

    def append_mixed(self, messages: Any) -> Any:
        result = super().append_mixed(messages)
        self.ledger.log_ends[self.name] = result.end_log_offset
        for message, offset in zip(messages, result.offsets, strict=True):
            self.ledger.stored(
                self.name,
                message.topic,
                message.queue_id,
                offset,
                message.body,
                message.reconsume_times,
            )
        return result

    def get_messages(self, topic: str, queue_id: int, *args: Any, **kwargs: Any) -> Any:
        found = super().get_messages(topic, queue_id, *args, **kwargs)
        if found.count and topic == self.ledger.topic:
            first = int.from_bytes(found.parts[0][QUEUE_OFFSET_AT], "big")
            self.ledger.read(self.name, topic, queue_id, first)
        return found

    def just_written(self, topic: str, queue_id: int, offset: int, *args: Any) -> Any:
        found = super().just_written(topic, queue_id, offset, *args)
        if found is not None and topic == self.ledger.topic:
            self.ledger.read(self.name, topic, queue_id, offset)
        return found

    def end_topic(self, topic: str) -> None:
        super().end_topic(topic)
        self.ledger.topic_ended(self.name, topic)


class SimCore(BrokerCore):
    """Its store is a ``SimStore``."""

    ledger: Ledger

    def _make_store(self) -> MessageStore:
        levels = self.levels
        store = SimStore(
            self.config.store,
            self.clock,
            broker_name=self.identity.name,
            store_host=self._runtime.store_host,
            files=self._runtime.files,
            rules=DispatchRules(
                lambda level: levels.delay_ms(level) if 1 <= level <= levels.highest else None,
                levels.highest,
            ),
            lives=self.tables.lives,
        )
        store.ledger, store.name = self.ledger, self.identity.name
        return store


class SimBroker:
    """One broker through all its lives. ``life`` 0 = it is down."""

    def __init__(
        self, scheduler: Scheduler, ledger: Ledger, name: str, address: Address, **settings: Any
    ) -> None:
        self.config = _config(name, **settings)
        self.name = name
        self.address = address
        self.life = 0
        self.process = Process(name)
        self.core: SimCore | None = None
        self.topics: dict[str, QueueData] = {}
        self._told: object = None
        self._ledger = ledger
        ledger.queues[name] = self.queues
        self._scheduler = scheduler
        self._lives = 0
        self._disk: CrashFileSystem = SimDisk()

    def start(self) -> None:
        """Open the disk and serve."""
        self.process = Process(self.name)  # what its last life had still to do is forgotten with it
        self._lives += 1
        clock = self._scheduler.clock
        identity = Identity(self.name, 0, "default", str(self.address), boot_ms=clock.now_ms())
        host = (self.address.host, self.address.port)
        offload = InlineOffload(self._scheduler, self.process)
        self.core = core = SimCore(
            BrokerRuntime(self.config, identity, host, clock, offload, offload, self._disk)
        )
        core.ledger = self._ledger
        started: list[RmqError | None] = []
        core.open(self._lives == 1, None, started.append)
        assert core.keeper.store is not None, core.keeper.error
        self.life = self._lives
        self._ledger.watch(self.name, core, self._lives > 1)
        self._tick(self.life)

    def kill(self) -> None:
        """kill -9: memory is gone, the page cache stays."""
        self._ledger.broker_killed(self.name)
        self.life, self.core = 0, None
        self._scheduler.kill(self.process)
        self._disk = self._disk.after_kill()

    def handle(self, command: Command, peer: SimPeer) -> Command | None:
        """A request arrived."""
        assert self.core is not None
        answer = self.core.handle(command, peer)
        table = self.core.tables.topics
        if table.version != self._told:
            self._told = table.version
            self.topics = {
                config.name: QueueData(
                    self.name, config.read_queues, config.write_queues, int(config.permission)
                )
                for config in filter(None, map(table.get, table.names()))
            }
        return answer

    def set_queues(self, topic: str, read: int, write: int) -> None:
        """An administrator makes the topic, or gives it so many queues."""
        header = CreateTopicHeader(topic, DEFAULT_TOPIC, read, write, int(Permission.READ_WRITE))
        self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_fields())

    def delete(self, topic: str) -> None:
        """An administrator deletes the topic at this broker."""
        self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic).to_fields())

    def _ask(self, code: RequestCode, fields: dict[str, str]) -> None:
        peer = FakePeer()
        answer = self.handle(Command(code, fields=fields), peer) or peer.sent[0]
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def queues(self, topic: str) -> tuple[int, int]:
        """How many queues the topic has for reading and for writing; none where it is not there."""
        known = None if self.core is None else self.core.tables.topics.get(topic)
        return (0, 0) if known is None else (known.read_queues, known.write_queues)

    def closed(self, peer: SimPeer) -> None:
        """A connection ended."""
        if self.core is not None:
            self.core.closed(peer)

    def _tick(self, life: int) -> None:
        if life != self.life or self.core is None:
            return
        store = self.core.keeper.store
        if store is not None:
            store.flush_step()
        self.core.tick()
        self._scheduler.after(TICK_MS, lambda: self._tick(life), self.process)


@lru_cache
def _config(name: str, **settings: Any) -> BrokerConfig:
    """The same of all histories: it takes longer to check than a message to send."""
    store = StoreConfig(
        f"/{name}",
        segment_bytes=1 << 14,
        consume_queue_entries=64,
        index_slots=97,
        index_items=400,
        preallocate=False,
        index_enabled=False,
    )
    return BrokerConfig(store, name).but(**settings)


class SimNameServer:
    """Tells the routes of all brokers, living or not: it learns of a death late."""

    def __init__(self, brokers: list[SimBroker]) -> None:
        self.process = Process("name-server")
        self.life = 1
        self._brokers = brokers
        self._encoded: dict[tuple[QueueData, ...], bytes] = {}
        """Routes that were told before."""

    def handle(self, command: Command, peer: SimPeer) -> Command | None:
        topic = (command.fields or {}).get("topic", "")
        having = [broker for broker in self._brokers if topic in broker.topics]
        if not having:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        queues = tuple(broker.topics[topic] for broker in having)
        if queues not in self._encoded:
            datas = tuple(
                BrokerData("default", broker.name, {0: str(broker.address)}) for broker in having
            )
            self._encoded[queues] = encode_route(TopicRoute(queues, datas))
        return command.answer(body=self._encoded[queues])

    def closed(self, peer: SimPeer) -> None:
        """Nothing is kept about connections."""
