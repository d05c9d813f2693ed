"""Senders and consumers of every kind, in threads of one process, that write down what they began
and what came.

    single    send, one after the other                          push, pop
    bulk      send_batch                                         push
    ordered   send by message group                              push, in order
    tx        transactions, committed and rolled back in turns   push
    delayed   by one to four seconds                             push
    poison    what its listener always refuses                   push; dead letters

Decides nothing about what is right: see ``checker``.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import rmq_ray as rmq
from rmq_ray.client.admin.dead_letters import DeadLetters
from tests.support.faults.chaos import read_log
from tests.support.waiting import eventually
from tests.torture.history import Committed, Delivery, Ended, Fate, History, Place, Send

TOPICS = ("single", "bulk", "ordered", "tx", "delayed", "poison")
PUSH, POP, ORDERED, POISON = "t-push", "t-pop", "t-ordered", "t-poison"
GROUPS = {
    PUSH: ["single", "bulk", "tx", "delayed"],
    POP: ["single"],
    ORDERED: ["ordered"],
    POISON: ["poison"],
}
QUEUES = 4
BATCH = 500
BATCH_PAUSE_S = 0.1
MESSAGE_GROUPS = 8
POISON_TRIES = 2
POISON_EVERY_S = 5.0
FIRST_DELAY = 1  # level: one second
CLOCKS_ROUND_S = 0.002
"""Times of delivery are whole milliseconds."""
SEND_TIMEOUT_MS = 20_000
CALM_S = 60.0
LATE_S = 2.0
"""Of what was delayed: a second is promised."""


class Workload:
    """Of one cluster. ``start``, then ``stop_sending``, ``drain``, ``stop``."""

    def __init__(self, mq: rmq.Cluster, history: History, seed: int) -> None:
        self._mq, self._history, self._seed = mq, history, seed
        self._sending, self._living = threading.Event(), threading.Event()
        self._sending.set()
        self._living.set()
        self._threads: list[threading.Thread] = []
        self._senders: list[threading.Thread] = []
        self._pair: list[Any] = []
        self._others: list[Any] = []
        self.last_ok = 0.0
        history.groups = {group: list(topics) for group, topics in GROUPS.items()}
        history.ordered = {ORDERED}
        history.tries_max = POISON_TRIES + 1

    def start(self) -> None:
        """Topics, consumers, senders."""
        for topic in TOPICS:
            self._mq.admin.create_topic(topic, queues=QUEUES)
        self._pair = [self._push(PUSH), self._push(PUSH)]
        self._others = [
            self._push(ORDERED, orderly=True),
            self._push(POISON, refuses=True, max_reconsume_times=POISON_TRIES),
        ]
        for consumer in self._consumers():
            consumer.start()
        for work in (self._pop, self._watch_offsets):
            self._thread(work, self._threads)
        for number, work in enumerate(
            (self._single, self._single, self._bulk, self._ordered, self._tx, self._delayed)
        ):
            self._thread(lambda n=number, w=work: w(f"{w.__name__[1:]}{n}"), self._senders)
        self._thread(self._poison, self._senders)

    def stop_sending(self) -> None:
        """Returns when every call has ended."""
        self._sending.clear()
        for thread in self._senders:
            thread.join(4 * SEND_TIMEOUT_MS / 1_000)
            if thread.is_alive():
                raise TimeoutError(f"{thread.name} has not ended its last call")

    def restart_a_consumer(self) -> None:
        """One of the two of a group leaves and another one comes."""
        self._pair.pop(0).stop()

        def began() -> bool:
            with contextlib.suppress(rmq.ClusterError):  # the controller restarts just now
                consumer = self._push(PUSH)
                consumer.start()
                self._pair.append(consumer)
                return True
            return False

        eventually(began, CALM_S)

    def drain(self, brokers: int) -> None:
        """Wait until all brokers are in the routes and no group has lag, then read what is
        stored.
        """
        history = self._history
        delayed = max((send.due for send in history.sends), default=0.0) + LATE_S
        deadline = max(time.monotonic(), delayed) + CALM_S
        while time.monotonic() < deadline:
            with contextlib.suppress(rmq.RmqError):
                for consumer in self._consumers():
                    consumer.persist_offsets()
                history.waiting = {group: self._lag(group, brokers) for group in GROUPS}
                calm = not any(history.waiting.values()) and self._poison_is_dead()
                if calm and time.monotonic() > delayed:
                    break
            time.sleep(0.5)
        for topic in TOPICS:
            history.stored[topic] = {
                Place(*place): bytes(record.body).decode()
                for place, record in read_log(self._mq.discovery, topic).items()
            }
        history.dead = {POISON: self._dead()}

    def stop(self) -> None:
        """Everything that still runs."""
        self._living.clear()
        for consumer in self._consumers():
            with contextlib.suppress(rmq.RmqError):
                consumer.stop()
        for thread in self._threads:
            thread.join(40)

    def _thread(self, work: Callable[[], None], threads: list[threading.Thread]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        threads.append(thread)
        thread.start()

    # --- consumers --------------------------------------------------------------------------------

    def _consumers(self) -> list[Any]:
        return [*self._pair, *self._others]

    def _push(self, group: str, *, refuses: bool = False, **options: Any) -> rmq.PushConsumer:
        def listen(messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> Any:
            for message in messages:
                self._came(group, message)
            if refuses:
                ctx.delay_level_when_next_consume = FIRST_DELAY
                return rmq.RECONSUME_LATER
            return None

        return rmq.PushConsumer(
            group,
            listener=listen,
            subscriptions=dict.fromkeys(GROUPS[group], "*"),
            start_from="first",
            cluster=self._mq.name,
            **options,
        )

    def _pop(self) -> None:
        with rmq.SimpleConsumer("single", POP, cluster=self._mq.name) as consumer:
            while self._living.is_set():
                try:
                    for message in consumer.receive(64, invisible=10, wait=1):
                        self._came(POP, message)
                        message.ack()
                except rmq.RmqError:
                    time.sleep(0.1)  # popped again when its time is over

    def _came(self, group: str, message: Any) -> None:
        queue = message.queue
        place = Place(queue.broker_name, queue.queue_id, int(message.queue_offset))
        self._history.deliveries.append(
            Delivery(
                group,
                message.topic,
                bytes(message.body).decode(),
                time.monotonic(),
                place,
                message.reconsume_times,
            )
        )

    def _watch_offsets(self) -> None:
        while self._living.is_set():
            for group in (PUSH, ORDERED):
                with contextlib.suppress(rmq.RmqError):
                    asked = time.monotonic()
                    for row in self._mq.admin.group_lag(group):
                        if row["topic"] in TOPICS and row["committed"] >= 0:
                            place = (row["broker"], row["queue"], row["committed"])
                            self._history.commits.append(
                                Committed(group, row["topic"], *place, asked)
                            )
            time.sleep(0.5)

    def _lag(self, group: str, brokers: int) -> int:
        """-1 while not every broker tells it."""
        rows = self._mq.admin.group_lag(group)
        if len({row["broker"] for row in rows}) < brokers:
            return -1
        return sum(max(0, row["lag"]) for row in rows)

    def _dead(self) -> list[str]:
        with contextlib.closing(DeadLetters(self._mq.discovery)) as admin:
            try:
                return [bytes(letter.body).decode() for letter in admin.dead_letters(POISON)]
            except rmq.GroupNotFound:
                return []

    def _poison_is_dead(self) -> bool:
        wanted = {send.body for send in self._history.sends if send.poison and _ok(send)}
        return wanted <= set(self._dead())

    # --- senders ----------------------------------------------------------------------------------

    def _note(
        self, topic: str, body: str, began: float, error: BaseException | None, **more: Any
    ) -> None:
        now = time.monotonic()
        outcome = Ended.OK
        if error is not None:
            unknown = isinstance(error, rmq.SendUnknown) or not isinstance(error, rmq.SendError)
            outcome = Ended.UNKNOWN if unknown else Ended.FAILED
        else:
            self.last_ok = now
        self._history.sends.append(Send(topic, body, began, now, outcome, **more))

    def _loop(self, name: str, pause_s: float, once: Callable[[Any, str], None]) -> None:
        with rmq.Producer(
            f"p-{name}", cluster=self._mq.name, send_timeout_ms=SEND_TIMEOUT_MS, checker=_check
        ) as producer:
            number = 0
            while self._sending.is_set():
                once(producer, f"{name}-{number}")
                number += 1
                time.sleep(pause_s)

    def _send(self, producer: Any, topic: str, body: str, **options: Any) -> None:
        began, due = time.monotonic(), 0.0
        if "delay" in options:
            due = began + options["delay"].total_seconds() - CLOCKS_ROUND_S
        try:
            result = producer.send(topic, body.encode(), **options)
        except rmq.RmqError as error:
            self._note(topic, body, began, error, due=due)
            return
        place = None if due else _place(result)
        self._note(topic, body, began, None, place=place, due=due)

    def _single(self, name: str) -> None:
        self._loop(name, 0.002, lambda producer, body: self._send(producer, "single", body))

    def _ordered(self, name: str) -> None:
        def once(producer: Any, body: str) -> None:
            number = int(body.rpartition("-")[2]) % MESSAGE_GROUPS
            self._send(producer, "ordered", body, message_group=str(number))

        self._loop(name, 0.005, once)

    def _delayed(self, name: str) -> None:
        draw = random.Random(self._seed)

        def once(producer: Any, body: str) -> None:
            delay = timedelta(milliseconds=draw.randint(1_000, 4_000))
            self._send(producer, "delayed", body, delay=delay)

        self._loop(name, 0.05, once)

    def _poison(self) -> None:
        with rmq.Producer("p-poison", cluster=self._mq.name) as producer:
            number = 0
            while self._sending.is_set():
                began, body = time.monotonic(), f"poison-{number}"
                try:
                    place = _place(producer.send("poison", body.encode()))
                    self._note("poison", body, began, None, place=place, poison=True)
                except rmq.RmqError as error:
                    self._note("poison", body, began, error, poison=True)
                number += 1
                for _ in range(int(POISON_EVERY_S / 0.1)):
                    if self._sending.is_set():
                        time.sleep(0.1)

    def _bulk(self, name: str) -> None:
        def once(producer: Any, body: str) -> None:
            bodies = [f"{body}.{number}" for number in range(BATCH)]
            began = time.monotonic()
            try:
                results = producer.send_batch("bulk", [each.encode() for each in bodies])
            except rmq.RmqError as error:
                unknown = rmq.SendUnknown(str(error), "bulk")  # some of its frames may be stored
                for each in bodies:
                    self._note("bulk", each, began, unknown)
                return
            places = [
                Place(r.queue.broker_name, r.queue.queue_id, int(r.queue_offset) + number)
                for r in results
                for number in range(r.count)
            ]
            for each, place in zip(bodies, places, strict=True):
                self._note("bulk", each, began, None, place=place)

        self._loop(name, BATCH_PAUSE_S, once)

    def _tx(self, name: str) -> None:
        def once(producer: Any, body: str) -> None:
            began, fate = time.monotonic(), Fate.OPEN
            try:
                with producer.transaction() as tx:
                    tx.send("tx", body.encode())
                    if not _commits(body):
                        raise _RolledBack
                fate = Fate.COMMITTED
            except _RolledBack:
                fate = Fate.ROLLED_BACK
            except rmq.RmqError:
                pass
            error = rmq.SendUnknown(body, "tx") if fate is Fate.OPEN else None
            self._note("tx", body, began, error, fate=fate)

        self._loop(name, 0.02, once)


class _RolledBack(Exception):
    """The user's own error, for which a transaction is rolled back."""


def _commits(body: str) -> bool:
    return int(body.rpartition("-")[2]) % 2 == 0


def _check(message: Any) -> rmq.LocalTransactionState:
    """Asked by a broker: the same as was decided."""
    commits = _commits(bytes(message.body).decode())
    state = rmq.LocalTransactionState
    return state.COMMIT_MESSAGE if commits else state.ROLLBACK_MESSAGE


def _place(result: Any) -> Place:
    return Place(result.queue.broker_name, result.queue.queue_id, int(result.queue_offset))


def _ok(send: Send) -> bool:
    return send.outcome is Ended.OK
