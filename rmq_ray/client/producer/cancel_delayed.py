"""Taking back a message that waits for its delivery time (protocol-behaviour 26).

Decides which answer is which error. ``recall`` blocks, ``recall_in_loop`` does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.errors import BrokerUnreachable, RecallFailed, ResponseError
from rmq_ray.model.ids import Address
from rmq_ray.model.namespaces import with_namespace
from rmq_ray.protocol.timer import RecallHandle
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import RecallHeader

if TYPE_CHECKING:
    from rmq_ray.client.sending.loop_sender import LoopSender


def recall(core: ProducerCore, topic: str, recall_handle: str, timeout_ms: float) -> str:
    """Take a waiting message back; on return it is never delivered. Its message id.

    Raises ``RecallFailed`` when it was due already or waits nowhere, ``BrokerUnreachable``, and
    ``RemotingError`` when nobody answered: it may be taken back.
    """
    started_ms, topic = core.clock.monotonic_ms(), with_namespace(core.config.namespace, topic)
    handle = RecallHandle.decode(recall_handle)
    if core.instance.broker_address(handle.broker_name) is None:
        core.queues.find(topic, timeout_ms)
    address = _address(core, handle, topic)
    return _judged(
        core.instance.invoke(
            address,
            _command(core, topic, recall_handle),
            max(1.0, core.left_ms(timeout_ms, started_ms)),
        ),
        handle,
    )


async def recall_in_loop(
    core: ProducerCore, sender: LoopSender, topic: str, recall_handle: str, timeout_ms: float
) -> str:
    """The same over a connection of the loop."""
    topic, handle = with_namespace(core.config.namespace, topic), RecallHandle.decode(recall_handle)
    if core.instance.broker_address(handle.broker_name) is None:
        _, timeout_ms = await sender.queues(topic, timeout_ms)
    _address(core, handle, topic)
    return _judged(
        await sender.ask(
            handle.broker_name, _command(core, topic, recall_handle), max(1.0, timeout_ms)
        ),
        handle,
    )


def _address(core: ProducerCore, handle: RecallHandle, topic: str) -> Address:
    address = core.instance.broker_address(handle.broker_name)
    if address is None:
        raise BrokerUnreachable(
            f"no address of broker {handle.broker_name!r} is known, message "
            f"{handle.unique_key} still waits there",
            topic,
        )
    return address


def _command(core: ProducerCore, topic: str, recall_handle: str) -> Command:
    return Command(
        RequestCode.RECALL_MESSAGE,
        fields=RecallHeader(topic, recall_handle, core.group).to_fields(),
    )


def _judged(answer: Command, handle: RecallHandle) -> str:
    if answer.code == ResponseCode.SUCCESS:
        return handle.unique_key
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        raise RecallFailed(
            answer.remark or f"message {handle.unique_key} does not wait", handle.unique_key
        )
    raise ResponseError(
        f"message {handle.unique_key} was not taken back: {answer.remark or f'code {answer.code}'}",
        answer.code,
    )
