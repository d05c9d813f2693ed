"""``produce``, ``consume``, ``message find | get | trace | resend``: lines in, lines out, single
messages.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.shell.completion import group_names, topic_names
from rmq_ray.client.admin.resending import Resending
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import ClusterError, NotAuthorized, RmqError, SendUnknown
from rmq_ray.model.topics import TRACE_TOPIC

if TYPE_CHECKING:
    from rmq_ray.client.push.push_consumer import PushConsumer

GROUP = "rmq-ray-cli"
COLUMNS = [
    "broker",
    "topic",
    "queue",
    "queue_offset",
    "message_id",
    "tag",
    "keys",
    "properties",
    "body",
]
TRACE_COLUMNS = (
    "time_ms kind group topic message_id tag keys store_host body_bytes cost_ms success retries "
    "request_id code state"
).split()
DETAILS = ["log_offset", "size", "store_ms", "born_ms", "reconsume_times"]
UNANSWERED_MAX = 10_000
"""Lines of standard input that may be under way."""
STOP_MS = 200
FOREVER_S = 3_600.0
_POLL_S = 0.2


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("body", required=False)
@click.option("--tag", default=None, help="Tag of every message.")
@click.option("--key", "keys", multiple=True, help="Business key; may be given several times.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="User property; may be given several times.",
)
@click.option("--trace", is_flag=True, help="Trace it: see message trace.")
@pass_options
@told
def produce(
    options: Options,
    topic: str,
    body: str | None,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    trace: bool,
) -> None:
    """Send BODY and print where it was stored; or send each line of standard input and print how
    many there were.

    Empty lines are left out: RocketMQ knows no empty messages.
    """
    parts: dict[str, Any] = {
        "tag": tag,
        "keys": list(keys),
        "properties": dict(_pair(text) for text in properties),
    }
    options.admin.masters()  # what is stopped is told now, not when the send's time is over
    with Producer(
        GROUP, discovery=options.discovery, send_timeout_ms=options.timeout_ms, trace=trace
    ) as producer:
        if body is None:
            output.record(
                {"topic": topic, "messages": _send_lines(producer, topic, parts)}, options.style
            )
            return
        result = producer.send(topic, body.encode(), **parts)
    found = {
        "status": result.status.name,
        "message_id": result.message_id,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
    }
    found |= {"queue_offset": result.queue_offset, "offset_message_id": result.offset_message_id}
    output.record(found, options.style)


def _send_lines(producer: Producer, topic: str, parts: dict[str, Any]) -> int:
    """Batched; returns how many were stored. A line that is not ends the command, and names itself;
    those before it, and what is under way, are awaited.
    """
    if sys.stdin.isatty():
        click.echo("each line becomes a message; Ctrl-D ends", err=True)
    under_way: deque[tuple[int, Future[Any]]] = deque()
    stored, fault = 0, None
    for number, line in _lines():
        under_way.append((number, _sent(producer, topic, line, parts)))
        while (
            under_way and not fault and (under_way[0][1].done() or len(under_way) > UNANSWERED_MAX)
        ):
            fault = _fault(*under_way.popleft())
            stored += not fault
        if fault or under_way and under_way[-1][1].done() and under_way[-1][1].exception():
            break
    for number, future in under_way:
        error = _fault(number, future)
        stored += not error
        fault = fault or error
    if fault:
        raise click.ClickException(f"{stored} messages were stored; {fault}")
    return stored


def _sent(producer: Producer, topic: str, line: bytes, parts: dict[str, Any]) -> Future[Any]:
    """What is refused at once is a future, too: the lines before it have their turn first."""
    try:
        return producer.send_async(topic, line, **parts)
    except RmqError as error:
        refused: Future[Any] = Future()
        refused.set_exception(error)
        return refused


def _fault(number: int, future: Future[Any]) -> str | None:
    """Why a line was not stored, or perhaps not."""
    try:
        future.result()
    except SendUnknown as error:
        return f"line {number} may be: {error} [{type(error).__name__}]"
    except RmqError as error:
        return f"line {number} was not: {error} [{type(error).__name__}]"
    return None


def _lines() -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        if body := line.rstrip(b"\n"):
            yield number, body


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--group",
    default=GROUP,
    show_default=True,
    help="Consumer group; its position moves.",
    shell_complete=group_names,
)
@click.option("--expression", default="*", show_default=True, help="Tags, like 'paid || refund'.")
@click.option(
    "--from",
    "start_from",
    type=click.Choice(["first", "last"]),
    default="last",
    show_default=True,
    help="Where a new group begins; a topic that is still in the broker's memory is read from its "
    "first message either way.",
)
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=None, help="Stop after so many messages."
)
@click.option(
    "--idle",
    "idle_s",
    type=click.FloatRange(min=0),
    default=None,
    help="Stop when nothing came for so many seconds.",
)
@pass_options
@told
def consume(
    options: Options,
    topic: str,
    group: str,
    expression: str,
    start_from: str,
    limit: int | None,
    idle_s: float | None,
) -> None:
    """Print messages as they come, until --max, --idle or Ctrl-C. The next call of the same group
    goes on behind them.

    Tables show bodies only; --format json prints an object a line with everything (a body that is
    not UTF-8 as base64:...).
    """
    from rmq_ray.client.push.push_consumer import PushConsumer

    options.admin.masters()
    options.admin.route(topic)
    printer = _Printer(options.style, limit)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.getLogger("rmq_ray.client.consumer").setLevel(
        logging.ERROR
    )  # the message that the printer holds is meant to come again
    consumer = PushConsumer(
        group,
        listener=printer,
        subscriptions={topic: expression},
        start_from=start_from,
        concurrency=1,
        batch_size=1,
        discovery=options.discovery,
    )
    consumer.start()
    try:
        _wait_for_queues(consumer, topic, options.timeout_s)
        while not printer.done.is_set() and printer.wait_for_more(idle_s):
            pass
    except KeyboardInterrupt:
        printer.done.set()
    finally:
        printer.done.set()
        consumer.stop(STOP_MS if printer.holds else options.timeout_ms)


def _wait_for_queues(consumer: PushConsumer, topic: str, limit_s: float) -> None:
    """Other members of the group may hold all queues: that is fine, but is said."""
    pause, waited = threading.Event(), 0.0
    while not any(queue.topic == topic for queue in consumer.assignment()):
        if why := consumer.stats()["refused"]:
            raise NotAuthorized(f"group {consumer.group} is not let in: {why}", topic)
        if consumer.balanced and waited > 1.0:
            click.echo(
                f"other members of group {consumer.group} hold all queues of {topic}; "
                f"waiting for a share",
                err=True,
            )
            return
        if waited > limit_s:
            raise ClusterError(
                f"group {consumer.group} was given no queue of {topic} within {limit_s:.0f} "
                f"s: see `rmq-ray health`",
                topic,
            )
        pause.wait(_POLL_S)
        waited += _POLL_S


def _leave_output() -> None:
    """Who read it is gone: what is buffered goes nowhere, else Python ends with exit code 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _Printer:
    """The listener of one thread. Behind the last wanted message it holds on to the next one until
    the consumer stops: so that one is not counted as consumed, and comes again.
    """

    def __init__(self, style: str, limit: int | None) -> None:
        self._style, self._left = style, limit
        self._came = threading.Event()
        self.done = threading.Event()
        self.holds = False

    def __call__(self, messages: list[MessageExt], ctx: Any) -> None:
        if self.done.is_set():
            self._hold()
        try:
            for message in messages:
                click.echo(
                    output.text(message.body)
                    if self._style == "table"
                    else json.dumps(plain_row(message), ensure_ascii=False)
                )
        except OSError:
            _leave_output()
            self.done.set()
            self._came.set()
            self._hold()
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.done.set()
        self._came.set()

    def _hold(self) -> None:
        self.holds = True
        threading.Event().wait(FOREVER_S)

    def wait_for_more(self, idle_s: float | None) -> bool:
        """False when nothing came within ``idle_s``."""
        came = self._came.wait(idle_s if idle_s is not None else _POLL_S)
        self._came.clear()
        return came or idle_s is None


def plain_row(message: MessageExt, body: bytes | None = None) -> Any:
    """Everything of a message, as JSON can carry it; ``body``: in place of its own."""
    return output.plain(
        {
            "topic": message.topic,
            "broker": message.queue.broker_name,
            "queue": message.queue.queue_id,
            "queue_offset": message.queue_offset,
            "message_id": message.message_id,
            "tag": message.tag,
            "keys": message.keys,
            "properties": message.properties,
            "born_ms": message.born_ms,
            "store_ms": message.store_ms,
            "reconsume_times": message.reconsume_times,
            "body": message.body if body is None else body,
        }
    )


@click.group()
def message() -> None:
    """Single messages: find, get, trace, resend."""


@message.command("find")
@click.argument("topic", shell_complete=topic_names)
@click.argument("key")
@click.option(
    "--max",
    "limit",
    default=32,
    show_default=True,
    type=click.IntRange(1, 64),
    help="How many, newest first.",
)
@pass_options
@told
def find(options: Options, topic: str, key: str, limit: int) -> None:
    """Messages of TOPIC with a business KEY (a message id is a key too)."""
    output.rows(
        options.admin.find_messages(topic, key, limit=limit),
        COLUMNS if options.style == "table" else COLUMNS + DETAILS,
        options.style,
    )


@message.command("trace")
@click.argument("message_id")
@click.option("--topic", default=TRACE_TOPIC, show_default=True, help="Where traced clients write.")
@pass_options
@told
def trace(options: Options, message_id: str, topic: str) -> None:
    """What became of a message (its id or a business key), as traced producers and consumers wrote
    it.
    """
    rows = options.admin.message_trace(message_id, topic=topic)
    if not rows:
        raise click.ClickException(
            f"topic {topic} has no trace of {message_id}: nobody traced it (trace=True, "
            f"ConsumeTrace()), or it is not written yet"
        )
    output.rows(
        [{name: row.get(name) for name in TRACE_COLUMNS} for row in rows],
        TRACE_COLUMNS,
        options.style,
    )


@message.command("get")
@click.argument("message_id")
@click.option(
    "--topic",
    default=None,
    help="Topic of a message id; an offset message id needs none.",
    shell_complete=topic_names,
)
@pass_options
@told
def get(options: Options, message_id: str, topic: str | None) -> None:
    """One message by its message id (with --topic) or its offset message id."""
    if topic is None:
        found = [options.admin.message_at(message_id)]
    else:
        found = [
            row
            for row in options.admin.find_messages(topic, message_id)
            if row["message_id"] == message_id
        ]
    if not found:
        raise click.ClickException(
            f"topic {topic} has no message {message_id}: it was removed with an old segment, "
            f"or never stored"
        )
    output.record(found[0], options.style)


@message.command("resend")
@click.option("--topic", required=True, help="Topic of the messages.", shell_complete=topic_names)
@click.option(
    "--id",
    "message_ids",
    multiple=True,
    metavar="MESSAGE_ID",
    help="This message; may be given several times.",
)
@click.option("--key", default=None, help="All messages with this business key.")
@click.option(
    "--to", default=None, metavar="TOPIC", help="Send them there and not to their own topic."
)
@click.option(
    "--max",
    "limit",
    default=64,
    show_default=True,
    type=click.IntRange(1, 64),
    help="With --key: how many, the newest.",
)
@click.option(
    "--execute", is_flag=True, help="Send them; without this only what would be sent is shown."
)
@pass_options
@told
def resend(
    options: Options,
    topic: str,
    message_ids: tuple[str, ...],
    key: str | None,
    to: str | None,
    limit: int,
    execute: bool,
) -> None:
    """Send messages again as new ones: every group of the topic gets them. A dry run unless
    --execute.
    """
    if bool(message_ids) == (key is not None):
        raise click.UsageError("say which messages: --id (several times, if need be) or --key")
    resending = Resending(options.discovery, timeout_ms=options.timeout_ms)
    click.get_current_context().call_on_close(resending.close)
    rows = resending.resend_messages(
        topic, message_ids=message_ids, key=key, to=to, limit=limit, execute=execute
    )
    if not rows:
        raise click.ClickException(f"topic {topic} has no message with key {key}")
    output.rows(
        rows,
        (["resent_as"] if execute else [])
        + (COLUMNS if options.style == "table" else COLUMNS + DETAILS),
        options.style,
    )
    if not execute:
        click.echo("nothing was sent: say --execute to do it", err=True)
