"""A small world in which the controller's rules are tried: replicas with disks, leases and polls, a
controller with a ledger, faults by chance.

``World(seed, synchronous=..., durable=...)`` then ``run()``: faults for ``FAULT_MS`` of simulated
time, then peace. ``WorldBroken`` says what broke:

- two masters could acknowledge at one time; an epoch began twice; a log that is followed is no
  prefix of its master's;
- SYNC: something acknowledged is not in the log that a master begins; ASYNC: lost though the old
  master itself, whole, was elected;
- in peace there is no master, copies differ, or the sync state set does not become complete again.

Messages between any two parties take a random time, are lost, and are cut by partitions. ``Flaws``
switch single rules off: each must be found.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role, Standing
from rmq_ray.protocol.election.promotion import Answer, Rules, elect
from rmq_ray.protocol.election.replication import LEASE_MS
from rmq_ray.protocol.election.succession import Call, Succession

FAULT_MS, PEACE_MS = 15_000, 15_000
HOLD_MS, APPEND_MS, LAG_MS, SILENT_MS = 500, 120, 700, 900
CONTROLLER = -1


class WorldBroken(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Flaws:
    """Single rules of replicas and controller that are not kept."""

    no_promise_wait: bool = False
    outside_the_set: bool = False
    tell_before_fsync: bool = False
    lease_of_approved_only: bool = False
    shrink_before_fsync: bool = False
    trust_every_disk: bool = False
    begin_again: bool = False
    reuse_epoch: bool = False


@dataclass
class Disk:
    """What survives a kill. ``flushed``: entries that survive a loss of power. An entry: (epoch,
    number).
    """

    log: list[tuple[int, int]] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    flushed: int = 0
    clean: bool = True

    @property
    def epoch(self) -> int:
        """The newest one that begins at or below the end."""
        return max((epoch for epoch, start in self.epochs if start <= len(self.log)), default=0)

    @property
    def newest(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0


class Replica:
    """One process after the other on one disk."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.disk = world, number, Disk()
        self.life = 0
        self.paused = False
        self.inbox: list[Callable[[], None]] = []
        self.reset()

    def reset(self) -> None:
        self.role, self.known, self.known_version, self.open = Role.WAITING, 0, -1, False
        self.assignment: Assignment | None = None
        self.sound = self.disk.clean
        self.promise_ms = -1e9
        self.promised_to = -1
        self.following: int | None = None
        self.session = getattr(self, "session", 0) + 1
        self.local: dict[int, int] = {}
        self.lease: dict[int, float] = {}
        self.held: dict[int, int] = {}
        self.heard: dict[int, float] = {}
        self.sessions: dict[int, int] = {}
        self.wanted: tuple[int, ...] | None = None
        self.wanted_at = 0
        self.confirmed = 0
        self.base = 0

    @property
    def running(self) -> bool:
        return self.life > 0 and not self.paused

    def start(self) -> None:
        self.life = self.world.next_life()
        self.reset()
        if self.disk.log or self.disk.epochs:
            self.promise_ms = self.world.now + LEASE_MS  # a life before may have polled
        self.after(self.world.random.uniform(50, 400), self.opened)

    def opened(self) -> None:
        self.role, self.open = Role.SLAVE, True
        self.after(10, self.append)
        self.after(10, self.flush)
        self.after(10, self.watch)

    def after(self, ms: float, what: Callable[[], None]) -> None:
        life = self.life
        self.world.after(ms, lambda: self.deliver(life, what))

    def deliver(self, life: int, what: Callable[[], None]) -> None:
        if self.life != life or not life:
            return
        if self.paused:
            self.inbox.append(lambda: self.deliver(life, what))
        else:
            what()

    def resume(self) -> None:
        self.paused = False
        inbox, self.inbox = self.inbox, []
        for what in inbox:
            what()

    def kill(self, power: bool) -> None:
        self.life, self.paused, self.inbox, self.session = 0, False, [], self.session + 1
        self.role = Role.WAITING
        if power:
            kept = self.world.random.randint(self.disk.flushed, len(self.disk.log))
            if kept < len(self.disk.log):
                del self.disk.log[kept:]
            self.disk.flushed = kept
            self.disk.clean = self.disk.clean and self.world.durable  # what counted was on the disk

    # --- the controller's calls ---

    def report(self) -> ReplicaReport:
        left = max(0.0, self.promise_ms - self.world.now)
        epoch = (
            self.assignment.master_epoch
            if self.role is Role.MASTER and self.assignment
            else self.known
        )
        flaw = self.world.flaws.trust_every_disk
        return ReplicaReport(
            self.number,
            self.role,
            f"host:{self.number}",
            f"s{self.number}",
            self.disk.epoch,
            len(self.disk.log),
            self.disk.flushed,
            self.sound or flaw,
            int(left + 0.999),
            epoch,
            newest_epoch=self.disk.newest,
        )

    def called(self, call: Call) -> ReplicaReport:
        if isinstance(call, int):
            if call > self.known:
                self.known, self.known_version, self.assignment = call, -1, None
                self.depose()
        elif self.open and (call.master_epoch, call.version) > (self.known, self.known_version):
            self.attend(call)
        elif self.assignment is not None and self.wanted is not None and self.role is Role.MASTER:
            self.ask_again()
        return self.report()

    def attend(self, new: Assignment) -> None:
        same = (
            self.role is Role.MASTER
            and self.assignment is not None
            and self.assignment.master_epoch == new.master_epoch
        )
        self.known, self.known_version, self.assignment = new.master_epoch, new.version, new
        if same:
            self.local = {
                s: at
                for s, at in self.local.items()
                if s in new.sync_state_set or at >= new.version
            }
            self.confirm()
            self.ask_again()
            return
        self.depose()
        if new.master == self.number and (
            self.disk.newest < new.master_epoch or self.world.flaws.begin_again
        ):
            self.role = Role.WAITING
            wait = (
                max(0.0, self.promise_ms - self.world.now)
                if self.promised_to != self.number and not self.world.flaws.no_promise_wait
                else 0.0
            )
            self.after(wait + self.world.random.uniform(10, 300), lambda: self.begin(new))
        elif new.master is not None and new.master != self.number:
            self.following = new.master
            self.session += 1
            self.poll(self.session, None)

    def depose(self) -> None:
        if self.open:
            self.role = Role.SLAVE
        self.following = None
        self.session += 1

    def begin(self, new: Assignment) -> None:
        if (
            self.role is not Role.WAITING
            or self.assignment is None
            or self.assignment.master_epoch != new.master_epoch
            or self.assignment.master != self.number
        ):
            return
        self.world.begun(self, new.master_epoch)
        self.disk.epochs.append((new.master_epoch, len(self.disk.log)))
        self.base = self.disk.flushed = len(self.disk.log)
        self.role = Role.MASTER
        self.local, self.lease, self.held, self.sessions, self.wanted = {}, {}, {}, {}, None
        self.heard = dict.fromkeys(range(self.world.count), self.world.now)
        self.confirmed = 0 if self.world.synchronous else len(self.disk.log)

    # --- a master ---

    def needed(self) -> set[int]:
        assert self.assignment is not None
        local = set() if self.world.flaws.lease_of_approved_only else set(self.local)
        approved = set(self.assignment.sync_state_set)
        if self.world.flaws.shrink_before_fsync and self.wanted is not None:
            approved &= set(self.wanted)
        return (approved | local) - {self.number}

    def can_acknowledge(self) -> bool:
        if not self.running or self.role is not Role.MASTER:
            return False
        return all(
            self.world.now < self.lease.get(slave, -1e9) + LEASE_MS for slave in self.needed()
        )

    def append(self) -> None:
        self.after(self.world.random.uniform(20, 2 * APPEND_MS), self.append)
        if self.can_acknowledge():
            assert self.assignment is not None
            self.disk.log.append((self.assignment.master_epoch, self.world.next_number()))
            self.confirm()
            for slave, session in self.sessions.items():
                self.answer(slave, session)

    def confirm(self) -> None:
        if not self.can_acknowledge():
            return
        assert self.assignment is not None
        slaves = (set(self.assignment.sync_state_set) | set(self.local)) - {self.number}
        if self.world.flaws.shrink_before_fsync:
            slaves = self.needed()
        held = [self.disk.flushed if self.world.durable else len(self.disk.log)]
        if self.world.synchronous and len(self.assignment.sync_state_set) < 2:
            return  # one copy is not enough: SLAVE_NOT_AVAILABLE
        if self.world.synchronous:
            held += [self.held.get(slave, 0) for slave in slaves]
        if min(held) > self.confirmed:
            self.world.acknowledge(self, self.confirmed, min(held))
            self.confirmed = min(held)

    def flush(self) -> None:
        self.after(self.world.random.uniform(50, 500), self.flush)
        self.disk.flushed = len(self.disk.log)
        if self.role is Role.MASTER:
            self.confirm()

    def polled(
        self, slave: int, session: int, epoch: int, end: int, flushed: int, follows_ms: float | None
    ) -> None:
        if (
            self.role is not Role.MASTER
            or self.assignment is None
            or epoch != self.assignment.master_epoch
        ):
            return
        if follows_ms is None:
            self.sessions[slave] = session
            self.send(slave, session, [], 0)
            return
        if self.sessions.get(slave) != session:
            return
        there = self.world.replicas[slave]
        if (
            there.session == session
            and self.disk.log[max(0, end - 5) : end] != there.disk.log[max(0, end - 5) : end]
        ):
            raise WorldBroken(f"{slave} has no prefix of {self.number}'s log in epoch {epoch}")
        self.heard[slave] = self.world.now
        self.lease[slave] = max(follows_ms, self.lease.get(slave, -1e9))
        self.held[slave] = flushed if self.world.durable else end
        self.confirm()
        if (
            slave not in self.needed()
            and self.held[slave] >= max(self.confirmed, self.base)
            and slave not in self.local
        ):
            self.local[slave] = self.assignment.version
            self.want()
        if end < len(self.disk.log):
            self.send(slave, session, self.disk.log[end:], end)
        else:
            self.after(HOLD_MS, lambda: self.answer(slave, session))

    def answer(self, slave: int, session: int) -> None:
        if self.role is Role.MASTER and self.sessions.get(slave) == session:
            end = min(len(self.world.replicas[slave].disk.log), len(self.disk.log))
            self.send(slave, session, self.disk.log[end:], end)

    def send(self, slave: int, session: int, data: list[tuple[int, int]], at: int) -> None:
        assert self.assignment is not None
        epoch, sent, epochs = self.assignment.master_epoch, self.world.now, list(self.disk.epochs)
        there = self.world.replicas[slave]
        self.world.tell(
            self.number,
            slave,
            lambda: there.taken(self.number, session, epoch, epochs, list(data), at, sent),
        )

    def watch(self) -> None:
        self.after(200, self.watch)
        if self.role is not Role.MASTER or self.assignment is None:
            return
        late = [s for s in self.needed() if self.world.now - self.heard.get(s, -1e9) > SILENT_MS]
        if late and (self.wanted is None or set(late) & set(self.wanted)):
            self.want(set(late))

    def want(self, without: set[int] | None = None) -> None:
        assert self.assignment is not None
        self.wanted_at = self.assignment.version
        self.wanted = tuple(
            sorted(
                ({self.number, *self.assignment.sync_state_set, *self.local}) - (without or set())
            )
        )
        self.propose()

    def ask_again(self) -> None:
        assert self.assignment is not None
        if self.wanted is None or (
            self.wanted == self.assignment.sync_state_set
            and self.assignment.version > self.wanted_at
        ):
            self.wanted = None
        else:
            self.propose()

    def propose(self) -> None:
        assert self.assignment is not None and self.wanted is not None
        epoch, version, wanted, world = (
            self.assignment.master_epoch,
            self.assignment.version,
            self.wanted,
            self.world,
        )
        for replica in wanted:
            if replica not in self.assignment.sync_state_set:
                self.local[replica] = version
        world.tell(
            self.number, CONTROLLER, lambda: world.controller.proposed(epoch, version, wanted)
        )

    # --- a slave ---

    def poll(self, session: int, follows_ms: float | None) -> None:
        if (
            self.session != session
            or self.following is None
            or self.assignment is None
            or self.role is not Role.SLAVE
        ):
            return
        self.promise_ms, self.promised_to = self.world.now + LEASE_MS, self.following
        epoch, end, flushed = self.assignment.master_epoch, len(self.disk.log), self.disk.flushed
        master = self.world.replicas[self.following]
        self.world.tell(
            self.number,
            self.following,
            lambda: master.polled(self.number, session, epoch, end, flushed, follows_ms),
        )
        life = self.life
        polls = self.polls = getattr(self, "polls", 0) + 1
        self.world.after(1_200, lambda: self.deliver(life, lambda: self.again(polls)))

    def again(self, polls: int) -> None:
        if self.polls == polls and self.following is not None:
            self.session += 1
            self.poll(self.session, None)

    def taken(
        self,
        master: int,
        session: int,
        epoch: int,
        epochs: list[tuple[int, int]],
        data: list[tuple[int, int]],
        at: int,
        sent: float,
    ) -> None:
        if (
            self.session != session
            or self.following != master
            or self.assignment is None
            or epoch != self.assignment.master_epoch
        ):
            return
        if self.disk.epochs != epochs:
            self.take_lineage(epochs)
        if at <= len(self.disk.log) <= at + len(data):
            self.disk.log.extend(data[len(self.disk.log) - at :])
        if not self.sound and data and len(self.disk.log) >= at + len(data):
            self.disk.clean = self.sound = True
        if self.world.durable:
            self.disk.flushed = len(self.disk.log)
        self.poll(session, sent)

    def take_lineage(self, epochs: list[tuple[int, int]]) -> None:
        """Cut what the master's log does not have, then its epochs are ours."""
        mine, end = [*self.disk.epochs], len(self.disk.log)
        common = 0
        for ours, theirs in zip(mine, epochs, strict=False):
            if ours != theirs:
                break
            common += 1
        ends = [e[common][1] for e in (mine, epochs) if common < len(e)]
        cut = min([end, *ends])
        del self.disk.log[cut:]
        self.disk.flushed = min(self.disk.flushed, cut)
        self.disk.epochs = list(epochs)


class Controller:
    """A driver of ``Succession`` with a ledger; one call to each replica at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger: Standing | None = None
        self.life = 0
        self.rules: Succession | None = None

    def start(self) -> None:
        self.life = self.world.next_life()
        self.rules = Succession(self.world.rules, self.ledger, self.world.now)
        self.busy = False
        self.after(10, self.turn)
        for replica in range(self.world.count):
            self.after(
                self.world.random.uniform(0, 100), lambda replica=replica: self.attend(replica)
            )

    def kill(self) -> None:
        self.life, self.rules = 0, None

    def after(self, ms: float, what: Callable[[], None]) -> None:
        life = self.life
        self.world.after(ms, lambda: what() if self.life == life else None)

    def turn(self) -> None:
        self.after(100, self.turn)
        self.decide()

    def decide(self) -> None:
        if self.busy or self.rules is None:
            return
        found = self.rules.step(self.world.now)
        if found is None:
            found = self._flawed_election()
        if found is None:
            return
        if (
            self.world.flaws.reuse_epoch
            and found.assignment.master is None
            and self.world.random.random() < 0.5
        ):
            found = Standing(
                Assignment(
                    "b",
                    max(1, found.assignment.master_epoch - 1),
                    None,
                    None,
                    found.assignment.sync_state_set,
                ),
                found.former,
            )
        if self.world.flaws.tell_before_fsync:
            self.rules.fsynced(found, self.world.now)
            self.after(self.world.random.uniform(1, 400), lambda: self.write(found))
            return
        self.busy = True
        self.after(self.world.random.uniform(1, 40), lambda: self.write(found))

    def _flawed_election(self) -> Standing | None:
        """What a controller would do that elects anybody, or does not wait for promises."""
        assert self.rules is not None
        standing, flaws, world = self.rules.standing, self.world.flaws, self.world
        if (
            standing is None
            or standing.assignment.master is not None
            or standing.former is None
            or not (flaws.no_promise_wait or flaws.outside_the_set)
        ):
            return None
        if flaws.outside_the_set:
            standing = replace(
                standing,
                assignment=replace(standing.assignment, sync_state_set=tuple(range(world.count))),
            )
        reports = {
            n: r
            for n in range(world.count)
            if (r := self.rules.report_of(n)) is not None
            and r.master_epoch == standing.assignment.master_epoch
        }
        if flaws.no_promise_wait:
            reports = {n: replace(report, promise_ms=0) for n, report in reports.items()}
        answers = {n: Answer(report, world.now) for n, report in reports.items()}
        found = elect(world.rules, standing, answers, (), None, world.now - 10_000, world.now)
        return None if isinstance(found, str) else found

    def write(self, found: Standing) -> None:
        if (
            self.ledger is None
            or found.assignment.newer_than(self.ledger.assignment)
            or self.world.flaws.reuse_epoch
        ):
            self.ledger = found
        if self.world.random.random() < self.world.crash_between:
            self.kill()
            self.world.after(600, self.start)
            return
        if (
            found.assignment.master is not None
            and self.world.random.random() < self.world.crash_between
        ):
            self.world.cut_off(
                CONTROLLER, found.assignment.master, self.world.random.uniform(2_000, 6_000)
            )
        if not self.world.flaws.tell_before_fsync:
            self.after(self.world.random.uniform(0, 20), lambda: self.done(found))

    def done(self, found: Standing) -> None:
        assert self.rules is not None
        self.rules.fsynced(found, self.world.now)
        self.busy = False
        self.decide()

    def proposed(self, epoch: int, version: int, wanted: tuple[int, ...]) -> None:
        if self.rules is None or self.busy:
            return
        if self.rules.proposed(epoch, version, wanted):
            self.decide()

    def attend(self, number: int) -> None:
        assert self.rules is not None
        call, replica, world, life = (
            self.rules.call_for(number),
            self.world.replicas[number],
            self.world,
            self.life,
        )
        open_call = [True]

        def answered(report: ReplicaReport) -> None:
            if open_call[0] and self.life == life and self.rules is not None:
                open_call[0] = False
                self.rules.answered(number, call, report, world.now)
                self.decide()
                self.after(300, lambda: self.attend(number))

        def late() -> None:
            if open_call[0]:
                open_call[0] = False
                self.attend(number)

        def arrive() -> None:
            report = replica.called(call)
            world.tell(number, CONTROLLER, lambda: answered(report))

        world.tell(CONTROLLER, number, arrive)
        self.after(1_000, late)


class World:
    """See the module."""

    def __init__(
        self,
        seed: int,
        *,
        synchronous: bool,
        durable: bool,
        count: int = 3,
        flaws: Flaws | None = None,
        automatic: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.flaws = flaws or Flaws()
        self.synchronous, self.durable, self.count = synchronous, durable, count
        self.rules = Rules("b", count, synchronous, automatic)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = self.lives = self.numbers = 0
        self.cut: set[frozenset[int]] = set()
        self.loss = self.random.choice([0.0, 0.0, 0.02, 0.1])
        self.crash_between = self.random.choice([0.0, 0.05, 0.3])
        self.slow = 0.03
        self.acknowledged: set[int] = set()
        self.lost: set[int] = set()
        self.begins: dict[int, int] = {}
        self.replicas = [Replica(self, number) for number in range(count)]
        self.controller = Controller(self)

    def next_life(self) -> int:
        self.lives += 1
        return self.lives

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def after(self, ms: float, what: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (self.now + ms, self.sequence, what))

    def tell(self, sender: int, receiver: int, what: Callable[[], None]) -> None:
        """A message: late, lost, or cut off."""
        if frozenset((sender, receiver)) in self.cut or self.random.random() < self.loss:
            return
        delay = (
            self.random.uniform(0.2, 15)
            if self.random.random() > self.slow
            else self.random.uniform(50, 1_500)
        )
        if receiver == CONTROLLER:
            self.after(
                delay, lambda: what() if frozenset((sender, receiver)) not in self.cut else None
            )
        else:
            self.replicas[receiver].after(delay, what)

    # --- what must hold ---

    def begun(self, replica: Replica, epoch: int) -> None:
        if epoch in self.begins:
            raise WorldBroken(
                f"epoch {epoch} began at {self.begins[epoch]} and at {replica.number}"
            )
        self.begins[epoch] = replica.number
        if epoch < max(self.begins):
            # it slept since it was elected: without a lease it acknowledges nothing, and is deposed
            # by the first call
            return
        has = {number for _, number in replica.disk.log}
        lost = self.acknowledged - has
        if lost and self.synchronous:
            raise WorldBroken(
                f"{len(lost)} acknowledged messages are not in the log that {replica.number} "
                f"begins epoch {epoch} with"
            )
        self.lost |= lost
        self.acknowledged -= lost

    def acknowledge(self, master: Replica, begin: int, end: int) -> None:
        self.acknowledged |= {number for _, number in master.disk.log[begin:end]}

    def check(self) -> None:
        if sum(replica.role is Role.MASTER for replica in self.replicas) < 2:
            return
        able = [replica.number for replica in self.replicas if replica.can_acknowledge()]
        if len(able) > 1:
            raise WorldBroken(f"{able} could acknowledge at one time")

    # --- what happens ---

    def fault(self) -> None:
        if self.now > FAULT_MS:
            return
        self.after(self.random.uniform(200, 4_000), self.fault)
        replica = self.random.choice(self.replicas)
        masters = [r for r in self.replicas if r.role is Role.MASTER]
        if masters and self.random.random() < 0.6:
            replica = self.random.choice(masters)
        kind = self.random.choice(["kill", "kill", "pause", "cut", "cut", "controller", "power"])
        down = self.random.choice([300, 1_200, 3_000, 8_000])
        if kind in ("kill", "power") and replica.life:
            self.stop(replica, power=kind == "power" and self._power_allowed(replica), down_ms=down)
        elif kind == "pause" and replica.running:
            replica.paused = True
            self.after(down, replica.resume)
        elif kind == "controller" and self.controller.life:
            self.controller.kill()
            self.after(
                down / 2, lambda: self.controller.start() if not self.controller.life else None
            )
        elif kind == "cut":
            self.cut_off(*self.random.sample([CONTROLLER, *range(self.count)], 2), down)

    def cut_off(self, one: int, other: int, ms: float) -> None:
        pair = frozenset((one, other))
        self.cut.add(pair)
        self.after(ms, lambda: self.cut.discard(pair))

    def stop(self, replica: Replica, *, power: bool, down_ms: float) -> None:
        replica.kill(power)
        self.after(down_ms, lambda: replica.start() if not replica.life else None)

    def _power_allowed(self, replica: Replica) -> bool:
        """Not synced at once, and kept by copies: then one host at a time may lose its power."""
        return (
            self.durable
            or not self.synchronous
            or all(other.disk.clean for other in self.replicas if other is not replica)
        )

    def peace(self) -> None:
        self.cut.clear()
        self.loss = self.crash_between = self.slow = 0.0
        for replica in self.replicas:
            if replica.paused:
                replica.resume()

    def run(self) -> World:
        """One history; ``WorldBroken`` where a promise breaks."""
        for replica in self.replicas:
            replica.start()
        self.controller.start()
        self.after(1_500, self.fault)
        self.after(FAULT_MS, self.peace)
        while self.events and self.now < FAULT_MS + PEACE_MS:
            self.now, _, what = heapq.heappop(self.events)
            what()
            self.check()
        self._check_peace()
        return self

    def _check_peace(self) -> None:
        masters = [
            replica
            for replica in self.replicas
            if replica.role is Role.MASTER and replica.can_acknowledge()
        ]
        rules = self.controller.rules
        if not masters:
            raise WorldBroken(f"there is no master in the end: {rules and rules.status(self.now)}")
        assert masters[0].assignment is not None
        if len(masters[0].assignment.sync_state_set) != self.count:
            raise WorldBroken(
                f"the set stays {masters[0].assignment.sync_state_set}: "
                f"{rules and rules.status(self.now)}"
            )
        if any(
            replica.disk.log != masters[0].disk.log[: len(replica.disk.log)]
            for replica in self.replicas
        ):
            raise WorldBroken("copies differ in the end")


def main() -> None:
    """``python -m tests.support.faults.election_model 4000 [first seed]``: many histories, each
    with other settings.
    """
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    epochs = acknowledged = 0
    for seed in range(first, first + int(sys.argv[1])):
        world = World(
            seed, synchronous=seed % 3 != 0, durable=seed % 2 == 0, count=2 + seed % 5 % 2
        )
        try:
            world.run()
        except WorldBroken as broken:
            print(f"seed {seed} after {world.now / 1000:.1f} s: {broken}")
        epochs, acknowledged = epochs + len(world.begins), acknowledged + len(world.acknowledged)
    print(f"{sys.argv[1]} histories, {epochs} epochs, {acknowledged} acknowledged messages")


if __name__ == "__main__":
    main()
