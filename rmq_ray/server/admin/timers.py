"""Messages that wait for their time, as administration looks at them: the fourth of a broker's
rooms (``base.runtime``).
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.server.delay.delay_service import DelayService
from rmq_ray.server.delay.timer_service import TimerService
from rmq_ray.server.tables.waiting_counts import WaitingMessages
from rmq_ray.server.transaction.transaction_service import Transactions


@dataclass(frozen=True, slots=True)
class Timers:
    """``delays``: by level. ``timed``: by an exact time. ``transactions``: halves, until they end.
    ``waiting``: how many of all of them.
    """

    delays: DelayService
    timed: TimerService
    transactions: Transactions
    waiting: WaitingMessages
