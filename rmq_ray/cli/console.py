"""``console``: the cluster in a browser, served by an actor, or with ``--here`` by this process."""

from __future__ import annotations

from contextlib import suppress

import click

from rmq_ray.actors.access_keys import secret_key_of
from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.console.extras import check_extra
from rmq_ray.console.settings import PORT, ConsoleSettings
from rmq_ray.errors import ClusterError
from rmq_ray.ports import Discovery


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="What it listens on. Beside loopback whoever reaches it needs the token, or an account.",
)
@click.option(
    "--port",
    default=PORT,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="0 = any free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="A name that browsers reach it by, beside --host; repeatable.",
)
@click.option("--allow-write", is_flag=True, help="Let it change things; without it it only shows.")
@click.option("--here", is_flag=True, help="Serve in this process until Ctrl-C, not in an actor.")
@click.option(
    "--name-server",
    "name_servers",
    default=None,
    metavar="HOST:PORT",
    help="Of a cluster whose Ray cannot be reached; serves in this process, as --access-key.",
)
@click.option(
    "--resource",
    default="",
    help="A custom Ray resource of the node that serves it.  [default: the head]",
)
@click.option("--stop", is_flag=True, help="End the console that runs.")
@pass_options
@told
def console(  # noqa: PLR0913 - what click hands over
    options: Options,
    host: str,
    port: int,
    names: tuple[str, ...],
    allow_write: bool,
    here: bool,
    name_servers: str | None,
    resource: str,
    stop: bool,
) -> None:
    """Serve the cluster's web pages, and print where: groups with their lag, dead letters, topics,
    messages, brokers. Read-only unless --allow-write. Needs `pip install 'rmq_ray[console]'`.
    """
    check_extra()
    here = here or name_servers is not None
    if here and resource:
        raise click.UsageError("--resource places an actor: leave it out, or --here")
    if stop or name_servers is None:
        options.connect()
    else:
        with suppress(ClusterError):  # the cluster of these name servers has a Ray of its own
            options.meant_ray()
    from rmq_ray.console.source import ClusterView
    from rmq_ray.console.web import actor, serving

    if stop:
        was = actor.stop(options.cluster)
        output.record({"console": "stopped" if was else "was not running"}, options.style)
        return
    accounts = name_servers is None and actor.has_accounts(options.cluster)
    settings = ConsoleSettings(
        options.cluster, host, port, allow_write, serving.new_token(), accounts, names
    )
    if not here:
        url, running = actor.find_or_start(settings, resource)
        _tell(options, url)
        if running.token != settings.token:
            click.echo("it ran already and keeps its settings; --stop ends it", err=True)
        return
    probe = actor.RayProbe(options.cluster) if name_servers is None else None
    discovery = _discovery(options, name_servers)
    source = ClusterView(discovery, deadline_ms=settings.deadline_ms, probe=probe)
    served = serving.Running(source, settings)
    _tell(options, served.url)
    served.run()


def _discovery(options: Options, name_servers: str | None) -> Discovery:
    from rmq_ray.actors.discovery import discovery_for

    key = options.access_key
    secret = secret_key_of(key) if key else ""
    return discovery_for(options.cluster, name_servers, b"", access_key=key, secret_key=secret)


def _tell(options: Options, url: str) -> None:
    if options.style == "json":
        output.record({"address": url}, options.style)
    else:
        click.echo(url)
