"""Commits and roll-backs on the wire: ends of threads that finish transactions at once travel in
one request (END_TRANSACTIONS).

Decides what travels together. Does not decide about repeats: whoever ends gets its own answer, or
the error that the request met (``transaction_engine``). Thread-safe; who shares with whom is
``client.sending.group_commit``'s.
"""

from __future__ import annotations

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.sending.group_commit import Group, GroupCommit
from rmq_ray.errors import ConnectFailed, RemotingError, RequestTimeout
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.halves import ENDS_MAX, End, pack_ends, unpack_end_answers

END_BYTES = 32
REQUEST_TIMEOUT_MS = 3_000.0
Answer = tuple[int, str | None]
"""Response code and remark."""


class EndGroup(Group[End]):
    """Ends for one broker, whose name is the key. ``outcome``: what each was answered, or what the
    request met.
    """

    __slots__ = ("outcome",)

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.outcome: list[Answer] | RemotingError | None = None


class EndSender(GroupCommit[End, EndGroup]):
    """Of one producer. One request to a broker at a time: threads with transactions wait twice
    each, so there are fewer of them to share.
    """

    alone_max = 1
    crowd_min = 2
    idle_max = 1

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__(instance.clock, ENDS_MAX, ENDS_MAX * END_BYTES)
        self._instance = instance
        self._group = group

    def end(self, broker_name: str, end: End, timeout_ms: float) -> Answer:
        """Tell a broker and wait, alone or with others. Raises ``RemotingError``: it may have
        happened.
        """
        place = self.join(broker_name, end, END_BYTES, lambda: EndGroup(broker_name))
        if place is None:
            try:
                return answers_of(
                    self._instance.invoke(
                        self._address(broker_name), ends_command(self._group, [end]), timeout_ms
                    ),
                    1,
                )[0]
            finally:
                self.left(broker_name)
        group, index = place
        self.sleep(group, index, timeout_ms)
        outcome = group.outcome
        if outcome is None:
            raise RequestTimeout(
                f"{broker_name} did not answer within {timeout_ms:.0f} ms", broker_name
            )
        if isinstance(outcome, RemotingError):
            raise type(outcome)(*outcome.args)
        return outcome[index]

    def _ship(self, group: EndGroup) -> None:
        def answered(
            outcome: Command | RemotingError,
        ) -> None:  # in a reader's thread: no sending here
            try:
                group.outcome = (
                    answers_of(outcome, len(group.items))
                    if isinstance(outcome, Command)
                    else outcome
                )
            except RemotingError as error:
                group.outcome = error
            group.ended()

        try:
            self._instance.invoke_async(
                self._address(group.key),
                ends_command(self._group, group.items),
                REQUEST_TIMEOUT_MS,
                answered,
            )
        except RemotingError as error:
            answered(error)

    def _address(self, broker_name: str) -> Address:
        address = self._instance.broker_address(broker_name)
        if address is None:
            raise ConnectFailed(f"no address of broker {broker_name!r} is known")
        return address


def ends_command(group: str, ends: list[End]) -> Command:
    """The request that tells a broker all of them."""
    return Command(RequestCode.END_TRANSACTIONS, body=pack_ends(group, ends), serialize=BINARY)


def answers_of(answer: Command, count: int) -> list[Answer]:
    """What a broker said of each of ``count`` ends. ``MalformedFrame`` for what it cannot have
    said.
    """
    if answer.code != 0:  # nothing of it was looked at, or nobody knows
        return [(answer.code, answer.remark)] * count
    return unpack_end_answers(answer.body_bytes(), count)
