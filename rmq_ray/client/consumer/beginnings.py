"""What a group that is new does not read, told in its log, whatever kind of consumer it has."""

from __future__ import annotations

import logging

log = logging.getLogger("rmq_ray.client.rebalance")


def tell_beginning(group: str, topic: str, messages: int) -> None:
    """The group begins at the end of the topic, or of some of its queues: so many messages lie
    before that.
    """
    if messages:
        log.warning(
            "group %r begins at the end of %r: the %d messages that are there are not read; "
            "start_from='first' of a new group reads them, and `rmq-ray group seek %s %s --to "
            "first --execute` goes back to them",
            group,
            topic,
            messages,
            group,
            topic,
        )
