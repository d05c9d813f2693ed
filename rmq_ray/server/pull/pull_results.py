"""From what the store found to what a pull is answered (protocol-behaviour 10.4, 10.5). Pure;
called by the broker's pull handlers.
"""

from __future__ import annotations

from rmq_ray.model.pulling import GetMessageStatus

SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED = 0, 19, 20, 21

_CODES = {
    GetMessageStatus.FOUND: SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: PULL_OFFSET_MOVED,
}


def response_code(status: GetMessageStatus, offset: int) -> int:
    """The answer's code; an empty or missing queue is "nothing yet" at offset 0 and "moved"
    anywhere else.

    >>> [response_code(GetMessageStatus.NO_MESSAGE_IN_QUEUE, offset) for offset in (0, 5)]
    [19, 21]
    """
    code = _CODES.get(status)
    if code is None:
        return PULL_NOT_FOUND if offset == 0 else PULL_OFFSET_MOVED
    return code


def suggested_broker(slow: bool, slave_reads: bool, broker_id: int, broker_when_slow: int) -> int:
    """Which broker id the next pull should ask: the master unless slaves serve reads."""
    if not slave_reads:
        return 0
    return broker_when_slow if slow else broker_id
