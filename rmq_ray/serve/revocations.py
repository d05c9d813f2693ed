"""Cancelled tasks: every replica reads the topic of revoked ids to its end before it takes tasks,
and goes on reading.

Decides how many ids are remembered. What becomes of a task that runs already ``task_worker``
decides. Invariant: once ``ready``, every id that was acknowledged before is known.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.scan.shared_queues import queues_to_share
from rmq_ray.ports import Discovery

REMEMBERED_MAX = 100_000
POLL_S, PAUSE_S = 2.0, 0.5
CLOSE_S = 2.0

log = logging.getLogger("rmq_ray.serve")


class Revocations:
    """Of one replica. ``revoked(task_id)`` is called in its thread for each id that is new."""

    def __init__(self, discovery: Discovery, topic: str, revoked: Callable[[str], None]) -> None:
        self._discovery, self._topic = discovery, topic
        self._revoked = revoked
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._stop = threading.Event()
        self.ready = threading.Event()
        """Set once all is read that was there at the start."""
        self._consumer = PullConsumer(f"rmq_ray_{topic}", discovery=discovery, auto_commit=False)
        self._thread = threading.Thread(target=self._run, name=f"rmq-{topic}", daemon=True)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._ids

    def start(self) -> None:
        """Read from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Read no further."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        begun = False
        while not self._stop.is_set():  # ends: with ``stop``
            try:
                if not begun:
                    self._begin()
                    begun = True
                self._read(POLL_S)
            except Exception as error:  # noqa: BLE001 - tasks wait until they are read
                log.warning("revoked tasks cannot be read: %s", error)
                self._stop.wait(PAUSE_S)
        self._consumer.close()

    def _begin(self) -> None:
        consumer = self._consumer
        if not consumer.assignment():
            queues = queues_to_share(self._discovery, self._topic)
            consumer.start()
            consumer.assign(queues)
        ends = {}
        for queue in consumer.assignment():
            first, ends[queue] = consumer.watermark_offsets(queue)
            consumer.seek(queue, first)
        while not self._stop.is_set() and any(  # ends: at the ends that were there
            consumer.position(queue) < end for queue, end in ends.items()
        ):
            self._read(PAUSE_S)
        self.ready.set()

    def _read(self, wait_s: float) -> None:
        for message in self._consumer.poll(timeout=wait_s):
            task_id = message.body.decode("ascii", "replace")
            self._ids[task_id] = None
            if len(self._ids) > REMEMBERED_MAX:
                self._ids.popitem(last=False)
            self._revoked(task_id)
