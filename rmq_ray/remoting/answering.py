"""What a client's connection does with a request that its server sent: the answer, whatever the
client's handler does.

Used by both kinds of client connections. Decides how outcomes become answers; writing them is the
connection's. Invariant: nothing is raised, because answers to other requests must go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from rmq_ray.errors import RmqError
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command

C = TypeVar("C")


def answer_to(
    command: Command,
    connection: C,
    on_request: Callable[[Command, C], Command | None] | None,
    name: str,
    log: logging.Logger,
) -> Command | None:
    """The handler's answer, an error as its code and message; None where nothing is to be written
    (oneway, or answered later).
    """
    try:
        if on_request is None:
            answer: Command | None = command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {command.code} not supported",
            )
        else:
            answer = on_request(command, connection)
    except RmqError as error:
        answer = command.answer(error.code, remark=error.message)
    except Exception as error:
        log.exception("request %d of %s failed", command.code, name)
        answer = command.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"
        )
    return None if command.is_oneway else answer
