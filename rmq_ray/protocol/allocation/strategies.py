"""Allocation strategies by name: which queues of a topic belong to which consumer of a group
(protocol-behaviour 14).

    AVG              Averagely            in equal, neighbouring shares; the default
    AVG_BY_CIRCLE    AveragelyByCircle    dealt out in turn
    CONSISTENT_HASH  ConsistentHash       few queues move when a consumer comes or goes
    CONFIG, MACHINE_ROOM, MACHINE_ROOM_NEARBY-<inner>, <inner>-ONLY_HOSTS    need settings: made as
                                                                             objects
                                                                             (``by_place``)

Decides what a name stands for. A further strategy is an object with ``name`` and ``allocate``;
``register`` makes it known by its name. Callers: the options of consumers. All names of the
strategies can be imported from here.
"""

from __future__ import annotations

from rmq_ray.errors import ConfigError
from rmq_ray.protocol.allocation.by_place import (
    ByConfig,
    ByMachineRoom,
    MachineRoomNearby,
    MachineRooms,
    OnlyHosts,
    RoomTable,
)
from rmq_ray.protocol.allocation.consistent_hash import ConsistentHash
from rmq_ray.protocol.allocation.even import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    index_of,
)

__all__ = [
    "AllocationStrategy",
    "Averagely",
    "AveragelyByCircle",
    "ByConfig",
    "ByMachineRoom",
    "ConsistentHash",
    "MachineRoomNearby",
    "MachineRooms",
    "OnlyHosts",
    "RoomTable",
    "as_strategy",
    "index_of",
    "register",
    "strategy_named",
]

REGISTERED_MAX = 1_000
NEEDS_SETTINGS = {
    "CONFIG": "ByConfig([MessageQueue(...), ...])",
    "MACHINE_ROOM": "ByMachineRoom(['room', ...])",
    "MACHINE_ROOM_NEARBY": "MachineRoomNearby(Averagely(), RoomTable(...))",
    "ONLY_HOSTS": "OnlyHosts(Averagely(), {'192.168.0.6'})",
}
"""Names of RocketMQ (and one of ours) that mean nothing without settings, and what to give
instead.
"""

_STRATEGIES: dict[str, AllocationStrategy] = {}


def register(strategy: AllocationStrategy) -> None:
    """Make a strategy known under its name (upper or lower case) in this process; the same name
    replaces.

    ``ConfigError`` for an object without ``name`` or ``allocate``. All consumers of a group must
    use the same strategy.
    """
    _check(strategy)
    if len(_STRATEGIES) >= REGISTERED_MAX and strategy.name.upper() not in _STRATEGIES:
        raise ConfigError(
            f"{REGISTERED_MAX} allocation strategies are registered already; use one name again",
            strategy.name,
        )
    _STRATEGIES[strategy.name.upper()] = strategy


def strategy_named(name: str) -> AllocationStrategy:
    """The registered strategy. ``ConfigError`` for an unknown name.

    >>> strategy_named("avg").name
    'AVG'
    """
    found = _STRATEGIES.get(name.upper())
    if found is not None:
        return found
    if name.upper() in NEEDS_SETTINGS:
        raise ConfigError(
            f"allocation strategy {name!r} needs settings; give an object: "
            f"allocate={NEEDS_SETTINGS[name.upper()]}",
            name,
        )
    known = ", ".join(sorted(known.lower() for known in _STRATEGIES))
    with_settings = ", ".join(example.split("(")[0] for example in NEEDS_SETTINGS.values())
    raise ConfigError(
        f"unknown allocation strategy {name!r}; known are {known}; as objects "
        f"{with_settings}, or one of your own",
        name,
    )


def as_strategy(value: object) -> AllocationStrategy:
    """An option's value: a registered name, or a strategy. ``ConfigError`` for anything else."""
    return strategy_named(value) if isinstance(value, str) else _check(value)


def _check(value: object) -> AllocationStrategy:
    name = getattr(value, "name", None)
    if (
        isinstance(value, type)
        or not isinstance(name, str)
        or not name
        or not callable(getattr(value, "allocate", None))
    ):
        raise ConfigError(
            f"{value!r:.80} is no allocation strategy; give a name such as 'avg', or an "
            f"object with a name and allocate(group, client_id, queues, client_ids)",
            repr(value)[:80],
        )
    return value  # type: ignore[return-value]  # what was just looked at


register(Averagely())
register(AveragelyByCircle())
register(ConsistentHash())
