"""A connection without a socket: keeps what the broker sends."""

from __future__ import annotations

from typing import Any


class FakePeer:
    """See ``ports.Peer``."""

    def __init__(
        self,
        host: str = "10.0.0.9",
        port: int = 40_001,
        trusted: bool = True,
        account: str = "",
    ) -> None:
        self.host, self.port = host, port
        self.trusted, self.account = trusted, account
        self.member = trusted and not account
        self.closed = self.hung_up = False
        self.close_reason = ""
        self.attributes: dict[str, Any] = {}
        self.sent: list[Any] = []

    def send(self, command: Any) -> None:
        if not self.closed:
            self.sent.append(command)

    def close(self, reason: str) -> None:
        self.closed, self.close_reason = True, reason

    def take(self) -> list[Any]:
        """What was sent since the last call."""
        taken, self.sent = self.sent, []
        return taken
