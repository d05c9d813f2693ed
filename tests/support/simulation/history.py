"""One random history: brokers, consumers that come and go, producers, faults; then calm, until
everything is consumed.

    seed ─> Plan (how many, which strategy, ordered or not)
         ─> actions at random times ─> calm ─> checks of the ledger

The clients are real ``PushConsumer`` or ``SimpleConsumer`` objects with all their threads, the
brokers real ``BrokerCore`` objects with their stores; time, threads and the network are simulated.
``History(seed).run()`` returns what broke a promise: an empty list.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rmq_ray.client.messages.listener import RECONSUME_LATER, SUSPEND_CURRENT_QUEUE_A_MOMENT, Reject
from rmq_ray.client.pop.receipts import ReceivedMessage
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.codec.record import decode_record, parse_offset_message_id
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import RmqError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import (
    DELAY,
    PRODUCER_GROUP,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    SysFlag,
    encode_properties,
)
from rmq_ray.model.topics import DEFAULT_TOPIC
from rmq_ray.ports import ClusterAddress
from rmq_ray.protocol.allocation.strategies import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
)
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import EndTransactionHeader, SendHeader
from tests.support.simulation.broker import NAME_SERVER, YOUNG_BYTES, SimBroker, SimNameServer
from tests.support.simulation.ledger import Ledger
from tests.support.simulation.scheduler import Process, Scheduler
from tests.support.simulation.threads import quiet, simulated
from tests.support.simulation.wire import Network, SimPool

TOPIC, GROUP = "orders", "billing"
DELAY_LEVELS = "1s 1s 1s 1s 2s 2s 3s"
TRIES_MAX = 3
LOCK_MS, TRUSTED_MS, REFRESH_MS = (
    12_000,
    6_000,
    4_000,
)  # a fifth of the real ones, so that histories are short
EXPIRY_MS = 40_000
REBALANCE_MS = 5_000
REST_WITHIN_MS = 300_000  # of the last fault
LOOK_MS = 500
INVISIBLE_S = 8.0
TAGS = "a || b"
CONSUMING = ConsumerConfig(
    GROUP,
    rebalance_ms=REBALANCE_MS,
    lock_refresh_ms=REFRESH_MS,
    lock_trusted_ms=TRUSTED_MS,
    lock_retry_ms=1_000,
    suspend_queue_ms=500,
    pull_records=16,
    suspend_ms=10_000,
    send_back_retry_ms=2_000,
)
CONSUMERS_MAX = 6
QUEUES_MAX = 6
CALM = ("join", "leave", "join", "leave", "grow", "shrink", "away")
FAULTS = (
    "join",
    "leave",
    "grow",
    "shrink",
    "away",
    "crash",
    "pause",
    "long pause",
    "broker",
    "broker pause",
    "cut",
    "partition",
)
DELETE = "delete"
LATER = ("delayed", "timed", "half")


@dataclass(frozen=True)
class Plan:
    """What a history is made of. ``popping``: the group's consumers are simple ones; an ordered
    group has none.
    """

    orderly: bool
    popping: bool
    brokers: int
    queues: int
    consumers: int
    strategy: AllocationStrategy
    concurrency: int
    batch_size: int
    messages: int
    failing: float
    minutes: float
    actions: int
    faults: tuple[str, ...]
    start_from: str
    later: float
    """Share of the messages that are stored in the topic later: delayed, timed, halves."""

    @classmethod
    def drawn(cls, seed: object) -> Plan:
        """The plan of the history of that seed."""
        return cls.of(_chance(seed))

    @classmethod
    def of(cls, chance: random.Random) -> Plan:
        """Drawn from ``chance``; a quarter of all histories are calm: consumers join and leave,
        are all away for a while, topics grow and shrink, nothing goes wrong. In four of ten, topics
        are deleted, too.
        """
        calm = chance.random() < 0.25
        deletes = (DELETE,) if chance.random() < 0.4 else ()
        return cls(
            orderly=chance.random() < 0.5,
            brokers=chance.choice([1, 1, 2]),
            queues=chance.randint(1, 4),
            consumers=chance.randint(1, 3),
            strategy=chance.choice([Averagely(), AveragelyByCircle(), ConsistentHash()]),
            concurrency=chance.choice([1, 2, 3]),
            batch_size=chance.choice([1, 1, 2, 4]),
            messages=chance.randint(8, 30),
            failing=chance.choice([0.05, 0.1, 0.5]),
            minutes=(minutes := chance.uniform(0.2, 0.5)),
            actions=int(minutes * 20),
            faults=(CALM if calm else FAULTS) + deletes,
            start_from=chance.choice(["first", "first", "last"]),
            later=chance.choice([0.0, 0.2, 0.4]),
            popping=chance.random() < 0.2,
        )


class Discovery:
    """See ``ports.Discovery``."""

    def lookup(self) -> ClusterAddress:
        return ClusterAddress("default", (str(NAME_SERVER),), b"")


@dataclass
class Member:
    """One consumer process."""

    process: Process
    consumer: PushConsumer | SimpleConsumer
    leaving: bool = False


class History:
    """See the module. ``plan``: instead of a random one."""

    def __init__(self, seed: object, plan: Plan | None = None) -> None:
        self.chance = _chance(seed)
        self.plan = plan or Plan.of(self.chance)
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler)
        self._pops = self.plan.popping and not self.plan.orderly
        self.ledger = Ledger(
            self.scheduler.clock,
            TOPIC,
            self.plan.orderly,
            self.plan.start_from == "last",
            self._pops,
            TRIES_MAX,
            LOCK_MS,
            YOUNG_BYTES,
        )
        settings: dict[str, Any] = {
            "delay_levels": DELAY_LEVELS,
            "queue_lock_ms": LOCK_MS,
            "channel_expiry_ms": EXPIRY_MS,
            "default_topic_queues": self.plan.queues,
        }
        self.brokers = [
            SimBroker(
                self.scheduler,
                self.ledger,
                f"broker-{'ab'[n]}",
                Address(f"10.0.2.{n}", 10_911),
                **settings,
            )
            for n in range(self.plan.brokers)
        ]
        self.network.servers = {broker.address: broker for broker in self.brokers} | {
            NAME_SERVER: SimNameServer(self.brokers)
        }
        self.members: list[Member] = []
        self.producer = Process("10.0.3.1@1")
        self._joined = 0
        self._calm = self._all_sent = False

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """The whole history; what broke a promise."""
        with simulated(
            self.scheduler,
            lambda _credentials, _limits, _clock, on_request, on_lost, _on_silent, _tls: SimPool(
                self.network, on_request, on_lost
            ),
        ):
            for broker in self.brokers:
                broker.start()
            self.scheduler.spawn(self.producer, self._produce)
            for _ in range(self.plan.consumers):
                self.join()
            length_ms = self.plan.minutes * 60_000
            for _ in range(self.plan.actions):
                self.scheduler.after(self.chance.uniform(0, length_ms), self._act)
            self.scheduler.run_until(length_ms)
            self._calm_down()
            end_ms = self.scheduler.now_ms + REST_WITHIN_MS
            while self.scheduler.now_ms < end_ms and not self._rested():
                self.scheduler.run_until(self.scheduler.now_ms + LOOK_MS)
            self._check()
            for member in self.members:
                self.scheduler.kill(member.process)
            self.scheduler.kill(self.producer)
        return self.ledger.violations

    def _calm_down(self) -> None:
        """No faults from here on, everything is up, somebody consumes."""
        self._calm = True
        faults = self.network.faults
        faults.break_before = faults.break_after = faults.late = 0.0
        for broker in self.brokers:
            if not broker.life:
                broker.start()
            if TOPIC not in broker.topics:
                broker.set_queues(TOPIC, self.plan.queues, self.plan.queues)
        if not self._living():
            self.join()

    def _rested(self) -> bool:
        return self._all_sent and self.ledger.at_rest() and self._settled_in()

    def _settled_in(self) -> bool:
        return self._pops or (
            all(member.consumer.balanced for member in self._living())
            and all(len(holders) == 1 for holders in self.owners().values())
        )

    def _check(self) -> None:
        found: dict[tuple[str, str, int], list[int]] = {}
        for broker, topic, queue_id in self.ledger.records:
            core = next(known.core for known in self.brokers if known.name == broker)
            assert core is not None and core.keeper.store is not None
            found[broker, topic, queue_id] = _numbers_in(core.keeper.store, topic, queue_id)
        self.ledger.check_end(found, {} if self._pops else self.owners())

    def owners(self) -> dict[MessageQueue, list[str]]:
        """Who holds each queue of the topic."""
        holders: dict[MessageQueue, list[str]] = {queue: [] for queue in self.ledger.readable()}
        for member in self._living():
            for queue in member.consumer.assignment():
                if queue in holders:
                    holders[queue].append(member.process.name)
        return holders

    def told(self) -> tuple[object, ...]:
        """What makes two runs the same."""
        return (
            self.scheduler.now_ms,
            self.scheduler.count,
            sorted(self.ledger.events.items()),
            self.ledger.sent,
            sorted(self.ledger.committed.items()),
        )

    # --- actions ----------------------------------------------------------------------------------

    def _act(self) -> None:
        if not self._calm:
            kind = self.chance.choice(self.plan.faults)
            self.ledger.events[kind] += 1
            if kind not in (*CALM, DELETE):
                self.ledger.calm = False
            getattr(self, f"_{kind.replace(' ', '_')}")()

    def _join(self) -> None:
        if len(self._living()) < CONSUMERS_MAX:
            self.join()

    def _leave(self) -> None:
        member = self._any_member()
        if member is not None:
            self.leave(member)

    def _grow(self) -> None:
        """The topic gets one more queue at one broker; consumers learn of it with their next look
        at the routes.
        """
        broker = self.chance.choice(self.brokers)
        reading, writing = broker.queues(TOPIC)
        if 0 < writing < QUEUES_MAX:
            broker.set_queues(TOPIC, max(reading, writing + 1), writing + 1)

    def _shrink(self) -> None:
        """The topic gets one queue less to write to at one broker; or, where that has happened and
        the queue was read to its end, one less to read.
        """
        broker = self.chance.choice(self.brokers)
        reading, writing = broker.queues(TOPIC)
        if reading > writing and self.ledger.is_read((broker.name, TOPIC, reading - 1)):
            broker.set_queues(TOPIC, reading - 1, writing)
        elif writing > 1:
            broker.set_queues(TOPIC, reading, writing - 1)

    def _delete(self) -> None:
        """The topic is deleted. It is made again at once, or later, by the next message."""
        if all(broker.life for broker in self.brokers):
            queues = self.chance.choice([0, self.chance.randint(1, 4)])
            for broker in self.brokers:
                broker.delete(TOPIC)
                if queues:
                    broker.set_queues(TOPIC, queues, queues)

    def _away(self) -> None:
        """All consumers leave; some come back later."""
        for member in self._living():
            self.leave(member)
        for _ in range(self.plan.consumers):
            self.scheduler.after(self.chance.uniform(1_000, 8_000), self._join)

    def _crash(self) -> None:
        member = self._any_member()
        if member is not None:
            self.members.remove(member)
            self.network.kill(member.process)

    def _pause(self) -> None:
        member = self._any_member()
        if member is not None:
            self.scheduler.pause(member.process, self.chance.uniform(500, 8_000))

    def _long_pause(self) -> None:
        member = self._any_member()
        if member is not None:
            self.scheduler.pause(member.process, self.chance.uniform(LOCK_MS, 1.5 * EXPIRY_MS))

    def _broker(self) -> None:
        broker = self.chance.choice(self.brokers)
        if broker.life:
            broker.kill()
            for process in [member.process for member in self.members] + [self.producer]:
                for connection in list(process.connections):
                    if connection.address == broker.address:
                        connection.break_soon("the broker died")
            self.scheduler.after(self.chance.uniform(50, 5_000), partial(self._restart, broker))

    def _restart(self, broker: SimBroker) -> None:
        if not broker.life:
            broker.start()

    def _broker_pause(self) -> None:
        broker, duration_ms = self.chance.choice(self.brokers), self.chance.uniform(500, 10_000)
        self.scheduler.pause(broker.process, duration_ms)
        self.ledger.broker_stopped(broker.name, duration_ms)

    def _cut(self) -> None:
        """Requests and answers are lost for some seconds."""
        faults = self.network.faults
        faults.break_before, faults.break_after, faults.late = (
            self.chance.uniform(0, 0.2) for _ in range(3)
        )
        self.scheduler.after(self.chance.uniform(1_000, 6_000), self._heal)

    def _heal(self) -> None:
        faults = self.network.faults
        faults.break_before = faults.break_after = faults.late = 0.0

    def _partition(self) -> None:
        member = self._any_member()
        if member is not None:
            until = self.scheduler.now_ms + self.chance.uniform(2_000, 1.2 * EXPIRY_MS)
            self.network.faults.held_until_ms[
                member.process.name, self.chance.choice(self.brokers).address
            ] = until

    def _any_member(self) -> Member | None:
        living = self._living()
        return self.chance.choice(living) if living else None

    def _living(self) -> list[Member]:
        return [member for member in self.members if not member.leaving]

    # --- consumers --------------------------------------------------------------------------------

    def join(self) -> Member:
        """A new consumer process starts."""
        self._joined += 1
        process = Process(f"10.0.0.{self._joined}@{self._joined}")
        member = Member(process, None)  # type: ignore[arg-type]  # made in its own process, below
        self.scheduler.spawn(process, partial(self._pop if self._pops else self._push, member))
        return member

    def _push(self, member: Member) -> None:
        """A push consumer."""
        member.consumer = PushConsumer(
            GROUP,
            listener=partial(self._listen, member),
            subscriptions={TOPIC: TAGS},
            discovery=Discovery(),
            config=CONSUMING,
            client_id=member.process.name,
            clock=self.scheduler.clock,
            orderly=self.plan.orderly,
            concurrency=self.plan.concurrency,
            batch_size=self.plan.batch_size,
            allocate=self.plan.strategy,
            max_reconsume_times=TRIES_MAX,
            start_from=self.plan.start_from,
        )
        self.members.append(member)
        member.consumer.start()
        self._watch_hand_over(member)

    def _pop(self, member: Member) -> None:
        """A simple consumer and its worker."""
        member.consumer = consumer = SimpleConsumer(
            TOPIC,
            GROUP,
            discovery=Discovery(),
            expression=TAGS,
            start_from=self.plan.start_from,
            max_reconsume_times=TRIES_MAX,
            client_id=member.process.name,
            clock=self.scheduler.clock,
        )
        self.members.append(member)
        consumer.start()
        while not member.leaving:
            try:
                found = consumer.receive(self.plan.batch_size, invisible=INVISIBLE_S, wait=5.0)
            except RmqError:
                self.scheduler.sleep(1_000)
                continue
            for message in found:
                with suppress(RmqError):
                    self._work(member, message)

    def _work(self, member: Member, message: ReceivedMessage) -> None:
        self.ledger.begin(member.process.name, message.queue, [message], may_be_late=False)
        self.scheduler.sleep(self.chance.choice([0, 1, 5, 20, 20, 100]))
        if self._calm or self.chance.random() >= self.plan.failing:
            self.ledger.done([message])
            message.ack()
        else:
            message.nack(self.chance.uniform(0, 2))

    def leave(self, member: Member) -> None:
        """It is asked to stop; its process ends when that is through."""
        member.leaving = True

        def stop() -> None:
            if isinstance(member.consumer, SimpleConsumer):
                member.consumer.close()
            else:
                member.consumer.stop(timeout_ms=20_000)
            self.scheduler.after(1, partial(self._gone, member))

        self.scheduler.spawn(member.process, stop)

    def _gone(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
            self.network.kill(member.process)

    def _listen(self, member: Member, messages: list[Any], ctx: Any) -> Any:
        chance, ledger = self.chance, self.ledger
        resumed_ms = self.scheduler.now_ms - member.process.resumed_ms
        ledger.begin(member.process.name, ctx.queue, messages, may_be_late=0 <= resumed_ms < 1)
        self.scheduler.sleep(chance.choice([0, 1, 5, 20, 20, 100, chance.uniform(100, 3_000)]))
        fails = 0.0 if self._calm else self.plan.failing
        verdict = chance.choices(
            ["done", "later", "raise", "reject"], [1 - fails, fails * 0.5, fails * 0.4, fails * 0.1]
        )[0]
        if verdict == "done":
            ledger.done(messages)
            return None
        if verdict == "reject":
            ledger.rejected.update(int(message.body) for message in messages)
            return Reject
        if verdict == "raise":
            raise ValueError("the listener's own")
        return SUSPEND_CURRENT_QUEUE_A_MOMENT if self.plan.orderly else RECONSUME_LATER

    def _watch_hand_over(self, member: Member) -> None:
        rebalancer = member.consumer._engine.rebalancer  # type: ignore[union-attr]
        let_go = rebalancer._let_go

        def watched(work: Any) -> None:
            since_ms = self.scheduler.now_ms
            let_go(work)
            self.ledger.handed_over(work.queue, work.process.commit_offset, since_ms)

        rebalancer._let_go = watched  # type: ignore[method-assign]

    # --- the producer -----------------------------------------------------------------------------

    def _produce(self) -> None:
        pool = SimPool(self.network, None, lambda *_: None)
        pause_ms = self.plan.minutes * 60_000 * 0.9 / self.plan.messages
        for number in range(self.plan.messages):
            self._send(pool, number)
            self.scheduler.sleep(self.chance.choice([0, 0, pause_ms, 2 * pause_ms]))
        self._all_sent = True

    def _send(self, pool: SimPool, number: int) -> None:
        broker = self.chance.choice(self.brokers)
        queue_id = self._queue_of(broker)
        tag = self.chance.choices("abc", [45, 45, 10])[0]
        if tag == "c":
            self.ledger.unwanted.add(number)
        properties = {"TAGS": tag, "UNIQ_KEY": f"{number:032X}"}
        later = self.chance.random() < self.plan.later and self.chance.choice(LATER)
        if later:
            self.ledger.meant[number] = queue_id
            properties |= self._to_come_later(later)
        header = SendHeader(
            "producers",
            TOPIC,
            queue_id,
            int(SysFlag.TRANSACTION_PREPARED) if later == "half" else 0,
            self.scheduler.clock.now_ms(),
            0,
            DEFAULT_TOPIC,
            self.plan.queues,
            encode_properties(properties),
            0,
        )
        command = Command(RequestCode.SEND_MESSAGE_V2, fields=header.to_v2(), body=b"%d" % number)
        try:
            answer = pool.request(broker.address, command, 3_000)
            if later == "half" and answer.code == 0:
                self.scheduler.sleep(self.chance.uniform(0, 4_000))
                answer = pool.request(broker.address, _commit_of(answer), 3_000)
        except RmqError:
            return  # stored or not: nobody was promised anything
        if answer.code != 0:
            return
        if later:
            self.ledger.accepted.add(number)
        else:
            assert answer.fields is not None
            self.ledger.sent[number] = (
                broker.name,
                int(answer.fields["queueId"]),
                int(answer.fields["queueOffset"]),
            )

    def _queue_of(self, broker: SimBroker) -> int:
        """A queue of the route; now and then of an older one, with queues that are only read."""
        told = broker.topics.get(TOPIC)
        if told is None:
            return self.chance.randrange(self.plan.queues)
        old = self.chance.random() < 0.2
        return self.chance.randrange(told.read_queues if old else told.write_queues)

    def _to_come_later(self, kind: str) -> dict[str, str]:
        if kind == "half":
            return {TRANSACTION_PREPARED: "true", PRODUCER_GROUP: "producers"}
        if kind == "delayed":
            return {DELAY: str(self.chance.randint(1, 7))}
        due_ms = self.scheduler.clock.now_ms() + self.chance.randint(500, 5_000)
        return {TIMER_DELIVER_MS: str(due_ms)}


def _chance(seed: object) -> random.Random:
    return random.Random(f"history {seed}")


def _commit_of(half: Command) -> Command:
    """The end of the transaction of which the half was stored."""
    assert half.fields is not None
    message_id = half.fields["msgId"]
    header = EndTransactionHeader(
        "producers",
        int(half.fields["queueOffset"]),
        parse_offset_message_id(message_id)[2],
        int(SysFlag.TRANSACTION_COMMIT),
        message_id,
    )
    return Command(RequestCode.END_TRANSACTION, fields=header.to_fields())


def _numbers_in(store: Any, topic: str, queue_id: int) -> list[int]:
    """The messages of a queue, as the store reads them."""
    low, high = store.bounds(topic, queue_id)
    numbers: list[int] = []
    offset = low
    while offset < high:
        page = store.get_messages(topic, queue_id, offset, 256, 1 << 20, None)
        data, at = b"".join(page.parts), 0
        for size in page.sizes.tolist():
            numbers.append(int(decode_record(data, at).body))
            at += size
        assert page.next_offset > offset
        offset = page.next_offset
    return numbers


def violations_of(seeds: Iterable[int], orderly: bool) -> list[str]:
    """What broke promises in these histories; each line says how to see it again."""
    found = []
    with quiet():
        for seed in seeds:
            plan = replace(Plan.drawn(seed), orderly=orderly)
            found += [
                f"violations_of([{seed}], {orderly}): {what}" for what in History(seed, plan).run()
            ]
    return found
