"""Every request of the request table over real connections, as accounts with each right alone, as
an administrator, by our handshake and signed as Apache RocketMQ's clients sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rmq_ray.actors.access_keys import AccountProof
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.model.ids import Address
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.decision import Action
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.request_table import REQUESTS, Asker, Party, Resource, Row
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.halves import End, pack_ends
from rmq_ray.server.security.access_guard import APACHES_WORDS
from tests.support.asked_requests import command_of, signed
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster
from tests.support.waiting import eventually
from tests.support.wire import RawClient

SECRET = "the secret of all"
PUB, SUB, OF_GROUP = "PUB on the topic", "SUB on the topic", "SUB on the group"
HELD: dict[str, set[str]] = {
    "powerless": set(),
    "publisher": {PUB},
    "only-reader": {SUB},
    "grouped": {OF_GROUP},
    "consumer": {SUB, OF_GROUP},
}
RULES = AccessRules(
    {
        account.access_key: account
        for account in (
            Account("powerless", SECRET),
            Account("publisher", SECRET, topics={"orders": Right.PUB}),
            Account("only-reader", SECRET, topics={"orders": Right.SUB}),
            Account("grouped", SECRET, groups={"billing": Right.SUB}),
            Account(
                "consumer", SECRET, topics={"orders": Right.SUB}, groups={"billing": Right.SUB}
            ),
            Account("operator", SECRET, admin=True),
        )
    },
    version=1,
)
NOT_AS_THE_TABLE = {
    Code.CONSUMER_SEND_MSG_BACK: {SUB, OF_GROUP},  # the topic is the record's
    Code.GET_CONSUME_STATS: {SUB, OF_GROUP},  # asked of one topic
}
EVERY_ACCOUNT = {
    Code.BUNDLE,
    Code.BROKER_OVERVIEW,  # and told of what it has a right on
    Code.STORE_INFO,
    Code.UNPIN_SEGMENTS,
    Code.GET_BROKER_CLUSTER_INFO,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    Code.GET_TOPICS_BY_CLUSTER,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    Code.GET_UNIT_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
}
SERVED = [row for row in REQUESTS if row.served_by in (Party.BROKER, Party.NAME_SERVER)]
WAIT_MS = 20_000

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, rules=RULES) as running:
        yield running


def address_of(cluster: LiveCluster, party: Party) -> Address:
    if party is Party.NAME_SERVER:
        return Address.parse(cluster.lookup().name_servers[0])
    address = cluster.brokers[0].address
    assert address is not None
    return address


def credentials(cluster: LiveCluster, name: str, party: Party) -> Credentials:
    where = AccountProof.of(name, SECRET, CLUSTER).at(cluster.lookup())
    role = "broker" if party is Party.BROKER else "name_server"
    return Credentials(where.cluster, role, where.secret, where.access_key)


class Walk:
    """All requests, about records that are there, and two connections of each account to each
    server.
    """

    def __init__(self, cluster: LiveCluster, stack: ExitStack) -> None:
        self._lines: dict[tuple[str, Party, bool], Connection] = {}
        for name in (*HELD, "operator"):
            for party in (Party.BROKER, Party.NAME_SERVER):
                for proved in (True, False):
                    line = Connection(
                        address_of(cluster, party),
                        credentials(cluster, name, party) if proved else None,
                        RemotingLimits(),
                        SYSTEM_CLOCK,
                    )
                    stack.callback(line.close)
                    self._lines[name, party, proved] = line
        self._message = self.stored({})
        half = {"sysFlag": "4", "properties": "TRAN_MSG\1true\2PGROUP\1web\2"}
        self._half = self.stored(half)

    def ask(self, row: Row, name: str, proved: bool) -> Command:
        command = self.command(row)
        line = self._lines[name, row.served_by, proved]
        return line.request(command if proved else signed(command, name, SECRET), WAIT_MS)

    def command(self, row: Row) -> Command:
        command = command_of(row)
        message, half = str(self._message), str(self._half)
        place = {
            Code.VIEW_MESSAGE_BY_ID: {"offset": message},
            Code.CONSUMER_SEND_MSG_BACK: {"offset": message},
            Code.END_TRANSACTION: {
                "commitLogOffset": half,
                "producerGroup": "web",
                "commitOrRollback": "12",
            },
        }.get(row.code, {})
        if row.code is Code.END_TRANSACTIONS:
            command.body = pack_ends("web", [End(0, self._half, 12)])
        return replace(command, fields={**(command.fields or {}), **place})

    def alive(self) -> bool:
        return all(line.alive for line in self._lines.values())

    def undrain(self) -> None:
        command = Command(Code.DRAIN_BROKER, body=msgpack.packb([False]))
        assert self._lines["operator", Party.BROKER, True].request(command, WAIT_MS).code == 0

    def stored(self, more: dict[str, str]) -> int:
        """The place in the log of a new message."""
        (row,) = [row for row in SERVED if row.code is Code.SEND_MESSAGE]
        command = command_of(row)
        command.fields = {**(command.fields or {}), **more}
        answer = self._lines["operator", Party.BROKER, True].request(command, WAIT_MS)
        assert answer.code == 0, answer.remark
        return int((answer.fields or {})["msgId"][-16:], 16)


def needed(row: Row) -> list[set[str]] | None:
    """The rights of which an account needs one set; None = it must be an administrator."""
    if row.action is Action.ADMIN:
        return None
    if row.code in EVERY_ACCOUNT:
        return [set()]
    if row.code in NOT_AS_THE_TABLE:
        return [NOT_AS_THE_TABLE[row.code]]
    group = {OF_GROUP} if Resource.GROUP in row.resource else set[str]()
    of_topic = {Action.PUB: [PUB], Action.SUB: [SUB], Action.ANY: [PUB, SUB]}[row.action]
    return [{right} | group for right in of_topic] if Resource.TOPIC in row.resource else [group]


def is_refused(answer: Command, proved: bool) -> bool:
    told = str(answer.remark)
    if proved:
        return answer.code == ResponseCode.NOT_AUTHORIZED
    assert answer.code != ResponseCode.NOT_AUTHORIZED, told
    if not told.startswith(APACHES_WORDS):
        return False
    assert answer.code == 1, told
    return True


@pytest.mark.parametrize("proved", [True, False], ids=["by our handshake", "signed"])
def test_each_code_is_served_to_who_has_the_right_and_to_nobody_else(
    cluster: LiveCluster, proved: bool
) -> None:
    """Codes that stop or change the cluster among them: what is asked later finds it so."""
    with ExitStack() as stack:
        walk = Walk(cluster, stack)
        wrong = []
        for row in SERVED:
            wanted = needed(row)
            ours_alone = not proved and Asker.FOREIGN not in row.asked_by
            for name, held in HELD.items():
                may = wanted is not None and any(rights <= held for rights in wanted)
                answer = walk.ask(row, name, proved)
                if is_refused(answer, proved) != (ours_alone or not may):
                    wrong.append((row.code.name, name, may, answer.code, answer.remark))
            answer = walk.ask(row, "operator", proved)
            if is_refused(answer, proved) != ours_alone:
                wrong.append((row.code.name, "operator", True, answer.code, answer.remark))
        assert wrong == [] and walk.alive()
        assert len(SERVED) > 80
        assert cluster.brokers[0].status()["draining"] == proved, "a signature does not drain"
        walk.undrain()
        assert walk.stored({}) > 0, "the server goes on"


@pytest.mark.parametrize("party", [Party.BROKER, Party.NAME_SERVER])
def test_oneway_requests_without_the_right_are_dropped_and_noted(
    cluster: LiveCluster, party: Party
) -> None:
    server = cluster.name_server.server if party is Party.NAME_SERVER else cluster.brokers[0]  # type: ignore[union-attr]
    with ExitStack() as stack:
        walk = Walk(cluster, stack)
        commands = [
            walk.command(row) for row in SERVED if row.served_by is party and needed(row) != [set()]
        ]
        client = stack.enter_context(
            RawClient(address_of(cluster, party), credentials(cluster, "powerless", party))
        )
        for number, command in enumerate(commands):
            client.send(replace(command, opaque=number, flag=FLAG_ONEWAY))
        eventually(lambda: refused_of("powerless", server.status()) == len(commands))
        answer = client.ask(Command(Code.QUERY_CONSUME_QUEUE, 9_999))
        assert answer.opaque == 9_999, "nothing else was answered"


def refused_of(name: str, status: dict[str, Any]) -> int:
    return int(status["access"]["refused_accounts"].get(name, 0))
