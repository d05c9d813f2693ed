"""How a listener's fault is told in the log: a line each time, the traceback now and then.

    listener of group billing failed with ValueError: no amount: message 7F00... (keys o-1) of
    orders, queue 2 of broker-a, offset 17; 15 tries left

Decides the line, and which faults come with their traceback: the first of each kind, that is
exception type and line of code, and each hundredth after it. Does not decide what becomes of the
messages.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rmq_ray.client.messages.listener import failure_of
from rmq_ray.client.messages.received import MessageExt

TRACE_EACH = 100
KINDS_MAX = 256
LINE_CHARS_MAX = 512
KEYS_CHARS_MAX = 128
RETRIES_SHOWN_MAX = 1_000_000  # more are as good as no end


class Tracebacks:
    """Of one consumer; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, int], int] = {}

    def wanted(self, fault: BaseException) -> BaseException | None:
        """The fault, when the log shall show where it came from; None for most repeats."""
        kind = _kind(fault)
        with self._lock:
            if len(self._seen) >= KINDS_MAX and kind not in self._seen:
                self._seen.clear()  # code that is made anew all the time
            count = self._seen[kind] = self._seen.get(kind, 0) + 1
        return fault if count == 1 or count % TRACE_EACH == 0 else None


def failure_line(
    group: str, messages: Sequence[MessageExt], fault: BaseException, retries_max: int
) -> str:
    """One line; of several messages it names the first."""
    why = " ".join(failure_of(fault)[:LINE_CHARS_MAX].split())
    head = f"listener of group {group} failed with {why}"
    if not messages:
        return head
    first = messages[0]
    keys = " ".join(first.keys)[:KEYS_CHARS_MAX]
    named = f"message {first.message_id}{f' (keys {keys})' if keys else ''}"
    more = f" and {len(messages) - 1} after it" if len(messages) > 1 else ""
    origin = f" (sent to {first.topic})" if first.topic != first.queue.topic else ""
    queue = f"{first.queue.topic}, queue {first.queue.queue_id} of {first.queue.broker_name}"
    place = f"{queue}{origin}, offset {first.queue_offset}"
    return f"{head}: {named}{more} of {place}; {_left(retries_max - first.reconsume_times)}"


def _left(tries: int) -> str:
    if tries > RETRIES_SHOWN_MAX:
        return "tried again without end"
    if tries <= 0:
        return "no try left: a dead letter"
    return f"{tries} {'try' if tries == 1 else 'tries'} left"


def _kind(fault: BaseException) -> tuple[str, str, int]:
    """Exception type and the line that raised it."""
    trace, place = fault.__traceback__, ("", 0)
    while trace is not None:  # ends: a traceback is finite
        place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return (type(fault).__qualname__, *place)
