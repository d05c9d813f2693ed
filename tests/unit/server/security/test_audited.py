"""The line of an audited request, whenever its answer comes."""

from __future__ import annotations

from typing import Any

from rmq_ray.clock import ManualClock
from rmq_ray.remoting.request_table import REQUESTS, Party
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
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
