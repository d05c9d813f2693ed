"""What a role offers to its listener, and what a connection needs of its listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.errors import RemotingError
from rmq_ray.remoting.handshake import AccountKey, Credentials
from rmq_ray.remoting.wire.frame import Command

if TYPE_CHECKING:
    from rmq_ray.remoting.busy_poll import BusyPoll
    from rmq_ray.remoting.peer import ServerPeer
    from rmq_ray.remoting.tls import ServerTls

AnswerCallback = Callable[[Command | RemotingError], None]
"""Gets the outcome of a request, once."""

Answered = Callable[[int, int, float, bool], None]
"""Request code, response code, ms, whether the answer came later."""


class Handler(Protocol):
    """A role: name server, broker. Both methods run in the listener's loop and must not block.

    One that has a method ``answered`` (``Answered``) hears of every answer, too.
    """

    def handle(self, command: Command, peer: Any) -> Command | None:
        """The answer, or None: it comes later through ``peer.send``, or the request was oneway.

        The body is a view of a mutable buffer that is the handler's until it returns. A
        ``RmqError`` becomes an answer with its code.
        """
        ...

    def closed(self, peer: Any) -> None:
        """The connection of a peer that had sent requests has ended; called once."""
        ...


class SendsHandler(Handler, Protocol):
    """A role that serves single sends which came in one read together. Optional."""

    def handle_sends(
        self, commands: Sequence[Command], peer: Any
    ) -> Sequence[Command | bytes | None]:
        """As ``handle`` for each of them, in their order; bytes are an answer's whole frame."""
        ...


class Owner(Protocol):
    """The listener, as its connections see it."""

    handler: Handler
    credentials: Credentials
    account_key: AccountKey | None
    foreign: ForeignClients
    limits: RemotingLimits
    busy_poll: BusyPoll | None
    tls: ServerTls | None

    def admit(self, peer: ServerPeer) -> bool:
        """Count the peer in; False when there are too many."""
        ...

    def accepted(self, peer: ServerPeer) -> None:
        """The peer may send requests from now on."""
        ...

    def forget(self, peer: ServerPeer) -> None:
        """The peer's connection has ended."""
        ...

    def complain(self, peer: ServerPeer, reason: str, fault: BaseException | None = None) -> None:
        """Log, with a limit per second."""
        ...

    def refuse(self, peer: ServerPeer, reason: str) -> None:
        """Complain of somebody who may not come in, and note it where refusals are noted."""
        ...

    def monotonic_ms(self) -> float:
        """The clock that time-outs are measured with."""
        ...
