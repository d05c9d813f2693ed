"""``completion``, and the names of topics and groups that a shell completes.

Names are asked only of a cluster that an earlier command remembered, and only for so long as nobody
notices: a shell gets no error, and never waits for Ray.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import get_completion_class

from rmq_ray.cli.base.context import Options
from rmq_ray.errors import ClusterError

PROGRAM, VARIABLE = "rmq-ray", "_RMQ_RAY_COMPLETE"
ANSWER_S = 0.5


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, and names of topics and groups.

    \b
    bash, in ~/.bashrc:  eval "$(rmq-ray completion bash)"
    zsh, in ~/.zshrc:    eval "$(rmq-ray completion zsh)"
    fish:  rmq-ray completion fish > ~/.config/fish/completions/rmq-ray.fish
    """
    script = get_completion_class(shell)
    assert script is not None, "click has these three"
    click.echo(script(ctx.find_root().command, {}, PROGRAM, VARIABLE).source(), nl=False)


def topic_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics that begin so."""
    return _names(ctx, incomplete, lambda admin: admin.topics())


def group_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Consumer groups that begin so."""
    return _names(ctx, incomplete, lambda admin: admin.groups())


class WithoutRay(Options):
    """Knows the cluster only as it is remembered."""

    def connect_ray(self, port: int | None = None) -> None:
        """Refused."""
        raise ClusterError("a shell does not wait for Ray", self.address)


def _names(ctx: click.Context, incomplete: str, ask: Callable[[Any], list[str]]) -> list[str]:
    found: list[str] = []
    arguments = (ctx.find_root().params, ask, found)
    asking = threading.Thread(target=_ask, args=arguments, name="completion", daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    return sorted(name for name in tuple(found) if name.startswith(incomplete))


def _ask(general: Mapping[str, Any], ask: Callable[[Any], list[str]], found: list[str]) -> None:
    with suppress(Exception):  # whatever it is, it would stand in the middle of somebody's line
        from rmq_ray.client.admin.admin import Admin

        options = WithoutRay(
            general["address"], general["cluster"], access_key=general["access_key"]
        )
        admin = Admin(options.discovery, timeout_ms=int(ANSWER_S * 1000))
        found.extend(ask(admin))
        admin.close()
