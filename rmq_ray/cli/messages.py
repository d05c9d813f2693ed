"""``produce`` and ``consume``: lines in, lines out."""

from __future__ import annotations

import sys
import threading
from typing import Any

import click

from rmq_ray.actors.clients import Producer, PushConsumer
from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told
from rmq_ray.client.listener import RECONSUME_LATER


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--tag", default=None, help="Tag of every message.")
@click.option("--key", "keys", multiple=True, help="Business key; may be given several times.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="User property; may be given several times.")
@pass_options
@told
def produce(options: Options, topic: str, body: str | None, tag: str | None, keys: tuple[str, ...], properties: tuple[str, ...]) -> None:
    """Send BODY, or each line of standard input, and print where it was stored."""
    options.connect()
    pairs = dict(_pair(text) for text in properties)
    lines = [body] if body is not None else (line.rstrip("\n") for line in sys.stdin)
    found: list[dict[str, Any]] = []
    with Producer("rmq-ray-cli", cluster=options.cluster, send_timeout_ms=int(options.timeout_s * 1000)) as producer:
        for line in lines:
            result = producer.send(topic, line.encode(), tag=tag, keys=list(keys), properties=pairs)
            found.append(
                {
                    "status": result.status.name,
                    "message_id": result.message_id,
                    "broker": result.queue.broker_name,
                    "queue": result.queue.queue_id,
                    "offset": result.queue_offset,
                }
            )
    output.rows(found, ["status", "message_id", "broker", "queue", "offset"], options.style)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


@click.command()
@click.argument("topic")
@click.option("--group", default="rmq-ray-cli", show_default=True, help="Consumer group; its position moves.")
@click.option("--expression", default="*", show_default=True, help="Tags, like 'paid || refund'.")
@click.option("--from", "start_from", type=click.Choice(["first", "last"]), default="first", show_default=True, help="Where a new group begins.")
@click.option("--max", "limit", type=int, default=None, help="Stop after so many messages.")
@click.option("--idle", "idle_s", type=float, default=None, help="Stop when nothing came for so many seconds.")
@pass_options
@told
def consume(options: Options, topic: str, group: str, expression: str, start_from: str, limit: int | None, idle_s: float | None) -> None:
    """Print messages as they come, until --max, --idle or Ctrl-C."""
    options.connect()
    printer = _Printer(options.style, limit)
    consumer = PushConsumer(group, listener=printer, subscriptions={topic: expression}, start_from=start_from, concurrency=1, cluster=options.cluster)
    with consumer:
        try:
            while not printer.done.is_set() and printer.wait_for_more(idle_s):
                pass
        except KeyboardInterrupt:
            click.echo("", err=True)


class _Printer:
    """The listener; tells the main thread when it has printed enough."""

    def __init__(self, style: str, limit: int | None) -> None:
        self._style, self._left = style, limit
        self._came = threading.Event()
        self.done = threading.Event()

    def __call__(self, messages: list[Any], ctx: Any) -> Any:
        for message in messages:
            if self._left == 0:
                return RECONSUME_LATER
            row = {
                "topic": message.topic,
                "queue": message.queue.queue_id,
                "offset": message.queue_offset,
                "tag": message.tag,
                "keys": message.keys,
                "body": bytes(message.body),
            }
            click.echo(output.text(row["body"])) if self._style == "table" else click.echo(output.plain(row))
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    self.done.set()
        self._came.set()
        return None

    def wait_for_more(self, idle_s: float | None) -> bool:
        """False when nothing came within ``idle_s``."""
        came = self._came.wait(idle_s if idle_s is not None else 0.5)
        self._came.clear()
        return came or idle_s is None
