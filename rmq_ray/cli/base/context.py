"""What every command shares: which Ray cluster, which message cluster, how to print; and how errors
become exit codes.

Invariant of the command line: Ray is imported only by what joins it, and behind
``Options.meant_ray``. Commands that talk to brokers and name servers alone join it only where no
earlier one did (``remembered``); so they are quick, and Ray learns its token mode in time. Standard
output belongs to the command: Ray prints
notes ("node ... has been marked dead") in a thread of its own of every driver, straight to
``sys.stdout``; they go to standard error.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

import rmq_ray
from rmq_ray.actors.access_keys import environments_account, given_account, secret_key_of
from rmq_ray.actors.discovery import has_joined_ray
from rmq_ray.cli.base import output, ray_head
from rmq_ray.config import DEFAULT_CLUSTER, put_environment
from rmq_ray.errors import ClientError, ClusterError, ConfigError, RmqError
from rmq_ray.extras import named

if TYPE_CHECKING:
    from rmq_ray.actors.discovery import RayDiscovery
    from rmq_ray.actors.remembered import RememberedDiscovery
    from rmq_ray.client.admin.admin import Admin

F = TypeVar("F", bound=Callable[..., Any])
_WORDS_MAX = 300
RAY_THREADS = "ray_"
"""How the names of Ray's threads begin in a driver."""


@dataclass
class Options:
    """The options before the noun. ``address``: of the Ray cluster, "auto" = the one that runs on
    this machine. ``access_key``: the account that the command is; "" = as the environment says.
    """

    address: str = ray_head.AUTO
    cluster: str = DEFAULT_CLUSTER
    style: str = "table"
    timeout_s: float = 30.0
    yes: bool = False
    access_key: str = ""
    _admin: Admin | None = field(default=None, repr=False)
    _discovery: RememberedDiscovery | None = field(default=None, repr=False)

    @property
    def timeout_ms(self) -> int:
        """--timeout in the unit of clients."""
        return max(1, int(self.timeout_s * 1000))

    def connect_ray(self, port: int | None = None) -> None:
        """Join the Ray cluster that is meant (``ray_head.find``); ``ClusterError`` where none
        runs.
        """
        if has_joined_ray():
            return
        address = self._ray_address(port)
        import ray
        import ray.exceptions

        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            remedy = "if it demands a token, set RAY_AUTH_MODE=token"
            raise ClusterError(
                f"Ray at {address} refused this command: {first_line(error)}; {remedy}", address
            ) from error

    def meant_ray(self, port: int | None = None) -> str | None:
        """Address of the Ray cluster that is meant, None where none runs here; ``ClusterError`` as
        ``ray_head.find``. From now on Ray may be imported: the token's mode is decided, which it
        reads once, at its import, and its prints go to standard error.
        """
        if has_joined_ray():
            return str(sys.modules["ray"].get_runtime_context().gcs_address)
        address = ray_head.find(self.address, port)
        if address is not None and ray_head.needs_token(address):
            put_environment("RAY_AUTH_MODE", "token")
        keep_ray_out()
        return address

    def _ray_address(self, port: int | None = None) -> str:
        address = self.meant_ray(port)
        if address is None:
            where = "on this machine" if port is None else f"on port {port} of this machine"
            raise ClusterError(
                f"no Ray cluster runs {where}: start one with `rmq-ray up` or `ray start --head`",
                self.address,
            )
        return address

    def connect(self) -> rmq_ray.Cluster:
        """Join Ray and attach to the message cluster."""
        secret_key = secret_key_of(self.access_key) if self.access_key else ""
        self.connect_ray()
        return rmq_ray.connect(self.cluster, access_key=self.access_key, secret_key=secret_key)

    @property
    def discovery(self) -> RememberedDiscovery:
        """Where the message cluster is, without joining Ray where that is known."""
        from rmq_ray.actors.remembered import RememberedDiscovery, directory_of_user, note

        if self._discovery is None:
            secret_key = secret_key_of(self.access_key) if self.access_key else ""
            account = given_account(self.access_key, secret_key, self.cluster)
            account = account or environments_account(self.cluster)
            path = note(directory_of_user(), self._ray_address(), self.cluster)
            self._discovery = RememberedDiscovery(path, self._join, account)
        return self._discovery

    def _join(self) -> RayDiscovery:
        self.connect_ray()
        from rmq_ray.actors.discovery import RayDiscovery

        return RayDiscovery(self.cluster)

    @property
    def admin(self) -> Admin:
        """Administration of the message cluster, answers awaited for --timeout seconds; closed when
        the command ends.
        """
        if self._admin is None:
            from rmq_ray.client.admin.admin import Admin

            self._admin = Admin(self.discovery, timeout_ms=self.timeout_ms)
            click.get_current_context().call_on_close(self._admin.close)
        return self._admin

    def disconnect(self) -> None:
        """Close connections to brokers and name servers; the next call finds the cluster anew."""
        if self._admin is not None:
            self._admin.close()

    def confirm(self, question: str) -> None:
        """Ask before something is deleted, unless -y was given; "no" ends the command with exit
        code 1.
        """
        if not self.yes:
            click.confirm(question, abort=True, err=True)


pass_options = click.make_pass_decorator(Options, ensure=True)


def told(command: F) -> F:
    """Turn our errors, and packages of extras that are not installed, into one line on stderr: exit
    code 2 for values that can never be right, 1 for everything else.
    """

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        try:
            with named():
                return command(*arguments, **options)
        except (ConfigError, ClientError) as error:
            raise click.UsageError(f"{first_line(error)} [{type(error).__name__}]") from error
        except RmqError as error:
            raise click.ClickException(f"{first_line(error)} [{type(error).__name__}]") from error

    return wrapped  # type: ignore[return-value]


def show_error(error: click.ClickException, as_json: bool) -> None:
    """On standard error: in words, or as an object that has the type of our error, if it is one."""
    if not as_json:
        error.show()
        return
    kind = type(error.__cause__ if isinstance(error.__cause__, RmqError) else error).__name__
    output.error(kind, error.format_message().removesuffix(f" [{kind}]"))


def first_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:_WORDS_MAX] or type(error).__name__


class CommandsOutput:
    """A text stream that writes what Ray's threads print to another one; in everything else it is
    the stream that it was made of.
    """

    def __init__(self, own: TextIO, other: TextIO) -> None:
        self._own, self._other = own, other

    def write(self, text: str) -> int:
        """To the stream of whoever writes."""
        stream = (
            self._other if threading.current_thread().name.startswith(RAY_THREADS) else self._own
        )
        return stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def keep_ray_out() -> None:
    """From now on what Ray prints goes to standard error; harmless when repeated. Called before Ray
    is imported.
    """
    # else the last of them come out of the main thread, at its end
    put_environment("RAY_DEDUP_LOGS", "0")
    if not isinstance(sys.stdout, CommandsOutput):
        sys.stdout = CommandsOutput(sys.stdout, sys.stderr)
