"""The rebalance plan: whose queues, what changes, when it is balanced, where to begin."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.config import ConsumerConfig
from rmq_ray.model.groups import ConsumeFromWhere, MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.allocation.strategies import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
)
from rmq_ray.protocol.process_queue import ProcessQueue
from rmq_ray.protocol.rebalance import (
    AllotmentOutcome,
    Membership,
    StartRule,
    allot,
    divided_threshold,
    first_offset_rule,
    foreign_queues,
    is_balanced,
    plan,
)

QUEUES = [MessageQueue("T", f"broker-{name}", i) for name in "ab" for i in range(4)]
IDS = ["192.168.0.6@15956", "192.168.0.7@15957", "172.16.20.246@7832"]
IDLE_MS = 120_000


def member(
    client_id: str = IDS[0],
    model: MessageModel = MessageModel.CLUSTERING,
    strategy: AllocationStrategy | None = None,
) -> Membership:
    return Membership("g", client_id, model, strategy or Averagely())


def held(*queues: MessageQueue, at_ms: int = 0) -> dict[MessageQueue, ProcessQueue]:
    return {queue: ProcessQueue(0, at_ms) for queue in queues}


class Recording:
    name = "RECORDING"

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, list[MessageQueue], list[str]]] = []

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        self.calls.append((group, client_id, list(queues), list(client_ids)))
        return list(queues)[:1]


class Broken:
    name = "BROKEN"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        raise ZeroDivisionError("no")


@pytest.mark.seed("S1-019")
def test_the_rebalance_interval_is_twenty_seconds() -> None:
    assert ConsumerConfig("g").rebalance_ms == 20_000


@pytest.mark.seed("S0-066", "S0-067", "S0-071", "S0-072", "S1-044")
def test_both_lists_reach_the_strategy_sorted() -> None:
    strategy = Recording()
    shuffled = [QUEUES[i] for i in (5, 0, 7, 2, 1, 6, 3, 4)]
    allotted = allot(member(strategy=strategy), shuffled, IDS)
    assert strategy.calls == [("g", IDS[0], QUEUES, sorted(IDS))]
    assert sorted(IDS)[0] == "172.16.20.246@7832"
    assert allotted.queues == {QUEUES[0]}


@pytest.mark.seed("S3-125", "S1-003", "S4-152")
def test_consumers_that_see_the_lists_in_any_order_divide_the_queues_without_overlap() -> None:
    views = [(QUEUES, IDS), (QUEUES[::-1], IDS[::-1]), (QUEUES[3:] + QUEUES[:3], IDS[1:] + IDS[:1])]
    shares = [allot(member(client), *view).queues for client, view in zip(IDS, views, strict=True)]
    assert sorted(queue for share in shares for queue in share) == QUEUES


@pytest.mark.seed("S0-063", "S1-023", "S4-009", "S3-123")
def test_broadcasting_allots_every_queue_without_asking_for_consumers() -> None:
    allotted = allot(member(model=MessageModel.BROADCASTING), QUEUES, None)
    assert allotted.queues == set(QUEUES)


@pytest.mark.seed("S1-025", "S4-151")
def test_a_missing_queue_list_or_consumer_list_allots_nothing_and_says_so() -> None:
    assert allot(member(), None, IDS).outcome is AllotmentOutcome.NO_QUEUES
    assert (
        allot(member(model=MessageModel.BROADCASTING), [], None).outcome
        is AllotmentOutcome.NO_QUEUES
    )
    assert allot(member(), QUEUES, None).outcome is AllotmentOutcome.NO_CONSUMERS
    assert allot(member(), QUEUES, []).outcome is AllotmentOutcome.NO_CONSUMERS


@pytest.mark.seed("S0-068", "S1-029")
def test_a_failing_strategy_changes_nothing_and_is_not_balanced() -> None:
    allotted = allot(member(strategy=Broken()), QUEUES, IDS)
    assert (allotted.outcome, type(allotted.error)) == (
        AllotmentOutcome.STRATEGY_FAILED,
        ZeroDivisionError,
    )
    assert not is_balanced(allotted, [])


@pytest.mark.seed("S1-024", "S1-030")
def test_balanced_means_that_the_share_is_exactly_what_is_worked_on() -> None:
    allotted = allot(member(), QUEUES, [IDS[0]])
    assert is_balanced(allotted, QUEUES)
    assert not is_balanced(allotted, QUEUES[1:])
    assert not is_balanced(allotted, [*QUEUES, MessageQueue("T", "broker-c", 0)])


@pytest.mark.seed("S0-069", "S1-031", "S1-032", "S4-162")
def test_queues_no_longer_allotted_are_dropped_and_new_ones_added() -> None:
    steps = plan(QUEUES[2:6], held(*QUEUES[:4]), 0, IDLE_MS)
    assert steps.keep == tuple(QUEUES[2:4])
    assert steps.drop == tuple(QUEUES[:2])
    assert steps.add == tuple(QUEUES[4:6])
    assert steps.changed


@pytest.mark.seed("S1-033", "S4-163")
def test_a_queue_without_pulls_for_two_minutes_is_added_anew_by_push_consumers_only() -> None:
    mine = held(QUEUES[0]) | held(QUEUES[1], at_ms=1)
    steps = plan(QUEUES[:2], mine, IDLE_MS + 1, IDLE_MS)
    assert (steps.keep, steps.drop, steps.add, steps.expired) == (
        (QUEUES[1],),
        (QUEUES[0],),
        (QUEUES[0],),
        (QUEUES[0],),
    )
    passive = plan(QUEUES[:2], mine, IDLE_MS + 1, IDLE_MS, passive=False)
    assert (passive.drop, passive.add, passive.changed) == ((), (), False)


def test_a_dropped_queue_whose_offset_is_being_corrected_is_left_alone() -> None:
    mine = held(QUEUES[0])
    mine[QUEUES[0]].drop()
    assert not plan(QUEUES[:1], mine, 0, IDLE_MS).changed


@pytest.mark.seed("S1-022", "S4-150")
def test_queues_of_topics_no_longer_subscribed_are_found() -> None:
    other = MessageQueue("Other", "broker-a", 0)
    assert foreign_queues({"T"}, [*QUEUES, other]) == (other,)


@pytest.mark.seed("S4-031", "S4-221")
def test_last_offset_starts_at_the_end_but_never_skips_retries() -> None:
    last = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert first_offset_rule(last, "T") is StartRule.MAXIMUM
    assert first_offset_rule(last, "%RETRY%g") is StartRule.MINIMUM


@pytest.mark.seed("S4-033", "S4-034")
def test_first_offset_starts_at_the_minimum_and_timestamp_searches_but_skips_no_retries() -> None:
    assert first_offset_rule(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, "T") is StartRule.MINIMUM
    assert first_offset_rule(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, "T") is StartRule.TIMESTAMP
    assert (
        first_offset_rule(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, "%RETRY%g") is StartRule.MINIMUM
    )


def test_a_topic_threshold_is_divided_by_the_queues_held() -> None:
    assert [divided_threshold(1000, n, 7) for n in (1, 3, 2000, 0)] == [1000, 333, 1, 7]
    assert divided_threshold(-1, 3, 7) == 7


@given(
    wanted=st.sets(st.sampled_from(QUEUES)),
    mine=st.sets(st.sampled_from(QUEUES)),
    idle=st.sets(st.sampled_from(QUEUES)),
)
def test_carrying_a_plan_out_always_leaves_exactly_the_allotted_queues(
    wanted: set[MessageQueue], mine: set[MessageQueue], idle: set[MessageQueue]
) -> None:
    processes = {queue: ProcessQueue(0, 0 if queue in idle else 100) for queue in mine}
    steps = plan(wanted, processes, 1_050, 1_000)
    assert (mine - set(steps.drop)) | set(steps.add) == wanted
    assert not (mine - set(steps.drop)) & set(steps.add)
    assert steps.changed == bool(mine != wanted or mine & wanted & idle)


@pytest.mark.parametrize(
    "answer", [None, 5, [None], [MessageQueue("other", "b", 0)], [MessageQueue("t", "b", 99)]]
)
def test_a_strategy_that_answers_nonsense_changes_nothing(answer: object) -> None:
    class Wrong:
        name = "WRONG"

        def allocate(self, *_arguments: object) -> object:
            return answer

    member = Membership("g", "c1", MessageModel.CLUSTERING, Wrong())  # type: ignore[arg-type]
    found = allot(member, [MessageQueue("t", "b", i) for i in range(4)], ["c1"])
    assert (
        found.outcome is AllotmentOutcome.STRATEGY_FAILED
        and found.error is not None
        and not found.queues
    )


@pytest.mark.parametrize(
    "strategy",
    [Averagely(), AveragelyByCircle(), ConsistentHash()],
    ids=lambda strategy: strategy.name,
)
@given(
    before=st.sets(st.integers(0, 12), min_size=1),
    after=st.sets(st.integers(0, 12), min_size=1),
    me=st.integers(0, 12),
)
def test_a_queue_that_need_not_move_is_neither_dropped_nor_taken_anew(
    strategy: AllocationStrategy, before: set[int], after: set[int], me: int
) -> None:
    ids = f"10.0.0.{me}@1"
    old, new = (
        allot(
            member(ids, strategy=strategy), QUEUES, [f"10.0.0.{n}@1" for n in members | {me}]
        ).queues
        for members in (before, after)
    )
    steps = plan(new, held(*old), now_ms=1, pull_idle_ms=IDLE_MS)
    assert set(steps.keep) == old & new
    assert set(steps.drop) == old - new and set(steps.add) == new - old
