"""What a sender is told of messages that a broker has, but not as safely as its mode demands.

Decides the words and the values of ``SendUnconfirmed``. Whether it is raised is the producer's
setting (``raise_on_status``); nothing is sent again because of it but by
``retry_another_broker_when_not_store_ok``.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.errors import RmqError, SendError, SendUnconfirmed
from rmq_ray.model.message import SendResult, SendStatus

_REMEDIES = {
    SendStatus.FLUSH_DISK_TIMEOUT: "look at that broker's disk",
    SendStatus.SLAVE_NOT_AVAILABLE: "delivered once a slave is in sync again (`rmq-ray status`)",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "delivered once every slave has it (`rmq-ray status`)",
}


def unconfirmed(result: SendResult) -> SendUnconfirmed | None:
    """The error of a result; None where it is as safe as asked for."""
    status = result.status
    if status is SendStatus.SEND_OK:
        return None
    what = "the message is" if result.count == 1 else f"{result.count} messages are"
    return SendUnconfirmed(
        f"{status.name} from {result.queue.broker_name}: {what} {status.meaning}; "
        f"{_REMEDIES[status]}; send again where twice is better than never; "
        f"raise_on_status=False returns the status",
        result.queue.topic,
        0,
        (result,),
    )


def confirmed(result: SendResult, raises: bool) -> SendResult:
    """The same result. Raises ``SendUnconfirmed`` where that was asked for."""
    error = unconfirmed(result) if raises else None
    if error is not None:
        raise error
    return result


def beside_stored(
    error: BaseException, said: str, topic: str, stored: object, results: Sequence[SendResult]
) -> SendError:
    """The error of a call of which other frames are stored. ``said``: what of them; ``stored``:
    ``args[2]``; ``results``: theirs.
    """
    if isinstance(error, SendUnconfirmed):
        return SendUnconfirmed(f"{error}; {said}", topic, stored, (*results, *error.results))
    kind = type(error) if isinstance(error, SendError) else SendError  # else: closed on the way
    return kind(f"{error}; {said}", topic, stored)


def own_copy(error: RmqError) -> RmqError:
    """For one of several who are told the same: raising one shared object from many threads would
    chain their tracebacks.
    """
    return type(error)(*error.args)
