"""Reading the ledger as it grows: a book that is up to date whenever somebody asks.

Decides how far was read, and how long a caller waits for others that read. Invariant: a record
that was acknowledged before ``catch_up`` was called is in the book that it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmq_ray.client.pull.queue_queries import PullResult
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import RequestTimeout
from rmq_ray.transfer_queue.ledger import Book

RECORDS_MAX = 4_096


class LedgerTail:
    """``pull(expression, offset, count, patience_ms)``: of the ledger's queue, waiting that long
    for a broker that is away. ``expression``: which records are wanted. ``patience_ms``: of each
    caller, with the time in which it waited for another one. Any thread may call it.
    """

    def __init__(
        self,
        pull: Callable[[str, int, int, float], PullResult],
        expression: str,
        patience_ms: float,
    ) -> None:
        self._pull, self._expression, self._patience_ms = pull, expression, patience_ms
        self._lock = threading.Lock()
        self._book = Book()
        self._next = 0

    def catch_up(self) -> tuple[Book, int]:
        """The book, and the ledger's end. Raises what ``pull`` raises, ``BodyUnreadable``, and
        ``RequestTimeout`` where others read for as long as this caller waits.
        """
        give_up_ms = SYSTEM_CLOCK.monotonic_ms() + self._patience_ms
        if not self._lock.acquire(timeout=self._patience_ms / 1_000):
            raise RequestTimeout(
                f"the ledger was not read within {self._patience_ms / 1_000:g} s: its broker is "
                f"away, or it is long; ask again",
                "ledger",
            )
        try:
            return self._read(max(0.0, give_up_ms - SYSTEM_CLOCK.monotonic_ms()))
        finally:
            self._lock.release()

    def _read(self, patience_ms: float) -> tuple[Book, int]:
        while True:  # ends: at the end of the ledger
            found = self._pull(self._expression, self._next, RECORDS_MAX, patience_ms)
            again = False
            for message in found.messages:
                again = self._book.apply(message.queue_offset, message.tag, message.body)
                if again:
                    self._book = self._book.anew()
                    break
            self._next = 0 if again else found.next_offset
            self._book.forget(found.min_offset)
            if not again and self._next >= found.max_offset:
                return self._book, self._next
