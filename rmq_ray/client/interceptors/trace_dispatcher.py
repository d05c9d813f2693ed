"""Sends trace records beside the work that they are about: a queue, one daemon thread, and one
message for up to a hundred records.

    hooks (``client.interceptors.trace``) ──add──> queue of 1,024 calls ──thread, every 100 ms──> SEND_MESSAGE_V2 to the trace topic

Decides when records leave and what is dropped: a queue that is full, of calls or of their records,
drops the newest, a message that no broker takes is dropped after one repeat; both are counted.
Tracing never waits for anything in the caller's thread and never fails a send. Called by hooks;
closed by the client that started it, which waits half a second at most for what is queued; the
thread ends with its client in any case.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading

from rmq_ray.client.instance.client_instance import ClientInstance, ServiceState
from rmq_ray.errors import RmqError
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import KEYS, WAIT, encode_properties
from rmq_ray.model.topics import DEFAULT_TOPIC
from rmq_ray.model.trace import Trace, encode, search_keys
from rmq_ray.protocol.retry import STATUS_OF_CODE
from rmq_ray.protocol.routing.queue_selection import position
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader

QUEUE_MAX = 1_024  # calls: sends, batches, calls of a listener
RECORDS_MAX = 65_536  # of all of them; a single call may have more
BATCH_MAX = 100
POLL_S = 0.1
STOP_S = 0.5
MESSAGE_BYTES_MAX = 118_000  # 128,000 less 10,000 for properties
KEYS_CHARS_MAX = 16_000
SEND_TIMEOUT_MS = 5_000.0
ATTEMPTS = 2
GROUP = "_INNER_TRACE_PRODUCER"
WARN_EVERY = 1_000

log = logging.getLogger("rmq_ray.client")


class TraceDispatcher:
    """See the module. ``dropped``: records that nobody will see."""

    def __init__(self, instance: ClientInstance, topic: str) -> None:
        self._instance = instance
        self._topic = topic
        self._queue: queue.Queue[tuple[Trace, ...]] = queue.Queue(QUEUE_MAX)
        self._lock = threading.Lock()
        self._records = 0
        self._turn = itertools.count().__next__
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = 0
        self.dropped = 0

    @property
    def alive(self) -> bool:
        """False when its client is closed."""
        return self._instance.state is ServiceState.RUNNING

    def start(self) -> None:
        """Start the thread. A thread that cannot be started is only warned of: traces are dropped
        then.
        """
        thread = threading.Thread(
            target=self._run, name=f"rmq-trace-{self._instance.client_id}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("message trace could not be started, nothing is traced: %s", error)
            return
        self._thread = thread

    def add(self, *records: Trace) -> bool:
        """Queue the records of one call; False when they were dropped. Never blocks."""
        if self._thread is None or self._stop.is_set():
            self._drop(len(records), "tracing does not run")
            return False
        with self._lock:
            fits = not self._records or self._records + len(records) <= RECORDS_MAX
            if fits and not self._queue.full():
                self._queue.put_nowait(records)
                self._records += len(records)
                return True
        self._drop(len(records), f"{QUEUE_MAX} calls or {RECORDS_MAX} records wait already")
        return False

    def close(self) -> None:
        """Send what is queued, within half a second; later records are dropped."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            last = self._stop.is_set()
            records = self._take()
            if records:
                self._send_all(records)
            elif last:
                return
            elif not self.alive:
                self._stop.set()

    def _take(self) -> list[Trace]:
        """A hundred records or a few more; waits 100 ms for the first when none is there."""
        taken: list[Trace] = []
        try:
            taken += self._queue.get(timeout=0.0001 if self._stop.is_set() else POLL_S)
            while len(taken) < BATCH_MAX:
                taken += self._queue.get_nowait()
        except queue.Empty:
            pass
        with self._lock:
            self._records -= len(taken)
        return taken

    def _send_all(self, records: list[Trace]) -> None:
        chunk: list[Trace] = []
        texts: list[str] = []
        size = keys = 0
        for record in records:
            text = encode(record)
            length, own_keys = len(text.encode()), len(record.message_id) + len(record.keys) + 2
            if chunk and (size + length > MESSAGE_BYTES_MAX or keys + own_keys > KEYS_CHARS_MAX):
                self._send(chunk, "".join(texts))
                chunk, texts, size, keys = [], [], 0, 0
            chunk.append(record)
            texts.append(text)
            size, keys = size + length, keys + own_keys
        self._send(chunk, "".join(texts))

    def _send(self, records: list[Trace], body: str) -> None:
        properties = encode_properties(
            {KEYS: " ".join(search_keys(records))[:KEYS_CHARS_MAX], WAIT: "false"}
        )
        failure = ""
        for _ in range(ATTEMPTS):
            try:
                target, address = self._target()
                answer = self._instance.invoke(
                    address, self._command(target, body.encode(), properties), SEND_TIMEOUT_MS
                )
            except RmqError as error:
                failure = str(error)
                continue
            if answer.code in STATUS_OF_CODE:
                self.sent += len(records)
                return
            failure = answer.remark or f"code {answer.code}"
        self._drop(len(records), failure)

    def _target(self) -> tuple[MessageQueue, Address]:
        queues = self._instance.routes.find_publish(self._topic).queues
        target = queues[position(self._turn(), len(queues))]
        address = self._instance.broker_address(target.broker_name)
        if address is None:
            raise RmqError(f"no address of broker {target.broker_name!r} is known")
        return target, address

    def _command(self, target: MessageQueue, body: bytes, properties: str) -> Command:
        header = SendHeader(
            producer_group=GROUP,
            topic=self._topic,
            default_topic=DEFAULT_TOPIC,
            queue_id=target.queue_id,
            sys_flag=0,
            flag=0,
            born_ms=self._instance.clock.now_ms(),
            properties=properties,
            broker_name=target.broker_name,
        )
        return Command(RequestCode.SEND_MESSAGE_V2, fields=header.to_v2(), body=body)

    def _drop(self, count: int, reason: str) -> None:
        before, self.dropped = self.dropped, self.dropped + count
        if before // WARN_EVERY != self.dropped // WARN_EVERY or not before:
            log.warning("%d trace records were dropped so far: %s", self.dropped, reason)
