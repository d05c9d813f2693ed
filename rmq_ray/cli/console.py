"""``console``: commands one after the other in one process that has joined the cluster already;
each answers at once.

A line is what stands behind ``rmq-ray``. From a pipe the lines are a script: its exit code is 1
when one of them failed. Called by ``main``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import click

from rmq_ray.cli.context import Options, pass_options, told

PROMPT = "rmq-ray> "
END = ("exit", "quit")


@click.command(short_help="Many commands in one process.")
@click.pass_context
@pass_options
@told
def console(options: Options, ctx: click.Context) -> None:
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
        failed |= words is None or (bool(words) and not _run(ctx.find_root(), options, words))
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


def _run(root: click.Context, options: Options, words: list[str]) -> bool:
    """Whether the command worked; what is wrong it says itself."""
    general = [
        "--address",
        options.address,
        "--cluster",
        options.cluster,
        "--format",
        options.style,
        "--timeout",
        str(options.timeout_s),
    ]
    try:
        root.command.main(
            [*general, *(["-y"] if options.yes else []), *words],
            prog_name="rmq-ray",
            standalone_mode=True,
        )
    except SystemExit as ended:
        return not ended.code
