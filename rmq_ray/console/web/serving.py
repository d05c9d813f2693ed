"""The console on a port: in this process, until it is told to end.

``Running`` binds the port when it is made, so that a port that is taken is a typed error at once;
``run`` serves until ``stop``, in whatever thread it is called.
"""

from __future__ import annotations

import gc
import secrets
import socket
from dataclasses import replace

import uvicorn

from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import ClusterView
from rmq_ray.console.web.app import create_app
from rmq_ray.errors import ConfigError

ENDING_S = 2
BACKLOG = 128


def new_token() -> str:
    """That nobody guesses."""
    return secrets.token_urlsafe(32)


class Running:
    """A console that listens. ``ConfigError`` where it cannot."""

    def __init__(self, source: ClusterView, settings: ConsoleSettings) -> None:
        self._socket = _bound(settings.host, settings.port)
        port = int(self._socket.getsockname()[1])
        self.settings = replace(settings, port=port)
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(source, self.settings),
                log_level="warning",
                access_log=False,  # addresses have tokens and messages' keys
                server_header=False,
                timeout_graceful_shutdown=ENDING_S,
            )
        )

    @property
    def url(self) -> str:
        """Where a browser begins; with the token, where one is needed."""
        name = self.settings.names[0] if self.settings.names else self.settings.host
        if ":" in name:
            name = f"[{name}]"
        base = f"http://{name}:{self.settings.port}"
        return base if self.settings.accounts else f"{base}/sign-in?token={self.settings.token}"

    def run(self) -> None:
        """Serve; Ctrl-C ends it in the main thread. The process is the console's from now on: what
        was imported is kept from the garbage collector, which else stops pages for 100 ms.
        """
        gc.collect()
        gc.freeze()
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """``run`` returns soon."""
        self._server.should_exit = True


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise ConfigError(
            f"the console cannot listen on {host}:{port}: {error}; give another --port", str(port)
        ) from None
    return made
