"""Which topics are tables: their settings, in the key-value table that the name servers keep on
disk, so that a cluster that starts again goes on with them.

Decides the namespace. Blocking; each name server is told everything, and the first that knows any
table answers.
"""

from __future__ import annotations

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import TIMEOUT_MS, refused
from rmq_ray.ports import Discovery
from rmq_ray.remoting.wire.bodies import decode_table
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import KeyValueHeader
from rmq_ray.table.rules import TableSpec

NAMESPACE = "RMQ_RAY_TABLES"


class TableRegistry:
    """Of one cluster. Calls raise ``RemotingError`` where a name server does not answer, and
    ``NotAuthorized`` or ``ResponseError`` where it refuses.
    """

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def all(self) -> dict[str, TableSpec]:
        """Topic -> settings."""
        for answer in self._ask(RequestCode.GET_KVLIST_BY_NAMESPACE, KeyValueHeader(NAMESPACE)):
            if answer.code == ResponseCode.SUCCESS:
                found = decode_table(answer.body_bytes())
                return {topic: TableSpec.from_json(text) for topic, text in found.items()}
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                raise refused(f"the list of tables was refused: {answer.remark}", answer)
        return {}

    def keep(self, spec: TableSpec) -> None:
        """Durable on every name server on return."""
        header = KeyValueHeader(NAMESPACE, spec.topic, spec.to_json())
        for answer in self._ask(RequestCode.PUT_KV_CONFIG, header):
            if answer.code != ResponseCode.SUCCESS:
                raise refused(f"the table's settings were not kept: {answer.remark}", answer)

    def forget(self, topic: str) -> None:
        """It is no table any more."""
        self._ask(RequestCode.DELETE_KV_CONFIG, KeyValueHeader(NAMESPACE, topic))

    def _ask(self, code: RequestCode, header: KeyValueHeader) -> list[Command]:
        instance = ClientInstance.get_or_create(self._discovery)
        instance.start()
        try:
            command = Command(code, fields=header.to_fields())
            return instance.link.every_name_server_invoke(command, TIMEOUT_MS)
        finally:
            instance.release()
