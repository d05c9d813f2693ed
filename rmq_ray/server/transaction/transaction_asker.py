"""CHECK_TRANSACTION_STATE 39: asking a producer what became of its transaction (protocol-behaviour
20).

Decides whom a check goes to. Does not decide when one is due (``transaction_service``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import cast

from rmq_ray.codec.record import Record, encode_record, offset_message_id
from rmq_ray.model.message import UNIQUE_KEY
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.headers import CheckTransactionHeader
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.transaction.transaction_service import half_target


class TransactionAsker:
    """Finds a live connection of the half's producer group, any of them, and sends it 39.
    Implements ``transaction_service.CheckSender``.
    """

    def __init__(
        self,
        members: GroupMembership,
        host: tuple[str, int],
        may_send: Callable[[Peer, str], bool] = lambda _peer, _topic: True,
    ) -> None:
        self._members = members
        self._host = host
        self._may_send = may_send
        self._number = 0

    def find(self, group: str, topic: str, but: Collection[Peer] = ()) -> Peer | None:
        """Whom to ask about a half of the group; None while nobody who may have a checker, and may
        send to its topic, is connected: whoever is asked gets the message.
        """

        def can_be_asked(connection: object) -> bool:
            peer = cast(Peer, connection)
            return not peer.closed and peer not in but and self._may_send(peer, topic)

        return cast("Peer | None", self._members.producers.next_connection(group, can_be_asked))

    def ask(self, peer: Peer, copy: Record, properties: dict[str, str]) -> None:
        """``copy``: the record that stands for the half now, whose offsets the answer must
        carry; ``properties``: its own.
        """
        topic, queue_id = half_target(copy, properties)
        record = replace(copy, topic=topic, queue_id=queue_id)
        unique = properties.get(UNIQUE_KEY)
        header = CheckTransactionHeader(
            copy.queue_offset,
            copy.log_offset,
            unique,
            unique,
            offset_message_id(*self._host, copy.log_offset),
        )
        self._number = (self._number + 1) & 0x7FFFFFFF
        peer.send(
            Command(
                RequestCode.CHECK_TRANSACTION_STATE,
                self._number,
                FLAG_ONEWAY,
                header.to_fields(),
                encode_record(record),
            )
        )
