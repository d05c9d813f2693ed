"""This host's address as a peer sees it, for client ids and message ids. Sends nothing.

Called by ``client``. A datagram socket that is connected, but never written to, tells which address
the kernel would use.
"""

from __future__ import annotations

import os
import socket

from rmq_ray.model.ids import Address

LOOPBACK = "127.0.0.1"


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
