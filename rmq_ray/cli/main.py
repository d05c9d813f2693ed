"""``rmq-ray``: noun and verb, ``rmq-ray topic create orders --queues 4``. Exit code 0 fine, 1
failed, 2 wrong usage, 130 ended by Ctrl-C (but for ``consume``, ``run`` and ``--watch``: that is
how they end).

``shell`` runs such commands one after the other in one process that has joined the cluster
already; each answers at once. From a pipe the lines are a script: its exit code is 1 when one of
them failed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Any

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, show_error, told
from rmq_ray.cli.base.output import FORMATS
from rmq_ray.cli.shell.watch import DEFAULT_S
from rmq_ray.config import CLUSTER_VARIABLE, DEFAULT_CLUSTER

COMMANDS = {
    "plan": ("cluster", "What `up --config` would do, without doing it."),
    "up": ("cluster", "Start the cluster, or attach to it; starts Ray where none runs."),
    "down": ("cluster", "Stop the cluster, and Ray if `up` started it."),
    "status": ("cluster", "Every actor and what it says of itself; exit code 1 if one does not."),
    "health": ("cluster", "Whether everything serves: exit code 0 or 1."),
    "top": ("shell.top", "The busiest topics and the groups that lag most, refreshed."),
    "doctor": ("doctor", "Check this machine and the cluster that runs, with remedies."),
    "topic": ("topics", "Topics: list, create, alter, describe, delete."),
    "table": ("table.commands", "Topics as tables of Parquet files, for DuckDB, Spark and others."),
    "group": ("groups", "Consumer groups: list, describe, alter, lag, seek, skip, clone, delete."),
    "client": ("groups", "Connected consumers: list, describe."),
    "produce": ("messages", "Send one message, or each line of standard input."),
    "consume": ("messages", "Print messages as they come."),
    "message": ("messages", "Single messages: find, get, trace, resend."),
    "dlq": ("dead_letters", "Dead letters of groups: list, show, resend, export."),
    "run": ("deploying", "Run a @rmq.consumer as a group of actors."),
    "workers": ("deploying", "Groups that run under a name: status, scale, stop."),
    "broker": ("brokers", "Brokers, their copies and their settings."),
    "node": ("nodes", "Nodes of Ray that go: drain."),
    "limit": ("brokers", "Bytes and messages a second of topics, groups and accounts."),
    "acl": (
        "access",
        "Accounts and rights: user, list, grant, revoke, test, import, export.",
    ),
    "audit": ("access", "What was refused and what was changed, by whom."),
    "metrics": ("cluster", "Where Prometheus scrapes the cluster; starts the exporter."),
    "tls": ("tls", "Certificates of a cluster."),
    "shell": ("main", "Many commands in one process."),
    "console": ("console", "The cluster in a browser."),
    "completion": ("shell.completion", "Print the script that completes commands in a shell."),
    "mqadmin": ("shell.mqadmin", "Commands by the names of RocketMQ's mqadmin."),
    "store": ("stores", "A store's files on disk."),
    "bench": ("bench", "Quick figures of the running cluster."),
}
"""Each command, the module here that has it, and what help says of it. The module is imported when
the command is used: a command waits for what it needs itself, not for what others need.
"""
WITH_VALUE = ("--access-key", "--address", "--cluster", "--format", "--timeout")
WITHOUT_VALUE = ("-y", "--yes")
WATCH, WATCH_ALONE = "--watch", f"--watch={DEFAULT_S:g}"
PROMPT = "rmq-ray> "
END = ("exit", "quit")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 + SIGINT."""


class Anywhere(click.Group):
    """A group whose own options may also stand behind the verb: ``rmq-ray topic list --format
    json``. Nothing behind ``--`` is touched. What ends one of its commands is said in the format
    that was asked for.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, as help prints them."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return it, by mqadmin's name, too; None where there is none."""
        module, help_line = COMMANDS.get(cmd_name, ("", ""))
        if not module:
            from rmq_ray.cli.shell.mqadmin import stands_for  # only who types such a name waits

            return stands_for(cmd_name)
        found: click.Command = getattr(import_module(f"rmq_ray.cli.{module}"), cmd_name)
        found.short_help = help_line
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All of them, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the options; the format is looked for in them where they are wrong."""
        front = hoisted(args)
        as_json = "--format=json" in front or ("--format", "json") in pairwise(front)
        with _ended(as_json):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _ended(ctx.params["style"] == "json"):
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move our options to the front, in their order."""
        return super().parse_args(ctx, hoisted(args))


@contextmanager
def _ended(as_json: bool) -> Iterator[None]:
    """Ctrl-C ends with its own exit code, also at a question; with ``as_json`` every error is one
    object.
    """
    try:
        yield
    except (KeyboardInterrupt, click.Abort) as ended:
        interrupted = isinstance(ended, KeyboardInterrupt) or isinstance(
            ended.__context__, KeyboardInterrupt
        )
        said = "interrupted" if interrupted else "nothing was done: the answer was not yes"
        if as_json:
            output.error(type(ended).__name__, said)
        else:
            click.echo("\nAborted!" if interrupted else "Aborted!", err=True)
        raise click.exceptions.Exit(INTERRUPTED if interrupted else 1) from None
    except click.ClickException as error:
        if not as_json:
            raise
        show_error(error, as_json)
        raise click.exceptions.Exit(error.exit_code) from None


def hoisted(arguments: Sequence[str]) -> list[str]:
    """
    >>> hoisted(["topic", "list", "--format", "json", "-y", "--", "-y"])
    ['--format', 'json', '-y', 'topic', 'list', '--', '-y']
    >>> hoisted(["group", "lag", "--watch", "billing"])
    ['group', 'lag', '--watch=2', 'billing']
    """
    front: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(arguments):  # ends: at rises
        argument = arguments[at]
        if argument == "--":
            break
        width = 2 if argument in WITH_VALUE else 1
        own = (
            argument in WITH_VALUE
            or argument in WITHOUT_VALUE
            or argument.startswith(tuple(f"{name}=" for name in WITH_VALUE))
        )
        following = "".join(arguments[at + 1 : at + 2])
        if argument == WATCH and not following.replace(".", "", 1).isdigit():
            rest.append(WATCH_ALONE)  # else a name that follows were its value
        else:
            (front if own else rest).extend(arguments[at : at + width])
        at += width
    return [*front, *rest, *arguments[at:]]


@click.group(
    cls=Anywhere, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.option(
    "--address",
    default="auto",
    show_default=True,
    help="Ray cluster to join; auto = the one on this machine.",
)
@click.option(
    "--cluster",
    default=DEFAULT_CLUSTER,
    show_default=True,
    envvar=CLUSTER_VARIABLE,
    help="Name of the message cluster; the environment's RMQ_CLUSTER, where that is set.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="How results are printed.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.001, 86_400),
    default=30.0,
    show_default=True,
    help="Seconds to wait for an answer.",
)
@click.option(
    "--access-key",
    default="",
    help="The account that the command is; its secret key is in RMQ_SECRET_KEY, or in the file "
    "that RMQ_CREDENTIALS names. Without it as RMQ_ACCESS_KEY says.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before deleting.")
@click.version_option(package_name="rmq_ray")
@click.pass_context
def main(
    ctx: click.Context,
    address: str,
    cluster: str,
    style: str,
    timeout_s: float,
    access_key: str,
    yes: bool,
) -> None:
    """The durable message queue inside a Ray cluster."""
    ctx.obj = Options(address, cluster, style, timeout_s, yes, access_key)


@click.command()
@click.pass_context
@pass_options
@told
def shell(options: Options, ctx: click.Context) -> None:
    """Read commands from standard input, as they stand behind `rmq-ray`: `topic list`, `group lag
    billing`. `exit` or Ctrl-D ends.
    """
    options.connect()
    typed = sys.stdin.isatty()
    if typed:
        import readline  # noqa: F401 - gives input() a history and keys to edit with
    failed = False
    for line in _typed() if typed else sys.stdin:
        words = _words(line)
        if words and words[0] in END:
            break
        code = 1 if words is None else _run(ctx.find_root(), options, words) if words else 0
        if code == INTERRUPTED and not typed:
            raise click.exceptions.Exit(INTERRUPTED)
        failed |= code != 0
    if failed and not typed:
        raise click.exceptions.Exit(1)


def _typed() -> Iterator[str]:
    """Until the end of the input."""
    while True:  # ends with Ctrl-D or Ctrl-C
        try:
            yield input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return


def _words(line: str) -> list[str] | None:
    """None, and said, where quotation marks do not end."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        click.echo(f"Error: {error}: {line.strip()}", err=True)
        return None


def _run(root: click.Context, options: Options, words: list[str]) -> int:
    """The command's exit code; what is wrong it says itself."""
    general = [
        "--address",
        options.address,
        "--cluster",
        options.cluster,
        "--format",
        options.style,
        "--timeout",
        str(options.timeout_s),
        "--access-key",
        options.access_key,
    ]
    try:
        root.command.main(
            [*general, *(["-y"] if options.yes else []), *words],
            prog_name="rmq-ray",
            standalone_mode=True,
        )
    except SystemExit as ended:
        return int(ended.code or 0)


if __name__ == "__main__":
    main()
