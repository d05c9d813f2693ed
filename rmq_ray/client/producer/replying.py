"""The answering side of request and reply: a consumer's reply to a message that asks for one
(protocol-behaviour 25; remoting 3: 325).

    def handle(messages, ctx):
        for message in messages:
            rmq.reply(message, b"done")

Decides what makes a message a request, and which broker takes the reply: the one that delivered the
request, because the client that asked is connected to it; then others of the cluster. Sends over
the connections of the consumer's own client; blocks the calling thread.

Invariant: a reply that ``reply`` returned from was taken by the client that asked; whether it still
waited for it is its own matter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.outgoing.send_request import timeout_in_ms
from rmq_ray.client.producer.request_reply import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from rmq_ray.errors import BrokerUnreachable, ClientError, NotARequest, RemotingError, SendError
from rmq_ray.model.ids import LogOffset, MessageQueue, QueueOffset
from rmq_ray.model.message import CLUSTER, SendResult, SendStatus, encode_properties
from rmq_ray.model.topics import CLIENT_INNER_GROUP, REPLY_SUFFIX
from rmq_ray.protocol.validators import check_body
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader

BODY_BYTES_MAX = 4 << 20
TIMEOUT_S = 10.0

log = logging.getLogger("rmq_ray.client")


def reply(message: MessageExt, body: bytes, *, timeout: float = TIMEOUT_S) -> SendResult:
    """Send ``body`` to the producer that waits for a reply to ``message``; s for all attempts
    together.

    ``NotARequest``: the message asks for no reply. ``SendError``: no broker could hand it over; who
    asked is gone or has stopped waiting.
    """
    if not isinstance(message, MessageExt):
        raise ClientError(
            f"reply takes the message that a listener or consumer received, not "
            f"{type(message).__name__}"
        )
    timeout_ms = timeout_in_ms(timeout)
    asked = message.all_properties
    cluster = asked.get(CLUSTER)
    for name in (CLUSTER, REPLY_TO_CLIENT, CORRELATION_ID):
        if not asked.get(name):
            raise NotARequest(
                f"message {message.message_id} carries no {name}: it was sent without "
                f"request(), nobody waits for a reply",
                message.message_id,
            )
    content = check_body(body, BODY_BYTES_MAX)
    client = _client_of(message)
    topic = f"{cluster}{REPLY_SUFFIX}"
    properties = {
        "MSG_TYPE": "reply",
        CORRELATION_ID: asked[CORRELATION_ID],
        REPLY_TO_CLIENT: asked[REPLY_TO_CLIENT],
        TTL: asked.get(TTL, "0"),
    }
    deadline = client.clock.monotonic_ms() + timeout_ms
    failures: list[str] = []
    for broker in _brokers(client, message.queue.broker_name, topic):
        left = deadline - client.clock.monotonic_ms()
        address = client.broker_address(broker)
        if address is None or left <= 0:
            continue
        queue = MessageQueue(topic, broker, 0)
        try:
            answer = client.invoke(address, _command(client, queue, properties, content), left)
        except RemotingError as error:
            failures.append(f"{broker}: {error}")
            continue
        if answer.code == ResponseCode.SUCCESS:
            return _result(queue, answer)
        failures.append(f"{broker}: {answer.remark}")
    raise SendError(
        f"no broker handed the reply to {asked[REPLY_TO_CLIENT]} "
        f"({'; '.join(failures) or 'none could be asked in time'})",
        topic,
    )


def _client_of(message: MessageExt) -> ClientInstance:
    """A running client of this process that knows the broker of the message; the one whose broker
    has its very address first.
    """
    knowing = [
        client
        for client in ClientInstance.running()
        if client.broker_address(message.queue.broker_name) is not None
    ]
    exact = [
        client
        for client in knowing
        if client.broker_address(message.queue.broker_name) == message.store_host
    ]
    if not knowing:
        raise BrokerUnreachable(
            f"no client of this process knows broker {message.queue.broker_name!r}; reply "
            f"where the message was received",
            message.queue.topic,
        )
    return (exact or knowing)[0]


def _brokers(client: ClientInstance, first: str, topic: str) -> Iterator[str]:
    """The delivering broker; when that could not, the others that serve the reply topic."""
    yield first
    try:
        client.routes.refresh(topic)
    except RemotingError as error:
        log.info("no name server tells the brokers of %s: %s", topic, error)
    route = client.routes.route(topic)
    others = sorted(data.broker_name for data in route.brokers) if route is not None else []
    yield from (name for name in others if name != first)


def _command(
    client: ClientInstance, queue: MessageQueue, properties: dict[str, str], body: bytes
) -> Command:
    header = SendHeader(
        producer_group=CLIENT_INNER_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        sys_flag=0,
        born_ms=client.clock.now_ms(),
        flag=0,
        properties=encode_properties(properties),
        broker_name=queue.broker_name,
    )
    return Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields=header.to_v2(), body=body)


def _result(queue: MessageQueue, answer: Command) -> SendResult:
    fields = answer.fields or {}
    offset = fields.get("queueOffset", "0")
    return SendResult(
        SendStatus.SEND_OK,
        fields.get("msgId", ""),
        queue,
        QueueOffset(int(offset) if offset.isdigit() else 0),
        fields.get("msgId", ""),
        LogOffset(-1),
    )
