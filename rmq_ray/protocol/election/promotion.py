"""Which replica is elected, or why nobody can be yet: one question, answered from reports alone.

Every candidate was fenced before it reported: it follows nobody, so what it says of its log stays
true. What it must hold:

    SYNC_MASTER   acknowledged = held by every member: the furthest of those that reported has it
                  all, if one of them has all that it ever had
    ASYNC_MASTER  nothing is promised beyond the elected copy: the furthest one that is there

A copy that is not sound may have lost its newest bytes: its host booted since it wrote (with
flush="sync" that alone takes nothing that counted), or its disk lost what it once had. Where all
members that report are so, every replica is asked, and one outside the set that has more is better:
it has what the others lost.

Decides nothing about when elections begin (``protocol.election.promotion``, the only caller). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role, Standing

# members that live, but have not answered the fence yet or still read their disk, are waited for
GATHER_MS = 1_000
MORE_REPORTS_MS = 5_000  # how long a copy that may lack bytes waits for another one


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of one broker name. ``replicas``: how many, numbered from 0."""

    broker_name: str
    replicas: int
    synchronous: bool
    automatic: bool = True
    failover_after_ms: int = 2_500


@dataclass(frozen=True, slots=True)
class Answer:
    """A replica's report after it was fenced for this election. ``heard_ms``: when it came."""

    report: ReplicaReport
    heard_ms: float


@dataclass(frozen=True, slots=True)
class Order:
    """A promotion by hand. ``force``: even if acknowledged messages are lost."""

    heir: int
    force: bool
    until_ms: float


def newest_epoch(reports: Iterable[ReplicaReport]) -> int:
    """The highest epoch that any of them knows."""
    return max(
        (max(report.log_epoch, report.newest_epoch, report.master_epoch) for report in reports),
        default=0,
    )


def elect(
    rules: Rules,
    standing: Standing,
    answers: Mapping[int, Answer],
    expected: Collection[int],
    order: Order | None,
    since_ms: float,
    now_ms: float,
) -> Standing | str:
    """The standing with the new master, or why it must wait. ``expected``: members that live and
    have not answered yet.
    """
    members = set(standing.assignment.sync_state_set)
    ready = {
        number: answer.report
        for number, answer in answers.items()
        if answer.report.role is Role.SLAVE
    }
    voting = {number: report for number, report in ready.items() if number in members}
    if order is not None and order.force:
        if order.heir not in ready:
            return f"replica {order.heir}, to be promoted by force, does not answer yet"
        elected = order.heir
    else:
        if why := _too_few(rules, standing, ready, voting, expected, now_ms - since_ms):
            return why
        among = voting if _whole(voting) else ready
        if order is not None:
            elected = _furthest(among, order.heir, sound_first=False)
        else:
            elected = _furthest(among, standing.former, sound_first=rules.automatic)
        if order is None and (why := _not_allowed(rules, standing, voting, elected)):
            return why
    wait_ms = _promise(rules, standing, answers, elected, now_ms)
    if wait_ms > 0:
        return (
            f"replica {elected} may be promoted in {wait_ms / 1000:.1f} s: until then the old "
            f"master may count on it"
        )
    return _elected(standing, ready, elected)


def _too_few(
    rules: Rules,
    standing: Standing,
    ready: Mapping[int, ReplicaReport],
    voting: Mapping[int, ReplicaReport],
    expected: Collection[int],
    waited_ms: float,
) -> str:
    """Why these reports do not suffice; empty when they do."""
    members = standing.assignment.sync_state_set
    missing = sorted(set(members) - voting.keys())
    if standing.former is None:
        return (
            f"the ledger does not know who reigned last: replicas {missing} must report, too"
            if missing
            else ""
        )
    if not voting:
        return f"no member of the sync state set {list(members)} answers"
    if expected and waited_ms < GATHER_MS:
        return f"replicas {sorted(expected)} live and have not answered yet"
    absent = sorted(set(range(rules.replicas)) - ready.keys())
    if _whole(voting) or not absent:
        return ""
    # What it lost may have been acknowledged: the ledger can be ahead of the set that a master
    # knew.
    alone = rules.synchronous and len(voting) == 1
    if waited_ms >= MORE_REPORTS_MS and not alone:
        return ""
    return (
        f"{sorted(voting)} lost bytes, or their hosts booted since they wrote; acknowledged ones "
        f"may lack: {absent} should report, or promote by force"
    )


def _whole(voting: Mapping[int, ReplicaReport]) -> bool:
    """Whether one of these copies has all that it ever had: then the furthest member has all that
    was acknowledged.
    """
    return any(report.sound for report in voting.values())


def _furthest(
    voting: Mapping[int, ReplicaReport], preferred: int | None, *, sound_first: bool
) -> int:
    """Among equals the copy with the fewest broken records, then ``preferred``."""
    return max(
        voting,
        key=lambda number: (
            voting[number].log_epoch,
            voting[number].end,
            -voting[number].broken if sound_first else 0,
            number == preferred,
            -number,
        ),
    )


def _not_allowed(
    rules: Rules, standing: Standing, voting: Mapping[int, ReplicaReport], elected: int
) -> str:
    """Why the furthest replica is not elected all the same."""
    if rules.automatic or standing.former in (None, elected):
        return ""
    former = standing.former
    if former not in voting:
        return f"master {former} is gone and automatic fail-over is off: promote another by hand"
    return (
        f"replica {elected} has more than the master {former} that came back, and automatic "
        f"fail-over is off: promote one by hand"
    )


def _promise(
    rules: Rules, standing: Standing, answers: Mapping[int, Answer], elected: int, now_ms: float
) -> float:
    """How long the old master may still hold a lease, in ms. None who answered a fence does."""
    members = standing.assignment.sync_state_set
    if standing.former is None:
        # whoever is silent may be the old master (an order by force does not wait for him), with
        # any of these for slaves
        promised = list(answers) if set(range(rules.replicas)) - answers.keys() else []
    elif elected == standing.former or standing.former in answers:
        return 0.0
    else:
        promised = (
            [elected] if elected in members else [number for number in answers if number in members]
        )
    return max(
        (
            answers[number].heard_ms + answers[number].report.promise_ms - now_ms
            for number in promised
        ),
        default=0.0,
    )


def _elected(standing: Standing, ready: Mapping[int, ReplicaReport], elected: int) -> Standing:
    """The new set: members whose copies have what was acknowledged, for certain."""
    old = standing.assignment
    place = (ready[elected].log_epoch, ready[elected].end)
    complete = (
        set(old.sync_state_set)
        if standing.former is not None and elected in old.sync_state_set
        else set()
    )
    trusted = {number for number, report in ready.items() if number in complete and report.sound}
    equal = {number for number, report in ready.items() if (report.log_epoch, report.end) == place}
    chosen = tuple(sorted(trusted | equal | {elected}))
    assignment = Assignment(
        old.broker_name, old.master_epoch, elected, ready[elected].address, chosen, old.version + 1
    )
    return Standing(assignment, elected)
