"""What a handler does instead of returning an answer: it refuses with a response code of its own
choice, or answers later; and how it asks about rights. ``core.dispatch`` implements all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rmq_ray.errors import RmqError
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.decision import Action
from rmq_ray.remoting.wire.frame import Command


class Refused(RmqError):
    """``args[0]`` = remark, ``args[1]`` = response code."""

    @property
    def response_code(self) -> int:
        """The answer's code."""
        return int(str(self.args[1]))


class Responder(Protocol):
    """Answers that come later, of one broker; loop only."""

    def answer(self, command: Command, peer: Peer, run: Callable[[], Command | None]) -> None:
        """Send what ``run`` returns, or the refusal it raises."""
        ...

    def answer_from(
        self,
        command: Command,
        peer: Peer,
        read: Callable[[], Any],
        build: Callable[[Any], Command | None],
    ) -> None:
        """Read beside the loop, answer in it: ``read`` runs in a thread; the answer is what
        ``build`` makes of its result, or the refusal that either raises.

        Raises ``BrokerBusy`` when too much waits already.
        """
        ...

    def serve(self, command: Command, peer: Peer) -> None:
        """Serve a request that had to wait; its answer is sent."""
        ...

    def check_topic(self, peer: Peer, action: Action, topic: str) -> None:
        """For what only a record tells. Raises ``NotAuthorized``."""
        ...
