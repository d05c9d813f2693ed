"""Threads that send halves or ends at once share frames: group commit on the way to the broker (BUNDLE 20060).

    a thread      two requests to the broker are out?  no: goes alone        yes: joins the open bundle and sleeps
    an answer     the open bundle leaves in its place

Decides: what travels together. Does not decide about retries: whoever sent gets its own answer, or the error that the bundle met. Thread-safe.

Invariants: nobody waits for company: a bundle leaves when a place is free; a request is in one frame at a time; each waiting thread is woken once.
"""

from __future__ import annotations

import threading
from typing import Any

import msgpack

from rmq_ray.client.client_instance import ClientInstance
from rmq_ray.client.timers import Timers
from rmq_ray.errors import MalformedFrame, RemotingError, RequestTimeout, TooManyRequests
from rmq_ray.model.ids import Address
from rmq_ray.remoting.codes import RequestCode, ResponseCode
from rmq_ray.remoting.frame import Command

OUT_MAX = 2  # requests to a broker that are on their way at once
PARTS_MAX = 256
BYTES_MAX = 1 << 20
SLACK_MS = 1_000.0


class _Waiting:
    """One request in a bundle, and the thread that waits for it."""

    __slots__ = ("command", "lock", "outcome")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.lock = threading.Lock()
        self.lock.acquire()
        self.outcome: Command | RemotingError | None = None


class Bundler:
    """Of one producer. ``invoke`` has the meaning of ``ClientInstance.invoke``."""

    def __init__(self, instance: ClientInstance, worker: Timers) -> None:
        self._instance = instance
        self._worker = worker
        self._lock = threading.Lock()
        self._out: dict[Address, int] = {}
        self._open: dict[Address, list[_Waiting]] = {}

    def __getattr__(self, name: str) -> Any:
        """Everything but ``invoke`` is the instance's."""
        return getattr(self._instance, name)

    def invoke(self, address: Address, command: Command, timeout_ms: float) -> Command:
        """Ask a broker and wait, alone or with others. Raises ``RemotingError``."""
        with self._lock:
            bundle = self._open.get(address, [])
            alone = self._out.get(address, 0) < OUT_MAX or len(bundle) >= PARTS_MAX or len(command.body_bytes()) > BYTES_MAX // PARTS_MAX
            if alone:
                self._out[address] = self._out.get(address, 0) + 1
            else:
                waiting = _Waiting(command)
                self._open.setdefault(address, bundle).append(waiting)
        if not alone:
            return self._wait(address, waiting, timeout_ms)
        try:
            return self._instance.invoke(address, command, timeout_ms)
        finally:
            self._left(address, timeout_ms)

    def _wait(self, address: Address, waiting: _Waiting, timeout_ms: float) -> Command:
        if not waiting.lock.acquire(timeout=(2 * timeout_ms + SLACK_MS) / 1_000):
            with self._lock:
                bundle = self._open.get(address, [])
                if waiting in bundle:
                    bundle.remove(waiting)
                    raise TooManyRequests(f"earlier requests to {address} are not answered; this one was not sent", str(address))
        outcome = waiting.outcome
        if isinstance(outcome, Command):
            return outcome
        if outcome is None:
            raise RequestTimeout(f"{address} did not answer within {timeout_ms:.0f} ms", str(address))
        raise type(outcome)(*outcome.args)

    def _left(self, address: Address, timeout_ms: float) -> None:
        """A place is free: the open bundle takes it."""
        with self._lock:
            bundle = self._open.pop(address, None)
            if not bundle:
                left = self._out.get(address, 1) - 1
                if left > 0:
                    self._out[address] = left
                else:
                    self._out.pop(address, None)
                return
        parts = [[part.command.code, part.command.fields or {}, part.command.body_bytes()] for part in bundle]

        def answered(outcome: Command | RemotingError) -> None:  # in a reader's thread: no sending here
            _hand_out(bundle, outcome)
            self._worker.after(0, lambda: self._left(address, timeout_ms))

        try:
            self._instance.invoke_async(address, Command(RequestCode.BUNDLE, body=msgpack.packb(parts)), timeout_ms, answered)
        except RemotingError as error:
            answered(error)


def _hand_out(bundle: list[_Waiting], outcome: Command | RemotingError) -> None:
    answers: list[Command | RemotingError]
    if isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS:
        try:
            raw = msgpack.unpackb(outcome.body_bytes())
            answers = [Command(int(code), fields=fields, remark=remark) for code, fields, remark in raw]
            if len(answers) != len(bundle):
                raise ValueError(f"{len(answers)} answers to {len(bundle)} requests")
        except (ValueError, TypeError) as error:
            answers = [MalformedFrame(f"the answer to a bundle cannot be read: {error}")] * len(bundle)
    else:  # nothing of it was looked at, or nobody knows
        answers = [outcome] * len(bundle)
    for waiting, answer in zip(bundle, answers, strict=True):
        waiting.outcome = answer
        waiting.lock.release()
