"""The master's side of replication: slaves join, poll for bytes, and acknowledge with every poll
(promises: modes; protocol-behaviour 22).

    slave ─FOLLOW_LOG (its log's last bytes)──> compared ──lineage──> slave
    slave ─REPLICATE (positions, offset)──> Followers; bytes at once, or when there
        are some ─> slave

Decides: whose log may follow, when a poll is answered, what the store may show (SYNC_MASTER:
nothing that the in-sync set lacks). Does not decide who is in sync
(``protocol.election.replication``) or what a send is told (``records_handlers``,
``Acknowledgements``). Called by the broker's core, in its loop.

Invariants: one poll is held for each slave; bytes leave that are written, whole frames at the end;
a slave of a higher epoch is refused: this master was replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from rmq_ray.codec.config_files import TimerProgress
from rmq_ray.config import BODY_BYTES_MAX, FlushMode, ReplicationMode
from rmq_ray.errors import BrokerBusy, LogDiverged
from rmq_ray.model.replica_roles import replica_of, slave_id
from rmq_ray.ports import Peer
from rmq_ray.protocol.election.copies import not_delivered
from rmq_ray.protocol.election.replication import Followers
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Buffer, Command
from rmq_ray.remoting.wire.replicas import (
    BYTES_MAX,
    WAIT_MS_MAX,
    WANTED,
    FollowLog,
    LogLineage,
    LogPiece,
    Replicate,
    pack_lineage,
    pack_piece,
    pack_state,
    pack_wanted,
    unpack_follow,
    unpack_given,
    unpack_replicate,
)
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.replication.leadership import Leadership
from rmq_ray.server.replication.mender import Mender
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.log.log_lineage import read_origin
from rmq_ray.store.replication.log_source import (
    Tail,
    broken_between,
    has_tail,
    look_again,
    read_log,
    whole_frames,
)

log = logging.getLogger("rmq_ray.server.replication.replication")
WARM_BYTES = 32 << 20  # this close to the log's end a read does not wait for the disk
FOLLOWER = "follower"
SHORT_MS = 2_000  # slaves take a while to join a master that starts
LEASE_WAIT_MS = 500  # under a controller an idle slave renews the lease as often


@dataclass(frozen=True, slots=True)
class _Held:
    """A poll that waits for bytes. ``deadline_ms``: monotonic."""

    command: Command
    peer: Peer
    asked: Replicate
    deadline_ms: float


class Replication:
    """``settle()``: more may be visible and acknowledged now. ``timer()``: how far messages with a
    delivery time were delivered. ``leadership``, ``epoch``: under a controller, and of which epoch
    this is the master.
    """

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        responder: Responder,
        *,
        settle: Callable[[], None],
        timer: Callable[[], TimerProgress],
        leadership: Leadership | None,
        epoch: int | None,
    ) -> None:
        config, identity = runtime.config, runtime.identity
        self._config, self._identity = config, identity
        self._clock, self._offload, self._files = runtime.clock, runtime.offload, runtime.files
        self._keeper = storage.keeper
        self._answer, self._answer_from = responder.answer, responder.answer_from
        self._settle = settle
        self._timer = timer
        self._versions = storage.tables.versions
        self._held: dict[int, _Held] = {}
        self._peers: dict[int, Peer] = {}
        self._planned = False
        self._leadership = leadership
        self._epoch = epoch
        self._led = False
        self._short_since_ms: float | None = None
        """Since when too few copies are in sync: inf once that is told."""
        self.sync = config.replication is ReplicationMode.SYNC_MASTER and not identity.is_slave
        flush_counts = config.store.flush is FlushMode.SYNC_FLUSH
        self.followers = Followers(
            config.copies_min, config.in_sync_lag_ms, flush_counts=flush_counts, waits=self.sync
        )
        self._mender = Mender(
            storage.keeper, runtime.clock, runtime.offload, self.followers.all, self._ask
        )
        self._reported: set[int] = set()

    # --- the broker's events ----------------------------------------------------------------------

    def serving(self, store: MessageStore) -> None:
        """The store is recovered: slaves join anew."""
        self._forget()
        if self._identity.is_slave:
            return
        if self._leadership is not None:
            self.followers.lead(
                store.end_offset,
                self._slaves_of(self._leadership.members),
                self._clock.monotonic_ms(),
            )
        else:
            self.followers.begin(store.end_offset)
        self._mender.serving(store)
        self._limit(store)

    def lost(self) -> None:
        """The store failed."""
        self._forget()
        self._mender.lost()

    def written(self) -> None:
        """The log is longer: polls are answered in the loop's next turn, together for all that is
        appended in this one.
        """
        if self._held and not self._planned:
            self._planned = True
            self._offload.post(self._answer_held)

    def closed(self, peer: Peer) -> None:
        """A connection ended."""
        broker_id = peer.attributes.get(FOLLOWER)
        if broker_id is None or self._peers.get(broker_id) is not peer:
            return
        del self._peers[broker_id]
        self._held.pop(broker_id, None)
        log.warning("slave %d of %s is gone", broker_id, self._identity.name)
        if self.followers.left(broker_id):
            self._confirm()
        self._reported.discard(broker_id)
        self._mender.left(broker_id)
        self._propose()

    def tick(self) -> None:
        """Some times a second: polls whose time is over, or whose slave does not know what was
        confirmed; slaves that stay behind.
        """
        store, now_ms = self._keeper.store, self._clock.monotonic_ms()
        if store is None or self._identity.is_slave:
            return
        for broker_id, held in list(self._held.items()):
            if held.deadline_ms <= now_ms or held.asked.confirmed < self._shown(store):
                del self._held[broker_id]
                self._send(held, store)
        if self.followers.expire(store.written_offset, now_ms):
            log.log(
                logging.WARNING if self.sync else logging.INFO,
                "in sync with %s are now only slaves %s",
                self._identity.name,
                self.followers.in_sync,
            )
            self._confirm()
        self._propose()
        self._mender.tick(now_ms)
        self._tell_short(now_ms)
        if self._led is not self.leads:
            self._led = not self._led
            log.log(
                logging.INFO if self._led else logging.WARNING,
                "%s %s the lease of its slaves",
                self._identity.name,
                "has" if self._led else "has not",
            )
            self._settle()

    def approve(self, members: tuple[int, ...]) -> None:
        """The controller's set of replicas that may be elected, as it is now."""
        if self.followers.approve(self._slaves_of(members)):
            self._confirm()
        self._propose()

    # --- sends ------------------------------------------------------------------------------------

    @property
    def enough(self) -> bool:
        """Whether a send can be acknowledged at all: ASYNC_MASTER, or enough copies in sync."""
        return not self.sync or self.followers.enough

    @property
    def leads(self) -> bool:
        """Whether this master may write and acknowledge now: no controller, or the lease of all
        whom it could elect.
        """
        if self._leadership is None:
            return True
        return (
            self._epoch is not None
            and self._leadership.leads(self._epoch)
            and self._clock.monotonic_ms() < self.followers.lease_until_ms
        )

    @property
    def has_begun(self) -> bool:
        """Whether what an elected master found in its log may be shown."""
        return self.followers.has_begun

    def settled(self, durable: int) -> int:
        """Up to where sends may be acknowledged when the log is ``durable`` that far; 0 while this
        master may not lead.
        """
        if not self.leads:
            return 0
        if not self.sync or self.followers.alone:
            return durable
        return min(durable, self.followers.confirmed)

    def covered(self, durable: int) -> int:
        """Up to where it may be noted for the next life that something was done, when the log is
        ``durable`` that far: whoever is elected next has it.
        """
        return self.followers.covered(durable)

    def admit(self) -> None:
        """Raises ``BrokerBusy`` when too much of the log waits for slaves; nothing is written
        then.
        """
        store = self._keeper.store
        if (
            self.sync
            and store is not None
            and store.end_offset - store.visible_offset > self._config.in_flight_bytes_max
        ):
            behind = store.end_offset - store.visible_offset
            raise BrokerBusy(
                f"[REJECTREQUEST]{behind} bytes wait for slaves, the limit is "
                f"{self._config.in_flight_bytes_max}; send again later",
                behind,
            )

    # --- requests ---------------------------------------------------------------------------------

    def follow(self, command: Command, peer: Peer) -> None:
        """20040: a slave shows the end of its log and is told what to follow. Refused (20040) when
        its log is no prefix.
        """
        store = self._master_store()
        asked = unpack_follow(command.body)
        self._check_id(asked, peer)
        self._answer_from(
            command,
            peer,
            lambda: self._compare(store, asked),
            lambda lineage: self._join(command, peer, asked, lineage),
        )

    def replicate(self, command: Command, peer: Peer) -> Command | None:
        """20041: positions taken; bytes from an offset on, now or as soon as there are some."""
        store = self._master_store()
        asked = unpack_replicate(command.body)
        broker_id = peer.attributes.get(FOLLOWER, -1)
        if self._peers.get(broker_id) is not peer:
            raise Refused(
                "this connection follows nothing (any more); begin with FOLLOW_LOG",
                ResponseCode.LOG_DIVERGED,
            )
        if asked.epoch > store.epoch:
            raise Refused(
                f"the slave has epoch {asked.epoch}, this master {store.epoch}: it was "
                f"replaced and must not go on",
                ResponseCode.MASTER_FENCED,
            )
        command.body = b""
        end = store.written_offset
        if self._leadership is not None and asked.epoch < store.epoch:
            raise Refused(
                f"the slave is in epoch {asked.epoch}, this master in {store.epoch}: follow anew",
                ResponseCode.LOG_DIVERGED,
            )
        now_ms = self._clock.monotonic_ms()
        if self.followers.reported(broker_id, asked.written, asked.flushed, end, now_ms):
            self._confirm()
            self._propose()
        if broker_id not in self._reported:
            self._reported.add(broker_id)
            self._mender.joined(broker_id)
        wait_ms = min(
            max(asked.wait_ms, 0), WAIT_MS_MAX if self._leadership is None else LEASE_WAIT_MS
        )
        held = _Held(command, peer, asked, now_ms + wait_ms)
        at_once = asked.bytes_max <= 0 or asked.wait_ms <= 0 or asked.suspect >= 0
        if at_once or asked.offset != end or self._mender.tells(broker_id):
            self._send(held, store)
        else:
            self._held[broker_id] = held
            store.on_written = self.written
        return None

    def given(self, command: Command, peer: Peer) -> Command:
        """20080: a slave's records for a stretch that this log has broken; they are looked at
        beside the loop.
        """
        store, given = self._master_store(), unpack_given(command.body)
        broker_id = peer.attributes.get(FOLLOWER, -1)
        if self._peers.get(broker_id) is peer and given.epoch == store.epoch:
            self._mender.given(broker_id, given.log_offset, given.data)
        return command.answer()

    def state(self, command: Command, peer: Peer) -> Command:
        """20042: what a slave keeps besides RocketMQ's four tables."""
        store = self._master_store()
        progress = self._timer()
        return command.answer(
            body=pack_state(
                (progress.due_ms, progress.offset, progress.first, progress.cancel_from),
                store.end_offset,
                self._versions(),
            )
        )

    def status(self) -> dict[str, Any]:
        """Plain values: mode, what was confirmed, each slave with its lag."""
        store, now_ms = self._keeper.store, self._clock.monotonic_ms()
        end = 0 if store is None else store.written_offset
        slaves = {}
        for follower in self.followers.all():
            lag = self.followers.lag(follower, end, now_ms)
            slaves[follower.broker_id] = {
                "address": follower.address,
                "in_sync": follower.in_sync,
                "written": follower.written,
                "flushed": follower.flushed,
                "lag_bytes": lag.bytes,
                "lag_ms": lag.ms,
            }
        return {
            "mode": self._config.replication.value,
            "enough": self.enough,
            "alone": self.followers.alone,
            "confirmed": end if self.followers.alone else self.followers.confirmed,
            "slaves": slaves,
            "leads": self.leads,
            "master_epoch": self._epoch or 0,
            "mended": self._mender.mended,
        }

    # --- inside -----------------------------------------------------------------------------------

    def _tell_short(self, now_ms: float) -> None:
        """One line when too few copies are in sync, one when that ends; none where slaves join in
        time.
        """
        since, name, alone = self._short_since_ms, self._identity.name, self.followers.alone
        if self.enough and not alone:
            if since == inf:
                log.warning(
                    "%s acknowledges and delivers again with its slaves: they are in sync", name
                )
            self._short_since_ms = None
        elif since is None:
            self._short_since_ms = now_ms
        elif now_ms - since >= SHORT_MS:
            self._short_since_ms = inf
            if alone:
                log.warning(
                    "%s goes on alone (copies_min=1): no slave in sync, what it acknowledges is on "
                    "its own disk only",
                    name,
                )
                return
            copies = 1 + len(self.followers.in_sync)
            log.warning(
                "of %s %s (copies_min=%d): bring a copy back; copies_min=1 goes on alone",
                name,
                not_delivered(copies),
                self._config.copies_min,
            )

    def _master_store(self) -> MessageStore:
        if self._identity.is_slave:
            raise Refused(
                f"broker {self._identity.name} is a slave here and is not followed; follow "
                f"the master",
                ResponseCode.NO_PERMISSION,
            )
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store

    def _check_id(self, asked: FollowLog, peer: Peer) -> None:
        known = next((f for f in self.followers.all() if f.broker_id == asked.broker_id), None)
        before = self._peers.get(asked.broker_id)
        if asked.broker_id <= 0:
            raise Refused(
                f"broker id {asked.broker_id} is no slave's; slaves have ids from 1 on",
                ResponseCode.NO_PERMISSION,
            )
        if (
            known is not None
            and known.address != asked.address
            and before is not None
            and before is not peer
            and not before.closed
        ):
            raise Refused(
                f"slave {asked.broker_id} of {self._identity.name} is {known.address}; give "
                f"{asked.address} another id",
                ResponseCode.NO_PERMISSION,
            )

    def _compare(self, store: MessageStore, asked: FollowLog) -> LogLineage:
        """In a thread: the lineage; ``Refused`` for a log that is no prefix of this one."""
        parts, config = store.readable(), self._config.store
        origin = read_origin(self._files, config.path, store.identity)
        tail = Tail(asked.tail_begin, asked.tail_end, asked.tail_crc)
        if asked.log and tail.end > tail.begin:
            if asked.log != origin.log:
                fault = f"it is a copy of log {asked.log}, this is log {origin.log}"
            elif tail.end > parts.log.committed:
                fault = f"it ends at {tail.end}, this log at {parts.log.committed}: it has more"
            else:
                known = tail.begin < parts.log.begin or has_tail(parts, tail, BODY_BYTES_MAX)
                fault = "" if known else f"its bytes {tail.begin} to {tail.end} are others"
            if fault:
                raise Refused(
                    f"the log of slave {asked.broker_id} does not go on here: {fault}; give "
                    f"it an empty directory",
                    ResponseCode.LOG_DIVERGED,
                )
        return LogLineage(
            origin.log,
            store.epochs,
            parts.log.begin,
            config.segment_bytes,
            config.flush is FlushMode.SYNC_FLUSH,
        )

    def _join(self, command: Command, peer: Peer, asked: FollowLog, lineage: LogLineage) -> Command:
        before = self._peers.get(asked.broker_id)
        if before is not None and before is not peer:
            self.closed(before)
            before.close(f"slave {asked.broker_id} connected anew")
        peer.attributes[FOLLOWER] = asked.broker_id
        self._peers[asked.broker_id] = peer
        now_ms = self._clock.monotonic_ms()
        self.followers.joined(asked.broker_id, asked.address, 0, now_ms)
        self.followers.answered(asked.broker_id, now_ms)
        log.info("slave %d at %s follows from %d", asked.broker_id, asked.address, asked.tail_end)
        return command.answer(body=pack_lineage(lineage))

    def _answer_held(self) -> None:
        self._planned = False
        store = self._keeper.store
        for broker_id, held in list(self._held.items()):
            if store is not None and held.asked.offset < store.written_offset:
                del self._held[broker_id]
                self._send(held, store)

    def _send(self, held: _Held, store: MessageStore) -> None:
        """The answer to a poll: read here while the bytes are in memory, else in a thread."""
        command, peer, asked = held.command, held.peer, held.asked
        count = min(asked.bytes_max, BYTES_MAX)
        if asked.suspect < 0 and store.written_offset - asked.offset <= WARM_BYTES:
            self._answer(
                command,
                peer,
                lambda: self._answered(command, peer, self._piece(store, asked, count)),
            )
            return
        try:
            self._answer_from(
                command,
                peer,
                lambda: self._piece(store, asked, count),
                lambda body: self._answered(command, peer, body),
            )
        except BrokerBusy as error:
            peer.send(command.answer(ResponseCode.SYSTEM_BUSY, remark=error.message))

    def _answered(self, command: Command, peer: Peer, body: tuple[Buffer, ...]) -> Command:
        """The answer leaves now: the lease that the next poll renews begins here."""
        broker_id = peer.attributes.get(FOLLOWER, -1)
        fields = None
        if self._peers.get(broker_id) is peer:
            self.followers.answered(broker_id, self._clock.monotonic_ms())
            asked = self._mender.tell(broker_id)
            if asked is not None:
                fields = {WANTED: pack_wanted(asked.log_offset, asked.size)}
        return command.answer(fields=fields, body=body)

    def _ask(self, broker_id: int) -> None:
        """A poll that waits is answered; else the next one is, at once."""
        store, held = self._keeper.store, self._held.pop(broker_id, None)
        if store is not None and held is not None:
            self._send(held, store)

    def _shown(self, store: MessageStore) -> int:
        """Log offset up to which readers may see, here and at slaves; an elected master found more
        than that.
        """
        return (
            store.visible_offset
            if self.has_begun
            else min(store.visible_offset, self.followers.confirmed)
        )

    def _slaves_of(self, members: tuple[int, ...]) -> list[int]:
        own = self._leadership.replica if self._leadership is not None else 0
        return [slave_id(replica, own) for replica in members if replica != own]

    def _propose(self) -> None:
        """Tell the controller who should be electable, where that is not what it keeps."""
        leadership = self._leadership
        if leadership is None or self._epoch is None or not leadership.leads(self._epoch):
            return
        wanted = self.followers.proposal(self._clock.monotonic_ms())
        if wanted is not None:
            leadership.propose(
                self._epoch,
                tuple(
                    sorted(
                        [
                            leadership.replica,
                            *(replica_of(broker_id, leadership.replica) for broker_id in wanted),
                        ]
                    )
                ),
            )

    def _piece(self, store: MessageStore, asked: Replicate, count: int) -> tuple[Buffer, ...]:
        """The body of an answer; any thread."""
        parts = store.readable()
        if asked.suspect >= 0:
            look_again(parts, asked.suspect, BODY_BYTES_MAX)
        end, confirmed = store.written_offset, self._shown(store)
        try:
            data = read_log(parts, asked.offset, count) if count > 0 else b""
        except LogDiverged as error:
            raise Refused(f"{error.message}; follow anew", ResponseCode.LOG_DIVERGED) from error
        received = asked.offset + len(data)
        piece = memoryview(data)
        if received < end and received % self._config.store.segment_bytes:
            piece = piece[: whole_frames(data, asked.offset)]
        broken = (
            broken_between(parts, asked.offset, asked.offset + len(piece))
            if parts.quarantine.count
            else []
        )
        return pack_piece(LogPiece(asked.offset, end, confirmed, store.epoch, broken, piece))

    def _confirm(self) -> None:
        store = self._keeper.store
        if store is not None:
            self._limit(store)
        self._settle()

    def _limit(self, store: MessageStore) -> None:
        """Nothing becomes visible that those lack who are waited for."""
        if self.sync:
            alone = self.followers.alone
            store.set_replicated(None if alone else self.followers.confirmed)

    def _forget(self) -> None:
        peers, self._peers = self._peers, {}
        self._held.clear()
        self._reported.clear()
        for peer in peers.values():
            peer.close("the log is read again; follow anew")
