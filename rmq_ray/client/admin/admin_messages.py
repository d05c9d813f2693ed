"""Finding single messages: by key, by id (remoting 3: 12 QUERY_MESSAGE, 33 VIEW_MESSAGE_BY_ID).

Called by: ``admin``. Blocking. Rows have the columns of ``codec.record_rows``, plus ``broker``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rmq_ray.client.admin.admin_link import AdminLink, body_of
from rmq_ray.codec.record import decode_record, parse_offset_message_id
from rmq_ray.codec.record_rows import record_row
from rmq_ray.errors import AdminError, ClientError
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import TRACE_TOPIC
from rmq_ray.model.trace import decode
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Buffer, Command
from rmq_ray.remoting.wire.headers import QueryMessageHeader, ViewMessageHeader

FOUND_MAX = 64  # a broker returns no more for one query
_END_OF_TIME_MS = (1 << 63) - 1


class AdminMessages(AdminLink):
    """The part of ``Admin`` that knows messages."""

    def find_messages(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 32,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME_MS,
    ) -> list[dict[str, Any]]:
        """Messages of a topic with a business key, or with a message id as the key, stored in
        [begin, end]; newest first, at most 64 a broker.
        """
        check_topic(topic)
        if not key:
            raise ClientError("the key is empty; give the key or the message id to look for")
        header = QueryMessageHeader(
            topic=topic,
            key=key,
            max_count=max(1, min(limit, FOUND_MAX)),
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        rows: list[dict[str, Any]] = []
        for broker, address in self.masters().items():
            command = Command(RequestCode.QUERY_MESSAGE, fields=header.to_fields())
            answer = self._ask(
                address,
                command,
                f"broker {broker} did not look for {key!r} in topic {topic!r}",
                (ResponseCode.QUERY_NOT_FOUND,),
            )
            if answer.code == ResponseCode.SUCCESS:
                rows += _rows(broker, body_of(answer))
        return sorted(rows, key=lambda row: (-int(row["store_ms"]), -int(row["log_offset"])))[
            :limit
        ]

    def message_trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[dict[str, Any]]:
        """What traced clients wrote of a message, by its message id or a business key: rows in the
        order of their times.

        Columns: ``time_ms``, ``kind`` (Pub, SubBefore, SubAfter, EndTransaction), ``group``,
        ``message_id`` and the record's other fields.
        """
        found = self.find_messages(topic, message_id, limit=FOUND_MAX)
        records = {record for row in found if row["body"] for record in decode(row["body"])}
        wanted = [
            record
            for record in records
            if message_id == record.message_id or message_id in record.keys.split()
        ]
        rows = [
            {
                "time_ms": record.ms,
                "kind": type(record).__name__,
                "group": record.group,
                **asdict(record),
            }
            for record in wanted
        ]
        for row in rows:
            del row["ms"]
        return sorted(
            rows, key=lambda row: (row["time_ms"], row["kind"] in ("SubAfter", "EndTransaction"))
        )

    def message_at(self, offset_message_id: str) -> dict[str, Any]:
        """The message with an offset message id (``SendResult.offset_message_id``): broker address
        and log offset, 32 hex digits.

        ``ClientError`` for a text that is none, ``AdminError`` where no master has that address, or
        nothing lies there.
        """
        try:
            host, port, log_offset = parse_offset_message_id(offset_message_id)
        except ValueError as error:
            raise ClientError(
                f"{offset_message_id!r} is no offset message id: {error}", offset_message_id
            ) from None
        wanted = Address(host, port)
        broker = next((name for name, address in self.masters().items() if address == wanted), None)
        if broker is None:
            raise AdminError(
                f"no master of this cluster listens at {wanted}; for the message id of a "
                f"producer give the topic too",
                offset_message_id,
            )
        command = Command(
            RequestCode.VIEW_MESSAGE_BY_ID, fields=ViewMessageHeader(offset=log_offset).to_fields()
        )
        return _rows(
            broker,
            body_of(
                self._ask(
                    wanted, command, f"broker {broker} has no message at log offset {log_offset}"
                )
            ),
        )[0]


def _rows(broker: str, body: Buffer) -> list[dict[str, Any]]:
    """Records back to back."""
    rows = []
    data = bytes(body)
    at = 0
    while at < len(data):  # ends: every record has a size
        record = decode_record(data, at)
        rows.append({"broker": broker, **record_row(record)})
        at += record.size
    return rows
