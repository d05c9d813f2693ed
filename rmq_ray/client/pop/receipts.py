"""Messages that a simple consumer took for a time, and the receipt that each of them is.

    ReceivedMessage ── part of ──> ClientLease (one pop from one queue)
                                        └─ settled through ──> Settler

Decides what a user may do with a message in which order. Does not talk to brokers
(``client.pop.ack_sender`` does) and knows no deadline better than the broker: a receipt is stale
when the broker says so.

Invariant: settling twice in the same way is allowed and the second time is free; a message that was
given back is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import attrgetter
from typing import Protocol

from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.errors import ClientError
from rmq_ray.remoting.wire.pops import INVISIBLE_MS_MAX, INVISIBLE_MS_MIN, Settle


class Settler(Protocol):
    """Tells brokers what became of messages; see ``client.pop.ack_sender``."""

    def settle(self, tasks: Sequence[SettleTask]) -> None:
        """All of them, answered on return. Raises ``ReceiptStale`` and ``RemotingError``."""
        ...

    def settle_later(self, tasks: Sequence[SettleTask]) -> None:
        """All of them, soon."""
        ...

    def give_back_later(self, tasks: Sequence[SettleTask]) -> None:
        """They come again, soon; where that cannot be told, when their time is over. Never raises,
        returns at once.
        """
        ...


@dataclass(slots=True, eq=False)
class ClientLease:
    """One pop from one queue. ``done``, ``returned``: masks of what was settled here;
    ``own_deadlines``: of messages that were extended.
    """

    broker_name: str
    topic: str
    queue_id: int
    id: int
    count: int
    deadline_ms: int
    settler: Settler
    done: int = 0
    returned: int = 0
    own_deadlines: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettleTask:
    """What is to become of some messages of a lease. ``failed``: that is a failed try, before which
    they had come again so often; None: it is none.
    """

    lease: ClientLease
    action: Settle
    mask: int
    delay_ms: int = 0
    failed: int | None = None


class ReceivedMessage(MessageExt):
    """A message that is yours until ``invisible_until``; then it comes again, to you or another
    worker.

    Pickled, it is a plain ``MessageExt``: only the consumer that received it can settle it.
    """

    __slots__ = ("_lease",)

    def __init__(self, page: PulledPage, i: int, started_ms: int, lease: ClientLease) -> None:
        self._page = page
        self._i = i
        self._started_ms = started_ms
        self._lease = lease

    @property
    def invisible_until(self) -> int:
        """When it comes again unless it is settled, ms since 1970, by the broker's clock;
        ``extend`` of this message moves it.
        """
        lease = self._lease
        return lease.own_deadlines.get(self._i, lease.deadline_ms)

    @property
    def acknowledged(self) -> bool:
        """Whether it was acknowledged, as far as is known here."""
        return bool(self._lease.done >> self._i & 1)

    def ack(self, wait: bool = True) -> None:
        """Done: it does not come again.

        On return the broker has written that down: it outlives the broker's process (a host that
        loses power may deliver it once more). ``wait=False`` returns at once and tells the broker
        within 5 ms. Raises ``ReceiptStale`` when its time was over and it is somebody else's,
        ``RemotingError`` when no broker answered: it may be acknowledged, ask again.
        """
        ack_messages((self,), wait)

    def nack(self, delay: float = 0.0) -> None:
        """Give it back: it comes again after ``delay`` seconds, with one more in
        ``reconsume_times``. After the last retry it is a dead letter, at once.
        """
        self._give_back(Settle.CHANGE, delay_ms("delay", delay, 0), self.reconsume_times)

    def reject(self) -> None:
        """Nobody shall get it again: it goes to the group's dead letters now."""
        self._give_back(Settle.REJECT, 0)

    def extend(self, invisible: float) -> None:
        """It stays yours for ``invisible`` seconds from now on. May be repeated as long as you
        work. Raises as ``ack``.
        """
        self._check_kept()
        span_ms = delay_ms("invisible", invisible, INVISIBLE_MS_MIN)
        self._lease.settler.settle((SettleTask(self._lease, Settle.CHANGE, 1 << self._i, span_ms),))

    def _give_back(self, action: Settle, after_ms: int, failed: int | None = None) -> None:
        bit = 1 << self._i
        if self.acknowledged:
            raise ClientError(
                "the message was acknowledged before; it cannot be given back", self.message_id
            )
        before = self._lease.returned & bit
        self._lease.returned |= bit  # from now on nobody extends it
        try:
            self._lease.settler.settle((SettleTask(self._lease, action, bit, after_ms, failed),))
        except BaseException:
            self._lease.returned &= ~bit | before
            raise

    def _check_kept(self) -> None:
        if (self._lease.done | self._lease.returned) >> self._i & 1:
            raise ClientError(
                "the message was settled before; its time cannot be extended", self.message_id
            )

    def __repr__(self) -> str:
        return super().__repr__().replace("MessageExt", "ReceivedMessage", 1)


def messages_of(
    page: PulledPage, lease: ClientLease, indices: Sequence[int] | None, now_ms: int
) -> list[ReceivedMessage]:
    """The messages of a lease; ``indices`` None = all."""
    chosen = range(len(page)) if indices is None else indices
    return list(map(ReceivedMessage, repeat(page), chosen, repeat(now_ms), repeat(lease)))


def ack_messages(messages: Iterable[ReceivedMessage], wait: bool) -> None:
    """Acknowledge all of them, one request a broker. Raises as ``ReceivedMessage.ack``."""
    picked: dict[ClientLease, list[int]] = {}
    try:
        for lease, some in groupby(messages, attrgetter("_lease")):
            picked.setdefault(lease, []).extend(map(attrgetter("_i"), some))
    except (TypeError, AttributeError):
        raise ClientError(
            f"ack_all() takes messages that receive() returned, not {messages!r:.80}",
            repr(messages)[:80],
        ) from None
    tasks = []
    for lease, indices in picked.items():
        mask = mask_of_indices(indices, lease.count)
        if mask & lease.returned:
            raise ClientError(
                "a message was given back before (nack, reject); it cannot be acknowledged",
                lease.id,
            )
        mask &= ~lease.done
        if mask:
            tasks.append(SettleTask(lease, Settle.ACK, mask))
    if not tasks:
        return
    settler = tasks[0].lease.settler
    if any(task.lease.settler is not settler for task in tasks):
        raise ClientError(
            "messages of several consumers at once; acknowledge each with the consumer that "
            "received it"
        )
    if wait:
        settler.settle(tasks)
    else:
        settler.settle_later(tasks)
    for task in tasks:
        task.lease.done |= task.mask


def give_back_messages(messages: Iterable[ReceivedMessage], wait: bool = False) -> None:
    """Nobody wants them: they come again at once, but for what was settled; that is no failed try.
    Never raises, unless it is to ``wait`` for brokers' answers: then as ``ReceivedMessage.nack``.
    """
    masks: dict[ClientLease, int] = {}
    for message in messages:
        masks[message._lease] = masks.get(message._lease, 0) | 1 << message._i
    tasks = []
    for lease, mask in masks.items():
        left = mask & ~(lease.done | lease.returned)
        lease.returned |= left
        if left:
            tasks.append(SettleTask(lease, Settle.CHANGE, left))
    if not tasks:
        return
    settler = tasks[0].lease.settler
    if wait:
        settler.settle(tasks)
    else:
        settler.give_back_later(tasks)


def extend_messages(messages: Iterable[ReceivedMessage], invisible: float) -> None:
    """Ask for more time for all of them that are not settled, one request a broker. Raises as
    ``ReceivedMessage.extend``, after all that could be were extended.
    """
    span_ms, masks = delay_ms("invisible", invisible, INVISIBLE_MS_MIN), dict[ClientLease, int]()
    for message in messages:
        lease, bit = message._lease, 1 << message._i
        if not (lease.done | lease.returned) & bit:
            masks[lease] = masks.get(lease, 0) | bit
    tasks = [SettleTask(lease, Settle.CHANGE, mask, span_ms) for lease, mask in masks.items()]
    if tasks:
        tasks[0].lease.settler.settle(tasks)


def mask_of_indices(indices: Sequence[int], count: int) -> int:
    """Bits of a lease of ``count`` messages.

    >>> bin(mask_of_indices([0, 2], 3)), bin(mask_of_indices([2, 1, 0], 3))
    ('0b101', '0b111')
    """
    if len(indices) >= count and len(set(indices)) == count:
        return (1 << count) - 1
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask


def delay_ms(name: str, seconds: object, low_ms: int) -> int:
    """Seconds as ms. Raises ``ClientError``, which names the argument, outside of the limits (12
    hours at most).
    """
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not low_ms <= seconds * 1000 <= INVISIBLE_MS_MAX
    ):
        raise ClientError(
            f"{name} is {seconds!r:.80}: give {low_ms / 1000:g} to "
            f"{INVISIBLE_MS_MAX // 1000} seconds",
            repr(seconds)[:80],
        )
    return round(seconds * 1000)
