"""Asks brokers for messages: one pop, what its answer means, and waiting at several brokers at once
(protocol-behaviour 26).

    one broker        a pop that the broker holds until there is something
    several           a pop at each in turn; nothing anywhere: "tell me when" at each,
                      a pop where the first one says so

Decides what an answer's code means. Invariants: at most one "tell me
when" is out at a broker; it takes nothing, so that no message waits for a worker who has gone. Each
pop has a number of its own; one whose answer got lost is asked for again. Who stops waiting for a
pop, interrupted, given up or closed, says so to its broker: it leaves, and what it had taken comes
again at once; what cannot be said is asked for by the next pop.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from rmq_ray.client.consumer.known_group import KnownGroup
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import PASSING
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.messages.received import PulledPage, whole_bytes
from rmq_ray.client.pop.patience import Patience
from rmq_ray.client.pop.receipts import (
    ClientLease,
    ReceivedMessage,
    Settler,
    SettleTask,
    messages_of,
)
from rmq_ray.errors import (
    ConnectFailed,
    ConsumeError,
    GroupInUse,
    GroupNotFound,
    NotAuthorized,
    RemotingError,
    SubscriptionInvalid,
    SubscriptionStale,
    TooManyInFlight,
)
from rmq_ray.model.groups import Subscription
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.headers import GroupKnown
from rmq_ray.remoting.wire.pops import (
    LOST,
    SKIPPED_FIELD,
    UNTAKEN_FIELD,
    WITHDRAWN,
    LeasedRecords,
    PopRecords,
    Settle,
    pack_pop,
    unpack_popped,
)

ANSWER_MS = 5_000  # what a broker may take beyond the asked wait
# answers of one broker, of as many threads; what the others had comes again when its time is over
MISSED_MAX = 64
NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
NOT_READY = (*PASSING, ResponseCode.TOPIC_NOT_EXIST)
REFUSALS = {
    ResponseCode.GROUP_IN_OTHER_USE: GroupInUse,
    ResponseCode.FLOW_CONTROL: TooManyInFlight,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionStale,
    ResponseCode.FILTER_DATA_NOT_EXIST: SubscriptionStale,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionInvalid,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.NO_PERMISSION: NotAuthorized,
    ResponseCode.NOT_AUTHORIZED: NotAuthorized,
}


class PopClient:
    """Of one consumer. ``later``: for what must not hold up who gives a wait up."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscription: Subscription,
        settler: Settler,
        later: DelayedCalls,
        namespace: str = "",
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._settler = settler
        self._later = later
        self._namespace = namespace
        self._attempts = itertools.count(secrets.randbits(62))
        self._known = KnownGroup(client, group)
        self._missed: dict[str, list[int]] = {}
        self._out: dict[int, tuple[str, PopRecords]] = {}
        """Pops that are being answered, by their attempt."""
        self._watched: set[str] = set()
        self._told = threading.Condition()
        self._news = 0

    def pop(
        self, broker_name: str, pop: PopRecords, patience: Patience | None = None
    ) -> list[ReceivedMessage]:
        """One pop, answered. Raises what ``REFUSALS`` says, ``ConnectFailed`` for a broker that is
        not ready, and ``RemotingError``. ``patience``: who may give it up meanwhile; nothing comes
        then.

        Where the answer to a pop got lost, the next one at that broker asks for the same messages
        first.
        """
        again = self._missed_at(broker_name)
        attempt = next(self._attempts) if again is None else again
        asked = replace(pop, attempt=attempt, again=0 if again is None else LOST)
        self._out[attempt] = broker_name, asked
        try:
            with (
                patience.waits(partial(self._withdraw_later, attempt))
                if patience
                else nullcontext()
            ):
                return self._ask(broker_name, asked)
        except Exception as error:
            lost = isinstance(error, RemotingError) and not isinstance(error, ConnectFailed)
            if lost or again is not None:  # refused: what it asked for again is still to come
                self._miss(broker_name, attempt)
            raise
        except BaseException:  # interrupted, at any step
            self.withdraw(attempt)
            raise
        finally:
            self._out.pop(attempt, None)

    def withdraw(self, attempt: int) -> None:
        """Say that nobody waits for this pop any more. Any thread; it may have to connect."""
        found = self._out.get(attempt)
        if found is None:
            return
        broker_name, pop = found

        def told(outcome: Command | RemotingError) -> None:
            if isinstance(outcome, RemotingError) or outcome.code not in NOTHING:
                self._miss(broker_name, attempt)

        try:
            command = _command(replace(pop, wait_ms=0, again=WITHDRAWN))
            address = self._address(broker_name)
            self._client.link.invoke_async(address, command, ANSWER_MS, told)
        except RemotingError as error:
            told(error)

    def _withdraw_later(self, attempt: int) -> None:
        self._later.after(0, lambda: self.withdraw(attempt))

    def close(self) -> None:
        """End every ``watch``, withdraw every pop."""
        self.wake()
        for attempt in list(self._out):
            self.withdraw(attempt)

    def _ask(self, broker_name: str, pop: PopRecords) -> list[ReceivedMessage]:
        answer = self._client.invoke(
            self._address(broker_name), _command(pop), pop.wait_ms + ANSWER_MS
        )
        if answer.code == ResponseCode.SUCCESS:
            leases = unpack_popped(answer.body)
            if len(leases) == 1:
                return self._messages(broker_name, leases[0], *whole_bytes(leases[0].records))
            return [
                message
                for leased in leases
                for message in self._messages(broker_name, leased, bytes(leased.records), 0)
            ]
        if answer.code in NOTHING:
            return []
        raise _refusal(broker_name, answer)

    def begin(self, broker_name: str, pop: PopRecords) -> int:
        """A group that is new begins in every queue of the broker; how many messages it does not
        read. Raises what ``pop`` does, and what ``KnownGroup.elsewhere_ms`` does.
        """
        known_ms = self._known.elsewhere_ms(pop.topic, broker_name)
        command = _command(replace(pop, count_max=0, wait_ms=0))
        command.fields = GroupKnown(known_ms).to_fields()
        answer = self._client.invoke(self._address(broker_name), command, ANSWER_MS)
        if answer.code not in NOTHING:
            raise _refusal(broker_name, answer)
        return int((answer.fields or {}).get(SKIPPED_FIELD, 0))

    def untaken(self, broker_name: str, pop: PopRecords) -> int | None:
        """How many messages of the broker nobody has taken; None where it does not tell. Raises
        what ``pop`` does.
        """
        command = _command(replace(pop, count_max=0, wait_ms=0))
        command.fields = {UNTAKEN_FIELD: "1"}
        answer = self._client.invoke(self._address(broker_name), command, ANSWER_MS)
        if answer.code not in NOTHING:
            raise _refusal(broker_name, answer)
        told = (answer.fields or {}).get(UNTAKEN_FIELD)
        return None if told is None else int(told)

    def _missed_at(self, broker_name: str) -> int | None:
        try:
            return self._missed[broker_name].pop()
        except (KeyError, IndexError):
            return None

    def _miss(self, broker_name: str, attempt: int) -> None:
        missed = self._missed.setdefault(broker_name, [])
        if attempt not in missed:  # given up, and then without an answer
            missed.append(attempt)
            del missed[:-MISSED_MAX]

    def watch(self, brokers: Sequence[str], pop: PopRecords, seen: int, timeout_ms: float) -> int:
        """Wait until one of the brokers has something, or does not hold any longer; the number of
        the news, to be given the next time.
        """
        for broker_name in brokers:
            with self._told:
                if broker_name in self._watched:
                    continue
                self._watched.add(broker_name)
            try:
                command = _command(replace(pop, count_max=0))
                self._client.link.invoke_async(
                    self._address(broker_name),
                    command,
                    pop.wait_ms + ANSWER_MS,
                    partial(self._tell, broker_name),
                )
            except RemotingError as error:
                self._tell(broker_name, error)
        with self._told:
            self._told.wait_for(lambda: self._news != seen, timeout_ms / 1000)
            return self._news

    def wake(self) -> None:
        """End every ``watch``."""
        with self._told:
            self._news += 1
            self._told.notify_all()

    def _tell(self, broker_name: str, _outcome: Command | RemotingError) -> None:
        with self._told:
            self._watched.discard(broker_name)  # whatever it said: who waits asks again
            self._news += 1
            self._told.notify_all()

    def _messages(
        self, broker_name: str, leased: LeasedRecords, raw: bytes, start: int
    ) -> list[ReceivedMessage]:
        """The messages of a lease whose records are ``raw`` from byte ``start`` on.

        Tags are compared as strings here, because their codes may collide; what does not match is
        acknowledged.
        """
        head = leased.head
        page = PulledPage(
            MessageQueue(head.topic, broker_name, head.queue_id),
            raw,
            leased.sizes,
            start,
            (head.min_offset, head.max_offset),
        )
        page.namespace = self._namespace
        lease = ClientLease(
            broker_name,
            head.topic,
            head.queue_id,
            head.lease_id,
            head.records,
            head.deadline_ms,
            self._settler,
        )
        tags = self._subscription.tags if head.topic == self._subscription.topic else frozenset()
        indices = page.tagged(tags) if tags else None
        if indices is not None and len(indices) < len(page):
            foreign = sum(1 << i for i in set(range(len(page))).difference(indices))
            lease.done |= foreign
            self._settler.settle_later((SettleTask(lease, Settle.ACK, foreign),))
        return messages_of(page, lease, indices, self._client.clock.now_ms())

    def _address(self, broker_name: str) -> Address:
        address = self._client.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no address of broker {broker_name} is known; nothing was sent")
        return address


def _command(pop: PopRecords) -> Command:
    return Command(RequestCode.POP_RECORDS, body=pack_pop(pop), serialize=BINARY)


def _refusal(broker_name: str, answer: Command) -> Exception:
    remark = answer.remark or f"broker {broker_name} answered code {answer.code}"
    if answer.code in NOT_READY:
        return ConnectFailed(f"broker {broker_name} is not ready: {remark}; nothing was done")
    make: Callable[..., Exception] = (
        REFUSALS.get(ResponseCode(answer.code), ConsumeError)
        if answer.code in set(ResponseCode)
        else ConsumeError
    )
    return make(remark, broker_name)
