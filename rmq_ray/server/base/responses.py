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

Answer = Callable[[Command, Peer, Callable[[], Command | None]], None]
"""``answer(command, peer, run)``: send what ``run`` returns, or the refusal it raises."""
CheckTopic = Callable[[Peer, Action, str], None]
"""``check_topic(peer, action, topic)`` raises ``NotAuthorized``: for what only a record tells."""


class Refused(RmqError):
    """``args[0]`` = remark, ``args[1]`` = response code."""

    @property
    def response_code(self) -> int:
        """The answer's code."""
        return int(str(self.args[1]))


class AnswerFrom(Protocol):
    """Read beside the loop, answer in it."""

    def __call__(
        self,
        command: Command,
        peer: Peer,
        read: Callable[[], Any],
        build: Callable[[Any], Command | None],
    ) -> None:
        """``read`` runs in a thread; the answer is what ``build`` makes of its result, or the
        refusal that either raises.

        Raises ``BrokerBusy`` when too much waits already.
        """
        ...


def everybody_may(_peer: Peer, _action: Action, _topic: str) -> None:
    """A ``CheckTopic`` where nobody needs a right."""
