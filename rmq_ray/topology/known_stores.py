"""Which store each broker of a topology has served from: the file that tells a first start from
every later one.

    rmq.toml                                  the topology
    rmq.stores.json  {"broker-a": "5f2c..."}  written beside it when a broker has served for the
                                              first time

A broker that stands in the file gets exactly that store or none: a disk that is not mounted is
``StoreMissing``, never a new empty log. Who does not stand in it may make a store in an empty
directory. Decides nothing else. Called by ``cluster``.

Invariant: names are only added here; people remove one, to start its broker with an empty store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rmq_ray.errors import ConfigError
from rmq_ray.topology.rules import Topology


def file_of(topology: Topology) -> Path:
    """``rmq.stores.json`` of ``rmq.toml``."""
    return Path(topology.source.path).with_suffix(".stores.json")


def read(topology: Topology) -> dict[str, str]:
    """Broker name -> identity; empty before the first start. ``ConfigError`` where the file is
    something else.
    """
    file = file_of(topology)
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}; restore it from a copy: it keeps brokers from "
            f"starting on an empty disk",
            str(file),
        ) from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(
            f"{file} must be a JSON object of broker names and store identities; restore it "
            f"from a copy",
            str(file),
        )
    return found


def remember(topology: Topology, identities: Mapping[str, str]) -> None:
    """Add what is new. ``ConfigError`` where the file cannot be written."""
    file = file_of(topology)
    before = read(topology)
    after = {**identities, **before}
    if after == before:
        return
    fresh = file.with_name(f"{file.name}.new")
    try:
        with fresh.open("w") as out:
            json.dump(after, out, indent=1, sort_keys=True)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except OSError as error:
        raise ConfigError(
            f"the cluster runs, but {file} cannot be written ({error.strerror}): without it "
            f"a later start takes an unmounted disk for a new one; "
            "make its directory writable and run this again",
            str(file),
        ) from None
