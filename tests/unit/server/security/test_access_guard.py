"""The walk over every request: as nobody, as an account without the right, with it, as an
administrator, as a member; and how Apache RocketMQ's clients sign.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from rmq_ray.errors import MalformedFrame, NotAuthorized
from rmq_ray.files import FileSystem
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.decision import Action
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.protocol.access.signature import ACCESS_KEY, SIGNATURE, sign
from rmq_ray.remoting.request_table import REQUESTS, Party, Row
from rmq_ray.remoting.wire import body_json
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.security.access_guard import APACHES_WORDS, AccessGuard
from rmq_ray.server.security.touched import READERS, needs_reader
from tests.support.asked_requests import command_of

BOTH = Right.PUB | Right.SUB
SECRET = "the secret"
RULES = AccessRules(
    {
        account.access_key: account
        for account in (
            Account("powerless", SECRET),
            Account("rightful", SECRET, topics={"orders": BOTH}, groups={"billing": Right.SUB}),
            Account("operator", SECRET, admin=True),
            Account("publisher", SECRET, topics={"orders": Right.PUB}),
            Account("at-home", SECRET, white_address="10.1.1.*", topics={"orders": BOTH}),
        )
    },
    white_addresses=("10.2.2.2",),
)
SERVED = [row for row in REQUESTS if row.served_by in (Party.BROKER, Party.NAME_SERVER)]
NAMES = [f"{row.served_by.value} {row.code.name}" for row in SERVED]


class Asker:
    """A connection, as the guard sees it."""

    def __init__(
        self, account: str = "", *, member: bool = False, trusted: bool = True, host: str = "::1"
    ) -> None:
        self.account, self.member, self.trusted, self.host = account, member, trusted, host
        self.port, self.closed = 1, False
        self.attributes: dict[str, Any] = {}


def guard(rules: AccessRules | None = RULES) -> AccessGuard:
    copy = AccessCopy("default", "", FileSystem())
    copy.rules = rules
    return AccessGuard(copy, "broker broker-a", None)


def passes(asker: Asker, row: Row, with_rules: AccessRules | None = RULES) -> bool:
    try:
        guard(with_rules).admit(row, command_of(row), asker)  # type: ignore[arg-type]
    except NotAuthorized:
        return False
    return True


def test_every_row_whose_right_is_on_a_topic_or_group_has_a_reader() -> None:
    wanted = {row.code for row in REQUESTS if needs_reader(row)}
    assert wanted <= READERS.keys() and len(wanted) > 30


@pytest.mark.parametrize("row", SERVED, ids=NAMES)
def test_nobody_and_an_account_that_is_gone_pass_nowhere(row: Row) -> None:
    assert not passes(Asker(trusted=False), row)
    assert not passes(Asker("gone"), row)


@pytest.mark.parametrize("row", SERVED, ids=NAMES)
def test_an_account_passes_where_it_has_the_right_and_an_administrator_everywhere(row: Row) -> None:
    needs_right = needs_reader(row) and READERS[row.code](command_of(row))
    assert passes(Asker("powerless"), row) == (not needs_right and row.action is not Action.ADMIN)
    assert passes(Asker("rightful"), row) == (row.action is not Action.ADMIN)
    assert passes(Asker("operator"), row) and passes(Asker(member=True), row)


@pytest.mark.parametrize("row", SERVED, ids=NAMES)
def test_without_any_rules_only_members_pass(row: Row) -> None:
    assert passes(Asker(member=True), row, None)
    assert not passes(Asker("operator"), row, None)
    assert not passes(Asker(trusted=False), row, None)


READ = [row for row in SERVED if needs_reader(row) and READERS[row.code](command_of(row))]


@pytest.mark.parametrize("row", READ, ids=[f"{r.served_by.value} {r.code.name}" for r in READ])
def test_a_request_that_does_not_say_what_it_touches_is_malformed(row: Row) -> None:
    if row.code is Code.UNREGISTER_CLIENT:
        return  # of a producer: it names no consumer group
    with pytest.raises((MalformedFrame, body_json.BodyInvalid)):
        READERS[row.code](Command(row.code, fields={}, body=b"\xc1"))


def test_one_of_two_topics_is_not_enough() -> None:
    body = msgpack.packb(["orders", "payroll"])
    (row,) = [row for row in SERVED if row.code is Code.QUEUE_BOUNDS]
    with pytest.raises(NotAuthorized, match="rightful may not PUB or SUB on topic payroll"):
        guard().admit(row, Command(row.code, body=body), Asker("rightful"))  # type: ignore[arg-type]
    with pytest.raises(NotAuthorized, match="all topics"):
        guard().admit(
            row,
            Command(row.code, body=msgpack.packb([])),
            Asker("rightful"),  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing"])
def test_topics_of_a_group_are_the_group(topic: str) -> None:
    (row,) = [row for row in SERVED if row.code is Code.GET_MAX_OFFSET]
    command = Command(row.code, fields={"topic": topic})
    guard().admit(row, command, Asker("rightful"))  # type: ignore[arg-type]
    with pytest.raises(NotAuthorized, match="on group billing"):
        guard().admit(row, command, Asker("publisher"))  # type: ignore[arg-type]


def test_new_rules_hold_from_the_next_request_on() -> None:
    doors, asker = guard(), Asker("publisher")
    (row,) = [row for row in SERVED if row.code is Code.SEND_MESSAGE]
    doors.admit(row, command_of(row), asker)  # type: ignore[arg-type]
    doors._copy.rules = RULES.with_account(Account("publisher", SECRET))
    with pytest.raises(NotAuthorized, match="may not PUB on topic orders"):
        doors.admit(row, command_of(row), asker)  # type: ignore[arg-type]
    assert doors.status()["refused"] == 1


# --- requests of Apache RocketMQ's clients --------------------------------------------------------

(SEND,) = [row for row in SERVED if row.code is Code.SEND_MESSAGE]


def signed(key: str, secret: str = SECRET, **changed: str) -> Command:
    fields = {"topic": "orders", ACCESS_KEY: key}
    fields[SIGNATURE] = sign(fields, b"body", secret)
    return Command(SEND.code, fields={**fields, **changed}, body=b"body")


def test_a_signed_request_is_its_account() -> None:
    asker = Asker(trusted=False)
    guard().admit(SEND, signed("publisher"), asker)  # type: ignore[arg-type]
    assert asker.account == "publisher"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (Command(SEND.code, fields={"topic": "orders"}), "No accessKey is configured"),
        (Command(SEND.code), "No accessKey is configured"),
        (signed("nobody-of-us"), "No acl config for nobody-of-us"),
        (signed("publisher", "another secret"), "Check signature failed for accessKey=publisher"),
        (signed("publisher", topic="payroll"), "Check signature failed"),
        (signed("publisher", more="x"), "Check signature failed"),
        (signed("publisher", Signature=""), "Check signature failed"),
        (signed("publisher", Signature="ü" * 28), "Check signature failed"),
        (signed("publisher", Signature=signed("publisher").fields[SIGNATURE][:-2]), "Check sig"),  # type: ignore[index]
        (signed("powerless"), "the account powerless may not PUB on topic orders"),
    ],
)
def test_a_request_that_proves_nothing_is_refused_in_apaches_words(
    command: Command, told: str
) -> None:
    doors, asker = guard(), Asker(trusted=False)
    with pytest.raises(NotAuthorized, match=told) as refused:
        doors.admit(SEND, command, asker)  # type: ignore[arg-type]
    answer = doors.refusal(command, asker, refused.value)  # type: ignore[arg-type]
    assert answer.code == 1 and str(answer.remark).startswith(APACHES_WORDS + told[:8])
    assert SECRET not in str(answer.remark) and doors.status()["refused"] == 1


def test_white_lists_need_no_signature() -> None:
    bare = Command(SEND.code, fields={"topic": "orders", ACCESS_KEY: "at-home"})
    doors = guard()
    doors.admit(SEND, bare, Asker(trusted=False, host="10.1.1.7"))  # type: ignore[arg-type]
    everybody = Asker(trusted=False, host="10.2.2.2")
    doors.admit(SEND, Command(SEND.code, fields={"topic": "any"}), everybody)  # type: ignore[arg-type]
    doors.check_topic(everybody, Action.SUB, "any")  # type: ignore[arg-type]
    with pytest.raises(NotAuthorized):
        doors.admit(SEND, bare, Asker(trusted=False, host="10.3.1.7"))  # type: ignore[arg-type]


def test_what_a_record_tells_needs_a_right_too() -> None:
    doors = guard()
    doors.check_topic(Asker("rightful"), Action.SUB, "orders")  # type: ignore[arg-type]
    for name, topic in (("publisher", "orders"), ("rightful", "payroll"), ("gone", "orders")):
        with pytest.raises(NotAuthorized):
            doors.check_topic(Asker(name), Action.SUB, topic)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_default_right_does_not_open_the_brokers_own_topics(topic: str) -> None:
    rules = RULES.with_account(Account("curious", SECRET, default_topic=BOTH))
    (row,) = [row for row in SERVED if row.code is Code.GET_MAX_OFFSET]
    with pytest.raises(NotAuthorized, match=topic):
        guard(rules).admit(
            row,
            Command(row.code, fields={"topic": topic}),
            Asker("curious"),  # type: ignore[arg-type]
        )


# --- names that an account brings into being ------------------------------------------------------


def test_an_account_may_ask_for_so_many_names_that_are_not_there() -> None:
    wide = Account("wide-shop", SECRET, default_topic=BOTH, default_group=Right.SUB)
    copy = AccessCopy("default", "", FileSystem())
    copy.rules = RULES.with_account(wide)
    there = {"orders"}
    doors = AccessGuard(copy, "broker broker-a", None, lambda _kind, name: name in there, 2)

    def send(topic: str, account: str = "wide-shop") -> None:
        doors.admit(SEND, Command(SEND.code, fields={"topic": topic}), Asker(account))  # type: ignore[arg-type]

    for topic in ("orders", "new-1", "new-1", "new-2", "orders"):
        send(topic)
    with pytest.raises(NotAuthorized, match="topic new-3 is one too many.*account_names_max"):
        send("new-3")
    (row,) = [row for row in SERVED if row.code is Code.HEART_BEAT]
    with pytest.raises(NotAuthorized, match="group billing is one too many"):
        doors.admit(row, command_of(row), Asker("wide-shop"))  # type: ignore[arg-type]
    assert doors.status()["refused_accounts"] == {"wide-shop": 2}
    send("new-1")
    send("new-3", "operator")
    there.add("new-3")
    send("new-3")
