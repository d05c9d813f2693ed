"""Which packages come with which extra of this one, and what is said where one is missing.

    pip install rmq_ray            producers, consumers and administration of any program
    pip install 'rmq_ray[ray]'     clusters in Ray, and everything that finds them there

Decides the words, not what is installed: pyproject.toml does. Pure; imports nothing of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rmq_ray.errors import ExtraMissing

EXTRAS = {
    "ray": "ray",
    "pyarrow": "arrow",
    "pyspark": "spark",
    "raydp": "spark",
    "pandas": "spark",
    "cryptography": "tls-tools",
    "pyiceberg": "table",
}
"""Package -> the extra that brings it, where nothing says for what it is wanted."""
WITHOUT = {
    "ray": "without Ray producers and consumers take name_servers='host:port' and secret=, and "
    "rmq.connect does",
    "arrow": "messages as objects, zlib and everything but columns need no Arrow",
    "data": "consumers and mq.admin.to_arrow read topics without Ray Data",
    "spark": "topics become Ray Data datasets and Arrow tables without Spark",
    "serve": "workers of rmq.SimpleConsumer need no Ray Serve",
    "tls-tools": "TLS itself needs only PEM files, from whatever makes yours",
    "table": "tables without a catalog are plain Parquet",
}
"""Extra -> what works without it."""


@contextmanager
def named(extra: str = "") -> Iterator[None]:
    """Around imports: a package of ``EXTRAS`` that is not there is an ``ExtraMissing``, which says
    how it comes and what works without; all else is raised as it is. ``extra``: the one that brings
    all that is wanted there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = extra or EXTRAS[package]
        raise ExtraMissing(
            f"{package} is not installed: pip install 'rmq_ray[{extra}]' brings it; "
            f"{WITHOUT[extra]}",
            package,
            extra,
        ) from error


def load(module: str) -> Any:
    """A module; ``ExtraMissing`` where it needs a package of an extra. Quick where it is loaded:
    each body that is compressed by LZ4 or Zstandard asks.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError:
        with named():
            return import_module(module)
