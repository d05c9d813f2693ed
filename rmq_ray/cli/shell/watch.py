"""``--watch [SECONDS]``: a command that shows a state shows it again and again, in one process
whose connections stay open.

On a terminal each round replaces the one before; elsewhere rounds follow one another, each below
its time and command; as JSON each is a document. What goes wrong in a round is shown, and the
next one finds the cluster anew. Only what can never be right ends it.
"""

from __future__ import annotations

import functools
import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TypeVar

import click

from rmq_ray.cli.base.context import Options, show_error
from rmq_ray.clock import SYSTEM_CLOCK, local_time
from rmq_ray.errors import RmqError

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_S = 2.0


def watched(command: F) -> F:
    """Give a command ``--watch``; stands between ``pass_options`` and ``told``."""

    @click.option(
        "--watch",
        "every_s",
        is_flag=False,
        flag_value=DEFAULT_S,
        type=click.FloatRange(0.1, 86_400),
        metavar="[SECONDS]",
        help="Show it again every so many seconds (2), until Ctrl-C; the exit code is 0 then.",
    )
    @functools.wraps(command)
    def wrapped(options: Options, /, *arguments: Any, every_s: float | None, **given: Any) -> Any:
        show = functools.partial(command, options, *arguments, **given)
        if every_s is None:
            return show()
        watch_rounds(options, every_s, show)

    return wrapped  # type: ignore[return-value]


def watch_rounds(options: Options, every_s: float, show: Callable[[], Any]) -> None:
    """Show it again and again, until Ctrl-C, which waits for what is just being asked; a second one
    does not.
    """
    title = f"every {every_s:g} s: {_words(click.get_current_context())}"
    as_json = options.style == "json"
    redrawn = sys.stdout.isatty() and not as_json
    with suppress(KeyboardInterrupt):
        while True:  # ends by Ctrl-C
            with _uninterrupted():
                _show_once(options, title, redrawn, as_json, show)
            SYSTEM_CLOCK.sleep_ms(every_s * 1000)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C is an exception at the block's end: in the middle of anything one might meet a
    finaliser, which prints and forgets it. A second one does not wait.
    """
    pressed = False

    def press(*_: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _show_once(
    options: Options, title: str, redrawn: bool, as_json: bool, show: Callable[[], Any]
) -> None:
    head = f"{local_time(SYSTEM_CLOCK.now_ms())}  {title}"
    if redrawn:
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            _round(options, show)
        click.clear()
        click.echo(f"{head}\n{said.getvalue()}", nl=False)
        return
    if not as_json:
        click.echo(head)
    _round(options, show)
    if not as_json:
        click.echo()


def _round(options: Options, show: Callable[[], Any]) -> None:
    try:
        show()
    except click.UsageError:
        raise
    except click.ClickException as error:
        show_error(error, options.style == "json")
        if isinstance(error.__cause__, RmqError):
            options.disconnect()
    except click.exceptions.Exit:
        pass  # what does not serve stands in the rows


def _words(context: click.Context) -> str:
    """The command as it was typed, without its options."""
    values = (
        context.params[parameter.name]
        for parameter in context.command.params
        if isinstance(parameter, click.Argument) and parameter.name
    )
    return " ".join([context.command_path, *(str(value) for value in values)])
