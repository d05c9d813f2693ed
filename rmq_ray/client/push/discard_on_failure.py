"""What becomes of messages that a broadcasting consumer's listener could not process: nothing
(protocol-behaviour 15).

Every member of the group has the message; sent back, it would come to one of them only. So it is
dropped, with a line in the log. Stands in for ``SendBack``; called by
``client.push.consume_concurrently``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

from rmq_ray.client.messages.received import MessageExt

log = logging.getLogger("rmq_ray.client.consume")


class DropFailed:
    """Of one consumer group."""

    stores: ClassVar[bool] = False

    def __init__(self, group: str) -> None:
        self._group = group

    def send_back(self, message: MessageExt, delay_level: int) -> bool:
        """The message is done with; always true."""
        place = f"{message.queue}, offset {message.queue_offset}"
        log.warning(
            "message %s (%s) failed in broadcasting group %s and is dropped: nobody gets it again",
            message.message_id,
            place,
            self._group,
        )
        return True

    def send_back_all(self, messages: Sequence[MessageExt], delay_level: int) -> list[MessageExt]:
        """None is kept."""
        for message in messages:
            self.send_back(message, delay_level)
        return []
