"""The line of an audited request, whenever its answer comes."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import NameServerConfig
from rmq_ray.errors import AdminError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.request_table import REQUESTS, Party
from rmq_ray.remoting.wire.bodies_groups import encode_offsets
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.namesrv.name_server import NameServer
from rmq_ray.server.security.audit_log import AuditLog, AuditQuestion
from rmq_ray.server.security.audited import Witness
from tests.support.faults.fake_peer import FakePeer

ROW = next(
    row
    for row in REQUESTS
    if row.code is RequestCode.UPDATE_AND_CREATE_TOPIC and row.served_by is Party.BROKER
)


def witness(**fields: str) -> tuple[AuditLog, FakePeer, Command, Witness]:
    log, peer = AuditLog(None, ManualClock()), FakePeer()
    command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, opaque=7, fields=fields)
    return log, peer, command, Witness(log, "broker broker-a", ROW, command, peer)


def lines(log: AuditLog) -> list[dict[str, Any]]:
    return log.newest(AuditQuestion())


def test_an_answer_that_comes_later_is_passed_on_and_ends_the_line() -> None:
    log, peer, command, seen = witness(topic="orders", perm="6")
    seen.send(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, opaque=9))
    assert lines(log) == [] and len(peer.sent) == 1, "that was no answer"
    seen.send(command.answer(1, remark="no room"))
    seen.send(command.answer())
    (line,) = lines(log)
    assert (line["event"], line["reason"], line["resources"]) == (
        "failed",
        "no room",
        ["topic:orders"],
    )
    assert line["new"] == {"perm": "6"} and len(peer.sent) == 3


def test_whoever_handles_it_sees_the_peer_itself() -> None:
    _log, peer, _command, seen = witness()
    assert seen.host == peer.host and seen.attributes is peer.attributes


def test_neither_secrets_nor_bodies_are_told() -> None:
    log, _peer, command, seen = witness(
        topic="t", secretKey="s3", Signature="x", accessToken="y", key="k"
    )
    seen.hears(command.answer())
    (line,) = lines(log)
    assert line["new"] == {"key": "k"} and "s3" not in str(line)


def test_a_change_that_a_name_server_refuses_is_noted_and_a_question_is_not() -> None:
    clock = ManualClock()
    log = AuditLog(None, clock)
    server = NameServer(NameServerConfig(), clock, audit=log)
    with pytest.raises(AdminError):
        server.handle(Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"listenPort=1"), FakePeer())
    server.handle(Command(RequestCode.GET_NAMESRV_CONFIG), FakePeer())
    (line,) = lines(log)
    assert (line["event"], line["request"]) == ("failed", "UPDATE_NAMESRV_CONFIG")
    assert "listenPort" in line["reason"]


@pytest.mark.parametrize(
    ("body", "resources"),
    [(b'{"groupName": "g1", "retryMaxTimes": 3}', ["group:g1"]), (b"[1]", []), (b"{", [])],
)
def test_a_group_is_named_though_its_settings_come_in_the_body(
    body: bytes, resources: list[str]
) -> None:
    log = AuditLog(None, ManualClock())
    command = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    row = next(row for row in REQUESTS if row.code == command.code)
    Witness(log, "broker broker-a", row, command, FakePeer()).hears(command.answer())
    (line,) = lines(log)
    assert line["resources"] == resources
    assert (line.get("new") == {"retryMaxTimes": "3"}) is bool(resources)


def test_a_name_server_notes_what_it_did_not_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    log = AuditLog(None, clock)
    server = NameServer(NameServerConfig(), clock, audit=log)
    code = RequestCode.PUT_KV_CONFIG
    row, _handler = server._requests[code]  # noqa: SLF001

    def fails(_command: Command, _peer: Any) -> Command:
        raise ZeroDivisionError("of a handler")

    monkeypatch.setitem(server._requests, code, (row, fails))  # noqa: SLF001
    with pytest.raises(ZeroDivisionError):
        server.handle(Command(code, fields={"namespace": "n", "key": "k"}), FakePeer())
    (line,) = lines(log)
    assert (line["event"], line["reason"]) == ("failed", "ZeroDivisionError: of a handler")


def test_old_and_new_are_what_the_tables_say_before_and_after() -> None:
    found = [{"perm": "4"}, {"perm": "6"}]
    log, peer = AuditLog(None, ManualClock()), FakePeer()
    command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields={"topic": "t", "perm": "6"})
    seen = Witness(log, "b", ROW, command, peer, lambda _code, _fields: found.pop(0))
    seen.hears(command.answer())
    (line,) = lines(log)
    assert (line["old"], line["new"]) == ({"perm": "4"}, {"perm": "6"})


def test_of_a_reset_the_line_tells_where_members_were_sent() -> None:
    log, peer = AuditLog(None, ManualClock()), FakePeer()
    fields = {"topic": "t", "group": "g"}
    command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=fields)
    row = next(row for row in REQUESTS if row.code == command.code)
    seen = Witness(log, "b", row, command, peer, lambda _code, _fields: {"t:0": "9"})
    body = encode_offsets({MessageQueue("t", "broker-a", 0): 4})
    seen.send(command.answer(body=body))
    (line,) = lines(log)
    assert (line["old"], line["new"]) == ({"t:0": "9"}, {"t:0": "4"})


def test_a_change_that_failed_tells_what_was_asked_for() -> None:
    log, peer = AuditLog(None, ManualClock()), FakePeer()
    command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields={"topic": "t", "perm": "9"})
    seen = Witness(log, "b", ROW, command, peer, lambda _code, _fields: {"perm": "4"})
    seen.hears(command.answer(1, remark="no such permission"))
    (line,) = lines(log)
    assert (line["old"], line["new"]) == ({"perm": "4"}, {"perm": "9"})
