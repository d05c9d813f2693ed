"""Options that every connection's socket gets, at both ends.

A peer whose host vanished is noticed by the kernel: unacknowledged bytes end the connection after
30 s, an idle one is probed from 30 s on. A stopped process on a living host is not a dead peer:
only a full window for 30 s ends it.
"""

from __future__ import annotations

import socket
import struct
from typing import Protocol

USER_TIMEOUT_MS = 30_000
KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3


class SetsOptions(Protocol):
    """A socket, or asyncio's view of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> object:
        """As ``socket.setsockopt``."""
        ...


def tune(sock: SetsOptions) -> None:
    """No delay, and dead hosts are noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def limit_waits(sock: socket.socket, send_ms: int, receive_ms: int) -> None:
    """Blocking sends and receives give up (``BlockingIOError``) when nothing moved for this
    long.
    """
    sock.setsockopt(
        socket.SOL_SOCKET,
        socket.SO_SNDTIMEO,
        struct.pack("ll", send_ms // 1000, send_ms % 1000 * 1000),
    )
    sock.setsockopt(
        socket.SOL_SOCKET,
        socket.SO_RCVTIMEO,
        struct.pack("ll", receive_ms // 1000, receive_ms % 1000 * 1000),
    )
