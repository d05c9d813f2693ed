"""What a history of ordered deliveries must look like, whoever died in between; and a listener that
writes one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import eventually

Place = tuple[str, int]
"""Broker name, queue id."""


@dataclass(frozen=True)
class Handled:
    """One call of a listener with one message, as told by consumer ``who``. Times of one clock;
    ``end`` None = it never came back.
    """

    who: str
    place: Place
    offset: int
    begin: float
    end: float | None


def check_order(history: Iterable[Handled]) -> None:
    """Per queue: no two calls overlap, and no message is handed out before all before it were done
    by somebody.

    What was done may come again after a consumer died, from an earlier message on; nothing is ever
    skipped.
    """
    by_place: dict[Place, list[Handled]] = {}
    for handled in history:
        by_place.setdefault(handled.place, []).append(handled)
    for place, calls in by_place.items():
        calls.sort(key=lambda call: call.begin)
        done = -1
        for at, call in enumerate(calls):
            assert call.offset <= done + 1, f"{place}: {call} skips; done up to {done}"
            if call.end is None:
                continue
            done = max(done, call.offset)
            overlapping = [other for other in calls[at + 1 : at + 20] if other.begin < call.end]
            assert not overlapping, f"{place}: {overlapping[0]} began while {call} ran"


class History:
    """Listeners of one process that write down what they get. ``answer(messages, ctx)`` decides
    what each call returns.
    """

    def __init__(
        self, answer: Callable[[list[Any], Any], Any] = lambda _messages, _ctx: None
    ) -> None:
        import time

        self._now = time.monotonic
        self._answer = answer
        self._lock = threading.Lock()
        self.calls: list[Handled] = []
        self.running: dict[Place, str] = {}

    def listener(self, who: str) -> Callable[[list[Any], Any], Any]:
        """The listener of one consumer."""

        def handle(messages: list[Any], ctx: Any) -> Any:
            begin = self._now()
            try:
                return self._answer(messages, ctx)
            finally:
                end = self._now()
                with self._lock:
                    for message in messages:
                        place = (message.queue.broker_name, message.queue.queue_id)
                        self.calls.append(Handled(who, place, message.queue_offset, begin, end))

        return handle

    def offsets(self, queue_id: int, broker: str = "broker-a") -> list[int]:
        """Offsets of one queue in the order of their deliveries."""
        with self._lock:
            return [call.offset for call in self.calls if call.place == (broker, queue_id)]

    def by(self, who: str) -> list[Handled]:
        """What one consumer got."""
        with self._lock:
            return [call for call in self.calls if call.who == who]

    def wait_for(self, count: int, timeout_s: float = 20.0) -> None:
        """Until that many different messages were handed out."""
        eventually(
            lambda: len({(call.place, call.offset) for call in list(self.calls)}) >= count,
            timeout_s,
            moved=lambda: len(self.calls),
        )
