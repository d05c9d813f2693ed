"""Which held pulls wake: the rules of long polling (protocol-behaviour 11).

Decides: whether a pull that found nothing waits or wakes at once, which pulls an arrival wakes,
which have waited long enough. Does not decide: what a woken pull answers (the broker runs it
again), how events travel. The one table of parked pulls: a broker has it in its own process, and
where it has a hold service, the service has the same one. Not safe for threads.

    park ──(behind the greatest offset heard of)──────────────> wake
      └──> parked ──(arrival beyond from_offset, a tag code that matches)──> wake
               ├──(scan: greatest offset beyond from_offset, tags or not)──> wake
               ├──(deadline)──> wake
               └──(forget)──> gone

Invariants:
- No lost wake-up: after any call no parked pull is left that an arrival told so far should have
  woken. This needs the events of one broker in their order, and an arrival for every queue from the
  moment one of its pulls is parked.
- A pull is woken once: each token is returned by one call only, then unknown here.
- Memory is bounded: a queue without parked pulls is forgotten together with its greatest offset
  (``park`` brings the current one along), and the heap holds at most twice as many deadlines as
  there are pulls, plus a constant.
- Pulls parked on other queues cost an arrival nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rmq_ray.errors import TooManyRequests

Queue = tuple[str, int]
"""(topic, queue id)."""

HEAP_SLACK = 64  # stale deadlines that are not worth a rebuild


@dataclass(frozen=True, slots=True)
class HeldPull:
    """One parked pull: what it waits for, and until when."""

    queue: Queue
    from_offset: int
    deadline_ms: float
    codes: frozenset[int] | None


@dataclass(slots=True)
class _QueueState:
    max_offset: int
    tokens: dict[int, HeldPull] = field(default_factory=dict)
    filtered: int = 0
    """Those of them that have tag codes."""


class HoldTable:
    """The parked pulls of one broker. Tokens are the caller's; times are any one clock's
    milliseconds.
    """

    def __init__(self, parked_max: int = 100_000) -> None:
        self._parked_max = parked_max
        self._pulls: dict[int, HeldPull] = {}
        self._queues: dict[Queue, _QueueState] = {}
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._pulls)

    @property
    def queue_count(self) -> int:
        """Queues that have parked pulls; nothing is kept about others."""
        return len(self._queues)

    def queues(self) -> list[Queue]:
        """Those queues."""
        return list(self._queues)

    def parked_on(self, queue: Queue) -> int:
        """How many pulls an arrival for the queue could wake."""
        state = self._queues.get(queue)
        return 0 if state is None else len(state.tokens)

    def has_filters(self, queue: Queue) -> bool:
        """Whether tag codes decide about any pull of the queue."""
        state = self._queues.get(queue)
        return state is not None and state.filtered > 0

    def tokens(self) -> list[int]:
        """All parked pulls, in the order in which they were parked."""
        return list(self._pulls)

    def find(self, token: int) -> HeldPull | None:
        """A parked pull; None when it was woken or forgotten."""
        return self._pulls.get(token)

    def park(
        self,
        token: int,
        queue: Queue,
        from_offset: int,
        deadline_ms: float,
        codes: frozenset[int] | None,
        max_offset: int | None = None,
    ) -> list[int]:
        """Hold a pull that found nothing; ``[token]`` when it is behind and must run again at once,
        else ``[]``.

        ``max_offset``: the queue's greatest offset + 1 as the broker knows it now; newer than any
        arrival told before, so it also lowers what was heard (a topic deleted and made again).
        None: what was heard stands. ``codes``: tag codes that interest the pull, None = all. A
        token that is parked already is parked anew. Raises ``TooManyRequests`` at the limit;
        nothing has changed then.
        """
        self.forget(token)
        if len(self._pulls) >= self._parked_max:
            raise TooManyRequests(
                f"{len(self._pulls)} pulls are parked, the limit is {self._parked_max}: pull "
                f"again later or raise parked_pulls_max"
            )
        state = self._queues.get(queue)
        heard = max_offset if max_offset is not None else state.max_offset if state else 0
        if state:
            state.max_offset = heard
        if heard > from_offset:
            return [token]
        if state is None:
            state = self._queues[queue] = _QueueState(heard)
        self._pulls[token] = state.tokens[token] = HeldPull(queue, from_offset, deadline_ms, codes)
        state.filtered += codes is not None
        heapq.heappush(self._deadlines, (deadline_ms, token))
        return []

    def arrived(self, queue: Queue, max_offset: int, codes: Collection[int] | None) -> list[int]:
        """Messages were added below ``max_offset``; the pulls that wake, oldest first.

        ``codes``: tag codes of all messages added since the last arrival told for this queue; None
        = unknown, matches every pull. A pull that none of them matches stays, its offset too: what
        it skips is read again when it next runs.
        """
        state = self._queues.get(queue)
        if state is None:
            return []
        state.max_offset = max_offset
        woken = [
            token
            for token, pull in state.tokens.items()
            if max_offset > pull.from_offset
            and (codes is None or pull.codes is None or not pull.codes.isdisjoint(codes))
        ]
        return self._take(woken)

    def scan(self, maxima: Iterable[tuple[Queue, int]]) -> list[int]:
        """The periodic check: every pull behind its queue's greatest offset wakes, whatever its
        tags (it then moves on).
        """
        woken: list[int] = []
        for queue, max_offset in maxima:
            woken += self.arrived(queue, max_offset, None)
        return woken

    def expired(self, now_ms: float) -> list[int]:
        """Pulls whose deadline has come, earliest first."""
        woken = []
        while (
            self._deadlines and self._deadlines[0][0] <= now_ms
        ):  # ends: every round takes one off the heap
            deadline_ms, token = heapq.heappop(self._deadlines)
            pull = self._pulls.get(token)
            if pull is not None and pull.deadline_ms == deadline_ms:
                self._remove(token, pull)
                woken.append(token)
        return woken

    def next_deadline_ms(self) -> float | None:
        """When ``expired`` can next return something; None when nothing is parked."""
        while self._deadlines:  # ends: every round takes one off the heap
            deadline_ms, token = self._deadlines[0]
            pull = self._pulls.get(token)
            if pull is not None and pull.deadline_ms == deadline_ms:
                return deadline_ms
            heapq.heappop(self._deadlines)
        return None

    def forget(self, token: int) -> bool:
        """Its connection has gone, or it was woken elsewhere; False when it is not parked (any
        more).
        """
        pull = self._pulls.get(token)
        if pull is None:
            return False
        self._remove(token, pull)
        self._drop_stale_deadlines()
        return True

    def _take(self, tokens: list[int]) -> list[int]:
        for token in tokens:
            self._remove(token, self._pulls[token])
        self._drop_stale_deadlines()
        return tokens

    def _remove(self, token: int, pull: HeldPull) -> None:
        del self._pulls[token]
        state = self._queues[pull.queue]
        del state.tokens[token]
        state.filtered -= pull.codes is not None
        if not state.tokens:
            del self._queues[pull.queue]

    def _drop_stale_deadlines(self) -> None:
        """Rebuilding costs as much as the removals since the last time: O(1) each."""
        if len(self._deadlines) > 2 * len(self._pulls) + HEAP_SLACK:
            self._deadlines = [(pull.deadline_ms, token) for token, pull in self._pulls.items()]
            heapq.heapify(self._deadlines)
