"""The name server's key-value table and settings, as administration tools ask for them (remoting
6).

Decides: which settings may be changed by a request (``orderMessageEnable`` alone: no remote call
sets a path or a port) and what is answered. Does not decide what the values mean. Called by
``server.namesrv.name_server``.

Invariant: a change of the key-value table is answered once it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_ray.config import NameServerConfig
from rmq_ray.errors import AdminError, RmqError
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import KeyValueHeader
from rmq_ray.server.base.config_saver import Saved
from rmq_ray.server.namesrv.kv_config import KvConfig

Handler = Callable[[Command, Peer], Command | None]

ORDER_MESSAGES = "orderMessageEnable"


class SettingsHandlers:
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
