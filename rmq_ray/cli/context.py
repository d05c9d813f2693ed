"""What every command shares: which Ray cluster, which message cluster, how to print; and how errors become exit codes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import ray

from rmq_ray import cluster
from rmq_ray.config import DEFAULT_CLUSTER
from rmq_ray.errors import ClusterError, RmqError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Options:
    """The options before the noun. ``address``: of the Ray cluster, "auto" = the one that runs on this machine."""

    address: str = "auto"
    cluster: str = DEFAULT_CLUSTER
    style: str = "table"
    timeout_s: float = 30.0
    yes: bool = False

    def connect_ray(self) -> None:
        """Join the Ray cluster; ``ClusterError`` where none runs."""
        if ray.is_initialized():
            return
        try:
            ray.init(address=self.address, logging_level="ERROR", log_to_driver=False)
        except ConnectionError as error:
            raise ClusterError(f"no Ray cluster runs at {self.address!r}: start one with `rmq-ray up` or `ray start --head`", self.address) from error

    def connect(self) -> cluster.Cluster:
        """Join Ray and attach to the message cluster."""
        self.connect_ray()
        return cluster.connect(self.cluster)


pass_options = click.make_pass_decorator(Options, ensure=True)


def told(command: F) -> F:
    """Turn our errors into one line on stderr and exit code 1 (wrong usage is click's, 2)."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except RmqError as error:
            raise click.ClickException(f"{error} [{type(error).__name__}]") from error

    return wrapped  # type: ignore[return-value]
