"""SEND_HALVES 20061: frames of half messages that our producers encoded, the fast path of
transactions (remoting 3).

Decides whether halves may be stored: all that a send to their real topic must fulfil, and that each
record says what the request says. A half is an ordinary record in queue 0 of the half topic;
repeats are known by their frame ids.
"""

from __future__ import annotations

from functools import lru_cache

from rmq_ray.codec.record_properties import PropertyFacts, split_facts
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import MalformedFrame, MessageIllegal, TopicNotWritable
from rmq_ray.model.topics import HALF_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.protocol.redelivery import group_of_retry_topic
from rmq_ray.protocol.transaction import IMMUNITY_S_MAX, half_prefix
from rmq_ray.protocol.validators import check_group
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.halves import HalvesHeader, unpack_halves_header
from rmq_ray.remoting.wire.records import first_record
from rmq_ray.server.base.responses import Refused
from rmq_ray.server.send.records_handlers import RecordsHandlers
from rmq_ray.server.send.send_handlers import COPIES_ADD_BYTES, PROPERTIES_BYTES_MAX
from rmq_ray.server.send.send_path import SendPath
from rmq_ray.server.tables.topic_table import is_internal
from rmq_ray.store.frames.frame_check import PartsOf


class HalvesHandlers(RecordsHandlers):
    """20061. ``rejects``: transactional messages are refused."""

    def __init__(self, path: SendPath, rejects: bool) -> None:
        super().__init__(path)
        self._rejects = rejects

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._rejects = config.reject_transactions

    def send(self, command: Command, peer: Peer) -> Command | None:
        """Append one frame of halves."""
        if self._rejects:
            raise Refused(
                "sending transaction message is forbidden: this broker takes none "
                "(reject_transactions)",
                ResponseCode.NO_PERMISSION,
            )
        header = unpack_halves_header(command.fields)
        return self._append(
            command,
            peer,
            lambda records, count: self._admitted_halves(command, peer, header, records, count),
            _parts_of(header),
        )

    def _admitted_halves(
        self, command: Command, peer: Peer, header: HalvesHeader, records: memoryview, count: int
    ) -> bool:
        """False when the request waits for its new topic. Raises the refusals."""
        topic, path = header.topic, self._path
        if first_record(records) != (HALF_TOPIC, 0):
            raise MessageIllegal(f"record 0: halves are for queue 0 of {HALF_TOPIC}")
        if is_internal(topic) or group_of_retry_topic(topic) is not None:
            raise TopicNotWritable(
                f"transactional messages for {topic} are not taken; send them to a topic of "
                f"your own",
                topic,
            )
        path.gate.writable(path.gate.admit(topic), header.queue_id)
        path.topics.create_internal(HALF_TOPIC, 1)
        for waits in (topic, HALF_TOPIC):
            if waits in path.pending_topics:
                path.later(command, peer, waits)
                return False
        if path.limiter.active:
            path.limit(topic, peer, len(records), count)
        return True


@lru_cache(maxsize=1024)
def _parts_of(header: HalvesHeader) -> PartsOf:
    """Judges the property strings of halves with this header."""
    check_group(header.group)
    if header.immunity_s is not None and header.immunity_s > IMMUNITY_S_MAX:
        raise MalformedFrame(f"an immunity of {header.immunity_s} s; {IMMUNITY_S_MAX} at most")
    prefix = half_prefix(*header).encode()
    length, text_max = len(prefix), PROPERTIES_BYTES_MAX - COPIES_ADD_BYTES

    def parts_of(text: bytes) -> tuple[str | None, PropertyFacts]:
        if text[:length] != prefix:
            raise MessageIllegal(
                f"the properties of a half for {header.topic} do not begin with where it is to go"
            )
        if len(text) > text_max:
            raise MessageIllegal(
                f"properties of {len(text)} bytes; {text_max} of a half message fit"
            )
        unique, facts = split_facts(text[length:])
        if unique is None:
            raise MessageIllegal("a half message needs a unique key")
        return unique, facts

    return parts_of
