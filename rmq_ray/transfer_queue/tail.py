"""Reading the ledger as it grows: a book that is up to date whenever somebody asks.

Decides how far was read. Invariant: a record that was acknowledged before ``catch_up`` was called
is in the book that it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmq_ray.client.pull.queue_queries import PullResult
from rmq_ray.transfer_queue.ledger import Book

RECORDS_MAX = 4_096


class LedgerTail:
    """``pull(expression, offset, count)``: of the ledger's queue. ``expression``: which records
    are wanted. Any thread may call it.
    """

    def __init__(self, pull: Callable[[str, int, int], PullResult], expression: str) -> None:
        self._pull, self._expression = pull, expression
        self._lock = threading.Lock()
        self._book = Book()
        self._next = 0

    def catch_up(self) -> tuple[Book, int]:
        """The book, and the ledger's end. Raises what ``pull`` raises, and ``BodyUnreadable``."""
        with self._lock:
            while True:  # ends: at the end of the ledger
                found = self._pull(self._expression, self._next, RECORDS_MAX)
                again = False
                for message in found.messages:
                    again = self._book.apply(message.queue_offset, message.tag, message.body)
                    if again:
                        break
                self._next = 0 if again else found.next_offset
                if not again and self._next >= found.max_offset:
                    return self._book, self._next
