"""``up``, ``down``, ``status``: the life of a cluster on this machine.

``up`` starts a Ray head where none runs, at niceness 0, and writes down that it did, so that ``down`` stops only that.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import ray

from rmq_ray import cluster
from rmq_ray.cli import output
from rmq_ray.cli.context import Options, pass_options, told
from rmq_ray.config import put_environment
from rmq_ray.errors import ClusterError

RAY_START_TIMEOUT_S = 120
HEAD_PORT = 6379


@click.command()
@click.option("--brokers", default=1, show_default=True, help="How many brokers, each with its own store.")
@click.option("--name-servers", default=1, show_default=True, help="How many name servers.")
@click.option("--store", "store_path", default="rmq-data", show_default=True, type=click.Path(file_okay=False), help="Directory of the stores.")
@click.option("--flush", type=click.Choice(["async", "sync"]), default="async", show_default=True, help="When a send counts as stored.")
@click.option(
    "--foreign", type=click.Choice(["closed", "open"]), default="closed", show_default=True, help="Whether Apache RocketMQ's own clients may connect."
)
@click.option("--host", default=None, help="Address to listen on; default loopback on a cluster of one node.")
@pass_options
@told
def up(options: Options, brokers: int, name_servers: int, store_path: str, flush: str, foreign: str, host: str | None) -> None:
    """Start the cluster, or attach to it; starts Ray first where none runs."""
    started = _join_or_start_ray(options)
    mq = cluster.start(options.cluster, brokers=brokers, name_servers=name_servers, store_path=store_path, flush=flush, foreign=foreign, host=host)
    note = _note(options.cluster)
    if started:
        note.write_text(json.dumps({"ray_head": True}))
    output.record({"cluster": options.cluster, "ray": "started" if started else "was running", **mq.addresses}, options.style)


@click.command()
@pass_options
@told
def down(options: Options) -> None:
    """Stop the cluster, its stores cleanly closed, and the Ray head if ``up`` started it. Data stay on disk."""
    note = _note(options.cluster)
    head_is_ours = note.exists()
    try:
        options.connect().stop()
        click.echo(f"cluster {options.cluster} stopped")
    except ClusterError:
        if not head_is_ours:
            raise
        click.echo(f"cluster {options.cluster} did not run")
    if head_is_ours:
        ray.shutdown()
        note.unlink()
        _ray("stop")
        click.echo("the Ray head that `rmq-ray up` started is stopped")


@click.command()
@pass_options
@told
def status(options: Options) -> None:
    """Every actor of the cluster and what it says of itself."""
    found = options.connect().status()
    if options.style == "json":
        output.record(found, options.style)
        return
    rows = [_summary(name, state) for name, state in found.items() if isinstance(state, dict) and name != "supervision"]
    click.echo(f"cluster {options.cluster}: {found['controller']}")
    output.rows(rows, ["actor", "state", "pid", "address", "detail"], options.style)


def _summary(name: str, state: dict[str, Any]) -> dict[str, Any]:
    main_keys = ("state", "pid", "address")
    detail = {key: value for key, value in state.items() if key not in main_keys and isinstance(value, str | int | float | bool)}
    return {"actor": name, **{key: state.get(key) for key in main_keys}, "detail": detail}


def _join_or_start_ray(options: Options) -> bool:
    """True when this call started the head."""
    try:
        options.connect_ray()
        return False
    except ClusterError:
        if options.address != "auto":
            raise
    put_environment("RAY_worker_niceness", "0")  # read by the raylet: restarts of a killed broker are three times quicker
    _ray("start", "--head", f"--port={HEAD_PORT}", "--disable-usage-stats", "--include-dashboard=false")
    options.connect_ray()
    return True


def _ray(*arguments: str) -> None:
    beside = Path(sys.executable).with_name("ray")
    program = str(beside) if beside.exists() else shutil.which("ray")
    if program is None:
        raise ClusterError("the program `ray` is not beside this python and not on PATH: install rmq_ray into this environment")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=RAY_START_TIMEOUT_S, check=False)
    if done.returncode:
        raise ClusterError(f"`ray {' '.join(arguments)}` failed: {(done.stderr or done.stdout).strip()[-500:]}")


def _note(name: str) -> Path:
    directory = Path(tempfile.gettempdir()) / "rmq_ray-heads"
    directory.mkdir(exist_ok=True)
    return directory / f"{name}.json"
