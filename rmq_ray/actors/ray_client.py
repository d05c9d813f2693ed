"""Ray Client (``ray://``): a driver outside of the Ray cluster, whose calls go through a server on
its head. Decides what is told when it has lost that server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rmq_ray.errors import ClusterError


@contextmanager
def client_connected() -> Iterator[None]:
    """Ray Client's connection ends with its server on the head, and does not come back."""
    try:
        yield
    except ConnectionError as error:
        raise ClusterError(
            f"this process has lost its connection by Ray Client: ray.shutdown(), then "
            f"ray.init('ray://...') again; producers and consumers that run go on without it "
            f"({error})"
        ) from None
