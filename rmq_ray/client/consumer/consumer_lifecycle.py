"""The life of every consumer: start and stop from any thread and in any order, inside of a signal
handler, too; and how its client instance sees it.

    start ──the lock──> connect ──> begin ──> RUNNING
                                      └── a stop was wanted, or it raised ──> end
    stop ──wanted──the lock, within its time──> end

Decides who begins and who ends, and that a consumer whose start failed has left the group. Does not
decide what goes on in between: each kind of consumer has an engine for that.

A signal handler runs in the midst of its thread's work. A stop in there cannot wait for the start,
or the stop, that it interrupts: it says what is wanted, and what it interrupted does it. The lock
is reentrant for that, and each step is right when a handler runs before or after it.

In a forked child one that was started is refused: it would go on as the parent's member, beside the
parent, and each would get every message.

Invariants: ``end`` is called after ``connect`` only, in one thread at a time, and not again once it
returned True. After a stop that returned True nothing that began goes on.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

from rmq_ray.client.consumer.flow_control import Pausable
from rmq_ray.client.consumer.subscriptions import SubscriptionTable
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.instance.settling import HandOver
from rmq_ray.clock import Clock
from rmq_ray.errors import ClientError
from rmq_ray.model.groups import ConsumerData
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.namespaces import with_namespace
from rmq_ray.ports import Discovery
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command

_living: weakref.WeakSet[GroupConsumer[Any]] = weakref.WeakSet()


class ConsumerLifecycle:
    """Of one consumer. ``name``: as errors call it; ``end(timeout_ms)``: false when something still
    ran after that time.
    """

    def __init__(self, name: str, group: str, clock: Clock, end: Callable[[int], bool]) -> None:
        self.state = ServiceState.CREATE_JUST
        self._name = name
        self._group = group
        self._clock = clock
        self._end = end
        self._lock = threading.RLock()
        self._busy = 0  # the thread that begins or ends
        self._wanted_ms: int | None = None  # a stop was called; the time of the first one
        self._ended = True  # nothing that began goes on

    def start(self, connect: Callable[[], None], begin: Callable[[], None]) -> None:
        """``connect`` sets the state once a failure is final, and leaves nothing behind when it
        raises. ``ClientError`` when it was started or stopped before, or is stopped meanwhile:
        nothing of it goes on then.
        """
        try:
            with self._lock:
                self._start(connect, begin)
        finally:
            stopped = self._wanted_ms is not None
            if stopped:
                self.stop(self._wanted_ms or 0)
        if stopped:
            raise ClientError(
                f"{self._name} of group {self._group!r} was stopped while it started; make a "
                f"new one",
                self._group,
            )

    def stop(self, timeout_ms: int) -> bool:
        """False when not everything ended within ``timeout_ms``, and in a signal handler that
        interrupted the start or a stop: that one ends it.
        """
        if self._wanted_ms is None:
            self._wanted_ms = timeout_ms
        if self._busy == threading.get_ident():
            return False
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        if not self._lock.acquire(timeout=min(max(0, timeout_ms) / 1000, threading.TIMEOUT_MAX)):
            return False
        try:
            return self._stop(max(0, round(deadline_ms - self._clock.monotonic_ms())))
        finally:
            self._lock.release()

    def inherit(self) -> None:
        """In a forked child: threads, connections and the place in the group are the parent's. One
        that was not started yet is as good as new.
        """
        self._lock, self._busy, self._ended = threading.RLock(), 0, True
        if self.state is not ServiceState.CREATE_JUST:
            self.state = ServiceState.INHERITED

    # --- inside, under the lock -------------------------------------------------------------------

    def _start(self, connect: Callable[[], None], begin: Callable[[], None]) -> None:
        if self.state is not ServiceState.CREATE_JUST or self._busy == threading.get_ident():
            raise ClientError(
                f"{self._name} of group {self._group!r} cannot start: {self.state.value}; "
                f"make a new one",
                self._group,
            )
        self._busy = threading.get_ident()
        try:
            connect()
            self._ended, self.state = False, ServiceState.RUNNING
            if self._wanted_ms is None:
                begin()
        except BaseException:
            if self.state is ServiceState.RUNNING:
                self._stop(0)
                self.state = ServiceState.START_FAILED
            raise
        finally:
            self._busy = 0

    def _stop(self, timeout_ms: int) -> bool:
        self._busy = threading.get_ident()
        try:
            if self.state is not ServiceState.INHERITED:
                self.state = ServiceState.SHUTDOWN_ALREADY
            if not self._ended:
                self._ended = self._end(timeout_ms)
            return self._ended
        finally:
            self._busy = 0


class Engine(Protocol):
    """What runs while a consumer is started."""

    @property
    def client(self) -> ClientInstance:
        """The client instance that it runs in."""
        ...

    def connect(self) -> None:
        """Start the client instance; ask brokers what must be known before anything begins."""
        ...

    def begin(self) -> None:
        """Set the threads going."""
        ...

    def end(self, timeout_ms: int) -> bool:
        """Stop everything and leave the group; False when something still ran after that time."""
        ...

    def rebalance_now(self) -> None:
        """Routes or members changed; returns at once."""
        ...

    def persist_offsets(self) -> None:
        """Hand offsets over without waiting for answers."""
        ...

    def halt(self) -> HandOver:
        """See ``ManagedConsumer``."""
        ...

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """Of an operator, relayed by a broker: the answer; None where it comes later or there is
        none.
        """
        ...

    def stats(self) -> dict[str, Any]:
        """Counters since the start."""
        ...


E = TypeVar("E", bound=Engine)


class GroupConsumer(ABC, Generic[E]):
    """A member of a consumer group, of any kind; a ``ManagedConsumer`` of its client instance.

    ``name``: as errors call it; ``anew``: makes the same consumer again, not started.
    """

    def __init__(
        self,
        name: str,
        group: str,
        discovery: Discovery,
        client_id: str | None,
        clock: Clock,
        namespace: str,
        anew: partial[Any],
    ) -> None:
        self._name = name
        self._group = group
        self._discovery = discovery
        self._client_id = client_id
        self._clock = clock
        self._namespace = namespace
        self._anew = anew
        self._life = ConsumerLifecycle(name, group, clock, self._end)
        self._subscriptions = SubscriptionTable()
        self._engine: E | None = None
        _living.add(self)

    def start(self) -> None:
        """Join the group and begin; a push consumer gets its first messages when the first
        rebalance is through.

        Raises ``ClientError`` when it was started before, is stopped meanwhile, or the group name
        is taken in this client, and what the discovery raises.
        """
        self._life.start(self._connect, self._begin)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as what it was made from: a new consumer that was not started."""
        return self._anew, ()

    @property
    def group(self) -> str:
        """The consumer group, with its namespace."""
        return self._group

    @property
    def state(self) -> ServiceState:
        """Where in its life it is."""
        return self._life.state

    @property
    def client_id(self) -> str:
        """This member of the group; empty before ``start``."""
        return self._engine.client.client_id if self._engine is not None else ""

    def stats(self) -> dict[str, Any]:
        """Counters since ``start``, in messages (``pulled``, ``consumed_ok``, ``consumed_failed``,
        ``in_flight``, ``lag`` and others), and ``queues``: one entry for each held now.
        """
        found = {"group": self._group, "state": self._life.state.name, "client_id": self.client_id}
        return found | (self._engine.stats() if self._engine is not None else {})

    # --- inside -----------------------------------------------------------------------------------

    @abstractmethod
    def _make_engine(self, client: ClientInstance) -> E:
        """The parts; nothing of them runs yet."""

    def _connect(self) -> None:
        self._join(self._client_id)

    def _join(self, client_id: str | None) -> None:
        client = ClientInstance.get_or_create(self._discovery, client_id, clock=self._clock)
        engine = self._make_engine(client)
        client.register_consumer(self)
        self._life.state = ServiceState.START_FAILED
        try:
            engine.connect()
        except BaseException:
            client.unregister_consumer(self._group)
            client.release()
            raise
        self._engine = engine

    def _full_name(self, topic: str) -> str:
        """The topic's name as brokers know it."""
        return with_namespace(self._namespace, topic)

    def _full_names(self, what: Iterable[Pausable] | Pausable) -> list[Pausable]:
        """Topics and queues as brokers know them."""
        found = [what] if isinstance(what, str | MessageQueue) else list(what)
        return [self._full_name(item) if isinstance(item, str) else item for item in found]

    def _begin(self) -> None:
        assert self._engine is not None
        self._engine.begin()

    def _end(self, timeout_ms: int) -> bool:
        assert self._engine is not None
        return self._engine.end(timeout_ms)

    # --- as the client instance sees it -----------------------------------------------------------

    @abstractmethod
    def consumer_data(self) -> ConsumerData:
        """See ``ManagedConsumer``."""

    def subscribed_topics(self) -> Collection[str]:
        """See ``ManagedConsumer``."""
        return self._subscriptions.topics()

    def route_changed(self, topic: str) -> None:
        """See ``ManagedConsumer``."""
        self.rebalance_now()

    def rebalance_now(self) -> None:
        """See ``ManagedConsumer``."""
        if self._engine is not None:
            self._engine.rebalance_now()

    def persist_offsets(self) -> None:
        """See ``ManagedConsumer``."""
        if self._engine is not None and self._life.state is ServiceState.RUNNING:
            self._engine.persist_offsets()

    def halt(self) -> HandOver:
        """See ``ManagedConsumer``. One that is stopped meanwhile hands them over itself."""
        runs = self._engine is not None and self._life.state is ServiceState.RUNNING
        hand_over = self._engine.halt() if runs and self._engine is not None else None

        def unless_stopped(until_ms: float) -> None:
            if hand_over is not None and self._life.state is ServiceState.RUNNING:
                hand_over(until_ms)

        return unless_stopped

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """See ``ManagedConsumer``."""
        if self._engine is not None:
            return self._engine.handle_request(command, address)
        if command.is_oneway:
            return None
        return command.answer(
            ResponseCode.SYSTEM_ERROR,
            remark=f"{self._name} of group {self._group} is {self._life.state.value}",
        )


def _refuse_after_fork() -> None:
    for consumer in list(_living):
        consumer._life.inherit()
        consumer._engine = None


os.register_at_fork(after_in_child=_refuse_after_fork)
