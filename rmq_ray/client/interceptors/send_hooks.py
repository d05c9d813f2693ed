"""What a user's code may do around a send: forbid it, look at it, add properties, learn how it
ended (protocol-behaviour 25).

    checks: check(ctx) raises ──> the call raises, nothing is sent
    hooks:  before(ctx) ──> send, with all its repeats ──> after(ctx)     in this order, and back

A hook that raises is logged and changes nothing: what watches a send must not break it.
``client.sending.send_steps`` runs both; message trace (``client.interceptors.message_trace``) and
OpenTelemetry (``client.interceptors.telemetry``) are hooks. Decides nothing about sending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from msgspec import field

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import KEYS, TAGS, SendResult, decode_properties
from rmq_ray.protocol.transaction import LocalTransactionState
from rmq_ray.value import Draft, Value

SYNC, ASYNC, ONEWAY = "sync", "async", "oneway"
HALF = "rmq.half"
"""Carried by the context of a half message."""


class SendContext(Draft):
    """One send call, or one frame of a batch (``count`` > 1: ``body``, tag, keys, properties are
    the first message's, ``body_bytes`` the sum; ``parts``: each).

    ``topic``, ``group``: as the broker knows them. ``mode``: "sync", "async" or "oneway".
    ``queue``: where it must go, None = anywhere. ``result`` or ``error`` are there in ``after``;
    neither for a one-way send. ``cost_ms``: from ``before`` to ``after``. ``carried``: hooks may
    keep something from ``before`` to ``after``.
    """

    group: str
    topic: str
    mode: str
    body: bytes
    text: str = ""
    queue: MessageQueue | None = None
    count: int = 1
    body_bytes: int = 0
    started_ms: int = 0
    cost_ms: float = 0.0
    result: SendResult | None = None
    error: BaseException | None = None
    carried: dict[str, Any] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    parts: Sequence[tuple[bytes, str]] = ()
    """Of a batch: body and property text of each message."""

    def each(self) -> list[tuple[dict[str, str], int]]:
        """Properties and body bytes of each message of the call."""
        return [
            (decode_properties(text) | self.added, len(body))
            for body, text in self.parts or ((self.body, self.text),)
        ]

    @property
    def properties(self) -> dict[str, str]:
        """Tag, keys and user properties under RocketMQ's names, with what hooks added."""
        return decode_properties(self.text) | self.added

    @property
    def tag(self) -> str | None:
        """The tag."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> str:
        """Business keys, separated by blanks."""
        return self.properties.get(KEYS, "")

    def add_property(self, name: str, value: str) -> None:
        """A user property for every message of the call; only in ``before``. Checked as the
        sender's own are.
        """
        self.added[name] = value


class TransactionEnd(Value, frozen=True):
    """An end that is about to be sent. ``address``: the broker's. ``from_check``: it had asked."""

    topic: str
    key: str
    tag: str
    keys: str
    address: Address | None
    state: LocalTransactionState
    from_check: bool


class SendHook(Protocol):
    """Watches sends. Both are called by the sending thread, ``after`` of an asynchronous send by
    the producer's own: keep them short.
    """

    def before(self, ctx: SendContext) -> None:
        """The call is checked and about to be sent."""
        ...

    def after(self, ctx: SendContext) -> None:
        """It ended."""
        ...


SendCheck = Callable[[SendContext], object]
"""Raises to forbid the send; what it returns is not looked at."""


def checked_hooks(
    hooks: Iterable[SendHook], checks: Iterable[SendCheck]
) -> tuple[tuple[SendHook, ...], tuple[SendCheck, ...]]:
    """A producer's ``hooks=`` and ``checks=``; ``ClientError`` for what could never be called."""
    try:
        kept = tuple(hooks), tuple(checks)
    except TypeError:
        raise ClientError(
            f"hooks={hooks!r:.80} and checks={checks!r:.80} must be lists, also of one"
        ) from None
    for hook in kept[0]:
        if isinstance(hook, type) or not (
            callable(getattr(hook, "before", None)) and callable(getattr(hook, "after", None))
        ):
            raise ClientError(
                f"{hook!r:.80} is no hook; give an object with the methods before(ctx) and "
                f"after(ctx)"
            )
    for check in kept[1]:
        if not callable(check):
            raise ClientError(
                f"the check {check!r:.80} cannot be called; give a function of the "
                f"SendContext that raises to forbid the send"
            )
    return kept
