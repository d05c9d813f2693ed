"""``rmq.toml``: which brokers and name servers a cluster has, where their stores lie, and with which settings.

    cluster = "default"                    # name of the message cluster
    foreign = "closed"                     # whether Apache RocketMQ's own clients may connect

    [defaults]                             # every broker's: fields of config.BrokerConfig
    auto_create_topics = false
    [defaults.store]                       # every store's: fields of config.StoreConfig
    flush = "sync"

    [[name_servers]]                       # none = one, on any node
    port = 9876
    resource = "store_a"

    [[brokers]]
    name = "broker-a"
    resource = "store_a"                   # Ray resource that only the node with this disk offers
    port = 20911
    store = { path = "/data/rmq" }

Decides: what a file may say, and names the line of what it may not. Does not decide: whether Ray has such resources or the disks hold what is
expected (``actors.survey``). Called by ``cluster`` and the commands.

Invariants: everything is checked when the file is read; a ``Topology`` that exists can be planned. No file is opened but the one that is named.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from rmq_ray.config import DEFAULT_CLUSTER, BrokerConfig, ForeignClients, NameServerConfig, StoreConfig
from rmq_ray.errors import ConfigError

G = TypeVar("G")
NAME_SERVERS_MAX = 9
BROKERS_MAX = 1_000
PORT_MAX = 65_535
Key = tuple[str | int, ...]
"""Where a value stands: ``("brokers", 1, "port")`` is the second broker's port."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOP = ("cluster", "foreign", "defaults", "name_servers", "brokers")
_OWN = ("name", "resource", "store", "replicas")
_BROKER_DECIDED = ("store", "broker_name", "broker_id", "cluster_name", "name_servers", "hold_link", "foreign", "limits", "send_hooks")
_NAME_SERVER_DECIDED = ("cluster_name", "foreign", "limits")
_NOT_BUILT = ("failover", "replication", "replicas")
_ANY_ADDRESS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Source:
    """A topology file's text, to say where in it something stands."""

    path: str
    text: str

    def line_of(self, key: Key) -> int:
        """Line (from 1) on which this value, or the nearest table around it, begins.

        >>> Source("", 'cluster = "a"\\n\\n[[brokers]]\\nname = "x"\\nport = 1\\n').line_of(("brokers", 0, "port"))
        5
        """
        for part in (key[:length] for length in range(len(key), 0, -1)):
            begun = 1
            for number, found in self._prefixes():
                if _holds(found, part):
                    return begun
                begun = number + 1
        return 1

    def wrong(self, key: Key, message: str, value: object = None) -> ConfigError:
        """The error for what stands at ``key``."""
        return ConfigError(f"{self.path}, line {self.line_of(key)}: {message}", value if value is not None else ".".join(map(str, key)))

    def _prefixes(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """(lines, what they hold) for every number of lines that is TOML by itself, comments and empty lines before a value included in it."""
        lines = self.text.splitlines(keepends=True)
        for number in range(1, len(lines) + 1):
            try:
                yield number, tomllib.loads("".join(lines[:number]))
            except tomllib.TOMLDecodeError:
                continue  # within a value of several lines


@dataclass(frozen=True, slots=True)
class NameServerSpec:
    """``key``: where it stands in the file. ``resource``: Ray resource of its node, None = any. ``config.host``: "" = the node's."""

    config: NameServerConfig
    resource: str | None
    key: Key


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """A broker as the file describes it; its config has no hold service and no name servers yet."""

    config: BrokerConfig
    resource: str | None
    key: Key


@dataclass(frozen=True, slots=True)
class Topology:
    """A file that was read and holds nothing wrong by itself."""

    source: Source
    cluster: str
    name_servers: tuple[NameServerSpec, ...]
    brokers: tuple[BrokerSpec, ...]

    @property
    def resources(self) -> dict[str, str]:
        """Actor -> Ray resource of its node: ``broker-a`` and ``name-server-0``."""
        found = {spec.config.broker_name: spec.resource for spec in self.brokers}
        found |= {f"name-server-{i}": spec.resource for i, spec in enumerate(self.name_servers)}
        return {name: resource for name, resource in found.items() if resource is not None}


def read_topology(path: str | Path) -> Topology:
    """Read and check a topology file. ``ConfigError`` names file and line of the first thing that is wrong, and what to do."""
    file = Path(path).expanduser().absolute()
    try:
        text = file.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"topology file {file} cannot be read: {error.strerror}; name it with --config", str(file)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 (byte {error.start}): save it as UTF-8", str(file)) from None
    return parse_topology(text, str(file))


def parse_topology(text: str, path: str = "rmq.toml") -> Topology:
    """The same from a text; relative store paths lie below the directory of ``path``."""
    source = Source(path, text)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}", path) from None
    return _Reader(source, found).topology()


class _Reader:
    """One reading of one file."""

    def __init__(self, source: Source, found: Mapping[str, Any]) -> None:
        self._source = source
        self._found = found
        self._below = Path(source.path).parent

    def topology(self) -> Topology:
        self._keys(self._found, (), _TOP)
        cluster = self._found.get("cluster", DEFAULT_CLUSTER)
        if not isinstance(cluster, str) or not _NAME.fullmatch(cluster):
            raise self._source.wrong(("cluster",), f"cluster must be 1 to 64 letters, digits, '_' or '-', not {cluster!r}", cluster)
        foreign = self._value(("foreign",), ForeignClients, self._found.get("foreign", "closed"))
        brokers = [self._broker(i, table, cluster, foreign) for i, table in enumerate(self._tables("brokers", BROKERS_MAX))]
        if not brokers:
            raise ConfigError(f"{self._source.path}: no brokers; add [[brokers]] with name and store = {{ path = ... }}", self._source.path)
        servers = self._tables("name_servers", NAME_SERVERS_MAX) or [{}]
        found = Topology(
            self._source, cluster, tuple(self._name_server(i, table, cluster, foreign, brokers[0]) for i, table in enumerate(servers)), tuple(brokers)
        )
        self._unique_names(found)
        self._unique_stores(found)
        self._unique_ports(found)
        return found

    # --- parts of the file -------------------------------------------------------------------------------------------------

    def _broker(self, index: int, table: Mapping[str, Any], cluster: str, foreign: ForeignClients) -> BrokerSpec:
        key: Key = ("brokers", index)
        known = _hints(BrokerConfig, _BROKER_DECIDED)
        defaults = self._table(("defaults",), self._found.get("defaults", {}))
        self._keys(defaults, ("defaults",), ("store", *(name for name in known if name not in ("host", "advertise", "port"))))
        self._keys(table, key, (*_OWN, *known))
        name = table.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            said = "a broker needs a name" if name is None else f"name must be 1 to 64 letters, digits, '_' or '-', not {name!r}"
            raise self._source.wrong((*key, "name"), f"{said}, like name = 'broker-a'", name)
        store = self._store(key, defaults, table)
        settings = {"host": ""} | self._settings(("defaults",), defaults, known) | self._settings(key, table, known)
        self._address(key, settings)
        settings |= {"store": store, "broker_name": name, "cluster_name": cluster, "foreign": foreign}
        config = self._built({("defaults",): defaults, key: table}, lambda: BrokerConfig(**settings))
        return BrokerSpec(config, self._resource(key, table), key)

    def _store(self, broker: Key, defaults: Mapping[str, Any], table: Mapping[str, Any]) -> StoreConfig:
        key = (*broker, "store")
        own = self._table(key, table.get("store", {}))
        shared = self._table(("defaults", "store"), defaults.get("store", {}))
        known = _hints(StoreConfig, ())
        self._keys(own, key, tuple(known))
        self._keys(shared, ("defaults", "store"), tuple(name for name in known if name != "path"))
        settings = self._settings(("defaults", "store"), shared, known) | self._settings(key, own, known)
        if not settings.get("path"):
            raise self._source.wrong(key, "a broker needs a store: store = { path = '/data/rmq' }")
        settings["path"] = self._path((*key, "path"), settings["path"], "resource" in table)
        return self._built({("defaults", "store"): shared, key: own}, lambda: StoreConfig(**settings))

    def _name_server(self, index: int, table: Mapping[str, Any], cluster: str, foreign: ForeignClients, first: BrokerSpec) -> NameServerSpec:
        key: Key = ("name_servers", index)
        known = _hints(NameServerConfig, _NAME_SERVER_DECIDED)
        self._keys(table, key, ("resource", *known))
        settings = {"host": ""} | self._settings(key, table, known)
        self._address(key, settings)
        resource = self._resource(key, table) or (None if table else first.resource)
        if "directory" in settings:
            settings["directory"] = self._path((*key, "directory"), settings["directory"], "resource" in table)
        else:
            settings["directory"] = f"{first.config.store.path}.name-server-{index}"
        config = self._built({key: table}, lambda: NameServerConfig(**{**settings, "cluster_name": cluster, "foreign": foreign}))
        return NameServerSpec(config, resource, key)

    # --- values ------------------------------------------------------------------------------------------------------------

    def _tables(self, name: str, limit: int) -> Sequence[Mapping[str, Any]]:
        found = self._found.get(name, [])
        if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
            raise self._source.wrong((name,), f"{name} is a list of tables: begin each with [[{name}]]", name)
        if len(found) > limit:
            raise self._source.wrong((name, limit), f"{len(found)} {name} are too many: at most {limit}", len(found))
        return found

    def _table(self, key: Key, found: Any) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            raise self._source.wrong(key, f"{key[-1]} is a table, not {found!r}: write [{'.'.join(str(part) for part in key if isinstance(part, str))}]", found)
        return found

    def _keys(self, table: Mapping[str, Any], key: Key, known: Sequence[str]) -> None:
        for name in table:
            if name in _NOT_BUILT and (name != "replicas" or table[name]):
                raise self._source.wrong((*key, name), f"{name}: slaves are not part of this version; remove it", name)
            if name not in known and name != "replicas":
                raise self._source.wrong((*key, name), f"unknown key {name!r}; known here are {', '.join(sorted(set(known) - {'replicas'}))}", name)

    def _settings(self, key: Key, table: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._value((*key, name), known[name], value) for name, value in table.items() if name in known}

    def _value(self, key: Key, kind: Any, value: Any) -> Any:
        kinds = [one for one in (get_args(kind) or (kind,)) if one is not type(None)]
        if isinstance(kinds[0], type) and issubclass(kinds[0], Enum):
            try:
                return kinds[0](value)
            except ValueError:
                allowed = ", ".join(repr(member.value) for member in kinds[0])
                raise self._source.wrong(key, f"{key[-1]} must be one of {allowed}, not {value!r}", value) from None
        if float in kinds and type(value) is int:
            value = float(value)
        if type(value) not in kinds:  # exactly: True is an int
            raise self._source.wrong(key, f"{key[-1]} must be {_WORDS[kinds[0]]}, not {value!r}", value)
        if type(value) is int and value < 0:
            raise self._source.wrong(key, f"{key[-1]} must not be negative, not {value!r}", value)
        return value

    def _address(self, key: Key, settings: Mapping[str, Any]) -> None:
        if settings.get("port", 0) > PORT_MAX:
            raise self._source.wrong((*key, "port"), f"port must be 0 (any free one, kept) to {PORT_MAX}, not {settings['port']}", settings["port"])
        if settings.get("host") in _ANY_ADDRESS and not settings.get("advertise"):
            raise self._source.wrong(
                (*key, "host"), f"host {settings['host']!r} is nobody's address: name one, or leave it out for the node's", settings["host"]
            )

    def _resource(self, key: Key, table: Mapping[str, Any]) -> str | None:
        resource = table.get("resource")
        if resource is not None and (not isinstance(resource, str) or not resource):
            raise self._source.wrong((*key, "resource"), f"resource must be the name of a Ray resource, not {resource!r}", resource)
        return resource

    def _path(self, key: Key, path: str, elsewhere: bool) -> str:
        found = Path(path).expanduser()
        if elsewhere and not found.is_absolute():
            raise self._source.wrong(key, f"{path!r} lies on another node: give an absolute path", path)
        return str(self._below / found)

    def _built(self, tables: Mapping[Key, Mapping[str, Any]], make: Callable[[], G]) -> G:
        """What the setting group itself refuses gets the line of the setting it names, in the table that counts (the last)."""
        try:
            return make()
        except ConfigError as error:
            at: Key = list(tables)[-1]
            message = str(error.args[0])
            for key, table in tables.items():
                group = message.split()[0]  # "disk ratios must rise"
                at = next(((*key, name) for name in table if name in message or name.startswith(f"{group}_")), at)
            raise self._source.wrong(at, str(error.args[0]), *error.args[1:2]) from None

    # --- what no two may share ---------------------------------------------------------------------------------------------

    def _unique_names(self, found: Topology) -> None:
        seen: dict[str, Key] = {}
        for spec in found.brokers:
            name = spec.config.broker_name
            if name in seen:
                line = self._source.line_of((*seen[name], "name"))
                raise self._source.wrong((*spec.key, "name"), f"two masters of the name {name!r}, the first on line {line}: each needs a name of its own", name)
            seen[name] = spec.key

    def _unique_stores(self, found: Topology) -> None:
        stores = [((*spec.key, "store"), spec.config.store.path, spec.resource) for spec in found.brokers]
        for at, (key, path, resource) in enumerate(stores):
            for other, its_path, its_resource in stores[:at]:
                if (resource is None or its_resource is None or resource == its_resource) and _overlap(path, its_path):
                    message = f"store {path} is shared with the broker on line {self._source.line_of(other)}: each needs a directory of its own"
                    raise self._source.wrong(key, message, path)

    def _unique_ports(self, found: Topology) -> None:
        seen: dict[tuple[str | None, int], Key] = {}
        members: list[NameServerSpec | BrokerSpec] = [*found.name_servers, *found.brokers]
        for spec in members:
            place = (spec.resource, spec.config.port)
            if spec.config.port and place in seen:
                line = self._source.line_of((*seen[place], "port"))
                raise self._source.wrong(
                    (*spec.key, "port"), f"port {spec.config.port} is that of line {line}, on the same node: choose another, or 0", place[1]
                )
            seen[place] = spec.key


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}


@cache
def _hints(group: type, decided: tuple[str, ...]) -> dict[str, Any]:
    """Fields of a setting group that a file may set -> their types."""
    return {name: kind for name, kind in get_type_hints(group).items() if name not in decided}


def _overlap(one: str, other: str) -> bool:
    first, second = Path(one), Path(other)
    return first == second or first in second.parents or second in first.parents


def _holds(found: Any, key: Key) -> bool:
    for part in key:
        if isinstance(part, int):
            if not isinstance(found, list) or part >= len(found):
                return False
        elif not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True
