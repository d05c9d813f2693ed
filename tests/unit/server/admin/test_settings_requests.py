"""Settings and limits through a whole broker core: in effect at once, on disk, refused whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import BODY_BYTES_MAX
from rmq_ray.model.fastjson import loads
from rmq_ray.model.topics import DataVersion
from rmq_ray.protocol import live_settings
from rmq_ray.protocol.live_settings import encode_properties
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.security.audit_log import AuditLog, AuditQuestion
from tests.support.brokers.broker_bench import Bench, bodies_of, page_of
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def change(bench: Bench, **settings: str) -> Command:
    body = encode_properties({name.replace("__", "."): text for name, text in settings.items()})
    return bench.ask(Code.UPDATE_BROKER_CONFIG, {}, body.encode())


def send(bench: Bench, topic: str, texts: list[bytes]) -> Command:
    return bench.ask(Code.SEND_RECORDS, None, bench.frame(topic, 0, texts))


def told(bench: Bench) -> dict[str, Any]:
    body = bench.ask(Code.BROKER_SETTINGS).body
    rows: list[dict[str, Any]] = msgpack.unpackb(body)["settings"]  # type: ignore[arg-type]
    return {row["name"]: row for row in rows}


def test_a_change_is_in_effect_and_on_disk_when_the_answer_leaves(bench: Bench) -> None:
    assert change(bench, fileReservedTime="48", autoCreateTopicEnable="false").code == 0
    row = told(bench)["store.reserved_hours"]
    assert (row["value"], row["source"], row["configured"]) == ("48", "changed", "72")
    assert not bench.core.tables.topics.auto_create
    file = Path(bench.config.store.path) / "rmq_ray" / "settings.json"
    assert loads(file.read_text())["settings"]["store.reserved_hours"] == "48"  # type: ignore[index,call-overload]
    config = bytes(bench.ask(Code.GET_BROKER_CONFIG).body).decode()  # type: ignore[arg-type]
    assert "fileReservedTime=48\n" in config and "diskMaxUsedSpaceRatio=75" in config


def test_what_the_file_says_anew_is_in_effect_but_for_what_was_changed_by_hand(
    bench: Bench,
) -> None:
    change(bench, fileReservedTime="48")
    base = live_settings.effective(
        bench.config, {"store.reserved_hours": "24", "auto_create_topics": "false"}
    )
    bench.core.settings.rebase(base)
    assert not bench.core.tables.topics.auto_create, "who follows is told"
    row = told(bench)["store.reserved_hours"]
    assert (row["value"], row["source"], row["configured"]) == ("48", "changed", "24")
    change(bench, fileReservedTime="")
    row = told(bench)["store.reserved_hours"]
    assert (row["value"], row["source"]) == ("24", "configured")


def test_changes_hold_after_a_crash_and_can_be_taken_back(tmp_path: Path) -> None:
    first = Bench(tmp_path).open()
    change(first, pull_records_max="9", flushIntervalCommitLog="700")
    change(first, limit__topic__orders__bytes_per_s="5000")
    row = told(first)["store.flush_interval_ms"]
    assert (row["value"], row["next"]) == ("500", "700")
    assert row["source"] == "changed, from the next start"
    first.close()
    again = Bench(tmp_path).open()
    assert again.core.config.pull_records_max == 9
    assert again.core.config.store.flush_interval_ms == 700
    assert again.core.status()["limits"][0]["bytes_per_s"] == 5000
    change(again, pull_records_max="", limit__topic__orders__bytes_per_s="")
    assert told(again)["pull_records_max"]["source"] == "configured"
    assert again.core.status()["limits"] == []
    again.close()


def test_a_wrong_one_among_many_changes_nothing(bench: Bench) -> None:
    answer = change(bench, pull_records_max="9", nonsense="1")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "there is no setting 'nonsense'" in str(answer.remark)
    assert "nothing was changed" in str(answer.remark)
    assert told(bench)["pull_records_max"]["value"] == "8192"
    assert bench.ask(Code.UPDATE_BROKER_CONFIG, {}, b"").code == ResponseCode.SYSTEM_ERROR


def test_every_live_setting_reaches_who_goes_by_it(bench: Bench) -> None:
    core = bench.core
    change(
        bench,
        maxMessageSize="10",
        rejectTransactionMessage="true",
        brokerPermission="4",
        diskMaxUsedSpaceRatio="50",
    )
    assert core.identity.permission == 4 and not core.identity.writable
    topics, _ = core.drain.snapshot()
    assert not topics["TBW102"].permission & 2
    change(bench, brokerPermission="6")
    assert send(bench, "orders", [b"x" * 20]).code == ResponseCode.MESSAGE_ILLEGAL
    assert core.keeper.store is not None
    assert core.keeper.store._config.disk_delete_ratio == 0.5


def test_a_lower_limit_of_bodies_keeps_what_was_stored_before(tmp_path: Path) -> None:
    first = Bench(tmp_path).open()
    assert send(first, "orders", [b"x" * 200_000]).code == 0
    change(first, maxMessageSize="10")
    first.close()
    again = Bench(tmp_path).open()
    assert again.core.keeper.store is not None
    assert again.core.keeper.store.bounds("orders", 0) == (0, 1)
    assert again.core.config.store.body_bytes_max == 10 < BODY_BYTES_MAX
    again.close()


def test_the_audit_log_has_the_old_and_the_new_value(tmp_path: Path) -> None:
    made = Bench(tmp_path).open()
    log = AuditLog(None, ManualClock())
    made.core.dispatch._audit = log
    change(made, fileReservedTime="24")
    (line,) = log.newest(AuditQuestion())
    assert (line["old"], line["new"]) == ({"fileReservedTime": "72"}, {"fileReservedTime": "24"})
    made.close()


def test_a_slave_has_its_masters_changes(bench: Bench) -> None:
    settings, before = bench.core.settings, bench.core.tables.versions()
    settings.replace({"pull_records_max": "7", "limit.group.g.bytes_per_s": "5"}, DataVersion(3, 9))
    assert settings.config.pull_records_max == 7 and settings.limiter.active
    assert bench.core.tables.versions()[-2:] == (3, 9) != before[-2:]
    settings.replace({"pull_records_max": "nonsense"}, DataVersion(4, 9))
    assert settings.config.pull_records_max == 8_192, "what does not hold here is left"


def test_a_topic_takes_its_limit_along(bench: Bench) -> None:
    send(bench, "orders", [b"x"])
    change(bench, limit__topic__orders__messages_per_s="5")
    assert bench.core.settings.limiter.active
    bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert not bench.core.settings.limiter.active


# --- limits on the paths ---


def test_a_send_over_the_limit_is_refused_until_the_debt_is_paid(bench: Bench) -> None:
    send(bench, "orders", [b"x"])
    change(bench, limit__topic__orders__messages_per_s="10")
    assert send(bench, "orders", [b"x"] * 20).code == 0
    refused = send(bench, "orders", [b"x"])
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "topic orders is over its limit" in str(refused.remark)
    assert "retry after 1000 ms" in str(refused.remark)
    assert send(bench, "others", [b"x"]).code == 0
    bench.clock.advance_ms(1_001)
    assert send(bench, "orders", [b"x"]).code == 0
    assert bench.core.status()["limited_sends"] == 1


def test_a_group_over_its_limit_waits_and_is_then_served(bench: Bench) -> None:
    send(bench, "orders", [b"x" * 100] * 30)
    change(bench, limit__group__billing__messages_per_s="10")
    peer = FakePeer()
    bench.heartbeat(peer)
    code, page = bench.pull(peer=peer)
    assert code == 0 and len(bodies_of(page)) == 10, "a second's worth at once"
    assert bench.pull(offset=10, group="other")[0] == 0, "whoever has no limit"
    bench.clock.advance_ms(1)
    bench.pull(offset=10, peer=peer)
    sent = len(peer.sent)
    held = bench.core.handle(bench.pull_command(offset=20), peer)
    assert held is None and len(bench.core.pulls.delayed) == 1
    bench.clock.advance_ms(900)
    bench.core.tick()
    assert len(peer.sent) == sent, "nothing before its time"
    bench.clock.advance_ms(150)
    bench.core.tick()
    (answer,) = peer.sent[sent:]
    assert answer.code == 0 and len(bodies_of(page_of(answer))) == 10
    assert bench.core.status()["limited_pulls"] >= 1


def test_a_delayed_pull_of_a_closed_connection_is_dropped(bench: Bench) -> None:
    send(bench, "orders", [b"x"] * 30)
    change(bench, limit__group__billing__bytes_per_s="100")
    peer = FakePeer()
    bench.heartbeat(peer)
    bench.pull(peer=peer)
    sent = len(peer.sent)
    assert bench.core.handle(bench.pull_command(offset=10), peer) is None
    peer.closed = True
    bench.clock.advance_ms(20_000)
    bench.core.tick()
    assert len(peer.sent) == sent and len(bench.core.pulls.delayed) == 0
