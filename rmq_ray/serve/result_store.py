"""What became of tasks: written to the topic of results, found again by the task's id.

    SUCCESS, RETRY, ... ──send──> rmq_results_<queue>, key = id ──index──> find(id)

Decides when a result's time is over and what is said of a task that nobody wrote about. Which of
several records counts ``task_codec.standing`` decides. A task whose dead letter is sent again has
the same id in another message: a property of a record may say which message it was told of.
Invariant: what ``write`` called back for, and ``tell`` returned for, is as durable as the broker's
mode says.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import Clock
from rmq_ray.errors import (
    BodyUnreadable,
    GroupNotFound,
    ResultExpired,
    RmqError,
    SendUnknown,
    TopicNotFound,
)
from rmq_ray.serve.settings import TaskSettings
from rmq_ray.serve.task_codec import (
    Status,
    TaskRecord,
    decode_record,
    encode_record,
    made_ms,
    standing,
)

FOUND_MAX = 64
STORED_S = 60.0
TOLD_OF = "told_of"
Told = Callable[[RmqError | None], None]

log = logging.getLogger("rmq_ray.serve")


class ResultStore:
    """Of one queue of tasks. ``write`` may be called by any thread, ``find`` too."""

    def __init__(
        self, settings: TaskSettings, producer: Producer, admin: Admin, clock: Clock
    ) -> None:
        self._settings = settings
        self._producer = producer
        self._admin = admin
        self._clock = clock
        self._ttl_ms = round(settings.adapter.result_ttl_s * 1_000)
        self._pickle = settings.adapter.pickle

    def write(
        self,
        task: tuple[str, int],
        status: Status,
        tries: int,
        result: Any = None,
        told: Told | None = None,
        message_id: str | None = None,
    ) -> None:
        """Of the task (id, created_ms), as the message ``message_id`` brought it. ``told`` is
        called once the broker has it, with None, or with the error; at once where no results are
        kept. Raises ``TaskNotEncodable``, ``MessageTooLarge`` and what ``send_async`` raises;
        ``told`` is not called then.
        """
        if not self._ttl_ms:
            if told is not None:
                told(None)
            return
        task_id, created_ms = task
        expires_ms = self._clock.now_ms() + self._ttl_ms
        record = TaskRecord(task_id, status, tries, result, created_ms, expires_ms)
        body = encode_record(record, self._pickle)
        of = None if message_id is None else {TOLD_OF: message_id}
        future = self._producer.send_async(
            self._settings.results, body, keys=[task_id], properties=of
        )
        if told is not None:
            future.add_done_callback(lambda done: told(_error(done)))

    def tell(
        self,
        task: tuple[str, int],
        status: Status,
        tries: int,
        result: Any = None,
        message_id: str | None = None,
    ) -> None:
        """``write``, durable on return. Raises what it told, too; ``SendUnknown`` where nothing was
        told.
        """
        stored, failed = threading.Event(), list[RmqError]()

        def told(error: RmqError | None) -> None:
            failed.extend([error] if error is not None else [])
            stored.set()

        self.write(task, status, tries, result, told, message_id)
        if not stored.wait(STORED_S):
            raise SendUnknown(f"what became of task {task[0]} may not be stored")
        if failed:
            raise failed[0]

    def find(self, task_id: str) -> TaskRecord:
        """Its status now. ``ResultExpired`` once it is not kept any more, ``ClientError`` for what
        is no id; what administration raises where no broker answers.
        """
        due_ms, now_ms = made_ms(task_id), self._clock.now_ms()
        found = standing(self.records(task_id))
        if found is not None and (not found.status.final or found.expires_ms > now_ms):
            return found
        if found is None and (now_ms - due_ms <= self._ttl_ms or self._waits(task_id)):
            return TaskRecord(task_id, Status.PENDING, 0, None, due_ms, 0)
        raise ResultExpired(
            f"what became of task {task_id} is not kept any more: results of queue "
            f"{self._settings.queue!r} are kept for {self._ttl_ms / 1_000:g} s (result_ttl_s)",
            task_id,
        )

    def records(self, task_id: str, message_id: str | None = None) -> list[TaskRecord]:
        """All that was written about it, the newest first; with ``message_id`` only what was told
        of that message.
        """
        try:
            rows = self._admin.find_messages(self._settings.results, task_id, limit=FOUND_MAX)
        except TopicNotFound:
            return []
        found = []
        for row in rows:
            if message_id is not None and row["properties"].get(TOLD_OF) != message_id:
                continue
            if task_id in row["keys"] and row["body"] is not None:
                record = self._read(row["body"])
                if record is not None and record.id == task_id:
                    found.append(record)
        return found

    def _read(self, body: bytes) -> TaskRecord | None:
        try:
            return decode_record(body, self._pickle)
        except BodyUnreadable as error:
            if "pickle" in error.message:
                raise
            log.warning("a record in %s is passed over: %s", self._settings.results, error)
            return None

    def _waits(self, task_id: str) -> bool:
        """Whether its message is there and was not taken."""
        for topic, group in (
            (self._settings.queue, self._settings.queue),
            (self._settings.ordered, self._settings.ordered),
        ):
            try:
                rows = self._admin.find_messages(topic, task_id, limit=FOUND_MAX)
            except TopicNotFound:
                continue
            taken = self._taken(group) if rows else {}
            for row in rows:
                if row["queue_offset"] >= taken.get((topic, row["broker"], row["queue"]), 0):
                    return True
        return False

    def _taken(self, group: str) -> dict[tuple[str, str, int], int]:
        try:
            rows = self._admin.group_lag(group)
        except GroupNotFound:
            return {}
        return {(row["topic"], row["broker"], row["queue"]): row["committed"] for row in rows}


def _error(future: Any) -> RmqError | None:
    error = future.exception()
    return error if error is None or isinstance(error, RmqError) else RmqError(str(error))
