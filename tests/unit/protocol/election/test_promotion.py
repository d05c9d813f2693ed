"""When an epoch ends, who is elected, what must be on the ledger's disk first: rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmq_ray.errors import ConfigError, PromotionRefused
from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role, Standing
from rmq_ray.protocol.election.promotion import GATHER_MS, MORE_REPORTS_MS, Rules
from rmq_ray.protocol.election.replication import LEASE_MS
from rmq_ray.protocol.election.succession import PROMOTION_MS, Succession, without_removed

RULES = Rules("b", 3, synchronous=True)


def says(replica: int, role: Role = Role.SLAVE, **settings: object) -> ReplicaReport:
    values = {
        "log_epoch": 1,
        "end": 100,
        "flushed": 100,
        "sound": True,
        "promise_ms": 0,
        **settings,
    }
    return ReplicaReport(replica, role, f"host:{replica}", f"store-{replica}", **values)  # type: ignore[arg-type]


def elected(
    master: int = 0, members: tuple[int, ...] = (0, 1, 2), epoch: int = 1, **rules: object
) -> Succession:
    standing = Standing(Assignment("b", epoch, master, f"host:{master}", members, 1), master)
    found = Succession(replace(RULES, **rules), standing, 0.0)  # type: ignore[arg-type]
    tell(
        found,
        0.0,
        **{
            f"r{n}": says(
                n,
                Role.MASTER if n == master else Role.SLAVE,
                master_epoch=epoch if n == master else 0,
            )
            for n in range(3)
        },
    )
    assert found.serves(0.0)
    assert not found.serves(10_000.0)
    return found


def tell(rules: Succession, now_ms: float, **reports: ReplicaReport) -> None:
    for name, report in reports.items():
        number = int(name[1:])
        rules.answered(number, rules.call_for(number), report, now_ms)


def write(rules: Succession, now_ms: float) -> Standing:
    found = rules.step(now_ms)
    assert found is not None, rules.why
    rules.fsynced(found, now_ms)
    return found


def opened(rules: Succession, now_ms: float) -> Succession:
    """An election has begun."""
    assert write(rules, now_ms).assignment.master is None
    return rules


# --- the first epoch ---


def test_nobody_is_elected_before_every_replica_was_heard() -> None:
    rules = Succession(RULES, None, 0.0)
    tell(rules, 10, r0=says(0, log_epoch=0, end=0), r1=says(1, log_epoch=0, end=0))
    assert rules.step(20) is None
    assert "silent: [2]" in rules.why


def test_of_fresh_replicas_the_first_is_elected_and_all_are_in_the_set() -> None:
    rules = Succession(RULES, None, 0.0)
    fresh = {f"r{n}": says(n, log_epoch=0, end=0) for n in range(3)}
    tell(rules, 10, **fresh)
    opened(rules, 20)
    assert rules.call_for(1) == 1
    tell(rules, 30, **fresh)
    found = write(rules, 40)
    assert (
        found.assignment.master,
        found.assignment.master_epoch,
        found.assignment.sync_state_set,
    ) == (0, 1, (0, 1, 2))
    assert rules.call_for(2) == found.assignment


def test_without_a_ledger_the_furthest_log_wins_and_only_its_equals_are_in_the_set() -> None:
    rules = Succession(RULES, None, 0.0)
    found = {
        "r0": says(0, log_epoch=4, end=900),
        "r1": says(1, log_epoch=5, end=300),
        "r2": says(2, log_epoch=5, end=300),
    }
    tell(rules, 10, **found)
    opened(rules, 20)
    tell(rules, 30, **found)
    assignment = write(rules, 40).assignment
    assert (assignment.master, assignment.master_epoch, assignment.sync_state_set) == (1, 6, (1, 2))


def test_a_ledger_that_is_older_than_its_replicas_is_not_believed() -> None:
    rules = Succession(RULES, Standing(Assignment("b", 1, 0, "host:0", (0,), 1), 0), 0.0)
    tell(rules, 10, r0=says(0, log_epoch=1), r1=says(1, log_epoch=3), r2=says(2, log_epoch=3))
    opened(rules, 20)
    assert rules.standing is not None
    assert rules.standing.former is None
    assert rules.standing.assignment.master_epoch == 4
    assert rules.standing.assignment.sync_state_set == (0, 1, 2)


# --- replicas that were removed ---


def of_two(
    master: int | None, members: tuple[int, ...], former: int | None = None
) -> Standing | None:
    """What a ledger of three replicas is worth for two."""
    had = Standing(
        Assignment("b", 5, master, None if master is None else f"host:{master}", members, 1),
        former if master is None else master,
    )
    return without_removed(replace(RULES, replicas=2), had)


def test_a_slave_that_was_removed_is_no_member_any_more_and_its_master_stays() -> None:
    found = of_two(0, (0, 1, 2))
    assert found == Standing(Assignment("b", 5, 0, "host:0", (0, 1), 2), 0)
    rules = Succession(replace(RULES, replicas=2), found, 0.0, grace_ms=15_000)
    tell(rules, 10, r1=says(1, log_epoch=5))
    assert rules.step(5_000) is None, "its master has time to come"
    heard = {f"r{n}": says(n, log_epoch=5) for n in range(2)}
    tell(rules, 5_010, **heard)
    opened(rules, 5_020)
    tell(rules, 5_030, **heard)
    assignment = write(rules, 5_040).assignment
    assert (assignment.master, assignment.master_epoch, assignment.sync_state_set) == (0, 6, (0, 1))


def test_in_place_of_a_master_that_was_removed_a_member_is_elected_once_all_have_reported() -> None:
    found = of_two(2, (0, 1, 2))
    assert found == Standing(Assignment("b", 6, None, None, (0, 1)), None)
    rules = Succession(replace(RULES, replicas=2), found, 0.0)
    tell(rules, 10, r0=says(0, log_epoch=5))
    assert rules.step(20) is None
    assert "[1] must report" in rules.why
    tell(rules, 30, r0=says(0, log_epoch=5), r1=says(1, log_epoch=5, end=101))
    assert write(rules, 40).assignment == Assignment("b", 6, 1, "host:1", (1,), 1)


def test_in_place_of_a_master_that_was_removed_nobody_is_elected_who_was_not_in_sync() -> None:
    rules = Succession(replace(RULES, replicas=2), of_two(2, (0, 2)), 0.0)
    tell(rules, 10, r1=says(1, log_epoch=5, end=900))
    assert rules.step(20) is None
    tell(rules, 30, r0=says(0, log_epoch=5))
    assert write(rules, 40).assignment.master == 0


def test_an_election_goes_on_without_those_that_were_removed() -> None:
    assert of_two(None, (0, 2), 0) == Standing(Assignment("b", 5, None, None, (0,), 2), 0)
    assert of_two(None, (0, 2), 2) == Standing(Assignment("b", 6, None, None, (0,)), None)


def test_where_every_member_was_removed_nobody_is_elected_and_it_is_said_what_helps() -> None:
    with pytest.raises(ConfigError, match=r"replicas \[2\] were removed.* put them back"):
        of_two(2, (2,))


def test_a_ledger_of_replicas_that_are_all_there_stays_as_it_is() -> None:
    assert without_removed(RULES, None) is None
    assert of_two(1, (0, 1)) == Standing(Assignment("b", 5, 1, "host:1", (0, 1), 1), 1)


# --- when an epoch ends ---


def test_a_silent_master_is_replaced_after_the_time_that_a_restart_takes() -> None:
    rules = elected()
    tell(rules, 2_400, r1=says(1), r2=says(2))
    assert rules.step(2_400) is None
    assert rules.step(2_600) is not None


def test_a_master_whose_node_is_dead_is_replaced_at_once() -> None:
    rules = elected()
    tell(rules, 100, r1=says(1))
    assert rules.step(200) is None
    rules.node_died(0)
    assert rules.step(200) is not None


def test_a_master_that_started_again_gets_another_epoch_at_once() -> None:
    rules = elected()
    tell(rules, 400, r0=says(0), r1=says(1), r2=says(2))
    opened(rules, 410)
    tell(rules, 420, r0=says(0), r1=says(1), r2=says(2))
    assignment = write(rules, 430).assignment
    assert (assignment.master, assignment.master_epoch) == (0, 2)


def test_an_epoch_does_not_end_while_nobody_could_follow() -> None:
    rules = elected(members=(0,))
    tell(rules, 5_000, r1=says(1), r2=says(2))
    assert rules.step(5_100) is None
    assert "no other replica that is in sync" in rules.why


def test_an_elected_replica_has_time_to_open_its_log_as_a_master() -> None:
    rules = elected()
    tell(rules, 400, r0=says(0), r1=says(1))
    opened(rules, 410)
    tell(rules, 420, r0=says(0), r1=says(1), r2=says(2))
    write(rules, 430)
    for now in range(500, PROMOTION_MS, 500):
        tell(rules, now, r0=says(0, Role.WAITING), r1=says(1), r2=says(2))
        assert rules.step(now) is None
    tell(rules, PROMOTION_MS + 4_000, r1=says(1))
    assert rules.step(PROMOTION_MS + 4_000) is not None


def test_without_automatic_failover_only_the_same_replica_comes_back() -> None:
    rules = elected(automatic=False)
    tell(rules, 60_000, r1=says(1), r2=says(2))
    assert rules.step(60_000) is None
    assert "promote another by hand" in rules.why
    tell(rules, 61_000, r0=says(0), r1=says(1), r2=says(2))
    opened(rules, 61_000)
    tell(rules, 61_100, r0=says(0), r1=says(1), r2=says(2))
    assert write(rules, 61_200).assignment.master == 0


def test_without_automatic_failover_a_slave_that_has_more_waits_for_an_order() -> None:
    rules = elected(automatic=False)
    tell(rules, 400, r0=says(0, end=90, sound=False))
    opened(rules, 410)
    tell(rules, 420, r0=says(0, end=90, sound=False), r1=says(1), r2=says(2))
    assert rules.step(430) is None
    assert "has more than the master 0" in rules.why
    rules.order(rules.heir(1, force=False, now_ms=440), force=False, now_ms=440)
    assert write(rules, 450).assignment.master == 1


def test_where_all_replicas_start_their_master_has_time_to_come() -> None:
    rules = Succession(
        RULES, Standing(Assignment("b", 1, 0, "host:0", (0, 1, 2), 1), 0), 0.0, grace_ms=15_000
    )
    tell(rules, 14_000, r1=says(1), r2=says(2))
    assert rules.step(14_000) is None
    tell(rules, 17_600, r1=says(1), r2=says(2))
    assert rules.step(17_600) is not None


# --- whom ---


def vacant(
    now_ms: float = 3_000, members: tuple[int, ...] = (0, 1, 2), **settings: object
) -> Succession:
    """The master 0 is gone; an election runs since ``now_ms``."""
    rules = elected(members=members, **settings)
    tell(rules, now_ms, r1=says(1), r2=says(2))
    return opened(rules, now_ms)


def test_another_replica_waits_until_its_promise_is_over() -> None:
    rules = vacant()
    tell(rules, 3_050, r1=says(1, promise_ms=LEASE_MS), r2=says(2))
    assert rules.step(3_060) is None
    tell(rules, 4_900, r1=says(1, end=101, promise_ms=150), r2=says(2))
    assert rules.step(5_040) is None
    assert "may be promoted in" in rules.why
    assert write(rules, 5_060).assignment.master == 1


def test_no_promise_is_waited_for_when_the_old_master_says_that_it_is_deposed() -> None:
    rules = vacant()
    tell(
        rules,
        3_050,
        r0=says(0, Role.WAITING),
        r1=says(1, promise_ms=LEASE_MS),
        r2=says(2, promise_ms=LEASE_MS),
    )
    assert write(rules, 3_060).assignment.master == 1


def test_an_asynchronous_master_that_still_reads_its_disk_has_a_second_to_come_back() -> None:
    rules = vacant(synchronous=False)
    late = 3_000 + GATHER_MS
    tell(rules, late - 10, r0=says(0, Role.WAITING), r1=says(1), r2=says(2))
    assert rules.step(late - 5) is None
    assert write(rules, late).assignment.master == 1


def test_the_longest_log_of_the_newest_epoch_is_elected() -> None:
    rules = vacant()
    tell(rules, 3_050, r1=says(1, log_epoch=1, end=500), r2=says(2, log_epoch=2, end=200))
    assert write(rules, 3_060).assignment.master == 2


def test_among_equals_the_former_master_stays() -> None:
    rules = vacant()
    tell(rules, 3_050, r0=says(0), r1=says(1), r2=says(2))
    assert write(rules, 3_060).assignment.master == 0


def test_among_equals_a_copy_without_broken_records_is_elected() -> None:
    rules = vacant()
    tell(rules, 3_050, r0=says(0, broken=2), r1=says(1, broken=1), r2=says(2, end=90))
    assert write(rules, 3_060).assignment.master == 1


def test_broken_records_are_no_reason_for_what_only_people_may_do() -> None:
    rules = elected(automatic=False)
    tell(rules, 100, r0=says(0, broken=2))
    opened(rules, 110)
    tell(rules, 120, r0=says(0, broken=2), r1=says(1), r2=says(2))
    assert write(rules, 130).assignment.master == 0


def test_only_a_member_of_the_set_is_elected() -> None:
    rules = vacant(members=(0, 1))
    tell(rules, 3_050, r1=says(1, end=100), r2=says(2, end=900))
    found = write(rules, 3_060).assignment
    assert (found.master, found.sync_state_set) == (1, (1,))


def test_members_that_live_are_waited_for_and_others_are_not() -> None:
    rules = vacant()
    tell(rules, 3_050, r1=says(1))
    assert rules.step(3_060) is None
    assert "replicas [2] live" in rules.why
    tell(rules, 3_000 + GATHER_MS, r1=says(1))
    assert write(rules, 3_000 + GATHER_MS).assignment.sync_state_set == (1,)


def test_a_replica_whose_host_booted_does_not_lead_alone() -> None:
    rules = vacant(now_ms=4_000)
    late = 4_000 + MORE_REPORTS_MS + 100
    tell(rules, late, r1=says(1, sound=False))
    assert rules.step(late) is None
    assert "booted since they wrote" in rules.why
    tell(rules, late, r2=says(2, end=120))
    found = write(rules, late).assignment
    assert (found.master, found.sync_state_set) == (2, (2,))


def test_of_unsound_copies_that_answer_the_furthest_is_elected_after_five_seconds() -> None:
    rules = vacant()
    late = 3_000 + MORE_REPORTS_MS
    tell(rules, late - 10, r1=says(1, sound=False, end=90), r2=says(2, sound=False, end=95))
    assert rules.step(late - 5) is None
    found = write(rules, late).assignment
    assert (found.master, found.sync_state_set) == (2, (2,))


def test_an_asynchronous_broker_waits_for_a_second_copy_five_seconds_at_most() -> None:
    rules = vacant(synchronous=False)
    tell(rules, 4_100, r1=says(1, sound=False))
    assert rules.step(4_100) is None
    tell(rules, 3_000 + MORE_REPORTS_MS, r1=says(1, sound=False))
    assert write(rules, 3_000 + MORE_REPORTS_MS).assignment.master == 1


def test_a_lone_master_that_booted_looks_for_a_copy_that_has_more() -> None:
    """The set was itself, as far as the ledger knows; what it had acknowledged with others it may
    have lost.
    """
    rules = elected(members=(0,))
    tell(rules, 400, r0=says(0, sound=False, end=80))
    opened(rules, 410)
    tell(rules, 420, r0=says(0, sound=False, end=80), r1=says(1, end=90), r2=says(2, end=70))
    assert write(rules, 430).assignment.master == 1


def test_a_lone_synchronous_master_that_booted_waits_for_every_replica_or_for_people() -> None:
    """A host lost its power, another one's process is away: what both had acknowledged is on the
    other disk.
    """
    rules = elected(members=(0,))
    tell(rules, 400, r0=says(0, sound=False, end=80))
    opened(rules, 410)
    tell(rules, 60_000, r0=says(0, sound=False, end=80), r1=says(1, end=70))
    assert rules.step(60_000) is None
    assert "promote by force" in rules.why
    rules.order(rules.heir(0, force=True, now_ms=60_000), force=True, now_ms=60_000)
    assert write(rules, 60_010).assignment.master == 0


def test_an_unsound_replica_is_not_taken_into_the_set_without_all_bytes() -> None:
    rules = vacant()
    tell(
        rules,
        3_050,
        r0=says(0, sound=False, end=99),
        r1=says(1, end=100),
        r2=says(2, sound=False, end=100),
    )
    assert write(rules, 3_060).assignment.sync_state_set == (1, 2)


def test_an_answer_to_an_older_call_counts_for_nothing() -> None:
    rules = elected()
    old = rules.call_for(1)
    tell(rules, 3_000, r1=says(1), r2=says(2))
    opened(rules, 3_000)
    rules.answered(1, old, says(1, end=999), 3_050)
    tell(rules, 3_060, r2=says(2))
    assert rules.step(3_070) is None
    assert rules.step(3_060 + GATHER_MS) is not None


# --- the set ---


def test_the_set_changes_only_by_a_proposal_that_knows_the_newest_assignment() -> None:
    rules = elected()
    assert not rules.proposed(1, 0, (0, 1))
    assert not rules.proposed(2, 1, (0, 1))
    assert not rules.proposed(1, 1, (1, 2))
    assert not rules.proposed(1, 1, (0, 3))
    assert rules.step(10) is None
    assert rules.proposed(1, 1, (1, 0))
    assert rules.call_for(0) == Assignment("b", 1, 0, "host:0", (0, 1, 2), 1)
    assert write(rules, 20).assignment == Assignment("b", 1, 0, "host:0", (0, 1), 2)
    assert not rules.proposed(1, 1, (0, 1, 2))


def test_an_accepted_proposal_of_the_same_set_raises_the_version_too() -> None:
    """Or an older proposal, still on its way, could be taken after it."""
    rules = elected()
    assert rules.proposed(1, 1, (0, 1, 2))
    assert write(rules, 20).assignment.version == 2


def test_no_proposal_is_taken_while_an_election_runs() -> None:
    rules = vacant()
    assert not rules.proposed(2, 0, (0, 1))


def test_a_change_of_the_set_does_not_make_a_dead_master_look_alive() -> None:
    rules = elected()
    rules.proposed(1, 1, (0, 1))
    write(rules, 2_000)
    tell(rules, 2_550, r1=says(1))
    assert rules.step(2_600) is not None


# --- by hand ---


def test_an_order_elects_another_replica_that_has_everything() -> None:
    rules = elected()
    assert rules.heir(None, force=False, now_ms=10) == 1
    rules.order(rules.heir(2, force=False, now_ms=10), force=False, now_ms=10)
    opened(rules, 20)
    tell(rules, 30, r0=says(0), r1=says(1), r2=says(2))
    assert write(rules, 40).assignment.master == 2
    assert not rules.ordered


def test_an_order_is_not_carried_out_where_its_replica_lacks_messages() -> None:
    rules = elected()
    rules.order(2, force=False, now_ms=10)
    opened(rules, 20)
    tell(rules, 30, r0=says(0, end=101), r1=says(1), r2=says(2))
    assert write(rules, 40).assignment.master == 0


@pytest.mark.parametrize(
    ("replica", "words"), [(0, "master already"), (2, "not in sync"), (3, "replicas 0 to 2")]
)
def test_orders_that_cannot_be_carried_out_are_refused(replica: int, words: str) -> None:
    with pytest.raises(PromotionRefused, match=words):
        elected(members=(0, 1)).heir(replica, force=False, now_ms=10)


def test_a_replica_that_does_not_answer_cannot_be_promoted_not_even_by_force() -> None:
    with pytest.raises(PromotionRefused, match="does not answer"):
        elected().heir(1, force=True, now_ms=60_000)


def test_by_force_a_replica_outside_the_set_is_elected_when_no_promise_runs() -> None:
    rules = elected(members=(0, 1))
    tell(rules, 3_000, r2=says(2, end=10))
    rules.order(rules.heir(2, force=True, now_ms=3_000), force=True, now_ms=3_000)
    opened(rules, 3_000)
    tell(rules, 3_050, r1=says(1, promise_ms=500), r2=says(2, end=10))
    assert rules.step(3_060) is None
    found = write(rules, 3_600).assignment
    assert (found.master, found.sync_state_set) == (2, (2,))


def test_by_force_after_a_lost_ledger_the_heir_waits_for_promises_to_whoever_is_silent() -> None:
    rules = Succession(RULES, None, 0.0)
    heard = {f"r{n}": says(n) for n in range(3)}
    tell(rules, 10, **heard)
    opened(rules, 20)
    rules.order(1, force=True, now_ms=5_000)
    tell(rules, 5_000, r1=says(1, promise_ms=700), r2=says(2, promise_ms=900))
    assert rules.step(5_890) is None
    assert "may be promoted in" in rules.why, "replica 0 may be master, with both for slaves"
    assert write(rules, 5_900).assignment.master == 1


def test_by_force_after_a_lost_ledger_nobody_is_waited_for_where_all_have_answered() -> None:
    rules = Succession(RULES, None, 0.0)
    heard = {f"r{n}": says(n, promise_ms=LEASE_MS) for n in range(3)}
    tell(rules, 10, **heard)
    opened(rules, 20)
    rules.order(1, force=True, now_ms=30)
    tell(rules, 40, **heard)
    assert write(rules, 50).assignment.master == 1


def test_an_order_is_given_up_after_a_while() -> None:
    rules = elected()
    rules.order(2, force=False, now_ms=10)
    opened(rules, 20)
    tell(rules, 11_000, r0=says(0, end=101), r1=says(1))
    assert write(rules, 12_100).assignment.master == 0


def test_the_status_says_who_is_master_who_lags_and_what_is_waited_for() -> None:
    rules = elected()
    tell(rules, 10, r1=says(1, end=40))
    status = rules.status(20)
    assert (status["state"], status["master"], status["sync_state_set"], status["why"]) == (
        "serving",
        0,
        [0, 1, 2],
        "",
    )
    assert status["replicas"][1]["lag_bytes"] == 60  # type: ignore[index]


def test_an_order_survives_a_sync_state_set_that_was_being_written_when_it_came() -> None:
    rules = elected()
    assert rules.proposed(1, 1, (0, 1))
    found = rules.step(10)
    rules.order(rules.heir(1, force=False, now_ms=10), force=False, now_ms=10)
    assert found is not None
    rules.fsynced(found, 20)
    assert rules.ordered
    opened(rules, 30)
    tell(rules, 40, r0=says(0), r1=says(1), r2=says(2))
    assert write(rules, 50).assignment.master == 1
    assert not rules.ordered
