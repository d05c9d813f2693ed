"""The audit log: what a line says, what is folded, what a full disk costs, what is read back."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import AuditConfig
from rmq_ray.errors import StoreFull
from rmq_ray.files import FileSystem
from rmq_ray.remoting.request_table import Party, rows_of
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.server.security.audit_log import (
    FOLDED_OF_ONE_MAX,
    WAITING_MAX,
    AuditLog,
    AuditQuestion,
)

ROW = rows_of(Party.BROKER)[RequestCode.SEND_MESSAGE_V2]
PARTY = "broker broker-a"


def peer(account: str = "orders-app", host: str = "10.0.0.7", port: int = 40112):
    return SimpleNamespace(host=host, port=port, account=account, member=False)


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refuse(log: AuditLog, topic: str = "payments", who=None, reason: str = "may not PUB") -> None:
    log.refused(PARTY, who or peer(), ROW, [("TOPIC", topic)], reason)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def test_a_refusal_says_who_what_when_and_why(path: Path, clock: ManualClock) -> None:
    log = AuditLog(str(path), clock)
    refuse(log)
    log.flush()
    assert lines_of(path) == [
        {
            "time": "2023-11-14T22:13:20.000Z",
            "event": "refused",
            "party": PARTY,
            "account": "orders-app",
            "member": False,
            "address": "10.0.0.7:40112",
            "request": "SEND_MESSAGE_V2",
            "code": 310,
            "resources": ["topic:payments"],
            "reason": "may not PUB",
        }
    ]
    assert path.stat().st_mode & 0o077 == 0


def test_a_change_says_what_was_and_what_is(path: Path, clock: ManualClock) -> None:
    log = AuditLog(str(path), clock)
    log.changed(PARTY, peer(), ROW, [("TOPIC", "t")], {"queues": 4}, {"queues": 8})
    log.changed(PARTY, peer(), ROW, [("TOPIC", "t")], None, {"queues": 0}, "queues must be 1")
    log.flush()
    done, failed = lines_of(path)
    assert (done["event"], done["old"], done["new"]) == ("changed", {"queues": 4}, {"queues": 8})
    assert (failed["event"], failed["reason"]) == ("failed", "queues must be 1")
    assert "old" not in failed
    assert log.status() == {"refused": 0, "changed": 1, "failed": 1, "written": 2, "lost": 0}


def test_a_repeated_refusal_is_written_once_and_counted(path: Path, clock: ManualClock) -> None:
    log = AuditLog(str(path), clock)
    for port in range(4_212):
        refuse(log, who=peer(port=port))
    log.flush()
    assert len(lines_of(path)) == 1
    clock.advance_ms(10_000)
    log.flush()
    first, rest = lines_of(path)
    assert (rest["repeats"], rest["since"]) == (4_211, first["time"])
    assert rest["resources"] == ["topic:payments"]
    refuse(log)
    log.flush()
    assert len(lines_of(path)) == 3  # another one after that time is written again


def test_other_refusals_of_one_address_are_folded_beyond_a_few(
    path: Path, clock: ManualClock
) -> None:
    log = AuditLog(str(path), clock)
    for i in range(1_000):
        refuse(log, f"topic-{i}", peer(account=""))
    refuse(log, "hers", peer("somebody-else"))
    log.flush()
    written = lines_of(path)
    assert len(written) == FOLDED_OF_ONE_MAX + 2
    assert written[-1]["account"] == "somebody-else"
    clock.advance_ms(10_000)
    log.flush()
    assert [line["repeats"] for line in lines_of(path)[len(written) :]] == [
        1_000 - FOLDED_OF_ONE_MAX - 1
    ]


def test_addresses_without_end_take_bounded_memory_and_disk(path: Path, clock: ManualClock) -> None:
    log = AuditLog(str(path), clock)
    for i in range(20_000):
        refuse(log, who=peer("", f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}"))
    log.flush()
    clock.advance_ms(10_000)
    log.flush()
    written = lines_of(path)
    assert len(written) < 500
    assert written[-1]["address"] == "many"
    assert sum(line.get("repeats", 1) for line in written) == 20_000


def test_text_from_outside_can_neither_end_a_line_nor_fill_the_disk(
    path: Path, clock: ManualClock
) -> None:
    log = AuditLog(str(path), clock)
    refuse(log, 'a"\n{"event": "changed"}\u2028' + "x" * 100_000, reason="r" * 100_000)
    log.changed(PARTY, peer("k" * 9_999), ROW, [("TOPIC", "t")], None, {"v": "x" * 100_000})
    log.flush()
    assert [line["event"] for line in lines_of(path)] == ["refused", "changed"]
    assert path.stat().st_size < 10_000


def test_a_full_file_is_rotated_and_old_ones_go(path: Path, clock: ManualClock) -> None:
    log = AuditLog(str(path), clock, AuditConfig(file_bytes_max=4_096, files_max=3))
    for i in range(100):
        clock.advance_ms(1)
        log.changed(PARTY, peer(), ROW, [("TOPIC", f"t{i}")], None, {"queues": i})
        log.flush()
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "audit.log",
        "audit.log.1",
        "audit.log.2",
    ]
    assert all(p.stat().st_size <= 4_096 for p in path.parent.iterdir())
    found = log.newest(AuditQuestion(lines=20))
    assert [line["new"]["queues"] for line in found] == list(range(80, 100))


class FullDisk(FileSystem):
    full = False

    def open_private(self, path: str):
        if self.full:
            raise StoreFull("no space left", path)
        return super().open_private(path)


def test_a_full_disk_costs_lines_and_nothing_else(
    path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    files = FullDisk()
    log = AuditLog(str(path), clock, files=files)
    files.full = True
    for i in range(5):
        log.changed(PARTY, peer(), ROW, [("TOPIC", f"t{i}")])
        log.flush()
    assert log.status()["lost"] == 5
    assert len(caplog.records) == 1
    files.full = False
    log.changed(PARTY, peer(), ROW, [("TOPIC", "t5")])
    log.flush()
    written = lines_of(path)
    assert [line["event"] for line in written] == ["changed", "lost"]
    assert written[1]["repeats"] == 5


def test_lines_wait_for_the_store_to_be_made(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "rmq_ray" / "audit.log"
    log = AuditLog(str(path), clock)
    for i in range(WAITING_MAX + 3):
        log.changed(PARTY, peer(), ROW, [("TOPIC", f"t{i}")])
    log.flush()
    assert not path.exists()
    path.parent.mkdir()
    log.flush()
    written = lines_of(path)
    assert len(written) == WAITING_MAX + 1
    assert (written[-1]["event"], written[-1]["repeats"]) == ("lost", 3)


def test_a_line_cut_by_a_crash_is_skipped_and_spoils_no_other(
    path: Path, clock: ManualClock
) -> None:
    path.write_text('{"time": "2020-01-01T00:00:00.000Z", "event": "refused"}\n{"time": "20')
    log = AuditLog(str(path), clock)
    refuse(log)
    assert [line["time"][:4] for line in log.newest(AuditQuestion())] == ["2020", "2023"]


def test_questions_choose_by_time_account_address_and_kind(path: Path, clock: ManualClock) -> None:
    log = AuditLog(str(path), clock)
    refuse(log, who=peer("", "192.168.1.9"))
    clock.advance_ms(60_000)
    log.changed(PARTY, peer("root-1"), ROW, [("TOPIC", "t")])
    assert len(log.newest(AuditQuestion())) == 2
    assert len(log.newest(AuditQuestion(lines=1))) == 1
    assert [line["event"] for line in log.newest(AuditQuestion(refused=True))] == ["refused"]
    assert [line["account"] for line in log.newest(AuditQuestion(who="root"))] == ["root-1"]
    assert [line["event"] for line in log.newest(AuditQuestion(who="192.168"))] == ["refused"]
    code, name = int(ROW.code), ROW.code.name.lower()[:6]
    assert len(log.newest(AuditQuestion(request=str(code)))) == 2
    assert len(log.newest(AuditQuestion(request=name))) == 2
    assert not log.newest(AuditQuestion(request="no such")) + log.newest(AuditQuestion(request="1"))
    late = AuditQuestion(since="2023-11-14T22:14:00.000Z")
    assert [line["event"] for line in log.newest(late)] == ["changed"]


def test_without_a_directory_the_newest_lines_are_kept_in_memory(clock: ManualClock) -> None:
    log = AuditLog(None, clock)
    refuse(log)
    assert [line["event"] for line in log.newest(AuditQuestion())] == ["refused"]


def test_its_own_thread_writes_and_the_end_loses_nothing(path: Path, clock: ManualClock) -> None:
    log = AuditLog(str(path), clock)
    log.begin()
    refuse(log)
    refuse(log)
    log.close()
    assert [line.get("repeats") for line in lines_of(path)] == [None, 1]
