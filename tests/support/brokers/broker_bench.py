"""A broker without sockets: ``BrokerCore`` over a real store, slow work run at once or when the
test says, time moved by hand.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack

from rmq_ray.clock import ManualClock
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.config import BrokerConfig, FlushMode, StoreConfig
from rmq_ray.errors import RmqError
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
)
from rmq_ray.model.ids import FrameId
from rmq_ray.model.pulling import Sql
from rmq_ray.protocol.filters.subscriptions import parse_subscription
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.records import (
    PullAnswer,
    PullRecords,
    SendAnswer,
    pack_pull,
    pack_send,
    unpack_pull_answer,
    unpack_send_answer,
)
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.offload import Waiting
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.core.broker_core import BrokerCore
from tests.support.faults.fake_peer import FakePeer

HOST = ("10.0.0.1", 10911)
WAIT_S = 10.0
WAITING_MAX = 256


class ManualOffload:
    """Slow work runs within ``submit``; with ``held`` it waits for ``run``. ``post`` queues, from
    any thread; ``drain`` runs what came. ``soon`` runs at once, or is kept in ``later``.
    """

    def __init__(self) -> None:
        self.held = False
        self.later: list[Callable[[], None]] | None = None
        self._work: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._work.append((work, done))
        if not self.held:
            self.run()

    def run(self) -> None:
        while self._work:
            work, done = self._work.popleft()
            outcome: Any
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001 - handed on as the outcome
                outcome = error
            done(outcome)

    def post(self, call: Callable[[], None]) -> None:
        self._posted.put(call)

    def soon(self, call: Callable[[], None]) -> None:
        if self.later is None:
            call()
        else:
            self.later.append(call)

    def waiting(self) -> Waiting:
        return Waiting(len(self._work), 0, WAITING_MAX)

    def drain(self) -> None:
        """Run what was posted so far."""
        for _ in range(self._posted.qsize()):
            self._posted.get_nowait()()

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Run posted calls until ``reached``, waiting for threads of the store."""
        while not reached():
            self._posted.get(timeout=WAIT_S)()


class Bench:
    """One broker core and the things around it."""

    def __init__(
        self,
        directory: Path,
        flush: FlushMode = FlushMode.ASYNC_FLUSH,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        store = StoreConfig(
            str(directory / "store"),
            flush=flush,
            segment_bytes=1 << 20,
            consume_queue_entries=1_000,
            index_slots=997,
            index_items=4_000,
            preallocate=False,
        )
        self.config = BrokerConfig(store).but(**settings)  # settings may replace the store's, too
        self.clock = clock or ManualClock(1_700_000_000_000)
        self.offload = ManualOffload()
        self.identity = Identity(
            "broker-a", 0, "default", "10.0.0.1:10911", boot_ms=self.clock.now_ms()
        )
        self.core = BrokerCore(
            BrokerRuntime(self.config, self.identity, HOST, self.clock, self.offload, self.offload)
        )
        self.started: list[RmqError | None] = []
        self._sequence = 0
        self._opaque = 0

    def open(self, create: bool = True) -> Bench:
        """Open and recover; serving on return."""
        self.core.open(create, None, self.started.append)
        self.offload.drain()
        assert self.started == [None], self.started
        return self

    def close(self) -> None:
        """A clean stop."""
        self.core.close()()

    def command(
        self, code: int, fields: dict[str, str] | None = None, body: Any = b"", oneway: bool = False
    ) -> Command:
        self._opaque += 1
        if isinstance(body, tuple):
            body = b"".join(bytes(part) for part in body)
        return Command(code, self._opaque, FLAG_ONEWAY if oneway else 0, fields, bytearray(body))

    def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: Any = b"",
        peer: FakePeer | None = None,
        oneway: bool = False,
    ) -> Command:
        """One request and its answer, given at once or sent within the call."""
        peer = peer or FakePeer()
        before = len(peer.sent)
        answer = self.core.handle(self.command(code, fields, body, oneway), peer)
        if answer is None:
            answers = [sent for sent in peer.sent[before:] if sent.is_response]
            assert len(answers) == 1, f"no answer to {code}"
            answer = answers[0]
        return answer

    def frame(
        self,
        topic: str,
        queue_id: int = 0,
        bodies_: list[bytes] | None = None,
        tag: str | None = None,
        frame_id: FrameId | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> bytes:
        """Body of SEND_RECORDS; ``properties``: of every record."""
        texts = bodies_ or [b"hello"]
        if frame_id is None:
            self._sequence += 1
            frame_id = FrameId(bytes(15) + b"\x01", self._sequence)
        tags = f"TAGS\x01{tag}\x02" if tag else ""
        tags += "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
        strings = [f"{tags}UNIQ_KEY\x01{self._sequence:024X}{n:08X}" for n in range(len(texts))]
        return b"".join(
            bytes(part)
            for part in pack_send(
                *encode_frame(topic, queue_id, texts, strings, self.clock.now_ms(), frame_id)
            )
        )

    def send(
        self,
        topic: str = "orders",
        queue_id: int = 0,
        bodies_: list[bytes] | None = None,
        tag: str | None = None,
        peer: FakePeer | None = None,
        **properties: str,
    ) -> SendAnswer:
        """Send a frame that must be stored."""
        answer = self.ask(
            Code.SEND_RECORDS,
            None,
            self.frame(topic, queue_id, bodies_, tag, properties=properties),
            peer,
        )
        assert answer.code == 0, (answer.code, answer.remark)
        return unpack_send_answer(answer.body)

    def heartbeat(
        self,
        peer: FakePeer,
        group: str = "billing",
        topics: tuple[str, ...] = ("orders",),
        expression: str | Sql = "*",
        client_id: str = "",
        version: int = 1,
    ) -> Command:
        """Make ``peer`` a member of ``group``."""
        subscriptions = tuple(parse_subscription(topic, expression, version) for topic in topics)
        data = ConsumerData(
            group,
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscriptions,
        )
        return self.ask(
            Code.HEART_BEAT,
            None,
            bodies.encode_heartbeat(
                Heartbeat(client_id or f"{peer.host}@{peer.port}", (), (data,))
            ),
            peer,
        )

    def pull_command(
        self,
        topic: str = "orders",
        queue_id: int = 0,
        offset: int = 0,
        group: str = "billing",
        flags: int = 4,
        **more: Any,
    ) -> Command:
        """PULL_RECORDS; flags 4 = inline subscription, 2 = may be held, 1 = commit."""
        asked: dict[str, Any] = {
            "count_max": 32,
            "bytes_max": 1 << 20,
            "commit_offset": 0,
            "suspend_ms": 15_000,
            "sub_version": 0,
            "expression": "*" if flags & 4 else None,
        }
        asked |= more
        return self.command(
            Code.PULL_RECORDS,
            None,
            pack_pull(PullRecords(group, topic, queue_id, offset, sys_flag=flags, **asked)),
        )

    def pull(
        self, *args: Any, peer: FakePeer | None = None, **more: Any
    ) -> tuple[int, PullAnswer | None]:
        """(code, page) of a pull that is answered at once."""
        peer = peer or FakePeer()
        answer = self.core.handle(self.pull_command(*args, **more), peer)
        assert answer is not None, "the pull is held"
        return answer.code, page_of(answer)


def page_of(answer: Command) -> PullAnswer | None:
    """The page of an answer to PULL_RECORDS, ``None`` for a refusal."""
    return None if answer.remark else unpack_pull_answer(answer.body)


def bodies_of(page: PullAnswer | None) -> list[bytes]:
    """Bodies of a page's records."""
    from rmq_ray.codec.record import decode_record

    assert page is not None
    found, at = [], 0
    for size in page.sizes.tolist():
        found.append(bytes(decode_record(page.records, at).body))
        at += size
    return found


def unpacked(answer: Command) -> Any:
    """A msgpack body."""
    return msgpack.unpackb(answer.body, strict_map_key=False)
