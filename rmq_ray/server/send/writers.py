"""What stores single messages, a client's and the broker's own: the third of a broker's rooms
(``base.runtime``).
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.protocol.delay import DelayLevels
from rmq_ray.server.send.message_writer import MessageWriter
from rmq_ray.server.send.own_writes import OwnWrites


@dataclass(frozen=True, slots=True)
class Writers:
    """``levels``: the delays that ``writer`` knows. ``own``: where a message goes that was admitted
    long ago.
    """

    levels: DelayLevels
    writer: MessageWriter
    own: OwnWrites
