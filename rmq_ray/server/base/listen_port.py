"""Where a party listens: a port chosen once, kept beside its state, and bound again after a
restart.

Clients that lost their connection try the old address first, so a broker that is back after a kill
is found without any name server. Free ports are taken outside the kernel's ephemeral range and
outside the ports of Ray's workers.
"""

from __future__ import annotations

import errno
import logging
import random
from pathlib import Path
from typing import Protocol

from rmq_ray.errors import ConfigError, StoreError
from rmq_ray.files import FileSystem
from rmq_ray.model.ids import Address

log = logging.getLogger("rmq_ray.server")
PORTS = range(
    20_000, 32_000
)  # Linux gives 32768 and up to outgoing connections; Ray's workers sit below 20000
TRIES_MAX = 64


class Listens(Protocol):
    """The part of ``remoting.listener.Listener`` that is needed here."""

    async def start(self, host: str, port: int) -> Address:
        """Bind and listen; ``OSError`` where the port is taken."""
        ...


async def listen(
    listener: Listens,
    host: str,
    configured: int,
    kept_in: str | None,
    files: FileSystem,
    *,
    must_keep: bool = False,
) -> Address:
    """Bind ``configured``, else the port written in the file ``kept_in``, else a free one, which is
    then written there.

    Raises ``ConfigError`` where a configured port is taken or the host is not this machine's. A
    kept port that somebody else took meanwhile is given up for a new one, with a warning; with
    ``must_keep`` that is a ``ConfigError``, too.
    """
    if configured:
        return await _bind(listener, host, configured)
    kept = _kept(kept_in, files, must_keep)
    if kept is not None:
        try:
            return await _bind(listener, host, kept)
        except ConfigError as error:
            if must_keep:
                raise
            log.warning("port %d of the last run is taken, another one is chosen: %s", kept, error)
    address = await _bind_any(listener, host)
    if kept_in is not None:
        files.write_whole(kept_in, str(address.port).encode())
    return address


async def _bind_any(listener: Listens, host: str) -> Address:
    for port in random.sample(PORTS, TRIES_MAX):
        try:
            return await listener.start(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot(host, port, error) from error
    raise ConfigError(
        f"no free port among {TRIES_MAX} tried on {host} between {PORTS.start} and "
        f"{PORTS.stop}: configure one",
        host,
    )


async def _bind(listener: Listens, host: str, port: int) -> Address:
    try:
        return await listener.start(host, port)
    except OSError as error:
        raise _cannot(host, port, error) from error


def _cannot(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host}:{port}: {error.strerror or error}; give another port, or "
        f"an address of this machine",
        f"{host}:{port}",
    )


def keep(path: str, port: int, files: FileSystem) -> None:
    """For the next run. A disk that refuses is only logged: the port then comes from a name server,
    a party that does not start serves nobody.
    """
    try:
        if _read(path, files) != port:
            files.write_whole(path, str(port).encode())
    except StoreError as error:
        log.warning("port %d is not kept for the next start: %s", port, error)


def _kept(path: str | None, files: FileSystem, must_keep: bool) -> int | None:
    try:
        return _read(path, files)
    except StoreError as error:
        if must_keep:
            raise
        log.warning("the port of the last run cannot be read, another is chosen: %s", error)
        return None


def _read(path: str | None, files: FileSystem) -> int | None:
    if path is None or not files.exists(path):
        return None
    file = files.open(path)
    try:
        text = file.pread(16, 0).decode("ascii", "replace").strip()
    finally:
        file.close()
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else None


def port_file(directory: str) -> str | None:
    """The file that keeps the port, None where nothing is kept."""
    return str(Path(directory) / "port") if directory else None
