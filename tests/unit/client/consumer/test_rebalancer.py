"""The rebalancer: whom it asks, what it takes and leaves, where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.consumer.local_offset_store import LocalFileOffsetStore
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.errors import ConnectFailed, RemotingError, RequestTimeout
from rmq_ray.files import FileSystem
from rmq_ray.model.groups import ConsumeFromWhere, MessageModel
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.protocol.allocation.strategies import Averagely
from rmq_ray.protocol.rebalance import Membership
from rmq_ray.remoting.wire.bodies import encode_consumer_ids
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.clients.consumer_rig import ConsumerRig

IDS, QUERY, UPDATE = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
)
FIRST, LAST, TIMESTAMP = (
    ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
)


def members(rig: ConsumerRig, *others: str) -> None:
    body = encode_consumer_ids([rig.client.client_id, *others])
    rig.client.answer(IDS, lambda command, _address: command.answer(body=body))


def stored(rig: ConsumerRig, offset: int | None) -> None:
    rig.client.answer(
        QUERY,
        lambda command, _address: (
            command.answer(22) if offset is None else command.answer(fields={"offset": str(offset)})
        ),
    )


def rig_of(
    queues: int = 4,
    *others: str,
    offset: int | None = 10,
    brokers: Sequence[str] = ("broker-a",),
    **settings: Any,
) -> tuple[ConsumerRig, list[MessageQueue]]:
    rig = ConsumerRig(**settings)
    found = rig.client.add_topic("orders", queues, brokers)
    members(rig, *others)
    stored(rig, offset)
    return rig, found


def held(rig: ConsumerRig) -> list[MessageQueue]:
    return sorted(rig.parts.assigned.snapshot())


@pytest.mark.seed("S0-064", "S0-065", "S1-043", "S4-165", "S1-028")
def test_a_first_rebalance_takes_the_share_of_the_cached_queues_and_pulls_each_once() -> None:
    rig, queues = rig_of(4, "zzz")
    assert rig.rebalancer.rebalance()
    assert held(rig) == queues[:2]
    assert [(pull.request.queue_id, pull.request.offset) for pull in rig.client.pulls] == [
        (0, 10),
        (1, 10),
    ]
    assert rig.client.requests(IDS)[0].fields == {"consumerGroup": "g"}


@pytest.mark.seed("S1-017", "S1-020")
def test_balanced_means_all_topics_and_one_failing_topic_leaves_the_others_alone() -> None:
    rig, queues = rig_of()
    rig.parts.subscriptions.put("absent", "*", 1)
    assert not rig.rebalancer.rebalance()
    assert held(rig) == queues
    rig.parts.subscriptions.remove("absent")
    assert rig.rebalancer.rebalance()


@pytest.mark.seed("S1-021", "S1-026")
def test_a_failing_retry_topic_is_not_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rig, _ = rig_of()
    rig.parts.subscriptions.put("%RETRY%g", "*", 1)
    rig.rebalancer.rebalance()
    assert "%RETRY%" not in caplog.text
    rig.parts.subscriptions.put("absent", "*", 1)
    rig.rebalancer.rebalance()
    assert "nothing of topic absent: no name server knows it" in caplog.text


def test_an_unknown_topic_is_said_at_once_and_after_pauses_that_grow_to_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, _ = rig_of()
    rig.rebalancer.rebalance()
    rig.parts.subscriptions.put("ordres", "*", 1)
    caplog.clear()
    said = []
    for second in range(260):
        rig.rebalancer.rebalance()
        said += [second] * len(caplog.records)
        caplog.clear()
        rig.clock.advance_ms(1_000)
    assert said == [0, 2, 6, 14, 30, 62, 122, 182, 242]
    rig.rebalancer.rebalance()
    rig.clock.advance_ms(60_000)
    rig.rebalancer.rebalance()
    assert "topic ordres: no name server knows it; did you mean 'orders'?" in caplog.text


def test_a_queue_is_taken_with_the_epoch_of_its_offset() -> None:
    rig, _ = rig_of()
    told = {"offset": "10", "rmqLogEpoch": "4"}
    rig.client.answer(QUERY, lambda command, _address: command.answer(fields=told))
    rig.rebalancer.rebalance()
    assert {work.epoch for work in rig.parts.assigned.snapshot().values()} == {4}


@pytest.mark.seed("S1-022", "S4-150", "S3-122")
def test_unsubscribing_drops_the_queues_of_the_topic() -> None:
    rig, _ = rig_of()
    rig.rebalancer.rebalance()
    works = rig.parts.assigned.snapshot()
    rig.parts.subscriptions.remove("orders")
    rig.rebalancer.rebalance()
    assert held(rig) == []
    assert all(work.process.dropped for work in works.values())


@pytest.mark.seed("S1-034", "S1-045", "S4-162")
def test_a_queue_that_moves_away_is_dropped_and_its_offset_handed_over_before_it_is_forgotten() -> (
    None
):
    rig, queues = rig_of(2)
    rig.rebalancer.rebalance()
    work = rig.parts.assigned.snapshot()[queues[1]]
    rig.client.pulls[1].reply(19, 25)
    members(rig, "zzz")
    assert rig.rebalancer.rebalance()
    assert held(rig) == queues[:1]
    assert work.process.dropped
    told = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "1",
        "commitOffset": "25",
        "rmqClient": rig.client.client_id,
        "rmqIncreaseOnly": "true",
    }
    assert [command.fields for command in rig.client.requests(UPDATE)] == [told]
    assert rig.offset(queues[1]) is None


@pytest.mark.seed("S1-036", "S1-038", "S1-048", "S4-164")
def test_a_queue_taken_anew_gets_a_fresh_process_queue_and_no_old_offset() -> None:
    rig, (queue,) = rig_of(1)
    rig.parts.offsets.update(queue, 999)
    rig.rebalancer.rebalance()
    first = rig.parts.assigned.snapshot()[queue]
    assert first.process.next_offset == 10
    rig.rebalancer.rebalance()
    assert rig.parts.assigned.snapshot()[queue] is first
    rig.clock.advance_ms(120_001)
    rig.rebalancer.rebalance()
    assert rig.parts.assigned.snapshot()[queue] is not first


@pytest.mark.seed("S1-037", "S1-047")
def test_a_queue_whose_offset_cannot_be_read_is_taken_by_a_later_rebalance() -> None:
    rig, queues = rig_of(2)

    def second_only(command: Command, _address: Address) -> Command | RemotingError:
        return (
            RequestTimeout("slow", "a")
            if (command.fields or {})["queueId"] == "0"
            else command.answer(fields={"offset": "3"})
        )

    rig.client.answer(QUERY, second_only)
    assert not rig.rebalancer.rebalance()
    assert held(rig) == queues[1:]
    stored(rig, 4)
    assert rig.rebalancer.rebalance()
    assert [pull.request.offset for pull in rig.client.pulls] == [3, 4]


@pytest.mark.seed("S1-027", "S4-151")
def test_without_consumer_ids_or_route_everything_stays_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, queues = rig_of()
    rig.rebalancer.rebalance()
    for broken in (
        lambda command, _address: command.answer(1),
        lambda _command, _address: ConnectFailed("away", "a"),
    ):
        rig.client.answer(IDS, broken)
        rig.clock.advance_ms(60_000)
        caplog.clear()
        assert not rig.rebalancer.rebalance()
        assert held(rig) == queues
        assert "nothing of topic orders: no broker told the group's consumers" in caplog.text


@pytest.mark.seed("S1-039", "S1-049", "S4-059")
def test_a_queue_taken_carries_its_process_queue_and_next_offset_and_is_pulled_for_the_group() -> (
    None
):
    rig, (queue,) = rig_of(1, offset=8)
    rig.rebalancer.rebalance()
    work = rig.parts.assigned.snapshot()[queue]
    assert (work.queue, work.process.next_offset, work.pulling) == (queue, 8, True)
    assert [pull.request.group for pull in rig.client.pulls] == ["g"]


def test_a_broker_that_does_not_know_the_consumer_is_told_before_its_list_counts() -> None:
    rig, (queue,) = rig_of(1)
    complete = rig.client.answers[IDS]
    rig.client.answer(
        IDS,
        lambda command, address: (
            complete(command, address) if rig.client.heartbeats else command.answer(1)
        ),
    )
    assert rig.rebalancer.rebalance()
    assert held(rig) == [queue]


def test_another_broker_is_asked_for_the_consumers_when_one_does_not_answer() -> None:
    rig, queues = rig_of(1, brokers=("broker-a", "broker-b"))
    good = rig.client.answers[IDS]
    asked: list[int] = []

    def first_fails(command: Command, address: Address) -> Command | RemotingError:
        asked.append(1)
        return ConnectFailed("away", "a") if len(asked) == 1 else good(command, address)

    rig.client.answer(IDS, first_fails)
    assert rig.rebalancer.rebalance()
    assert held(rig) == queues


@pytest.mark.seed("S1-029", "S0-068")
def test_a_strategy_that_raises_changes_nothing_and_is_not_balanced() -> None:
    class Breaking:
        name = "BREAKING"
        broken = False

        def allocate(
            self,
            group: str,
            client_id: str,
            queues: Sequence[MessageQueue],
            client_ids: Sequence[str],
        ) -> list[MessageQueue]:
            if self.broken:
                raise ZeroDivisionError
            return list(queues[:1])

    strategy = Breaking()
    rig, queues = rig_of(strategy=strategy)
    assert rig.rebalancer.rebalance()
    assert held(rig) == queues[:1]
    strategy.broken = True
    assert not rig.rebalancer.rebalance()
    assert held(rig) == queues[:1]


@pytest.mark.seed("S0-069")
def test_a_change_makes_the_subscription_newer_divides_thresholds_and_tells_the_brokers() -> None:
    rig, _ = rig_of(threshold_messages_topic=100)
    before = rig.parts.subscriptions.get("orders")
    assert rig.rebalancer.rebalance()
    after = rig.parts.subscriptions.get("orders")
    assert before is not None and after is not None and after.version > before.version
    assert rig.parts.flow.thresholds("orders").messages == 25
    assert rig.client.heartbeats == 1
    rig.rebalancer.rebalance()
    assert (rig.client.heartbeats, rig.parts.subscriptions.get("orders")) == (1, after)


@pytest.mark.seed("S4-035", "S4-221")
def test_a_stored_offset_wins_over_the_start_rule() -> None:
    for rule in (FIRST, LAST, TIMESTAMP):
        rig, (queue,) = rig_of(1, offset=77, start_from=rule)
        assert rig.rebalancer.first_offset(queue) == 77


@pytest.mark.seed("S4-032", "S4-033", "S4-034", "S4-221")
def test_without_a_stored_offset_the_broker_is_asked_for_end_minimum_or_time() -> None:
    for rule, code, extra in (
        (LAST, RequestCode.GET_MAX_OFFSET, {}),
        (FIRST, RequestCode.GET_MIN_OFFSET, {}),
        (
            TIMESTAMP,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            {"timestamp": "1699999999999", "rmqExact": "true"},
        ),
    ):
        rig, (queue,) = rig_of(
            1, offset=None, start_from=rule, consume_timestamp_ms=1_699_999_999_999
        )
        rig.client.answer(code, lambda command, _address: command.answer(fields={"offset": "55"}))
        assert rig.rebalancer.first_offset(queue) == 55
        assert rig.client.requests(code)[0].fields == {"topic": "orders", "queueId": "0"} | extra


@pytest.mark.parametrize(
    ("code", "fields", "begins"),
    [
        (0, {"offset": "3"}, 3),
        (22, {}, 55),
        (0, {"offset": "7", "rmqKnownMs": "9"}, 55),
        (22, {"rmqKnownMs": "9"}, 55),
        (1, {}, None),
    ],
    ids=["young", "old", "position at the broker", "position in another queue", "refused"],
)
@pytest.mark.parametrize("rule", [LAST, TIMESTAMP])
def test_who_keeps_his_offsets_himself_asks_whether_a_queue_is_young(
    tmp_path: Path,
    rule: ConsumeFromWhere,
    code: int,
    fields: dict[str, str],
    begins: int | None,
) -> None:
    rig, (queue,) = rig_of(1, start_from=rule)
    offsets = LocalFileOffsetStore(str(tmp_path), FileSystem(), rig.clock)
    member = Membership("g", "me", MessageModel.BROADCASTING, Averagely())
    parts = replace(rig.parts, offsets=offsets)
    rebalancer = Rebalancer(parts, member, rule, rig.puller.pull, lambda: 0)
    rig.client.answer(QUERY, lambda command, _address: command.answer(code, fields))
    for bound in (RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
        rig.client.answer(bound, lambda command, _address: command.answer(fields={"offset": "55"}))
    assert rebalancer.first_offset(queue) == begins
    assert offsets.clone() == ({} if begins is None else {queue: begins})
    assert rig.client.requests(UPDATE) == []


def test_positions_at_brokers_never_count_for_who_keeps_his_offsets_himself(tmp_path: Path) -> None:
    rig, queues = rig_of(3)
    offsets = LocalFileOffsetStore(str(tmp_path), FileSystem(), rig.clock)
    member = Membership("g", "me", MessageModel.BROADCASTING, Averagely())
    rebalancer = Rebalancer(
        replace(rig.parts, offsets=offsets), member, LAST, rig.puller.pull, lambda: 0
    )
    rig.client.answer(
        QUERY, lambda command, _: command.answer(fields={"offset": "7", "rmqKnownMs": "9000"})
    )
    end = {"offset": "55"}
    rig.client.answer(RequestCode.GET_MAX_OFFSET, lambda command, _: command.answer(fields=end))
    assert [rebalancer.first_offset(queue) for queue in queues] == [55, 55, 55]


@pytest.mark.parametrize(("low", "told"), [("40", True), (None, False), ("100", False)])
def test_a_new_group_that_begins_at_the_end_says_once_how_much_it_does_not_read(
    low: str | None, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rig, queues = rig_of(4, offset=None, start_from=LAST)
    for code, offset in ((RequestCode.GET_MAX_OFFSET, "100"), (RequestCode.GET_MIN_OFFSET, low)):
        fields = None if offset is None else {"offset": offset}
        rig.client.answer(code, lambda command, _, fields=fields: command.answer(fields=fields))
    for _ in range(2):
        rig.rebalancer.rebalance()
    assert held(rig) == queues, "whatever becomes of the question about the beginning"
    said = [one.getMessage() for one in caplog.records if "begins at the end" in one.getMessage()]
    if not told:
        assert said == []
    else:
        (line,) = said
        assert line.startswith(
            "group 'g' begins at the end of 'orders': the 240 messages that are there "
            "are not read; start_from='first' of a new group reads them"
        )


def test_the_default_time_to_start_from_is_half_an_hour_ago() -> None:
    rig, (queue,) = rig_of(1, offset=None, start_from=TIMESTAMP)
    rig.client.answer(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        lambda command, _address: command.answer(fields={"offset": "1"}),
    )
    rig.rebalancer.first_offset(queue)
    asked = rig.client.requests(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)[0].fields or {}
    assert int(asked["timestamp"]) == rig.clock.now_ms() - 1_800_000


@pytest.mark.parametrize("start_from", [FIRST, LAST, TIMESTAMP])
def test_a_retry_topic_without_stored_offset_begins_at_its_first_message_whatever_the_rule(
    start_from: ConsumeFromWhere,
) -> None:
    rig, _ = rig_of(offset=None, start_from=start_from)
    rig.client.answer(
        RequestCode.GET_MIN_OFFSET, lambda command, _: command.answer(fields={"offset": "7"})
    )
    assert rig.rebalancer.first_offset(MessageQueue("%RETRY%g", "broker-a", 0)) == 7


def test_an_offset_that_the_broker_refuses_is_no_offset() -> None:
    rig, (queue,) = rig_of(1, offset=None)
    rig.client.answer(RequestCode.GET_MAX_OFFSET, lambda command, _address: command.answer(1))
    assert rig.rebalancer.first_offset(queue) is None
    rig.client.answer(RequestCode.GET_MAX_OFFSET, lambda command, _address: command.answer())
    with pytest.raises(RemotingError):
        rig.rebalancer.first_offset(queue)
    assert not rig.rebalancer.rebalance()
    assert held(rig) == []


# --- the thread's loop ----------------------------------------------------------------------------


class SteppingWake:
    """In place of the rebalancer's condition: waiting moves the clock on at once, and after
    ``duration_ms`` the rebalancer stops.
    """

    def __init__(self, rig: ConsumerRig, duration_ms: float) -> None:
        self._rig = rig
        self._end_ms = rig.clock.monotonic_ms() + duration_ms

    def __enter__(self) -> None: ...

    def __exit__(self, *_exception: object) -> None: ...

    def wait(self, timeout_s: float) -> None:
        self._rig.clock.advance_ms(timeout_s * 1000)
        self._rig.rebalancer._stopping = self._rig.clock.monotonic_ms() > self._end_ms


def run_for(
    rig: ConsumerRig, duration_ms: float, monkeypatch: pytest.MonkeyPatch, balanced: bool = True
) -> tuple[list[float], list[float]]:
    """The loop of the thread in this one: when it rebalanced, and when it looked for overdue
    messages (ms since its begin).
    """
    begin = rig.clock.monotonic_ms()
    rounds: list[float] = []
    cleanings: list[float] = []
    monkeypatch.setattr(
        rig.rebalancer,
        "rebalance",
        lambda: (rounds.append(rig.clock.monotonic_ms() - begin), balanced)[1],
    )
    monkeypatch.setattr(
        rig.rebalancer, "_clean", lambda: (cleanings.append(rig.clock.monotonic_ms() - begin), 0)[1]
    )
    monkeypatch.setattr(rig.rebalancer, "_wake", SteppingWake(rig, duration_ms))
    rig.rebalancer._run()
    return rounds, cleanings


@pytest.mark.seed("S0-062", "S1-018", "S1-019", "S4-019")
@pytest.mark.parametrize(
    ("settings", "interval_ms"), [({}, 20_000), ({"rebalance_ms": 7_000}, 7_000)]
)
def test_the_loop_waits_and_rebalances_for_ever(
    settings: dict[str, int], interval_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, _ = run_for(ConsumerRig(**settings), 10 * interval_ms, monkeypatch)
    assert rounds == [n * interval_ms for n in range(11)]


def test_while_not_balanced_the_loop_tries_again_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds, _ = run_for(ConsumerRig(), 5_000, monkeypatch, balanced=False)
    assert rounds == [0, 1_000, 2_000, 3_000, 4_000, 5_000]


@pytest.mark.seed("S4-168")
def test_the_loop_looks_for_overdue_messages_every_fifteen_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, cleanings = run_for(ConsumerRig(), 46 * 60_000, monkeypatch)
    assert cleanings == [15 * 60_000, 30 * 60_000, 45 * 60_000]
