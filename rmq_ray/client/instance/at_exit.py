"""What clients still owe when their program is over, without a ``close`` by anybody.

    main thread ends ──> other threads that are no daemons end ──> the action, once ──> exit

Decides the moment. ``atexit`` would come too late: from Python 3.12 on no thread may be started
there, and a first message may need a connection, whose reader is one. The main thread's end would
be too early: a program may go on in threads of its own. Invariant: a program without such threads
ends as soon as the action returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

NAME = "rmq-at-exit"
WAIT_S = 60.0
"""For one thread, before it is looked again who is there."""


def when_program_is_over(action: Callable[[], None]) -> None:
    """Have it called once, in a thread that the interpreter waits for at its exit."""
    threading.Thread(target=_await_others, args=(action,), name=NAME, daemon=False).start()


def _await_others(action: Callable[[], None]) -> None:
    try:
        while others := [thread for thread in threading.enumerate() if _holds_exit(thread)]:
            # a class of the user's may have a ``join`` of its own
            threading.Thread.join(others[0], WAIT_S)  # ends: with the program
    finally:
        action()


def _holds_exit(thread: threading.Thread) -> bool:
    """Others of this name are of a copy of this module that was loaded again; two of them would
    wait for each other.
    """
    return not thread.daemon and thread.name != NAME and threading.Thread.is_alive(thread)
