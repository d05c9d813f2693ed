"""``rmq.toml``: which brokers and name servers a cluster has, where their stores lie, and with
which settings.

    cluster = "default"                    # name of the message cluster
    foreign = "closed"                     # whether Apache RocketMQ's own clients may connect;
                                           # "acl": everybody needs an account (docs/security.md)
    accounts = "plain_acl.yml"             # with "acl": where they come from; none = commands

    [defaults]                             # every broker's: fields of config.BrokerConfig
    auto_create_topics = true              # a first send creates its topic; else, and without this
                                           # line, an unknown topic is an error
    [defaults.store]                       # every store's: fields of config.StoreConfig
    flush = "sync"

    [[name_servers]]                       # none = one, on any node
    port = 9876
    resource = "store_a"

    [[brokers]]
    name = "broker-a"
    resource = "store_a"                   # Ray resource that only the node with this disk offers,
                                           # or a label that only it has, "store=a"
    port = 20911
    store = { path = "/data/rmq" }
    replication = "sync"                   # acknowledged when the slaves in sync have it, too

    [[brokers.replicas]]          # a slave of it, on another node; every other setting is its
                                  # broker's
    resource = "store_b"
    store = { path = "/data/rmq" }

    [failover]                    # fields of config.FailoverConfig
    automatic = true
    [controller]                  # where it keeps who is master; none = beside this file, on the
                                  # head
    store = "/data/rmq-controller"
    resource = "store_head"

Decides: what a file may say, and names the line of what it may not. Does not decide: whether Ray
has such resources or the disks hold what is expected (``actors.control.survey``). Called by
``cluster`` and the commands.

Invariants: everything is checked when the file is read; a ``Topology`` that exists can be planned.
No file is opened but the one that is named.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from rmq_ray.config import (
    DEFAULT_CLUSTER,
    BrokerConfig,
    FailoverConfig,
    ForeignClients,
    NameServerConfig,
    StoreConfig,
    TlsMode,
    TlsSettings,
)
from rmq_ray.errors import ConfigError
from rmq_ray.setting import Group
from rmq_ray.topology import rules
from rmq_ray.topology.rules import BrokerSpec, ControllerSpec, NameServerSpec, Topology
from rmq_ray.topology.source import Key, TopologyText

G = TypeVar("G")
NAME_SERVERS_MAX = 9
BROKERS_MAX = 1_000
REPLICAS_MAX = 9
PORT_MAX = 65_535
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOP = (
    "cluster",
    "foreign",
    "accounts",
    "tls",
    "failover",
    "controller",
    "defaults",
    "name_servers",
    "brokers",
)
_OWN = ("name", "resource", "store", "allow_same_node", "replicas")
_OF_REPLICA = ("resource", "host", "advertise", "port", "store")
_BROKER_DECIDED = (
    "store",
    "broker_name",
    "broker_id",
    "cluster_name",
    "name_servers",
    "hold_link",
    "foreign",
    "limits",
    "send_hooks",
    "tls",
    "master",
)
_NAME_SERVER_DECIDED = ("cluster_name", "foreign", "tls", "limits")
_TLS_FILES = ("certificate", "key", "ca", "client_certificate", "client_key")
_ANY_ADDRESS = ("0.0.0.0", "::")
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}


def read_topology(path: str | Path) -> Topology:
    """Read and check a topology file. ``ConfigError`` names file and line of the first thing that
    is wrong, and what to do.
    """
    file = Path(path).expanduser().absolute()
    try:
        text = file.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(
            f"topology file {file} cannot be read: {error.strerror}; name it with --config",
            str(file),
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8 (byte {error.start}): save it as UTF-8", str(file)
        ) from None
    return parse_topology(text, str(file))


def parse_topology(text: str, path: str = "rmq.toml") -> Topology:
    """The same from a text; relative store paths lie below the directory of ``path``."""
    source = TopologyText(path, text)
    try:
        found = tomllib.loads(text)
    except ValueError as error:  # also of a number with thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}", path) from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply", path) from None
    try:
        return _TopologyReader(source, found).topology()
    except ValueError as error:  # of naming a value: Python writes no number of that length
        raise ConfigError(f"{path}: a value cannot be: {error}", path) from None


class _TopologyReader:
    """One reading of one file."""

    def __init__(self, source: TopologyText, found: Mapping[str, Any]) -> None:
        self._source = source
        self._found = found
        self._below = Path(source.path).parent
        self._relative: list[Key] = []

    def topology(self) -> Topology:
        self._keys(self._found, (), _TOP)
        cluster = self._found.get("cluster", DEFAULT_CLUSTER)
        if not isinstance(cluster, str) or not _NAME.fullmatch(cluster):
            raise self._source.wrong(
                ("cluster",),
                f"cluster must be 1 to 64 letters, digits, '_' or '-', not {cluster!r}",
                cluster,
            )
        foreign = self._value(("foreign",), ForeignClients, self._found.get("foreign", "closed"))
        shared = {"cluster_name": cluster, "foreign": foreign, "tls": self._tls()}
        brokers = [
            self._broker(i, table, shared)
            for i, table in enumerate(self._tables(("brokers",), self._found, BROKERS_MAX))
        ]
        if not brokers:
            raise ConfigError(
                f"{self._source.path}: no brokers; add [[brokers]] with name and store = {{ "
                f"path = ... }}",
                self._source.path,
            )
        servers = self._tables(("name_servers",), self._found, NAME_SERVERS_MAX) or [{}]
        name_servers = tuple(
            self._name_server(i, table, shared, brokers[0]) for i, table in enumerate(servers)
        )
        found = Topology(
            self._source,
            cluster,
            name_servers,
            tuple(brokers),
            self._controller(),
            self._failover(),
            self._accounts(foreign),
        )
        rules.check(found)
        kept = found.has_slaves or foreign is ForeignClients.ACL  # by the controller
        return replace(
            found, relative=tuple(key for key in self._relative if kept or key[0] != "controller")
        )

    # --- parts of the file ------------------------------------------------------------------------

    def _broker(
        self, index: int, table: Mapping[str, Any], shared: Mapping[str, Any]
    ) -> BrokerSpec:
        """``shared``: settings of all members."""
        key: Key = ("brokers", index)
        known = _hints(BrokerConfig, _BROKER_DECIDED)
        defaults = self._table(("defaults",), self._found.get("defaults", {}))
        self._keys(
            defaults,
            ("defaults",),
            ("store", *(name for name in known if name not in ("host", "advertise", "port"))),
        )
        self._keys(table, key, (*_OWN, *known))
        name = table.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            said = (
                "a broker needs a name"
                if name is None
                else f"name must be 1 to 64 letters, digits, '_' or '-', not {name!r}"
            )
            raise self._source.wrong((*key, "name"), f"{said}, like name = 'broker-a'", name)
        store = self._store(key, defaults, table)
        settings: dict[str, Any] = (
            {"host": "", "auto_create_topics": False}
            | self._settings(("defaults",), defaults, known)
            | self._settings(key, table, known)
        )
        self._address(key, settings)
        settings |= {"store": store, "broker_name": name, **shared}
        config = self._built(
            {("defaults",): defaults, key: table}, lambda: BrokerConfig(**settings)
        )
        replicas = [
            self._replica(i, one, config, key)
            for i, one in enumerate(self._tables((*key, "replicas"), table, REPLICAS_MAX))
        ]
        same_node = self._value(
            (*key, "allow_same_node"), bool, table.get("allow_same_node", False)
        )
        return BrokerSpec(config, self._resource(key, table), key, tuple(replicas), same_node)

    def _replica(
        self, index: int, table: Mapping[str, Any], broker: BrokerConfig, of: Key
    ) -> BrokerSpec:
        """A slave: all but its place is as its broker says."""
        key: Key = (*of, "replicas", index)
        self._keys(table, key, _OF_REPLICA)
        known = _hints(BrokerConfig, _BROKER_DECIDED)
        settings: dict[str, Any] = {"host": "", "advertise": None, "port": 0} | self._settings(
            key, table, known
        )
        self._address(key, settings)
        at = (*key, "store")
        own = self._table(at, table.get("store", {}))
        stores = _hints(StoreConfig, ())
        self._keys(own, at, tuple(stores))
        changes = self._settings(at, own, stores)
        if not changes.get("path"):
            raise self._source.wrong(
                at, "a slave needs a store of its own: store = { path = '/data/rmq' }"
            )
        changes["path"] = self._path((*at, "path"), changes["path"], "resource" in table)
        store = self._built({at: own}, lambda: broker.store.but(**changes))
        config = broker.but(**settings, broker_id=index + 1, store=store)
        return BrokerSpec(config, self._resource(key, table), key)

    def _store(
        self, broker: Key, defaults: Mapping[str, Any], table: Mapping[str, Any]
    ) -> StoreConfig:
        key = (*broker, "store")
        own = self._table(key, table.get("store", {}))
        shared = self._table(("defaults", "store"), defaults.get("store", {}))
        known = _hints(StoreConfig, ())
        self._keys(own, key, tuple(known))
        self._keys(shared, ("defaults", "store"), tuple(name for name in known if name != "path"))
        settings = self._settings(("defaults", "store"), shared, known) | self._settings(
            key, own, known
        )
        if not settings.get("path"):
            raise self._source.wrong(key, "a broker needs a store: store = { path = '/data/rmq' }")
        settings["path"] = self._path((*key, "path"), settings["path"], "resource" in table)
        return self._built(
            {("defaults", "store"): shared, key: own}, lambda: StoreConfig(**settings)
        )

    def _name_server(
        self,
        index: int,
        table: Mapping[str, Any],
        shared: Mapping[str, Any],
        first: BrokerSpec,
    ) -> NameServerSpec:
        key: Key = ("name_servers", index)
        known = _hints(NameServerConfig, _NAME_SERVER_DECIDED)
        self._keys(table, key, ("resource", *known))
        settings = {"host": ""} | self._settings(key, table, known)
        self._address(key, settings)
        resource = self._resource(key, table) or (None if table else first.resource)
        if "directory" in settings:
            settings["directory"] = self._path(
                (*key, "directory"), settings["directory"], "resource" in table
            )
        else:
            settings["directory"] = f"{first.config.store.path}.name-server-{index}"
        config = self._built(
            {key: table},
            lambda: NameServerConfig(**{**settings, **shared}),
        )
        return NameServerSpec(config, resource, key)

    def _controller(self) -> ControllerSpec:
        key: Key = ("controller",)
        table = self._table(key, self._found.get("controller", {}))
        self._keys(table, key, ("store", "resource"))
        path = self._value(
            (*key, "store"), str, table.get("store", f"{Path(self._source.path).stem}.controller")
        )
        if not path:
            raise self._source.wrong(
                (*key, "store"),
                "store must be a directory: the controller keeps there who is master",
                path,
            )
        return ControllerSpec(
            self._path((*key, "store"), path, "resource" in table), self._resource(key, table), key
        )

    def _accounts(self, foreign: ForeignClients) -> str | None:
        """A relative path lies beside the file, on the controller's host."""
        key: Key = ("accounts",)
        if "accounts" not in self._found:
            return None
        path = self._value(key, str, self._found["accounts"])
        if foreign is not ForeignClients.ACL:
            raise self._source.wrong(
                key, f"accounts needs foreign = 'acl', not {foreign.value!r}", foreign.value
            )
        if not path:
            raise self._source.wrong(key, "accounts must be the path of a plain_acl.yml", path)
        return self._path(key, path, False)

    def _tls(self) -> TlsSettings:
        """Relative paths lie beside the file, on each server's host."""
        key: Key = ("tls",)
        table = self._table(key, self._found.get("tls", {}))
        known = _hints(TlsSettings, ())
        self._keys(table, key, tuple(known))
        settings = self._settings(key, table, known)
        if table and "mode" not in settings:
            settings["mode"] = TlsMode.ENFORCING
        for name in _TLS_FILES:
            if settings.get(name):
                settings[name] = self._path((*key, name), settings[name], False)
        return self._built({key: table}, lambda: TlsSettings(**settings))

    def _failover(self) -> FailoverConfig:
        key: Key = ("failover",)
        table = self._table(key, self._found.get("failover", {}))
        known = _hints(FailoverConfig, ())
        self._keys(table, key, tuple(known))
        settings = self._settings(key, table, known)
        return self._built({key: table}, lambda: FailoverConfig(**settings))

    # --- values -----------------------------------------------------------------------------------

    def _tables(
        self, key: Key, within: Mapping[str, Any], limit: int
    ) -> Sequence[Mapping[str, Any]]:
        name = key[-1]
        found = within.get(str(name), [])
        if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
            heading = ".".join(part for part in key if isinstance(part, str))
            raise self._source.wrong(
                key, f"{name} is a list of tables: begin each with [[{heading}]]", found
            )
        if len(found) > limit:
            raise self._source.wrong(
                (*key, limit), f"{len(found)} {name} are too many: at most {limit}", len(found)
            )
        return found

    def _table(self, key: Key, found: Any) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            raise self._source.wrong(
                key,
                f"{key[-1]} is a table, not {found!r}: write "
                f"[{'.'.join(str(part) for part in key if isinstance(part, str))}]",
                found,
            )
        return found

    def _keys(self, table: Mapping[str, Any], key: Key, known: Sequence[str]) -> None:
        for name in table:
            if name not in known:
                raise self._source.wrong(
                    (*key, name),
                    f"unknown key {name!r}; known here are {', '.join(sorted(known))}",
                    name,
                )

    def _settings(
        self, key: Key, table: Mapping[str, Any], known: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            name: self._value((*key, name), known[name], value)
            for name, value in table.items()
            if name in known
        }

    def _value(self, key: Key, kind: Any, value: Any) -> Any:
        kinds = [one for one in (get_args(kind) or (kind,)) if one is not type(None)]
        if isinstance(kinds[0], type) and issubclass(kinds[0], Enum):
            try:
                return kinds[0](value)
            except ValueError:
                allowed = ", ".join(repr(member.value) for member in kinds[0])
                raise self._source.wrong(
                    key, f"{key[-1]} must be one of {allowed}, not {value!r}", value
                ) from None
        if float in kinds and type(value) is int:
            value = float(value)
        if type(value) not in kinds:  # exactly: True is an int
            raise self._source.wrong(
                key, f"{key[-1]} must be {_WORDS[kinds[0]]}, not {value!r}", value
            )
        if type(value) is int and value < 0:
            raise self._source.wrong(key, f"{key[-1]} must not be negative, not {value!r}", value)
        return value

    def _address(self, key: Key, settings: Mapping[str, Any]) -> None:
        if settings.get("port", 0) > PORT_MAX:
            raise self._source.wrong(
                (*key, "port"),
                f"port must be 0 (any free one, kept) to {PORT_MAX}, not {settings['port']}",
                settings["port"],
            )
        if settings.get("host") in _ANY_ADDRESS and not settings.get("advertise"):
            raise self._source.wrong(
                (*key, "host"),
                f"host {settings['host']!r} is nobody's address: name one, or leave it out "
                f"for the node's",
                settings["host"],
            )

    def _resource(self, key: Key, table: Mapping[str, Any]) -> str | None:
        resource = table.get("resource")
        if resource is not None and (not isinstance(resource, str) or not resource):
            raise self._source.wrong(
                (*key, "resource"),
                f"resource must be the name of a Ray resource, or label=value of a node, not "
                f"{resource!r}",
                resource,
            )
        return resource

    def _path(self, key: Key, path: str, elsewhere: bool) -> str:
        found = Path(path).expanduser()
        if not found.is_absolute():
            if elsewhere:
                raise self._source.wrong(
                    key, f"{path!r} lies on another node: give an absolute path", path
                )
            self._relative.append(key)
        return str(self._below / found)

    def _built(self, tables: Mapping[Key, Mapping[str, Any]], make: Callable[[], G]) -> G:
        """What the setting group itself refuses gets the line of the setting it names, in the table
        that counts (the last).
        """
        try:
            return make()
        except ConfigError as error:
            at: Key = list(tables)[-1]
            message = str(error.args[0])
            for key, table in tables.items():
                group = message.split()[0]  # "disk ratios must rise"
                at = next(
                    (
                        (*key, name)
                        for name in table
                        if name in message or name.startswith(f"{group}_")
                    ),
                    at,
                )
            raise self._source.wrong(at, str(error.args[0]), *error.args[1:2]) from None


@cache
def _hints(group: type[Group], decided: tuple[str, ...]) -> dict[str, Any]:
    """Fields of a setting group that a file may set -> their types."""
    kinds = get_type_hints(group)
    return {name: kinds[name] for name in group.__struct_fields__ if name not in decided}
