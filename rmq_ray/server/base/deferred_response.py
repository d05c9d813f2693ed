"""Answers that come after ``handle`` returned: how handlers ask for it. Implemented by
``core.dispatch.Dispatch``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.frame import Command

Answer = Callable[[Command, Peer, Callable[[], Command | None]], None]
"""``answer(command, peer, run)``: send what ``run`` returns, or the refusal it raises."""


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
