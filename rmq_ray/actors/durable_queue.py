"""``ray.util.queue.Queue`` on a topic: the same methods, but durable, and found by its name from
any process of the cluster.

    put  = a send that is acknowledged        get = a pop of one message that is acknowledged

Decides how values travel (``codec.values``; pickle only where both sides ask for it) and what a
queue of values is in topics: one topic with one queue, so that it is first in, first out, and one
group of its name. Invariants: an item that ``put`` returned for is on the broker as its mode says;
``get`` returns an item only after the broker wrote down that it is taken, so it comes twice only
where that answer was lost, or with ``prefetch``, where the broker hears of it a moment later, where
the process died before that; nothing is unpickled that this handle was not told to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import Any

from ray.util.queue import Empty, Full

from rmq_ray.actors import gateway
from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.messages.received import untagged_bodies
from rmq_ray.client.pop.ack_sender import not_sent
from rmq_ray.client.pop.patience import Patience, abandonable
from rmq_ray.client.pop.receipts import ReceivedMessage, ack_messages, give_back_messages
from rmq_ray.client.pop.simple_consumer import MESSAGES_MAX, SimpleConsumer
from rmq_ray.client.producer.bounded_producer import BoundedProducer
from rmq_ray.client.scan.shared_queues import first_queue
from rmq_ray.clock import SYSTEM_CLOCK, seconds_to
from rmq_ray.codec.values import BYTES, MSGPACK, TABLE, TENSOR, decode, encode
from rmq_ray.config import Tls
from rmq_ray.errors import (
    AdminError,
    ClientError,
    ConfigError,
    ConsumeError,
    GroupNotFound,
    RmqError,
    TopicExists,
    TopicFull,
)
from rmq_ray.guard import why
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.protocol.validators import check_group, check_topic

PICKLE = "pickle"
KINDS = frozenset({MSGPACK, TABLE, TENSOR, PICKLE})
"""Tags that say how the body is a value; any other, and none, are bytes as they are."""
TAKEN_S = 30.0
"""What somebody took who died before he had it comes again after this long."""
KEPT_MS = 25_000.0
"""What was taken in advance and not handed out by then is left to come again."""
WAIT_S = 20.0
BATCH_BYTES = 4 << 20
"""A batch up to here, 140 bytes more for each item, is one frame: stored whole or not at all. As
long as one message may be.
"""
STORED_AT = 2  # of the error of a call of which other frames are stored: what is
RETRIES_MAX = (1 << 31) - 1
PAUSE_S = 0.005, 0.25
_living: weakref.WeakSet[Queue] = weakref.WeakSet()
_left_open: SimpleQueue[Queue] = SimpleQueue()
"""For the closer: what handles were connected with that nobody has any more."""
_closer: threading.Thread | None = None
log = logging.getLogger("rmq_ray.queue")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a handle is connected with, in one process."""

    admin: Admin
    producer: BoundedProducer
    consumer: SimpleConsumer
    queue: MessageQueue

    def untaken(self) -> int:
        """Items that nobody took, those that come again among them: as administration asks for it,
        where a broker does not tell its consumers.
        """
        name, found = self.queue.topic, dict[MessageQueue, tuple[int, int]]()
        with suppress(GroupNotFound):
            for row in self.admin.group_lag(name):
                queue = MessageQueue(row["topic"], row["broker"], row["queue"])
                found[queue] = row["taken"], row["max_offset"]
        for queue, stats in self.admin.topic_stats(name).items():
            taken, end = found.get(queue, (0, 0))
            found[queue] = max(taken, stats.min_offset), max(end, stats.max_offset)
        return sum(max(0, end - taken) for taken, end in found.values())


def _start_closer() -> None:
    """Where it does not run, as in a forked child."""
    global _closer
    if _closer is None or not _closer.is_alive():
        _closer = threading.Thread(target=_close_all, name="rmq-queue-closer", daemon=True)
        _closer.start()


def _close_all() -> None:
    while True:  # ends: with the process
        queue = _left_open.get()
        try:
            queue.shutdown()
        except Exception as error:  # noqa: BLE001 - nobody waits for it
            log.warning("items that %r had taken could not be put again: %s", queue, error)
        del queue


def _hand_to_closer(state: tuple[Any, ...], parts: _Parts, undelivered: deque[Any]) -> None:
    """Whoever drops a handle must not wait, and may hold any lock."""
    twin = Queue.__new__(Queue)
    twin.__setstate__(state)
    twin._parts, twin._undelivered = parts, undelivered
    _left_open.put(twin)


def _pickled(item: Any) -> bytes:
    try:
        return gateway.pack(item)
    except Exception as error:  # whatever the value's own code raises
        raise ClientError(
            f"a {type(item).__name__} cannot be pickled, nothing was put: {why(error)}",
            type(item).__name__,
        ) from error


class Queue:
    """A queue of Python values on the topic ``name``, which the first use creates. Any thread may
    call any method; a handle pickles as its settings and connects anew elsewhere; a context
    manager.

    ``maxsize``: how many items it may hold for this handle's puts, 0 = any number; the broker
    counts as it writes, so putters at the same time do not pass it. Values: bytes, what JSON has,
    ``pyarrow.Table``, numpy arrays of numbers; with ``pickle=True`` anything else, too, and what
    others pickled is unpickled: trust them.
    ``prefetch``: how many items this handle may take in advance, for who gets one after the other:
    a request brings as many, and the broker hears within 5 ms that they were handed out. What is
    taken in advance is nobody else's, for 30 s at most.
    ``cluster`` and the following: as of ``Producer``. Raises ``ray.util.queue.Empty`` and ``Full``,
    ``ClientError`` for values that cannot travel, and the errors of ``Producer.send`` and
    ``SimpleConsumer.receive``.
    """

    _dropped: weakref.finalize[..., Queue] | None = None

    def __init__(  # noqa: PLR0913 - the public signature
        self,
        name: str,
        maxsize: int = 0,
        *,
        pickle: bool = False,
        prefetch: int = 0,
        cluster: str | None = None,
        name_servers: Sequence[str] | str | None = None,
        secret: bytes = b"",
        tls: Tls | None = None,
        access_key: str = "",
        secret_key: SecretKey = "",
    ) -> None:
        where = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
        self._set(name, maxsize, pickle, prefetch, where)

    def _set(
        self, name: str, maxsize: int, pickle: bool, prefetch: int, discovery: Discovery
    ) -> None:
        if type(maxsize) is not int or maxsize < 0:
            raise ConfigError(f"maxsize must be 0 (no limit) or more, not {maxsize!r}", maxsize)
        if type(prefetch) is not int or not 0 <= prefetch <= MESSAGES_MAX:
            raise ConfigError(
                f"prefetch must be 0 (nothing in advance) to {MESSAGES_MAX}, not {prefetch!r}",
                prefetch,
            )
        check_topic(name)
        check_group(name)
        self.prefetch = prefetch
        self.name, self.maxsize, self._pickle, self._discovery = name, maxsize, pickle, discovery
        self._begin_anew()
        _living.add(self)

    def _begin_anew(self) -> None:
        """Not connected; in a forked child, too, where connections and items are the parent's."""
        self._ahead: deque[ReceivedMessage] = deque()
        self._undelivered: deque[Any] = deque()
        """Items that are taken and whose getter was cancelled just then."""
        self._ahead_until_ms = 0.0
        self._counted = False
        """Whether all brokers are known to count what is untaken."""
        self._lock = threading.Lock()
        self._parts: _Parts | None = None
        self._keep_connected(None)

    def _keep_connected(self, parts: _Parts | None) -> None:
        """With these, which are closed when nobody has this handle any more; None: no more."""
        if self._dropped is not None:
            self._dropped.detach()
            self._dropped = None
        if parts is not None:
            _start_closer()
            what = self.__getstate__(), parts, self._undelivered
            self._dropped = weakref.finalize(self, _hand_to_closer, *what)
            self._dropped.atexit = False

    def __getstate__(self) -> tuple[Any, ...]:
        return self.name, self.maxsize, self._pickle, self.prefetch, self._discovery

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._set(*state)

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # --- looking ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Items that wait to be got: at the brokers, those that come again among them, and what
        this handle took in advance. Not what another handle took, in advance or just now: where it
        dies that is counted again when it comes again, after 30 s.
        """
        parts = self._connected()
        told = parts.consumer.untaken()
        return (parts.untaken() if told is None else told) + self._held()

    qsize = size

    def empty(self) -> bool:
        """Whether there is nothing to get."""
        return self.size() == 0

    def full(self) -> bool:
        """Whether it holds ``maxsize`` items."""
        return bool(self.maxsize) and self.size() >= self.maxsize

    # --- putting ----------------------------------------------------------------------------------

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Returns when the broker has the item. While the queue is full it waits for room:
        ``timeout`` seconds, None = for ever, ``block=False`` = not at all; then ``Full``.
        """
        parts, (body, tag) = self._connected(), self._encoded(item)
        wait_s = _seconds(block, timeout)
        if self.maxsize:
            self._put_within(parts, [body], tag, wait_s)
        else:
            parts.producer.send(self.name, body, tag=tag, queue=parts.queue)

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """The same for an event loop."""
        await asyncio.to_thread(self.put, item, block, timeout)

    def put_nowait(self, item: Any) -> None:
        """``put`` that does not wait for room."""
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """All of them, in their order, in one request for each 4 MiB; ``Full`` where not all have
        room.
        """
        if not isinstance(items, Iterable):
            raise TypeError("items must be an iterable")
        parts, (bodies, tags) = self._connected(), self._encoded_all(list(items))
        if bodies and self.maxsize:
            self._put_within(parts, bodies, tags, 0)
        elif bodies:
            parts.producer.send_batch(self.name, bodies, parts.queue, tags=tags)

    # --- getting ----------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The oldest item; it is nobody else's then. Waits for one: ``timeout`` seconds, None = for
        ever, ``block=False`` = not at all; then ``Empty``. One that is interrupted takes nothing.
        """
        return self._get(_seconds(block, timeout), Patience())

    def _get(self, wait_s: float, patience: Patience) -> Any:
        consumer = self._connected().consumer
        end_ms = SYSTEM_CLOCK.monotonic_ms() + wait_s * 1_000
        while True:  # ends: with an item, when the time is over, or the wait is given up
            if early := self._next_undelivered(1):
                if patience.take():
                    return early[0]
                self._undelivered.appendleft(early[0])
            elif self.prefetch and (ahead := self._next_ahead(1)):
                if patience.take():
                    return self._taken(ahead)[0]
                give_back_messages(ahead)
            if patience.over:
                raise Empty
            left_s = seconds_to(SYSTEM_CLOCK, end_ms)
            found = consumer.receive(
                max(1, self.prefetch),
                invisible=TAKEN_S,
                wait=min(left_s, WAIT_S),
                patience=patience,
            )
            if found:
                self._keep_ahead(found[1:])
                return self._taken(found[:1])[0]
            if left_s <= WAIT_S:
                raise Empty

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """The same for an event loop. One that is cancelled takes nothing; what it had taken just
        then is what this handle gets next.
        """
        wait_s = _seconds(block, timeout)
        return await abandonable(partial(self._get, wait_s), late=self._keep)

    def _keep(self, value: Any) -> None:
        self._undelivered.append(value)

    def get_nowait(self) -> Any:
        """``get`` that does not wait."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """So many, the oldest first; ``Empty`` where there are fewer, which stay."""
        if not isinstance(num_items, int):
            raise TypeError("num_items must be an int")
        if num_items < 0:
            raise ValueError("num_items must not be negative")
        if num_items and self.size() < num_items:
            raise Empty(f"{self!r} has fewer than {num_items} items")
        early = self._next_undelivered(num_items)
        try:
            return early + self._take(num_items - len(early))
        except BaseException:
            self._undelivered.extendleft(reversed(early))
            raise

    def _take(self, count: int) -> list[Any]:
        """So many from what was taken in advance and from the brokers."""
        consumer, found = self._connected().consumer, self._next_ahead(count)
        try:
            while len(found) < count:  # ends: each round finds something, or it raises
                wanted = min(MESSAGES_MAX, count - len(found))
                more = consumer.receive(wanted, invisible=TAKEN_S, wait=0)
                if not more:  # another one was quicker
                    raise Empty(f"{self!r} has fewer items than were asked for")
                found += more
        except BaseException:
            give_back_messages(found)
            raise
        return self._taken(found) if found else []

    # --- life -------------------------------------------------------------------------------------

    def shutdown(self, force: bool = False) -> None:
        """End this handle's connections; the next call opens them again. The queue stays, with all
        that is in it; with ``force`` it is deleted, as Ray's is, also for those that still use it.
        What was taken for getters that were cancelled is put again, behind the others.
        """
        admin = self._connected().admin if force else None
        with self._lock:
            parts, self._parts = self._parts, None
            self._keep_connected(None)
        if parts is None:
            return
        early: list[Any] = []
        try:
            with suppress(RmqError):  # they come again when their time is over
                give_back_messages(self._next_ahead(len(self._ahead)), wait=True)
            parts.consumer.close()
            early = self._next_undelivered(len(self._undelivered))
            if admin is not None:
                admin.delete_topic(self.name)
                with suppress(AdminError):  # others still get: their group stays, and is empty
                    admin.delete_group(self.name)
            elif early:
                bodies, tags = self._encoded_all(early)
                parts.producer.send_batch(self.name, bodies, parts.queue, tags=tags)
            early = []
        finally:
            self._undelivered.extendleft(reversed(early))
            parts.producer.close()
            parts.admin.close()

    # --- inside -----------------------------------------------------------------------------------

    def _connected(self) -> _Parts:
        parts = self._parts
        if parts is not None:
            return parts
        with self._lock:
            if self._parts is None:
                self._parts = self._connect()
                self._keep_connected(self._parts)
            return self._parts

    def _connect(self) -> _Parts:
        with ExitStack() as opened:
            admin = opened.enter_context(closing(Admin(self._discovery)))
            create = partial(admin.create_topic, self.name, queues=1)
            first = first_queue(self._discovery, self.name, create)
            wide = [queue for queue in admin.route(self.name).queues if queue.read_queues != 1]
            if wide:
                raise TopicExists(
                    f"the topic {self.name!r} has {wide[0].read_queues} queues, so it is not first "
                    f"in, first out: give the queue another name",
                    self.name,
                )
            producer = BoundedProducer(discovery=self._discovery, batch_bytes_max=BATCH_BYTES)
            consumer = SimpleConsumer(
                self.name,
                self.name,
                discovery=self._discovery,
                start_from="first",
                max_reconsume_times=RETRIES_MAX,
            )
            opened.enter_context(producer)
            opened.enter_context(consumer)
            opened.pop_all()  # all of them stay open
            return _Parts(admin, producer, consumer, first)

    def _encoded(self, item: Any) -> tuple[bytes, str | None]:
        """Body and tag."""
        try:
            body, kind = encode(item)
        except ClientError:
            if not self._pickle:
                raise
            body, kind = _pickled(item), PICKLE
        return body, None if kind == BYTES else kind

    def _encoded_all(self, items: list[Any]) -> tuple[list[bytes], str | list[str | None] | None]:
        """Bodies, and their tags: one where all have the same."""
        if set(map(type, items)) == {bytes} and all(items):
            return items, None
        pairs = [self._encoded(item) for item in items]
        tags = [tag for _, tag in pairs]
        alike = tags.count(tags[0]) == len(tags) if tags else False
        return [body for body, _ in pairs], tags[0] if alike else tags

    def _taken(self, found: list[ReceivedMessage]) -> list[Any]:
        """Their values, once the broker knows that they are taken. Where it is not known whether it
        does, as with those that another broker took, they are what this handle gets next.
        """
        values: list[Any] | None = None
        try:
            values = untagged_bodies(found)
            if values is None:
                values = [self._value(message) for message in found]
            self._connected().consumer.ack_all(found, wait=not self.prefetch)
        except BaseException as error:  # also interrupted
            refused = isinstance(error, ClientError | ConsumeError) or not_sent(error)
            known = values is None or refused
            for message, value in zip(found, values or (), strict=False):
                if message.acknowledged or not known:
                    self._keep(value)
            if known:  # what is not taken yet is somebody else's
                give_back_messages(found)
            else:
                with suppress(RmqError):
                    ack_messages(found, wait=False)  # once more
            raise
        return values

    def _held(self) -> int:
        """Items that this handle has and handed to nobody."""
        self._next_ahead(0)  # forgets what is not its any more
        return len(self._ahead) + len(self._undelivered)

    def _keep_ahead(self, found: list[ReceivedMessage]) -> None:
        if found:
            with self._lock:
                if not self._ahead:
                    self._ahead_until_ms = SYSTEM_CLOCK.monotonic_ms() + KEPT_MS
                self._ahead.extend(found)

    def _next_ahead(self, count: int) -> list[ReceivedMessage]:
        """What was taken in advance, the oldest first, as far as it is still this handle's."""
        if not self._ahead:
            return []
        with self._lock:
            if SYSTEM_CLOCK.monotonic_ms() > self._ahead_until_ms:
                self._ahead.clear()
            return [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]

    def _next_undelivered(self, count: int) -> list[Any]:
        found: list[Any] = []
        with suppress(IndexError):
            while len(found) < count:  # ends: with the last of them
                found.append(self._undelivered.popleft())
        return found

    def _value(self, message: ReceivedMessage) -> Any:
        kind = message.tag
        if kind != PICKLE:
            return decode(message.body, kind if kind in KINDS else BYTES)
        if not self._pickle:
            raise ClientError(
                f"the next item of {self!r} is pickled, and this handle unpickles nothing; it "
                f"stays: Queue({self.name!r}, pickle=True) takes it, if you trust who put it",
                self.name,
            )
        return gateway.unpack(message.body)

    def _put_within(
        self, parts: _Parts, bodies: list[bytes], tags: str | list[str | None] | None, wait_s: float
    ) -> None:
        """Put all of them where they have room, judged by the broker as it writes them. One that
        does not count what is untaken is of an earlier release: judged here, before.
        """
        count, end_ms = len(bodies), SYSTEM_CLOCK.monotonic_ms() + wait_s * 1_000
        pause_s = PAUSE_S[0]
        while True:  # ends: put, or the time is over
            elsewhere = self._untaken_elsewhere(parts)
            if elsewhere is None:
                self._wait_for_room(count, seconds_to(SYSTEM_CLOCK, end_ms))
                parts.producer.send_batch(self.name, bodies, parts.queue, tags=tags)
                return
            room = self.maxsize - self._held() - elsewhere
            try:
                if room >= count:
                    parts.producer.send_within(room, parts.queue, bodies, tags)
                    return
            except TopicFull as error:
                if len(error.args) > STORED_AT:  # the topic has slots: a part of the batch is there
                    raise
                full: Exception | None = error
            else:
                full = None
            left_s = seconds_to(SYSTEM_CLOCK, end_ms)
            if left_s <= 0 or count > self.maxsize:
                raise Full(f"{self!r} has no room for {count} more, of {self.maxsize}") from full
            # the broker judges what is written, ``size`` what is visible: that may say room still
            threading.Event().wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_S[1])
            self._wait_for_room(count, seconds_to(SYSTEM_CLOCK, end_ms))

    def _untaken_elsewhere(self, parts: _Parts) -> int | None:
        """Items of other senders that nobody took, at brokers that are not the queue's. None where
        one does not count: it is of an earlier release, or does not answer now.
        """
        if not self._counted and parts.consumer.untaken() is None:
            return None
        self._counted = True
        return parts.consumer.untaken(but=parts.queue.broker_name)

    def _wait_for_room(self, count: int, wait_s: float) -> None:
        end_ms, pause_s = SYSTEM_CLOCK.monotonic_ms() + wait_s * 1_000, PAUSE_S[0]
        while (size := self.size()) + count > self.maxsize:  # ends: at the end of the time
            left_s = (end_ms - SYSTEM_CLOCK.monotonic_ms()) / 1_000
            if left_s <= 0 or count > self.maxsize:
                raise Full(f"{self!r} has {size} items, {count} more are over {self.maxsize}")
            threading.Event().wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_S[1])


def _seconds(block: bool, timeout: float | None) -> float:
    if not block:
        return 0.0
    if timeout is not None and not timeout >= 0:  # nan is neither
        raise ValueError("timeout must be a number of seconds, and not negative")
    return inf if timeout is None else timeout


def _begin_anew_after_fork() -> None:
    for queue in list(_living):
        queue._begin_anew()


os.register_at_fork(after_in_child=_begin_anew_after_fork)
