"""What clients still owe when their program is over, without a ``close`` by anybody.

    main thread ends ──> other threads that are no daemons end ──> the action, once ──> exit

Decides the moment; what is done then, and in which order, decides ``settling``. The main thread's
end would be too early: a program may go on in threads of its own. ``atexit`` would be no place for
it: Python's documentation lets no thread start there, and a first message needs a connection, whose
reader is one. (Python 3.12.0 to 3.12.2 let none start once the main thread has ended, so that there
such a message is lost wherever it is sent from: who ends at once calls ``close``.) Invariants: a
program without such threads ends as soon as the action returns; it is called whatever else fails.
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
