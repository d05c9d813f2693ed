"""Accounts changed and shown by RocketMQ's requests 50 to 54, as mqadmin sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import ConfigError
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.changes import AccountChange, ChangeAuthor
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.protocol.access.signature import ACCESS_KEY, SIGNATURE, sign
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.security.access_guard import APACHES_WORDS
from rmq_ray.server.security.audit_log import AuditQuestion
from tests.support.brokers.live_cluster import LiveCluster

SECRET, NEW = "the secret of all", "the new one's secret"
RULES = AccessRules(
    {
        one.access_key: one
        for one in (Account("operator", SECRET, admin=True), Account("web-shop", SECRET))
    },
    version=1,
)
PUT, DROP, WHITE = (
    Code.UPDATE_AND_CREATE_ACL_CONFIG,
    Code.DELETE_ACL_CONFIG,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
)
SHOW, VERSION = Code.GET_BROKER_CLUSTER_ACL_CONFIG, Code.GET_BROKER_CLUSTER_ACL_INFO
WAIT_MS = 20_000

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, rules=RULES) as running:
        yield running


class Tool:
    """A connection as mqadmin makes it: without our handshake, each request signed."""

    def __init__(self, cluster: LiveCluster) -> None:
        address = cluster.brokers[0].address
        assert address is not None
        self._connection = Connection(address, None, RemotingLimits(), SYSTEM_CLOCK)

    def ask(self, code: Code, key: str = "operator", secret: str = SECRET, **given: str) -> Command:
        fields = {**given, ACCESS_KEY: key}
        fields[SIGNATURE] = sign(fields, b"", secret)
        return self._connection.request(Command(code, fields=fields), WAIT_MS)

    def unsigned(self, code: Code, **given: str) -> Command:
        return self._connection.request(Command(code, fields=given), WAIT_MS)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def tool(cluster: LiveCluster) -> Iterator[Tool]:
    made = Tool(cluster)
    yield made
    made.close()


def rules_of(cluster: LiveCluster) -> AccessRules:
    rules = cluster.brokers[0].access.rules
    assert rules is not None
    return rules


def test_an_account_is_made_changed_shown_and_deleted(cluster: LiveCluster, tool: Tool) -> None:
    made = tool.ask(
        PUT,
        accessKey="billing",
        secretKey=NEW,
        admin="false",
        defaultTopicPerm="SUB",
        topicPerms="orders=PUB|SUB,payroll=DENY",
        groupPerms="bills=SUB",
    )
    assert (made.code, made.remark) == (0, None)
    account = rules_of(cluster).find("billing")
    assert account is not None and account.secret_key == NEW
    assert account.topics == {"orders": Right.PUB | Right.SUB, "payroll": Right.NONE}
    bounds = tool.ask(Code.GET_MAX_OFFSET, "billing", NEW, topic="orders", queueId="0")
    assert "AclException" not in str(bounds.remark), "it is an account from now on"

    assert tool.ask(PUT, accessKey="billing", defaultGroupPerm="SUB").code == 0
    changed = rules_of(cluster).find("billing")
    assert changed is not None and changed.default_group is Right.SUB
    assert changed.secret_key == NEW and changed.topics == account.topics, "the rest stays"

    shown = tool.ask(SHOW)
    told = json.loads(shown.body_bytes())
    assert {one["accessKey"] for one in told["plainAccessConfigs"]} == {
        "operator",
        "web-shop",
        "billing",
    }
    assert {one["secretKey"] for one in told["plainAccessConfigs"]} == {"******"}
    assert SECRET.encode() not in shown.body_bytes() and NEW.encode() not in shown.body_bytes()
    fields = tool.ask(VERSION).fields or {}
    assert json.loads(fields["version"])["counter"] == rules_of(cluster).version == 3
    assert fields["brokerName"] and fields["clusterName"] and fields["allAclFileVersion"]

    lines = cluster.brokers[0].audit.newest(AuditQuestion())
    assert [one["request"] for one in lines].count(PUT.name) == 2, "each change is noted"
    assert SECRET not in str(lines) and NEW not in str(lines)

    assert tool.ask(DROP, accessKey="billing").code == 0
    assert rules_of(cluster).find("billing") is None
    gone = tool.ask(Code.GET_MAX_OFFSET, "billing", NEW, topic="orders", queueId="0")
    assert gone.code == 1 and "No acl config for billing" in str(gone.remark)


@pytest.mark.parametrize(
    ("code", "given", "answer", "words"),
    [
        (PUT, {"accessKey": "billing"}, 209, "give secretKey"),
        (PUT, {"secretKey": NEW}, 209, "'accessKey' is missing"),
        (PUT, {"accessKey": "billing", "secretKey": "short"}, 209, "7 to 255"),
        (PUT, {"accessKey": "web-shop", "admin": "perhaps"}, 209, "true or false"),
        (PUT, {"accessKey": "web-shop", "topicPerms": "orders"}, 209, "name=PUB|SUB"),
        (PUT, {"accessKey": "web-shop", "topicPerms": "orders=ALL"}, 209, "is no right"),
        (PUT, {"accessKey": "web-shop", "whiteRemoteAddress": "ten"}, 209, "cannot be read"),
        (DROP, {"accessKey": "nobody-at-all"}, 210, "there is no account"),
        (DROP, {}, 210, "'accessKey' is missing"),
        (WHITE, {"globalWhiteAddrs": "10.0.0.300"}, 211, "cannot be read"),
        (WHITE, {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/x"}, 211, "no file"),
    ],
)
def test_a_change_with_a_fault_says_so_and_changes_nothing(
    cluster: LiveCluster, tool: Tool, code: Code, given: dict[str, str], answer: int, words: str
) -> None:
    told = tool.ask(code, **given)
    assert told.code == answer and words in str(told.remark)
    assert rules_of(cluster) == RULES


def test_who_is_no_administrator_neither_changes_nor_sees_accounts(
    cluster: LiveCluster, tool: Tool
) -> None:
    for code in (PUT, DROP, WHITE, SHOW, VERSION):
        for told in (
            tool.ask(code, "web-shop", accessKey="web-shop", admin="true", globalWhiteAddrs="*"),
            tool.ask(code, secret=NEW, accessKey="web-shop", globalWhiteAddrs="*"),
            tool.unsigned(code, accessKey="web-shop", globalWhiteAddrs="*"),
        ):
            assert told.code == 1 and str(told.remark).startswith(APACHES_WORDS), code
            assert not told.body_bytes()
    assert rules_of(cluster) == RULES


def test_an_address_alone_changes_no_accounts(cluster: LiveCluster, tool: Tool) -> None:
    assert tool.ask(WHITE, globalWhiteAddrs="127.0.0.{1,2},::1").code == 0
    assert rules_of(cluster).needs_no_account("127.0.0.1")
    before = rules_of(cluster)
    told = tool.unsigned(PUT, accessKey="intruder", secretKey=NEW, admin="true")
    assert told.code == 1 and "No accessKey is configured" in str(told.remark)
    assert tool.ask(PUT, "web-shop", accessKey="web-shop", admin="true").code == 1
    assert rules_of(cluster) == before
    assert tool.ask(WHITE, globalWhiteAddrs="").code == 0
    assert not rules_of(cluster).white_addresses


def test_with_a_controller_it_makes_the_change(cluster: LiveCluster, tool: Tool) -> None:
    asked: list[tuple[AccountChange, ChangeAuthor]] = []

    async def controller(change: AccountChange, author: ChangeAuthor) -> None:
        asked.append((change, author))
        raise ConfigError("the accounts are those of a file")

    cluster.brokers[0].access.change_rules = controller
    told = tool.ask(DROP, accessKey="web-shop")
    assert (told.code, told.remark) == (210, "the accounts are those of a file")
    ((change, author),) = asked
    assert change.accounts == ("web-shop",)
    assert author.account == "operator" and not author.member
    assert rules_of(cluster) == RULES
