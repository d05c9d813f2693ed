"""What the driver of a stream asks the brokers between batches: bounds of every queue, epochs of
the logs, positions of its group.

    bounds ─QUEUE_BOUNDS──┐
    epochs ─STORE_INFO────┴── asked again until the epoch stands still: an offset
                               is told with the epoch that it belongs to
    moved  ─SCAN_RECORDS of one row, with the old epoch──> where a reader from before a cut has to
           go on

Decides: what counts as the state of a topic at one moment, and that brokers are waited for, 30 s at
most. Does not decide what is read or when. Called by Spark's batches and streams, in the driver
only. Blocking. Invariant: a commit is acknowledged by the broker when ``commit`` returns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rmq_ray.client.instance import outage
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import Queues, ask_broker, ask_for_map
from rmq_ray.client.pull.queue_queries import QueueQueries
from rmq_ray.client.scan.queues_read import queues_read
from rmq_ray.errors import ClientError, ClusterError, CommitFailed
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.protocol.scan.scan_positions import LikeGroup, Where, group_offsets, normal, of_queues
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.remoting.wire.bodies_admin import decode_connections
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import ConsumerGroupHeader, UpdateOffsetHeader
from rmq_ray.remoting.wire.records import ScanRecords, pack_scan, unpack_pull_answer

LOOKS_MAX = 10

Bounds = dict[MessageQueue, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class State:
    """``bounds``: [smallest, next) of every queue that can be read; ``epochs``: of the logs of
    their brokers.
    """

    bounds: Bounds
    epochs: dict[str, int]

    def ends(self) -> dict[MessageQueue, int]:
        """The next offset of every queue."""
        return {queue: high for queue, (_, high) in self.bounds.items()}


class TopicState:
    """Of one or several topics; a context manager. ``TopicNotFound`` from ``now`` where one of them
    does not exist.
    """

    def __init__(self, discovery: Discovery, topics: str | Sequence[str]) -> None:
        self.topics = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
        for topic in self.topics:
            check_topic(topic)
        self._instance = ClientInstance.get_or_create(discovery)
        self._epochs: dict[str, int] = {}
        self._instance.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._instance.release()

    # --- where the topics are ---------------------------------------------------------------------

    def now(self, brokers_expected: Collection[str] = ()) -> State:
        """Bounds and epochs that belong together, with the queues of all brokers that are expected:
        these are waited for, since a name server forgets the queues of a broker that is down.
        ``ClusterError``, or ``RemotingError``, when one of them or the name servers stay away for
        30 s.
        """
        bounds: Bounds = {}
        epochs: dict[str, int] = {}
        for topic, queues in self._queues(brokers_expected).items():
            for broker in sorted({queue.broker_name for queue in queues}):
                found, epochs[broker] = self._at(topic, broker)
                bounds.update(
                    (queue, found[queue.queue_id])
                    for queue in queues
                    if queue.broker_name == broker and queue.queue_id in found
                )
        self._epochs = epochs
        return State(dict(sorted(bounds.items())), epochs)

    def offsets_of(self, where: Where, state: State) -> dict[MessageQueue, int]:
        """The offset of every queue that a position means; see ``protocol.scan.scan_positions``.
        Offsets given outright may lie anywhere.
        """
        position = normal(where)
        if isinstance(position, str):
            return {
                queue: low if position == "earliest" else high
                for queue, (low, high) in state.bounds.items()
            }
        if isinstance(position, Mapping):
            given = of_queues(position, state.bounds)
            for queue in given:
                if queue not in state.bounds:
                    raise ClientError(
                        f"{queue} is no queue of {', '.join(self.topics)}; there are "
                        f"{', '.join(map(str, state.bounds)) or 'none'}",
                        str(queue),
                    )
            return {queue: given.get(queue, low) for queue, (low, _) in state.bounds.items()}
        if isinstance(position, LikeGroup):
            questions = QueueQueries(self._instance, position.group)
            return group_offsets(
                position.group,
                {queue: questions.position(queue) for queue in state.bounds},
                state.bounds,
            )
        questions = QueueQueries(self._instance, "TOOLS_CONSUMER")
        return {queue: questions.offset_at(queue, position) for queue in state.bounds}

    def moved(self, queue: MessageQueue, offset: int, epoch: int) -> int | None:
        """Where a reader whose next offset was ``offset`` in the log's ``epoch`` has to go on,
        since the log was cut behind its back; None = at ``offset``.
        """
        if epoch <= 0 or offset <= 0 or self._epochs.get(queue.broker_name, epoch) <= epoch:
            return None
        body = pack_scan(ScanRecords(queue.topic, queue.queue_id, offset - 1, offset, 1, epoch))
        answer = ask_broker(
            self._instance,
            self._address(queue.broker_name, queue.topic),
            Command(RequestCode.SCAN_RECORDS, body=body, serialize=1),
        )
        if answer.code != ResponseCode.PULL_OFFSET_MOVED:
            return None
        page = unpack_pull_answer(answer.body)
        return (
            None if page.next_offset >= offset or offset - 1 < page.min_offset else page.next_offset
        )

    def cut_to(
        self, offsets: Mapping[MessageQueue, int], epochs: Mapping[str, int]
    ) -> dict[MessageQueue, int]:
        """The same of many queues: those whose log was cut since it had these epochs."""
        found = {}
        for queue, offset in offsets.items():
            at = self.moved(queue, offset, epochs.get(queue.broker_name, 0))
            if at is not None:
                found[queue] = at
        return found

    # --- the group --------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Tell the brokers that the group is through up to these offsets. ``CommitFailed`` where
        one refuses.
        """
        for queue, offset in offsets.items():
            header = UpdateOffsetHeader(
                group, queue.topic, queue.queue_id, offset, None, self._instance.client_id
            )
            command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=header.to_fields())
            answer = ask_broker(
                self._instance, self._address(queue.broker_name, queue.topic), command
            )
            if answer.code != ResponseCode.SUCCESS:
                raise CommitFailed(
                    f"position {offset} of group {group!r} in {queue} was refused: "
                    f"{answer.remark or answer.code}",
                    group,
                )

    def members(self, group: str) -> list[str]:
        """Client ids of the group's running consumers."""
        check_group(group)
        found: set[str] = set()
        for broker in sorted(
            {queue.broker_name for queues in self._queues().values() for queue in queues}
        ):
            command = Command(
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                fields=ConsumerGroupHeader(consumer_group=group).to_fields(),
            )
            answer = ask_broker(self._instance, self._address(broker, self.topics[0]), command)
            if answer.code == ResponseCode.SUCCESS:
                found |= {client.client_id for client in decode_connections(answer.body_bytes())}
        return sorted(found)

    def positions(self, group: str, state: State) -> dict[MessageQueue, int]:
        """The group's position in every queue; the smallest offset where it has none."""
        questions = QueueQueries(self._instance, group)
        found = {queue: questions.committed(queue) for queue in state.bounds}
        return {
            queue: state.bounds[queue][0] if offset is None else offset
            for queue, offset in found.items()
        }

    # --- asking -----------------------------------------------------------------------------------

    def _queues(self, brokers_expected: Collection[str] = ()) -> Queues:
        return queues_read(
            self._instance,
            lambda: self.topics,
            brokers_expected,
            f"{', '.join(self.topics)} may be theirs",
        )

    def _at(self, topic: str, broker: str) -> tuple[dict[int, tuple[int, int]], int]:
        """(bounds by queue id, epoch). The epoch is told twice, before and after: a broker that
        restarts in between is asked again.
        """
        address = self._address(broker, topic)
        before = self._epochs.get(broker)
        for _ in range(LOOKS_MAX):
            found = ask_for_map(self._instance, address, RequestCode.QUEUE_BOUNDS, [topic]).get(
                topic, {}
            )
            epoch = int(ask_for_map(self._instance, address, RequestCode.STORE_INFO, [])["epoch"])
            if epoch == before:
                return {
                    int(queue_id): (int(low), int(high)) for queue_id, (low, high) in found.items()
                }, epoch
            before = epoch
        raise ClusterError(
            f"broker {broker!r} began a new epoch of its log {LOOKS_MAX} times in a row; see "
            f"`rmq-ray doctor`"
        )

    def _address(self, broker: str, topic: str) -> Address:
        """Of its master, which is waited for while a slave stands alone."""
        clock = self._instance.clock
        give_up = clock.monotonic_ms() + outage.PATIENCE_MS
        while (address := self._instance.broker_address(broker)) is None:  # ends: at give_up
            if clock.monotonic_ms() >= give_up:
                raise ClusterError(
                    f"no name server tells where the master of {broker!r} is; see `rmq-ray status`",
                    broker,
                )
            clock.sleep_ms(outage.PAUSE_MS)
            self._instance.routes.refresh(topic)
        return address
