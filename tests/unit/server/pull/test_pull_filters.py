"""SQL92 filters in the broker: refusals, what a filtered pull reads and where it goes on, held
pulls, the table of filters on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.model.pulling import Sql
from rmq_ray.protocol.filters.subscription_conflicts import CONFLICT_FIELD
from rmq_ray.remoting.wire import body_json
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import PullAnswerHeader, PullHeader
from rmq_ray.store.reading.filtered_reading import UNITS
from tests.support.brokers.broker_bench import Bench, bodies_of, page_of, unpacked
from tests.support.faults.fake_peer import FakePeer

DAY_MS = 86_400_000
DEAR = "amount > 100 AND region IN ('eu','us')"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path).open()
    yield found
    found.close()


def fill(bench: Bench, *amounts: int, region: str = "eu") -> None:
    for amount in amounts:
        bench.send(bodies_=[b"%d" % amount], amount=str(amount), region=region)


def pull(bench: Bench, expression: str = DEAR, offset: int = 0, **more: Any) -> tuple[int, Any]:
    return bench.pull(offset=offset, expression=expression, expression_type="SQL92", **more)


@pytest.mark.seed("S4-008", "S4-099")
def test_only_records_that_pass_are_handed_out_and_the_offset_moves_over_the_others(
    bench: Bench,
) -> None:
    fill(bench, 50, 200, 99, 300, 100)
    code, page = pull(bench)
    assert code == 0 and bodies_of(page) == [b"200", b"300"]
    assert (page.next_offset, page.max_offset) == (5, 5)


@pytest.mark.seed("S4-099")
def test_a_pull_that_nothing_passes_comes_back_behind_what_it_went_through(bench: Bench) -> None:
    fill(bench, 1, 2, 3)
    code, page = pull(bench)
    assert (
        code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and len(page.sizes) == 0
        and page.next_offset == 3
    )


def test_a_full_page_goes_on_at_the_next_record_that_passes(bench: Bench) -> None:
    fill(bench, 101, 1, 102, 2, 103, 3, 104)
    _, page = pull(bench, count_max=2)
    assert bodies_of(page) == [b"101", b"102"] and page.next_offset == 4
    _, page = pull(bench, offset=4, count_max=2)
    assert bodies_of(page) == [b"103", b"104"] and page.next_offset == 7
    _, page = pull(bench, bytes_max=1)
    assert bodies_of(page) == [b"101"], "the first record always fits"


def test_one_pull_goes_through_a_bounded_number_of_records(bench: Bench) -> None:
    for _ in range(UNITS // 256 + 2):
        bench.send(bodies_=[b"x"] * 256, amount="1", region="eu")
    code, page = pull(bench)
    assert code == ResponseCode.PULL_RETRY_IMMEDIATELY and page.next_offset == UNITS


@pytest.mark.seed("S4-231")
def test_tags_are_a_property_like_others(bench: Bench) -> None:
    for tag in ("TagA", "TagB", None):
        bench.send(bodies_=[str(tag).encode()], tag=tag)
    assert bodies_of(pull(bench, "TAGS IS NOT NULL AND TAGS IN ('TagA')")[1]) == [b"TagA"]
    assert bodies_of(pull(bench, "TAGS IS NULL")[1]) == [b"None"]


def test_apache_rocketmqs_pull_is_filtered_as_well(bench: Bench) -> None:
    fill(bench, 50, 200)
    header = PullHeader("billing", "orders", 0, 0, 32, 4, 0, 0, 0, DEAR, "SQL92")
    answer = bench.ask(Code.PULL_MESSAGE, header.to_fields())
    assert (
        answer.code == 0
        and b"200" in bytes(answer.body_bytes())
        and PullAnswerHeader.from_fields(answer.fields).next_offset == 2
    )


@pytest.mark.seed("S4-081")
def test_refusals_have_their_codes(tmp_path: Path, bench: Bench) -> None:
    fill(bench, 1)
    answer = bench.core.handle(
        bench.pull_command(expression="amount > ", expression_type="SQL92"), FakePeer()
    )
    assert (
        isinstance(answer, Command)
        and answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        and "character 10" in str(answer.remark)
    )
    for nothing in ("*", None):
        assert (
            bench.pull(expression=nothing, expression_type="SQL92")[0]
            == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        )
    peer = FakePeer()
    bench.heartbeat(peer, expression="*", version=5)
    assert bench.pull(flags=0, sub_version=6, peer=peer)[0] == ResponseCode.SUBSCRIPTION_NOT_LATEST
    other = Bench(tmp_path / "off", property_filter=False).open()
    other.send()
    assert pull(other)[0] == ResponseCode.SYSTEM_ERROR
    subscription = {"topic": "orders", "expressionType": "SQL92", "subString": "a > 5"}
    assert (
        other.ask(
            Code.CHECK_CLIENT_CONFIG,
            None,
            body_json.write({"clientId": "c", "group": "g", "subscriptionData": subscription}),
        ).code
        == 1
    )
    other.close()


def test_a_heartbeat_with_a_malformed_filter_leaves_pulls_without_filter_data(bench: Bench) -> None:
    fill(bench, 1)
    beat = {
        "groupName": "billing",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    }
    beat |= {
        "subscriptionDataSet": [
            {"topic": "orders", "expressionType": "SQL92", "subString": "amount >", "subVersion": 1}
        ]
    }  # type: ignore[dict-item]
    peer = FakePeer()
    bench.ask(
        Code.HEART_BEAT,
        None,
        body_json.write({"clientID": "c", "consumerDataSet": [beat], "producerDataSet": []}),
        peer,
    )
    answer = bench.core.handle(bench.pull_command(flags=0), peer)
    assert (
        isinstance(answer, Command)
        and answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
        and "expected" in str(answer.remark)
    )


def test_heartbeats_bring_the_groups_filter_and_a_newer_one_replaces_it(bench: Bench) -> None:
    fill(bench, 50, 200)
    peer = FakePeer()
    bench.heartbeat(peer, expression=Sql(DEAR), version=5)
    assert bodies_of(bench.pull(flags=0, sub_version=5, peer=peer)[1]) == [b"200"]
    bench.heartbeat(
        peer, expression=Sql("amount < 100"), version=4
    )  # older: the broker keeps what it has
    assert bodies_of(bench.pull(flags=0, peer=peer)[1]) == [b"200"]
    bench.heartbeat(peer, expression=Sql("amount < 100"), version=6)
    assert bodies_of(bench.pull(flags=0, sub_version=6, peer=peer)[1]) == [b"50"]
    bench.core.tables.filters._topics["orders"]["billing"].client_version = 5
    assert bench.pull(flags=0, sub_version=6, peer=peer)[0] == ResponseCode.FILTER_DATA_NOT_LATEST


# --- held pulls ---


def hold(bench: Bench, peer: FakePeer, offset: int = 0) -> None:
    assert (
        bench.core.handle(
            bench.pull_command(offset=offset, flags=6, expression=DEAR, expression_type="SQL92"),
            peer,
        )
        is None
    )


@pytest.mark.seed("S4-142")
def test_a_held_pull_sleeps_on_when_what_arrives_does_not_pass(bench: Bench) -> None:
    fill(bench, 1)
    peer = FakePeer()
    hold(bench, peer, 1)
    fill(bench, 2, 3)
    assert peer.sent == [] and len(bench.core.pulls.parked) == 1
    fill(bench, 500)
    (answer,) = peer.sent
    page = page_of(answer)
    assert (
        answer.code == 0
        and bodies_of(page) == [b"500"]
        and page is not None
        and page.next_offset == 4
    )
    assert len(bench.core.pulls.parked) == 0


def test_a_held_pull_ends_at_its_deadline_with_the_offset_it_came_to(bench: Bench) -> None:
    fill(bench, 1)
    peer = FakePeer()
    hold(bench, peer, 1)
    bench.clock.advance_ms(10_000)
    fill(bench, 2, 3)
    bench.clock.advance_ms(5_001)
    bench.core.tick()
    (answer,) = peer.sent
    page = page_of(answer)
    assert answer.code == ResponseCode.PULL_NOT_FOUND and page is not None and page.next_offset == 3


def test_a_held_pull_is_not_held_on_beyond_its_deadline(bench: Bench) -> None:
    fill(bench, 1)
    peer = FakePeer()
    hold(bench, peer, 1)
    bench.clock.advance_ms(15_000)
    fill(bench, 2)
    (answer,) = peer.sent
    page = page_of(answer)
    assert (
        answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and page is not None
        and page.next_offset == 2
    )


# --- the table ---


def test_filters_are_kept_on_disk_in_rocketmqs_form_and_come_back(
    tmp_path: Path, bench: Bench
) -> None:
    fill(bench, 50, 200)
    peer = FakePeer()
    bench.heartbeat(peer, expression=Sql(DEAR), version=5)
    bench.core.tables.save_filters()
    path = tmp_path / "store" / "config" / "consumerFilter.json"
    data = json.loads(path.read_text())["filterDataByTopic"]["orders"]["groupFilterData"]["billing"]
    assert (
        data["expression"] == DEAR
        and data["bloomFilterData"] == {"bitNum": 112, "bitPos": [31, 20, 9]}
        and data["deadTime"] == 0
    )
    bench.close()
    bench.__init__(tmp_path, clock=bench.clock)  # type: ignore[misc]
    bench.open(create=False)
    known = bench.core.tables.filters.find("orders", "billing")
    assert known is not None and known.dead_ms and known.born_ms == data["bornTime"]
    bench.heartbeat(FakePeer(), expression=Sql(DEAR), version=6)
    assert not known.dead_ms and known.client_version == 6


def test_a_filter_is_forgotten_a_day_after_its_group_has_left(bench: Bench) -> None:
    peer = FakePeer()
    bench.heartbeat(peer, expression=Sql(DEAR), version=5)
    bench.core.closed(peer)
    bench.clock.advance_ms(DAY_MS - 1)
    bench.core.tables.save_filters()
    assert len(bench.core.tables.filters) == 1
    bench.clock.advance_ms(1)
    bench.core.tables.save_filters()
    assert len(bench.core.tables.filters) == 0


# --- conflicts ---


def test_members_with_different_subscriptions_are_told_counted_and_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = FakePeer(), FakePeer()
    assert not bench.heartbeat(first, expression="paid", client_id="one", version=1).fields
    answer = bench.heartbeat(second, expression=Sql(DEAR), client_id="two", version=2)
    assert (
        answer.fields
        and "'TAG paid' by one" in answer.fields[CONFLICT_FIELD]
        and "by two" in answer.fields[CONFLICT_FIELD]
    )
    assert bench.heartbeat(first, expression="paid", client_id="one", version=1).fields
    status = unpacked(bench.ask(Code.BROKER_STATUS))
    assert status["subscription_conflicts"] == 1
    assert sum("subscribe differently" in record.message for record in caplog.records) == 1
    bench.core.closed(second)
    assert not bench.heartbeat(first, expression="paid", client_id="one", version=1).fields


def test_the_same_tags_in_another_order_are_no_conflict(bench: Bench) -> None:
    bench.heartbeat(FakePeer(), expression="a || b", client_id="one")
    assert not bench.heartbeat(FakePeer(), expression="b||a", client_id="two", version=2).fields


# --- bit maps ---


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path / "mapped")
    found.close()
    store = found.config.store.but(
        consume_queue_ext=True, filter_bit_maps=True, consume_queue_ext_bytes=65_536
    )
    found = Bench(tmp_path / "mapped", store=store).open()
    yield found
    found.close()


@pytest.mark.seed("S4-096", "S4-141", "S4-142")
def test_with_bit_maps_records_that_cannot_pass_are_not_read(
    mapped: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, peer = mapped, FakePeer()
    fill(bench, 1)
    bench.heartbeat(peer, expression=Sql(DEAR), version=5)
    bench.clock.advance_ms(1)
    fill(bench, 50, 200, 60, 300)
    known = bench.core.tables.filters.find("orders", "billing")
    assert known is not None
    read: list[bytes] = []
    matches = known.compiled.matches
    monkeypatch.setattr(
        type(known.compiled), "matches", lambda _self, text: read.append(text) or matches(text)
    )
    code, page = bench.pull(flags=0, sub_version=5, peer=peer)
    assert code == 0 and bodies_of(page) == [b"200", b"300"] and page.next_offset == 5
    amounts = [text.split(b"\x02")[1] for text in read]  # behind the frame's mark
    assert amounts == [b"amount\x011", b"amount\x01200", b"amount\x01300"], (
        "what is older than the filter is read, the rest only where its map hits"
    )
    monkeypatch.undo()
    assert bodies_of(bench.pull(expression="amount < 55", expression_type="SQL92")[1]) == [
        b"1",
        b"50",
    ], "an inline filter has no bits"


@pytest.mark.seed("S4-096", "S4-141")
def test_with_extension_units_tags_are_compared_by_the_code_of_the_unit(mapped: Bench) -> None:
    for tag in ("a", "b", "a"):
        mapped.send(bodies_=[tag.encode()], tag=tag)
    assert bodies_of(mapped.pull(expression="a")[1]) == [b"a", b"a"]
    peer = FakePeer()
    assert mapped.core.handle(mapped.pull_command(offset=3, flags=6, expression="b"), peer) is None
    mapped.send(tag="a")
    assert peer.sent == []
    mapped.send(bodies_=[b"here"], tag="b")
    assert bodies_of(page_of(peer.sent[0])) == [b"here"]


@pytest.mark.seed("S4-141", "S4-142")
def test_a_held_pull_is_woken_through_bit_maps_as_well(mapped: Bench) -> None:
    peer = FakePeer()
    mapped.heartbeat(peer, expression=Sql(DEAR), version=5)
    mapped.clock.advance_ms(1)
    fill(mapped, 1)
    assert mapped.core.handle(mapped.pull_command(offset=1, flags=2, expression=None), peer) is None
    fill(mapped, 2, 3)
    assert [sent for sent in peer.sent if sent.is_response] == []
    fill(mapped, 900)
    (answer,) = [sent for sent in peer.sent if sent.is_response]
    assert bodies_of(page_of(answer)) == [b"900"]
