"""Who becomes master of one broker name, and when: the controller's rules without its disk, its
calls and its clock.

    no ledger ──all replicas reported──┐
                                       v                 enough reports, promise over
    REIGNING ──master gone, order──> ELECTING (master None) ──────────────────> REIGNING, epoch + 1
        └── proposal of the master: another sync state set, version + 1

Decides: when an epoch ends, what is written to the ledger next (``step``), what each replica is
told now (``call_for``), what a ledger is worth after replicas were removed (``without_removed``).
Whom to elect is in ``protocol.election.promotion``. Does not decide: how calls and disks fail.
Called by ``actors.control.elections``, which writes what ``step`` returns, then calls ``fsynced``:
nothing else changes what replicas are told.

Invariants: nobody is told what ``fsynced`` did not confirm; an epoch has one master for ever; a
sync state set changes only by a proposal that knew the newest one, or where a member was removed
while nobody ran. Safe leases follow from: a master needs a fresh poll of every slave of its set
(proposed ones included), a slave that polled promised not to be promoted for ``LEASE_MS``, and only
a member whose promise is over is elected in place of a master that did not say that it is deposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rmq_ray.errors import ConfigError, PromotionRefused
from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role, Standing
from rmq_ray.protocol.election.promotion import Answer, Order, Rules, elect, newest_epoch

PROMOTION_MS = 30_000  # an elected replica that works on it has so long
REACHABLE_MS = 1_500  # who was heard of within it counts as reachable
ORDER_MS = 10_000  # then a promotion by hand is given up

Call = Assignment | int
"""What a replica is told: an assignment (``attend``), or the epoch of an election (``fence``)."""


@dataclass(slots=True)
class _Replica:
    report: ReplicaReport | None = None
    call: Call = 0
    heard_ms: float = -1e18
    node_dead: bool = False


class Succession:
    """Of one broker name. ``known``: what the ledger has of replicas that exist
    (``without_removed``), None = nothing. ``grace_ms``: so long every replica needs to start. All
    times are monotonic ms.
    """

    def __init__(
        self, rules: Rules, known: Standing | None, now_ms: float, grace_ms: float = 0.0
    ) -> None:
        self.rules = rules
        self.standing = known
        self.why = ""
        """Why there is no master now, in words; empty while all is well."""
        self._replicas = {number: _Replica() for number in range(rules.replicas)}
        self._since_ms = now_ms
        self._alive_ms = now_ms + grace_ms
        self._served = False
        self._outdated = False
        self._wanted: tuple[int, ...] | None = None
        self._order: Order | None = None

    # --- what replicas are told, and what they say ---

    def call_for(self, replica: int) -> Call:
        """What this replica is told now, again and again."""
        standing = self.standing
        if standing is None:
            return Assignment(self.rules.broker_name, 0, None, None, ())
        return (
            standing.assignment.master_epoch
            if standing.assignment.master is None
            else standing.assignment
        )

    def answered(self, replica: int, call: Call, report: ReplicaReport, now_ms: float) -> None:
        """A report, as answer to ``call``."""
        seen = self._replicas[replica]
        seen.report, seen.call, seen.heard_ms, seen.node_dead = report, call, now_ms, False
        if self.standing is None:
            return
        assignment = self.standing.assignment
        if newest_epoch([report]) > assignment.master_epoch:
            self._outdated = True
        if (
            replica != assignment.master
            or not isinstance(call, Assignment)
            or call.master_epoch != assignment.master_epoch
        ):
            return
        if report.role is Role.MASTER and report.master_epoch == assignment.master_epoch:
            self._served, self._alive_ms, self.why = True, now_ms, ""
        elif (
            report.role is Role.WAITING
            and not report.error
            and not self._served
            and now_ms - self._since_ms < PROMOTION_MS
        ):
            self._alive_ms = now_ms

    def node_died(self, replica: int) -> None:
        """Ray says that its node is dead; its next answer says otherwise."""
        self._replicas[replica].node_dead = True

    def proposed(self, master_epoch: int, version: int, wanted: Sequence[int]) -> bool:
        """The master wants another sync state set. False: refused, because it did not know the
        newest assignment, or an election runs.
        """
        standing = self.standing
        if standing is None or standing.assignment.master is None or self._order is not None:
            return False
        assignment = standing.assignment
        fits = assignment.master in wanted and all(
            0 <= replica < self.rules.replicas for replica in wanted
        )
        if (master_epoch, version) != (assignment.master_epoch, assignment.version) or not fits:
            return False
        self._wanted = tuple(sorted(set(wanted)))
        return True

    # --- by hand ---

    def heir(self, replica: int | None, *, force: bool, now_ms: float) -> int:
        """Whom an order would promote. ``PromotionRefused`` where that replica cannot be, or nobody
        can.
        """
        standing, rules = self.standing, self.rules
        name = rules.broker_name
        if standing is None:
            raise PromotionRefused(
                f"{name} was never led by anybody: {self.why or 'its replicas are starting'}", name
            )
        if replica is not None and not 0 <= replica < rules.replicas:
            raise PromotionRefused(
                f"{name} has replicas 0 to {rules.replicas - 1}, not {replica}", name, replica
            )
        members, master = standing.assignment.sync_state_set, standing.assignment.master
        if replica is None:
            found = [
                number for number in members if number != master and self._ready(number, now_ms)
            ]
            if not found:
                raise PromotionRefused(
                    f"{name} has no other replica in sync that answers (in sync: "
                    f"{list(members)}): start one, or name one with force",
                    name,
                )
            return max(
                found, key=lambda number: (self._place(number), number == standing.former, -number)
            )
        if replica == master and self.serves(now_ms):
            raise PromotionRefused(
                f"replica {replica} of {name} is its master already", name, replica
            )
        if not self._ready(replica, now_ms):
            report = self._replicas[replica].report
            state = (
                "does not answer"
                if report is None or not self._heard(replica, now_ms)
                else f"is {report.role.value} {report.error}".strip()
            )
            raise PromotionRefused(
                f"replica {replica} of {name} {state}: it must run before it can be promoted",
                name,
                replica,
            )
        if replica not in members and not force:
            raise PromotionRefused(
                f"replica {replica} of {name} is not in sync (in sync: {list(members)}) and "
                f"may lack acknowledged messages: promote another, or use force",
                name,
                replica,
            )
        return replica

    def order(self, heir: int, *, force: bool, now_ms: float) -> None:
        """Let this replica be elected next."""
        self._order = Order(heir, force, now_ms + ORDER_MS)

    @property
    def ordered(self) -> bool:
        """Whether an order waits to be carried out."""
        return self._order is not None

    # --- what to write next ---

    def step(self, now_ms: float) -> Standing | None:
        """What must be on the ledger's disk next; None: nothing changes now."""
        if self._order is not None and now_ms > self._order.until_ms:
            self._order = None
        standing = self.standing
        if standing is None or self._outdated:
            return self._begin_anew(now_ms)
        if standing.assignment.master is None:
            return self._finish(standing, now_ms)
        if self._must_elect(standing.assignment, now_ms):
            return self._open(standing.assignment.sync_state_set, standing.assignment.master)
        return self._with_set(standing)

    def fsynced(self, standing: Standing, now_ms: float) -> None:
        """What ``step`` returned is on the disk."""
        before = self.standing
        self.standing, self._wanted, self._outdated = standing, None, False
        assignment = standing.assignment
        if (
            before is None
            or before.assignment.master_epoch != assignment.master_epoch
            or before.assignment.master is None
        ):
            self._since_ms = self._alive_ms = now_ms
            self._served = False
        if (
            assignment.master is not None
            and before is not None
            and before.assignment.master is None
        ):
            # carried out; another sync state set of the epoch that it ends leaves it alone
            self._order = None

    # --- rules ---

    def _begin_anew(self, now_ms: float) -> Standing | None:
        """No ledger, or an older one than the replicas know: everybody must be heard."""
        silent = [
            number
            for number in self._replicas
            if self._replicas[number].report is None or not self._heard(number, now_ms)
        ]
        broken = [
            f"{number} ({report.error})"
            for number, seen in self._replicas.items()
            if (report := seen.report) is not None and report.error
        ]
        if silent or broken:
            self.why = (
                f"the ledger does not know who reigned last, so every replica must report; "
                f"silent: {silent}, not able to: {broken}"
            )
            return None
        return self._open(tuple(self._replicas), None)

    def _open(self, members: tuple[int, ...], former: int | None) -> Standing:
        reports = [seen.report for seen in self._replicas.values() if seen.report is not None]
        known = 0 if self.standing is None else self.standing.assignment.master_epoch
        epoch = max(newest_epoch(reports), known) + 1
        return Standing(Assignment(self.rules.broker_name, epoch, None, None, members), former)

    def _finish(self, standing: Standing, now_ms: float) -> Standing | None:
        epoch = standing.assignment.master_epoch
        answers = {
            number: Answer(seen.report, seen.heard_ms)
            for number, seen in self._replicas.items()
            if seen.report is not None and seen.call == epoch and self._heard(number, now_ms)
        }
        hurry = (
            self.rules.synchronous or self._order is not None
        )  # then nothing is lost without those that still read their disk
        ready = {
            number
            for number, answer in answers.items()
            if hurry or answer.report.role is not Role.WAITING or answer.report.error
        }
        alive = {
            number
            for number in standing.assignment.sync_state_set
            if self._heard(number, now_ms) and not self._replicas[number].node_dead
        }
        expected = alive - ready
        found = elect(self.rules, standing, answers, expected, self._order, self._since_ms, now_ms)
        if isinstance(found, str):
            self.why = found
            return None
        return found

    def _must_elect(self, assignment: Assignment, now_ms: float) -> bool:
        master, epoch = assignment.master, assignment.master_epoch
        assert master is not None
        seen = self._replicas[master]
        if self._order is not None:
            return True
        report = seen.report
        told = isinstance(seen.call, Assignment) and seen.call.master_epoch == epoch
        if (
            report is not None
            and told
            and report.role is Role.SLAVE
            and max(report.log_epoch, report.newest_epoch) >= epoch
        ):
            return True  # started again, or its disk failed: its log's epoch is over
        late = now_ms - self._alive_ms
        if late <= self.rules.failover_after_ms and not seen.node_dead:
            return False
        return self._may_replace(assignment, master, late, now_ms)

    def _may_replace(
        self, assignment: Assignment, master: int, late_ms: float, now_ms: float
    ) -> bool:
        gone = (
            f"master {master} of {self.rules.broker_name} has not served for {late_ms / 1000:.0f} s"
        )
        if not self.rules.automatic:
            self.why = f"{gone}; automatic fail-over is off: promote another by hand"
            return False
        report = self._replicas[master].report
        idle = (
            report is not None and report.role is Role.SLAVE
        )  # it was told, and does nothing: another epoch may help
        able = [
            number
            for number in assignment.sync_state_set
            if (number != master or idle) and self._ready(number, now_ms)
        ]
        if not able:
            self.why = (
                f"{gone}, and no other replica that is in sync answers (in sync: "
                f"{list(assignment.sync_state_set)})"
            )
            return False
        return True

    def _with_set(self, standing: Standing) -> Standing | None:
        if self._wanted is None:
            return None
        old = standing.assignment
        changed = Assignment(
            old.broker_name,
            old.master_epoch,
            old.master,
            old.master_address,
            self._wanted,
            old.version + 1,
        )
        return Standing(changed, standing.former)

    def _heard(self, replica: int, now_ms: float) -> bool:
        return now_ms - self._replicas[replica].heard_ms <= REACHABLE_MS

    def _ready(self, replica: int, now_ms: float) -> bool:
        report = self._replicas[replica].report
        return (
            report is not None and report.role is not Role.WAITING and self._heard(replica, now_ms)
        )

    def _place(self, replica: int) -> tuple[int, int]:
        report = self._replicas[replica].report
        return (0, 0) if report is None else (report.log_epoch, report.end)

    # --- for people ---

    def report_of(self, replica: int) -> ReplicaReport | None:
        """The newest one; None before the first."""
        return self._replicas[replica].report

    def serves(self, now_ms: float) -> bool:
        """Whether the master of the newest epoch has said just now that it serves."""
        standing = self.standing
        return (
            standing is not None
            and standing.assignment.master is not None
            and self._served
            and now_ms - self._alive_ms <= REACHABLE_MS
        )

    def status(self, now_ms: float) -> dict[str, object]:
        """Plain values. ``lag_bytes``: as far as the newest reports tell."""
        assignment = None if self.standing is None else self.standing.assignment
        master = None if assignment is None else assignment.master
        end = 0 if master is None else self._place(master)[1]
        replicas: dict[int, dict[str, object]] = {}
        for number, seen in self._replicas.items():
            report = seen.report
            if report is None:
                replicas[number] = {"state": "not heard of"}
                continue
            replicas[number] = {
                "state": report.role.value,
                "address": report.address,
                "log_epoch": report.log_epoch,
                "end": report.end,
                "sound": report.sound,
                "lag_bytes": max(0, end - report.end),
                "heard_ms_ago": int(now_ms - seen.heard_ms),
                "node_dead": seen.node_dead,
                "error": report.error,
            }
        state = (
            "starting"
            if assignment is None
            else "electing"
            if master is None
            else "silent"
            if self._served
            else "promoting"
        )
        if self.serves(now_ms):
            state = "serving"
        return {
            "state": state,
            "serving": state == "serving",
            "why": self.why,
            "master": master,
            "master_epoch": 0 if assignment is None else assignment.master_epoch,
            "sync_state_set": [] if assignment is None else list(assignment.sync_state_set),
            "automatic": self.rules.automatic,
            "replicas": replicas,
        }


def without_removed(rules: Rules, known: Standing | None) -> Standing | None:
    """What a ledger is worth once replicas were removed: it must be on the disk before anybody is
    told of it. Only members that are left may be elected: nobody else has all that was
    acknowledged. Where the master is gone, all of them must report.

    ``ConfigError`` where none is left.
    """
    if known is None:
        return None
    old = known.assignment
    left = tuple(number for number in old.sync_state_set if number < rules.replicas)
    if left == old.sync_state_set:
        return known
    if not left:
        raise ConfigError(
            f"{rules.broker_name}: replicas {list(old.sync_state_set)} were removed, and only they "
            f"have all acknowledged messages for certain: put them back and start; once another "
            f"one is in sync (`rmq-ray broker list`) or promoted with force, they may be removed",
            rules.broker_name,
        )
    leader = known.former if old.master is None else old.master
    if leader is None or leader < rules.replicas:
        cut = replace(old, sync_state_set=left, version=old.version + 1)
        return Standing(cut, known.former)
    return Standing(Assignment(old.broker_name, old.master_epoch + 1, None, None, left), None)
