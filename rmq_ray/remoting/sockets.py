"""Options that every connection's socket gets, at both ends.

A peer whose host vanished is noticed by the kernel: unacknowledged bytes end the connection after
30 s, an idle one is probed from 30 s on. A stopped process on a living host is not a dead peer:
only a full window for 30 s ends it.

This host's address as a peer sees it, for client ids and message ids. Sends nothing.

Called by ``client``. A datagram socket that is connected, but never written to, tells which address
the kernel would use.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Protocol

from rmq_ray.model.ids import Address

LOOPBACK = "127.0.0.1"
USER_TIMEOUT_MS = 30_000
KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3


def local_ip(towards: Address) -> str:
    """The IPv4 address from which this host reaches ``towards``; loopback when it has no route or
    no IPv4 address.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((towards.host, towards.port))
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK


def process_id() -> int:
    """This process's id, read anew: it differs after a fork."""
    return os.getpid()


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
