"""A replica's worker: takes tasks for a time, runs their handlers, and says what became of them.

    receive ─> ready ─> a thread runs it ─┬─ returned: SUCCESS is stored, then acknowledged
       (lease)  (lease is extended)       ├─ raised: RETRY, comes again after the pause
                                          ├─ raised for the last time: dead letter, FAILURE
                                          ├─ longer than it may: the same, its thread is replaced
                                          ├─ raised while a breaker is open: ready, as if not begun
                                          └─ unknown name, unreadable: dead letter, FAILURE

Decides how many tasks are taken in advance, who takes them (the thread that has nothing to do), and
how long a lease is extended; and which task is tried next while a breaker is open: one that was not
tried meanwhile, if there is one. Which task waits until its key is free ``task_limiter`` decides;
it waits in no breaker's line meanwhile. Invariants: a task is acknowledged only after its result is
stored, so one whose replica dies comes again; it is settled once, by its thread or by the keeper; a
task that was taken is extended until then, and by nobody once the process is gone.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_ray.client.pop.receipts import ReceivedMessage, give_back_messages
from rmq_ray.client.pop.simple_consumer import MESSAGES_MAX, SimpleConsumer
from rmq_ray.client.push.listener_breaker import ListenerBreaker
from rmq_ray.clock import Clock
from rmq_ray.errors import ReceiptStale, RmqError, TaskTimedOut
from rmq_ray.guard import attempt
from rmq_ray.serve.handlers import TaskHandlers
from rmq_ray.serve.result_store import ResultStore
from rmq_ray.serve.revocations import Revocations
from rmq_ray.serve.settings import TaskSettings
from rmq_ray.serve.task_codec import Status, Task, decode_task, reason
from rmq_ray.serve.task_limiter import TaskLimiter
from rmq_ray.serve.verdicts import LOSSES_MAX, TaskOutcome, TaskVerdict, judge, lost, unreadable

WAIT_S, PAUSE_S, TICK_S = 5.0, 0.5, 0.1
STARTED_AFTER_MS = 100.0
"""A task that runs so long is told as STARTED; of shorter ones only the end is."""
SPARE_MAX = 256
UNTRIED_MAX = 256
"""So many tasks are held at most to find one that does not fail while a breaker is open."""
READY_S = 30.0

log = logging.getLogger("rmq_ray.serve")


@dataclass(slots=True, eq=False)
class Held:
    """One task that this replica has. ``since_ms``, monotonic: when its handler began.
    ``limit_key``: tasks with the same one are limited together. ``suspended``: it was put back,
    since it failed while a breaker was open; ``again``: it is run once more, and the breaker has
    closed.
    """

    message: ReceivedMessage
    renew_ms: float
    limit_key: str | None = None
    suspended: bool = False
    again: bool = False
    task: Task | None = None
    since_ms: float | None = None
    told_started: bool = False
    settled: bool = False
    revoked: bool = False
    gated: bool = False
    cancel: Callable[[], object] | None = None

    @property
    def tries(self) -> int:
        """Which try this is, from 1 on."""
        return self.message.reconsume_times + 1

    @property
    def key(self) -> tuple[str, int]:
        """(id, created_ms), as results want it."""
        if self.task is not None:
            return self.task.id, self.task.created_ms
        keys = self.message.keys
        return (keys[0] if keys else self.message.message_id), self.message.born_ms


class TaskWorker:
    """``concurrency`` threads of one replica. ``gate``: as many handlers run at once."""

    def __init__(
        self,
        settings: TaskSettings,
        consumer: SimpleConsumer,
        results: ResultStore,
        revocations: Revocations,
        handlers: TaskHandlers,
        concurrency: int,
        clock: Clock,
        gate: threading.Semaphore,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._results = results
        self._revocations = revocations
        self._handlers = handlers
        self._concurrency = concurrency
        self._clock = clock
        self._gate = gate
        given = settings.breaker
        self._breaker = None if given is None else ListenerBreaker(given, settings.queue, clock)
        self._systemic = None if self._breaker is None else self._breaker.failed
        limits = settings.key_limits
        self._limiter: TaskLimiter[Held] | None = (
            None if limits is None else TaskLimiter(limits, clock, self._free)
        )
        self._lease_ms = settings.adapter.lease_s * 1_000
        self._timeout_ms = settings.adapter.task_timeout_s * 1_000
        self._changed = threading.Condition()
        self._ready: deque[Held] = deque()
        self._held: set[Held] = set()
        self._running = self._hung = self._spare = self._alive = 0
        self._taking = False
        self._stop = threading.Event()
        self._ended = threading.Event()
        self.counts: Counter[str] = Counter()
        """Tasks since the start, by what became of them."""
        self.trouble = ""
        """Why nothing can be taken now; empty while all is well."""

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take tasks from now on."""
        threading.Thread(target=self._keep, name="rmq-task-keeper", daemon=True).start()
        for _ in range(self._concurrency):
            self._add_thread()

    def stop(self, timeout_s: float) -> bool:
        """Take no more, end what was taken; what waits for its key is given back at once, and what
        is not done in time behind it. True when all was done.
        """
        self._stop.set()
        if self._breaker is not None:
            self._breaker.close()
        self._give_back_waiting()
        end_ms = self._clock.monotonic_ms() + timeout_s * 1_000
        with self._changed:
            self._changed.notify_all()
            while self._held and (left := end_ms - self._clock.monotonic_ms()) > 0:  # ends: in time
                self._changed.wait(min(left / 1_000, TICK_S))
            left_over = list(self._held)
            self._ended.set()
            self._ready.clear()
            self._changed.notify_all()
        self._give_back(left_over)
        return not left_over

    def revoke(self, task_id: str) -> None:
        """A task that waits here is not begun; a coroutine that runs is cancelled."""
        with self._changed:
            found = [held for held in self._held if held.key[0] == task_id]
            for held in found:
                held.revoked = True
                if self._limiter is not None and self._limiter.withdraw(held):
                    self._free([held])
        for held in found:
            if held.cancel is not None:
                held.cancel()

    def stats(self) -> dict[str, Any]:
        """``running``, ``ready``, ``hung``, ``waiting_for_keys``, and what became of tasks since
        the start.
        """
        with self._changed:
            waiting = 0 if self._limiter is None else self._limiter.waiting
            now = {
                "running": self._running,
                "ready": len(self._ready),
                "hung": self._hung,
                "waiting_for_keys": waiting,
            }
        return now | {
            word: self.counts[word]
            for word in ("succeeded", "failed", "retried", "revoked", "unprocessable", "lost")
        }

    @property
    def pauses(self) -> bool:
        """Whether tasks wait, since most have failed."""
        return self._breaker is not None and self._breaker.open

    # --- taking -----------------------------------------------------------------------------------

    def _add_thread(self) -> None:
        self._alive += 1
        try:
            threading.Thread(target=self._work, name="rmq-task", daemon=True).start()
        except RuntimeError:  # this process may have no more threads
            self._alive -= 1
            raise

    def _work(self) -> None:
        self._revocations.ready.wait(READY_S)
        while (held := self._next()) is not None:  # ends: with ``stop``, or when it was replaced
            if not self._run(held):
                return

    def _next(self) -> Held | None:
        """The next task; this thread takes some where none are here and nobody else is at it."""
        while True:  # ends: with a task, or after ``stop``
            with self._changed:
                if self._limiter is not None:
                    self._limiter.look()
                if self._ready and not self._wants_another():
                    first = self._begin_first()
                    if first is not None:
                        return first
                if self._stop.is_set():
                    break
                room, wait_s = self._room, WAIT_S
                if self._limiter is not None:
                    wait_s = min(WAIT_S, self._limiter.next_s())
                if self._taking or not room:
                    self._changed.wait(wait_s)
                    continue
                self._taking = True
                if self._ready:
                    wanted, wait_s = 1, 0.0
                else:
                    wanted = max(1, self._concurrency - self._running) + self._spare
            found = self._take(min(room, wanted), wait_s)
            with self._changed:
                self._taking = False
                self._held.update(found)
                late = self._ended.is_set()
                if not late:
                    self._ready.extendleft(reversed(found))
                first = self._begin_first()
                self._changed.notify(1 + len(self._ready))
            if late:
                self._give_back(found)
            if first is not None:  # by this thread: waking another one for it takes longer
                return first
        self._give_back_waiting()
        return None

    @property
    def _room(self) -> int:
        """So many tasks may be taken."""
        return MESSAGES_MAX if self._limiter is None else min(MESSAGES_MAX, self._limiter.room)

    def _begin_first(self) -> Held | None:
        """The first that is ready and that its key lets begin; those before it wait for theirs."""
        while self._ready:
            held = self._ready.popleft()
            if self._begins(held):
                self._running += 1
                return held
        return None

    def _begins(self, held: Held) -> bool:
        key = held.limit_key
        if self._limiter is None or key is None:
            return True
        if held.revoked or held.key[0] in self._revocations:
            return True
        return self._limiter.begins(key, held)

    def _free(self, found: Sequence[Held]) -> None:
        """They wait for their keys no longer. Under the lock."""
        self._ready.extend(found)
        self._changed.notify(len(found))

    def _wants_another(self) -> bool:
        """Whether one that was not tried yet comes before those that wait here: all of these have
        failed since a breaker opened, perhaps for their own sake.
        """
        return (
            self.pauses
            and self._ready[0].suspended
            and len(self._held) < UNTRIED_MAX
            and self._room > 0
            and not self._taking
            and not self._stop.is_set()
        )

    def _give_back_waiting(self) -> None:
        """What waits for its key, when the worker stops."""
        if self._limiter is not None:
            with self._changed:
                left_over = self._limiter.withdraw_all()
            self._give_back(left_over)

    def _give_back(self, left_over: list[Held]) -> None:
        """All at once: a broker that is away is waited for once."""
        claimed = [held for held in left_over if self._claim(held)]
        try:
            give_back_messages([held.message for held in claimed], wait=True)
        except RmqError as error:
            log.warning(
                "some of %d tasks come again when their leases end: %s", len(claimed), error
            )
        for held in claimed:
            self._forget(held)

    def _take(self, count: int, wait_s: float) -> list[Held]:
        lease_s = self._settings.adapter.lease_s
        try:
            messages = self._consumer.receive(count, invisible=lease_s, wait=wait_s)
            self.trouble = ""
        except Exception as error:  # noqa: BLE001 - told, and asked again: all others wait for this one
            if not self._stop.is_set():
                self.trouble = reason(error)
                log.warning("no tasks of %s: %s", self._settings.queue, error)
                self._stop.wait(PAUSE_S)
            return []
        renew_ms = self._clock.monotonic_ms() + self._lease_ms / 3
        if self._limiter is None:
            return [Held(message, renew_ms) for message in messages]
        return [Held(message, renew_ms, self._limiter.key(message)) for message in messages]

    # --- running ----------------------------------------------------------------------------------

    def _run(self, held: Held) -> bool:
        """False when this thread was replaced meanwhile."""
        outcome = self._outcome(held)
        mine = self._claim(held)
        self._leave_key(held)
        with self._changed:
            self._running -= mine
            self._hung -= not mine
            surplus = self._alive > self._concurrency + self._hung
            self._alive -= surplus
        if mine:
            self._end(held, self._judged(held, outcome))
        else:
            log.warning("task %s ended after its time: its result is dropped", held.key[0])
        return not surplus

    def _outcome(self, held: Held) -> TaskVerdict | BaseException:
        """What the handler raised, or what became of the task."""
        settings = self._settings
        # a body that cannot be uncompressed raises where it is read
        task, fault = attempt(lambda: decode_task(held.message.body, settings.adapter.pickle))
        if fault is not None:
            return unreadable(fault)
        held.task = task
        if self._is_revoked(held, task):
            return TaskVerdict(TaskOutcome.REVOKED)
        if held.tries > settings.retries_max + 1 + LOSSES_MAX:
            return lost(held.tries - 1)
        if not self._may_begin(held, task):
            return TaskVerdict(TaskOutcome.UNTRIED)
        self._gate.acquire()
        held.gated = True
        try:
            held.since_ms = self._clock.monotonic_ms()
            if self._is_revoked(held, task):  # while it waited
                return TaskVerdict(TaskOutcome.REVOKED)
            result = self._handlers.run(task, lambda cancel: setattr(held, "cancel", cancel))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the handler's
            if self._is_revoked(held, task):
                return TaskVerdict(TaskOutcome.REVOKED)
            return error
        finally:
            self._leave_gate(held)
        return TaskVerdict(TaskOutcome.DONE, result)

    def _may_begin(self, held: Held, task: Task) -> bool:
        """Behind an open breaker; False when there is nothing to begin any more."""
        if self._breaker is None:
            return True

        def over() -> bool:
            return self._stop.is_set() or self._is_revoked(held, task)

        self._breaker.wait(over)
        pauses = self._breaker.open
        held.again = held.suspended and not pauses
        return not (pauses and over())

    def _judged(self, held: Held, outcome: TaskVerdict | BaseException) -> TaskVerdict:
        """Of a task that is claimed: of each call the breaker hears once, of a late one nothing."""
        if isinstance(outcome, BaseException):
            retries_max = self._settings.retries_max
            return judge(outcome, held.tries, retries_max, self._systemic, held.again)
        if self._breaker is not None and outcome.action is TaskOutcome.DONE:
            self._breaker.succeeded()
        return outcome

    def _leave_gate(self, held: Held) -> None:
        """Once, by its thread or for it."""
        with self._changed:
            gated, held.gated = held.gated, False
        if gated:
            self._gate.release()

    def _leave_key(self, held: Held) -> None:
        """The next one of its key may begin; once, by its thread or for it."""
        if self._limiter is not None:
            with self._changed:
                self._limiter.end(held)

    def _is_revoked(self, held: Held, task: Task) -> bool:
        return held.revoked or task.id in self._revocations

    def _claim(self, held: Held) -> bool:
        """Whether the caller may settle it."""
        with self._changed:
            if held.settled:
                return False
            held.settled = True
            return True

    # --- settling ---------------------------------------------------------------------------------

    def _end(self, held: Held, verdict: TaskVerdict) -> None:
        """Whatever fails: the task comes again, and the thread that calls goes on."""
        _, fault = attempt(self._carry_out, held, verdict)
        if fault is not None:
            self._let_go(held, fault)

    def _carry_out(self, held: Held, verdict: TaskVerdict) -> None:
        """Tell what became of the task; what cannot be told leaves it to come again."""
        if verdict.action is TaskOutcome.UNTRIED:
            self._put_back(held)
            return
        if verdict.action is TaskOutcome.DONE:
            try:
                self._results.write(
                    held.key,
                    Status.SUCCESS,
                    held.tries,
                    verdict.result,
                    lambda error: self._stored(held, "succeeded", error),
                )
                return
            except RmqError as error:
                if error.retriable:
                    self._let_go(held, error)
                    return
                verdict = judge(error, held.tries, 0)
        try:
            if verdict.action is TaskOutcome.AGAIN:
                self._results.write(held.key, Status.RETRY, held.tries, verdict.why)
                pause_s = self._settings.backoff_s(held.tries)
                if self._settle(held, lambda: held.message.nack(pause_s)):
                    self.counts["retried"] += 1
            elif verdict.action is TaskOutcome.REVOKED:
                self._results.write(
                    held.key,
                    Status.REVOKED,
                    held.tries,
                    None,
                    lambda error: self._stored(held, "revoked", error),
                )
            else:
                self._bury(held, verdict)
        except RmqError as error:
            self._let_go(held, error)

    def _put_back(self, held: Held) -> None:
        """Behind those that wait here, as if it had never been begun; a worker that stops gives it
        back.
        """
        again = Held(held.message, held.renew_ms, held.limit_key, suspended=True)
        with self._changed:
            self._held.discard(held)
            self._held.add(again)
            stays = not self._stop.is_set()
            if stays:
                self._ready.append(again)
                self._changed.notify()
        if held.told_started:
            self._results.write(held.key, Status.PENDING, held.tries)
        if not stays:
            self._give_back([again])

    def _bury(self, held: Held, verdict: TaskVerdict) -> None:
        """FAILURE, and a dead letter; what cannot be told is tried again."""
        failed = verdict.action is TaskOutcome.FAILED
        group = self._settings.failed if failed else self._settings.unprocessable
        log.warning("task %s is a dead letter of %s: %s", held.key[0], group, verdict.why)
        self._results.tell(held.key, Status.FAILURE, held.tries, verdict.why)
        if self._settle(held, lambda: self._consumer.dead_letter(held.message, verdict.why, group)):
            self.counts["lost" if verdict.lost else "failed" if failed else "unprocessable"] += 1

    def _stored(self, held: Held, word: str, error: RmqError | None) -> None:
        """In the producer's thread."""
        if error is not None:
            self._let_go(held, error)
            return
        self.counts[word] += 1
        self._settle(held, lambda: held.message.ack(wait=False))

    def _settle(self, held: Held, how: Callable[[], object]) -> bool:
        """Whether the broker was told."""
        try:
            how()
        except ReceiptStale:
            log.warning("task %s took longer than its lease: it runs again", held.key[0])
        except RmqError as error:
            self._let_go(held, error)
        else:
            self._forget(held)
            return True
        self._forget(held)
        return False

    def _let_go(self, held: Held, error: BaseException) -> None:
        log.warning("task %s comes again when its lease ends: %s", held.key[0], reason(error))
        self._forget(held)

    def _forget(self, held: Held) -> None:
        with self._changed:
            self._held.discard(held)
            if not self._held:
                self._changed.notify_all()

    # --- keeping ----------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Extend leases, tell what has begun, and give up what runs too long."""
        before = 0
        while not self._ended.wait(TICK_S):  # ends: with ``stop``, when all is settled
            done = sum(self.counts.values())
            self._spare, before = min(SPARE_MAX, (done - before) // 2), done
            now_ms = self._clock.monotonic_ms()
            with self._changed:
                held = list(self._held)
            due = [one for one in held if one.renew_ms <= now_ms]
            running = [one for one in held if one.since_ms is not None and not one.settled]
            try:
                if due:
                    self._renew(due, now_ms)
                for one in running:
                    self._look_at(one, now_ms)
            except Exception as error:  # noqa: BLE001 - leases end without this thread
                log.warning("tasks of %s are not looked after now: %s", self._settings.queue, error)

    def _renew(self, due: list[Held], now_ms: float) -> None:
        for one in due:
            one.renew_ms = now_ms + self._lease_ms / 3
        try:
            self._consumer.extend_all([one.message for one in due], self._lease_ms / 1_000)
        except ReceiptStale as error:
            log.warning("tasks of %s were given to others: %s", self._settings.queue, error)
        except RmqError as error:
            log.warning("leases of %s were not extended: %s", self._settings.queue, error)

    def _look_at(self, held: Held, now_ms: float) -> None:
        ran_ms = now_ms - (held.since_ms or now_ms)
        if ran_ms >= self._timeout_ms:
            self._give_up(held, ran_ms)
        elif ran_ms >= STARTED_AFTER_MS and not held.told_started:
            held.told_started = True
            self._results.write(held.key, Status.STARTED, held.tries)

    def _give_up(self, held: Held, ran_ms: float) -> None:
        """Its handler ran too long: it is told as failed."""
        if not self._claim(held):
            return
        self._leave_key(held)
        error = TaskTimedOut(f"the handler ran for {ran_ms / 1_000:.1f} s", held.key[0])
        verdict = self._judged(held, error)
        try:
            self._make_room(held)
        finally:
            try:  # not here: a broker may take its time, and leases of others end
                threading.Thread(
                    target=self._end, args=(held, verdict), name="rmq-task-late", daemon=True
                ).start()
            except RuntimeError:  # this process may have no more threads
                self._end(held, verdict)

    def _make_room(self, held: Held) -> None:
        """Another thread takes its place, unless too many hang."""
        with self._changed:
            self._running -= 1
            self._hung += 1
            replaced = self._alive < 2 * self._concurrency
        if held.cancel is not None:
            held.cancel()
            self._handlers.check_loop()
        elif replaced:
            self._leave_gate(held)
            self._add_thread()
        else:
            self.trouble = f"{self._hung} handlers hang for over {self._timeout_ms / 1_000:g} s"
