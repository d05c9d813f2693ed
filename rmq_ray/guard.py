"""Users' code that we call: what happens when it raises, decided in one place.

    guarded(...)            in a thread or loop of ours: whatever it raises is told in the log, and
                            the thread goes on
    guarded_in_caller(...)  in the caller's own thread: the same, but an exit passes: it is his
    attempt(...)            where a rule judges the failure, as a listener's or a checker's

An exit is ``SystemExit`` (``sys.exit()``), ``KeyboardInterrupt`` and everything else that is no
``Exception``. Raised in a thread of ours it would end that thread, and with it the work of all
others who wait for it: so there it is a failure of the code that raised it, like any other.

A failure is told by a line each time. Its traceback comes with the first of each kind, that is
exception type and line of code, and with each hundredth after it. Decides nothing about what
follows for the message: each kind of code has that in its own room.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

TRACE_EACH = 100
KINDS_MAX = 256
WHY_CHARS_MAX = 512
SHOWN_CHARS_MAX = 80


def guarded(
    log: logging.Logger,
    kind: str,
    call: Callable[..., Any],
    *arguments: Any,
    then: str,
    otherwise: Any = None,
    about: object = None,
    caught: type[BaseException] = BaseException,
) -> Any:
    """What ``call(*arguments)`` returns, in a thread or loop of ours. Never raises: ``otherwise``
    where the code failed. The line in the log names its ``kind``, what it was ``about`` and what
    happens ``then``. ``caught``: see ``guarded_in_caller``.
    """
    try:
        return call(*arguments)
    except caught as error:  # exits, too: users' code must not end our thread
        tell_failure(log, kind, error, then, about)
        return otherwise


guarded_in_caller = partial(guarded, caught=Exception)
"""The same in the thread of who called us, to whom exits pass: Ctrl-C ends his call."""


def attempt(call: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """(what it returned, None), or (None, what it raised); in a thread or loop of ours."""
    try:
        return call(*arguments), None
    except BaseException as error:  # noqa: BLE001 - see the module
        return None, error


def tell_failure(
    log: logging.Logger, kind: str, error: BaseException, then: str, about: object = None
) -> None:
    """One line, and what ``Tracebacks`` says; for failures that ``attempt`` met."""
    of = "" if about is None else f" ({shown(about)})"
    said = " ".join(why(error)[:WHY_CHARS_MAX].split())
    log.warning("%s failed with %s%s; %s", kind, said, of, then, exc_info=_traces.wanted(error))


def why(error: BaseException) -> str:
    """Type and text of a failure; never raises.

    >>> why(ValueError("no amount")), why(SystemExit())
    ('ValueError: no amount', 'SystemExit')
    """
    kind, (text, fault) = type(error).__name__, attempt(str, error)
    if fault is not None:
        text = "(its text cannot be had)"
    return f"{kind}: {text}" if text else kind


def shown(value: object) -> str:
    """A user's value for a line: at most 80 characters, whatever its ``repr`` does."""
    text, error = attempt(repr, value)
    return f"<{type(value).__name__} object>" if error else str(text)[:SHOWN_CHARS_MAX]


class Tracebacks:
    """Which failures show where they came from. Any thread."""

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


_traces = Tracebacks()


def _kind(fault: BaseException) -> tuple[str, str, int]:
    """Exception type and the line that raised it."""
    trace, place = fault.__traceback__, ("", 0)
    while trace is not None:  # ends: a traceback is finite
        place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return (type(fault).__qualname__, *place)
