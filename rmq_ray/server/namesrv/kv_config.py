"""The name server's key-value table, namespace -> key -> value, kept in ``kvConfig.json``, and its
settings, as administration tools ask for them (protocol-behaviour 4.4; remoting 6; store-format
12).

Decides: what is in the table, that whoever changed it hears of it only once it is on disk, and
which settings may be changed by a request (``orderMessageEnable`` alone: no remote call sets a path
or a port). Does not decide what the values mean; RocketMQ keeps ``ORDER_TOPIC_CONFIG`` here: topic
-> ``broker-a:4;broker-b:4``.

Invariants: names and values are bounded in number and size; a broken file is never replaced by an
empty table (``load`` raises).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rmq_ray.codec.config_files import KvTable, kv_file
from rmq_ray.config import NameServerConfig
from rmq_ray.errors import AdminError, RmqError
from rmq_ray.files import FileSystem
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import KeyValueHeader
from rmq_ray.server.base.config_saver import ConfigSaver, Saved
from rmq_ray.server.base.offload import Done, Offload, Waiting

T = TypeVar("T")
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
ENTRIES_MAX = 10_000
CHARS_MAX = 65_536  # of one namespace, key or value
ORDER_MESSAGES = "orderMessageEnable"


class WriteAtOnce:
    """An ``Offload`` that does the work in the calling thread: for a table that changes once a
    month.
    """

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        """``done`` has run on return."""
        outcome: T | Exception
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - handed on as the outcome
            outcome = error
        done(outcome)

    def post(self, call: Callable[[], None]) -> None:
        """Run it."""
        call()

    soon = post

    def waiting(self) -> Waiting:
        """Nothing ever waits."""
        return Waiting(0, 0, 0)


class KvConfig:
    """The table of one name server. ``directory`` "" = nothing is kept over a restart."""

    def __init__(self, directory: str, files: FileSystem, offload: Offload) -> None:
        self._table: KvTable = {}
        self._file = kv_file(files, f"{directory}/kvConfig.json") if directory else None
        self._saver = ConfigSaver("kvConfig.json", self._snapshot, self._write, offload)

    def load(self) -> None:
        """Read the file, if there is one. ``StoreCorrupt`` when neither it nor its ``.bak`` can be
        read.
        """
        if self._file is not None:
            self._table = self._file.load() or {}

    def get(self, namespace: str, key: str) -> str | None:
        """One value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace, None when it was never used."""
        found = self._table.get(namespace)
        return None if found is None else dict(found)

    def put(self, namespace: str, key: str, value: str, then: Saved) -> None:
        """Set a value; ``then(None)`` once it is on disk, ``then(error)`` when it holds in memory
        only.

        Raises ``AdminError`` for a value that is too long or a table that is full; nothing has
        changed then.
        """
        for what, text in (("namespace", namespace), ("key", key), ("value", value)):
            if len(text) > CHARS_MAX:
                raise AdminError(
                    f"the {what} has {len(text)} characters, the limit is {CHARS_MAX}; keep "
                    f"large values elsewhere"
                )
        if self.get(namespace, key) is None and self.entries >= ENTRIES_MAX:
            raise AdminError(
                f"the table holds {ENTRIES_MAX} entries already; delete some before "
                f"{namespace!r} {key!r} can be added"
            )
        self._table.setdefault(namespace, {})[key] = value
        self._saver.save(then)

    def delete(self, namespace: str, key: str, then: Saved) -> None:
        """Remove a value; an unknown one is fine. ``then`` as in ``put``."""
        self._table.get(namespace, {}).pop(key, None)
        self._saver.save(then)

    @property
    def entries(self) -> int:
        """Values in all namespaces."""
        return sum(len(table) for table in self._table.values())

    def _snapshot(self) -> KvTable:
        return {namespace: dict(table) for namespace, table in self._table.items()}

    def _write(self, table: KvTable) -> None:
        if self._file is not None:
            self._file.save(table)


class NameServerSettingsHandlers:
    """100 to 102, 219, 318, 319."""

    def __init__(self, config: NameServerConfig, kv: KvConfig) -> None:
        self._config = config
        self._kv = kv
        self._order_messages = config.order_messages

    def order_messages(self) -> bool:
        """Whether routes carry the order configuration; changeable by 318 until the next
        restart.
        """
        return self._order_messages

    def put(self, command: Command, peer: Peer) -> Command | None:
        """PUT_KV_CONFIG 100."""
        header = KeyValueHeader.from_fields(command.fields)
        key, value = _required(header.key, "key"), _required(header.value, "value")
        return _once_saved(
            command, peer, lambda saved: self._kv.put(header.namespace, key, value, saved)
        )

    def delete(self, command: Command, peer: Peer) -> Command | None:
        """DELETE_KV_CONFIG 102."""
        header = KeyValueHeader.from_fields(command.fields)
        key = _required(header.key, "key")
        return _once_saved(
            command, peer, lambda saved: self._kv.delete(header.namespace, key, saved)
        )

    def get(self, command: Command, _peer: Peer) -> Command:
        """GET_KV_CONFIG 101."""
        header = KeyValueHeader.from_fields(command.fields)
        value = self._kv.get(header.namespace, _required(header.key, "key"))
        if value is None:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return command.answer(fields={"value": value})

    def list_all(self, command: Command, _peer: Peer) -> Command:
        """GET_KVLIST_BY_NAMESPACE 219."""
        header = KeyValueHeader.from_fields(command.fields)
        table = self._kv.namespace(header.namespace)
        if table is None:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {header.namespace}",
            )
        return command.answer(body=bodies.encode_table(table))

    def update_config(self, command: Command, _peer: Peer) -> Command:
        """UPDATE_NAMESRV_CONFIG 318."""
        changes = _lines(command.body_bytes())
        for name, value in changes.items():
            if name != ORDER_MESSAGES:
                raise AdminError(
                    f"setting {name!r} cannot be changed by a request, only "
                    f"{ORDER_MESSAGES}: set it where the name server is started"
                )
            if value not in ("true", "false"):
                raise AdminError(f"{ORDER_MESSAGES} must be true or false, not {value!r}")
        self._order_messages = (
            changes.get(ORDER_MESSAGES, str(self._order_messages)).lower() == "true"
        )
        return command.answer()

    def get_config(self, command: Command, _peer: Peer) -> Command:
        """GET_NAMESRV_CONFIG 319."""
        settings = {
            "clusterName": self._config.cluster_name,
            "listenPort": str(self._config.port),
            ORDER_MESSAGES: "true" if self._order_messages else "false",
            "scanNotActiveBrokerInterval": str(self._config.scan_interval_ms),
            "brokerExpiry": str(self._config.broker_expiry_ms),
        }
        return command.answer(
            body="".join(f"{name}={value}\n" for name, value in sorted(settings.items())).encode()
        )


def _required(value: str | None, name: str) -> str:
    if value is None:
        raise AdminError(f"the field {name!r} is missing in a request about the key-value table")
    return value


def _lines(body: bytes) -> dict[str, str]:
    """``key=value`` lines; blank ones and ``#`` comments are passed over."""
    found = {}
    for line in body.decode("utf-8", "replace").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            name, separator, value = line.partition("=")
            if not separator:
                raise AdminError(f"line {line!r:.200} is not key=value")
            found[name.strip()] = value.strip()
    return found


def _once_saved(command: Command, peer: Peer, change: Callable[[Saved], None]) -> Command | None:
    """Make the change and answer when it is on disk: at once where files are written in this
    thread, else through the peer.
    """
    answers: list[Command] = []
    returned = False

    def saved(error: Exception | None) -> None:
        answer = command.answer() if error is None else _failed(command, error)
        if not returned:
            answers.append(answer)
        elif not command.is_oneway:
            peer.send(answer)

    change(saved)
    returned = True
    return answers[0] if answers else None


def _failed(command: Command, error: Exception) -> Command:
    code = error.code if isinstance(error, RmqError) else int(ResponseCode.SYSTEM_ERROR)
    return command.answer(code, remark=f"the change holds in memory, but was not written: {error}")
