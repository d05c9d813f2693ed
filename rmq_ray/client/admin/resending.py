"""Messages of a topic once more: found by their ids or a key, sent as new messages (the command
``message resend``).

Decides what a resent message is: body, tag, keys, flag and the user's properties, for all groups of
the topic; it gets an id of its own. Which messages are found is the index's matter
(``Admin.find_messages``): those of the last days that retention kept. Dead letters have a way of
their own (``dead_letters``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import AdminError, ClientError
from rmq_ray.model.message import RESERVED_PROPERTIES, Message
from rmq_ray.model.topics import DLQ_PREFIX
from rmq_ray.protocol.validators import check_send_topic

SEND_WAIT_S = 60.0  # beyond every time-out of the producer

RESEND_GROUP = "rmq-ray-resend"
FOUND_MAX = 64
# beyond every time-out of the producer


class Resending(Admin):
    """Administration that sends messages again. Blocking."""

    def resend_messages(
        self,
        topic: str,
        *,
        message_ids: Collection[str] = (),
        key: str | None = None,
        to: str | None = None,
        limit: int = FOUND_MAX,
        execute: bool = False,
    ) -> list[dict[str, Any]]:
        """Send messages of ``topic`` again, to ``to`` or to the same topic: those with these ids,
        or with a business key (the newest ``limit``).

        Returns what was found, oldest first, as ``find_messages`` does; with ``execute`` each row
        has ``resent_as``, the id of the new message. Nothing is sent unless all of it can be:
        ``AdminError`` where an id is not there or a body cannot be restored. What a send raises
        ends it.
        """
        if bool(message_ids) == (key is not None):
            raise ClientError(
                "give the ids of the messages to resend, or their key: one of the two"
            )
        if topic.startswith(DLQ_PREFIX):
            raise ClientError(
                f"{topic} holds dead letters; send them with `rmq-ray dlq resend "
                f"{topic.removeprefix(DLQ_PREFIX)}`",
                topic,
            )
        target = topic if to is None else to
        check_send_topic(target)
        rows = (
            self._with_ids(topic, message_ids) if key is None else self._with_key(topic, key, limit)
        )
        messages = [_message(target, row) for row in rows]
        if execute and rows:
            self._send(rows, messages)
        return rows

    def _with_ids(self, topic: str, message_ids: Collection[str]) -> list[dict[str, Any]]:
        rows = []
        for wanted in dict.fromkeys(message_ids):
            found = [
                row
                for row in self.find_messages(topic, wanted, limit=FOUND_MAX)
                if row["message_id"] == wanted
            ]
            if not found:
                raise AdminError(
                    f"topic {topic!r} has no message {wanted}: it was removed with an old "
                    f"segment, or never stored",
                    wanted,
                )
            rows.append(found[-1])
        return _oldest_first(rows)

    def _with_key(self, topic: str, key: str, limit: int) -> list[dict[str, Any]]:
        found = [row for row in self.find_messages(topic, key, limit=limit) if key in row["keys"]]
        return _oldest_first(found)

    def _send(self, rows: Sequence[dict[str, Any]], messages: Sequence[Message]) -> None:
        with Producer(RESEND_GROUP, discovery=self._discovery) as producer:
            for row, sent in [
                (row, producer.send_async(message))
                for row, message in zip(rows, messages, strict=True)
            ]:
                row["resent_as"] = sent.result(SEND_WAIT_S).message_id


def _message(topic: str, row: dict[str, Any]) -> Message:
    if row["body"] is None:
        raise AdminError(
            f"the body of message {row['message_id']} cannot be restored; nothing was sent",
            row["message_id"],
        )
    own = {
        name: value for name, value in row["properties"].items() if name not in RESERVED_PROPERTIES
    }
    return Message(topic, row["body"], row["tag"], row["keys"], own, row["flag"])


def _oldest_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["store_ms"], row["log_offset"]))
