"""Plans the reading of ranges that somebody knows already: a batch of a stream, what a table lacks,
the log behind a table.

Decides: that no other queue is read, and no other broker waited for. See ``scan_plan`` for the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan, plan_scan
from rmq_ray.errors import ClientError, ClusterError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Discovery


def plan_ranges(
    discovery: Discovery,
    ranges: Mapping[MessageQueue, tuple[int, int]],
    splits_wanted: int,
    options: ScanOptions | None = None,
) -> ScanPlan:
    """What reads [first, next) of these queues, which may be of several topics. Raises as
    ``plan_scan``, ``ClusterError`` where one of the queues is not there now.
    """
    if not ranges:
        return ScanPlan("", ())
    try:
        return plan_scan(
            discovery,
            sorted({queue.topic for queue in ranges}),
            {queue: low for queue, (low, _) in ranges.items()},
            {queue: high for queue, (_, high) in ranges.items()},
            splits_wanted,
            {queue.broker_name for queue in ranges},
            replace(options or ScanOptions(), only_named=True),
        )
    except ClientError as error:
        if error.args[1] not in map(str, ranges):
            raise
        raise ClusterError(  # a name server that restarts may not have it yet
            f"{error.args[1]} is to be read and is not there now; see `rmq-ray status`",
            error.args[1],
        ) from error
