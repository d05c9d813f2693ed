"""``rmq-ray acl``: what each command asks of the store, what it prints, and that no secret is an
argument or printed twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq_ray.actors.control.account_store import AccountStore
from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.cli.base import context
from rmq_ray.cli.main import main
from rmq_ray.client.admin.admin import Admin
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClientError, ClusterError
from rmq_ray.protocol.access.changes import ChangeAuthor
from rmq_ray.server.security.audit_log import AuditLog
from tests.support.faults.crash_fs import CrashFileSystem

PLAIN_ACL = """
globalWhiteRemoteAddresses:
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  - groupA=DENY
- accessKey: rocketmq2
  secretKey: 12345678
  admin: true
"""


class Discovery(StaticDiscovery):
    """Reaches a store in this process as ``RayDiscovery`` reaches the controller's."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:9876")
        self.away: list[str] = []
        self.store = AccountStore(
            None, lambda: ["broker-a"], self._ask, AuditLog(None, ManualClock()), CrashFileSystem()
        )
        asyncio.run(self.store.round())

    async def _ask(self, name: str, method: str, *_rest: Any) -> Any:
        if name in self.away:
            raise ClusterError("it does not answer")
        return -1 if method == "access_version" else None

    def ask_accounts(self, method: str, *arguments: Any) -> Any:
        asker, store = ChangeAuthor("root@host", 7), self.store
        if method == "change_accounts":
            return asyncio.run(store.change(*arguments, asker))
        if method == "test_account":
            key, action, kind, name = arguments
            return store.test(key, action, [(kind, name)])
        return store.export(asker) if method == "export_accounts" else store.view()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Discovery]:
    discovery = Discovery()
    admin = Admin(discovery)
    monkeypatch.setattr(context.Options, "admin", property(lambda self: admin))
    yield discovery


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["acl", *arguments], input=text)


def told(*arguments: str, text: str | None = None) -> Any:
    result = run(*arguments, "--format", "json", text=text)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_team_gets_its_accounts(cluster: Discovery) -> None:
    made = told("user", "add", "web-shop", "--topic", "orders=PUB")
    secret = made["secret_key"]
    assert cluster.store.rules.accounts["web-shop"].secret_key == secret
    told("grant", "web-shop", "SUB", "--topic", "answers")
    told("grant", "web-shop", "SUB", "--group", "web")
    assert {
        (row["kind"], row["name"], row["right"]) for row in told("list", "--user", "web-shop")
    } == {
        ("topic", "orders", "PUB"),
        ("topic", "answers", "SUB"),
        ("topic", "(any other)", "DENY"),
        ("group", "web", "SUB"),
        ("group", "(any other)", "DENY"),
    }
    assert run("test", "web-shop", "PUB", "--topic", "orders").exit_code == 0
    told("revoke", "web-shop", "--topic", "orders")
    refused = run("test", "web-shop", "PUB", "--topic", "orders")
    assert refused.exit_code == 1 and "may not PUB on topic orders" in refused.stdout
    renewed = told("user", "update", "web-shop", "--new-secret")["secret_key"]
    assert renewed != secret
    for command in (("user", "list"), ("list",), ("export",)):
        assert renewed not in run(*command).output
    assert run("user", "delete", "web-shop", text="n\n").exit_code == 1
    assert run("user", "delete", "web-shop", "-y").exit_code == 0
    assert told("user", "list") == []


def test_secrets_come_from_a_prompt_or_a_file(cluster: Discovery, tmp_path: Path) -> None:
    asked = run("user", "add", "web-shop", "--ask-secret", text="a secret\na secret\n")
    assert asked.exit_code == 0 and "a secret" not in asked.output
    tools = tmp_path / "tools.yml"
    tools.write_text("accessKey: billing\nsecretKey: 'of tools.yml'\n")
    plain = tmp_path / "secret"
    plain.write_text("in a file\n")
    assert run("user", "add", "billing", "--secret-file", str(tools), "--admin").exit_code == 0
    assert run("user", "add", "reports", "--secret-file", str(plain)).exit_code == 0
    assert {key: one.secret_key for key, one in cluster.store.rules.accounts.items()} == {
        "web-shop": "a secret",
        "billing": "of tools.yml",
        "reports": "in a file",
    }


def test_a_plain_acl_file_is_imported_and_exported(cluster: Discovery, tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    assert run("import", str(file)).exit_code == 0
    assert run("test", "RocketMQ", "PUB", "--topic", "topicB").exit_code == 0
    assert run("test", "RocketMQ", "PUB", "--topic", "topicA").exit_code == 1
    assert run("test", "rocketmq2", "ADMIN").exit_code == 0
    assert "12345678" not in run("export").output
    out = tmp_path / "out.yml"
    assert run("export", "--secrets", str(out)).exit_code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert run("export", "--secrets", str(out)).exit_code == 2, "nothing is overwritten"
    before = cluster.store.rules.accounts
    assert run("user", "add", "another").exit_code == 0
    kept = run("import", str(out), text="n\n")
    assert kept.exit_code == 1 and "does not have another" in kept.stderr
    assert run("import", str(out), "-y").exit_code == 0
    assert cluster.store.rules.accounts == before


def test_a_file_with_faults_changes_nothing(cluster: Discovery, tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text("accounts:\n- {accessKey: RocketMQ}\n- {accessKey: x, secretKey: 12345678}\n")
    result = run("import", str(file), "--format", "json")
    assert result.exit_code == 2 and cluster.store.rules.version == 0
    error = json.loads(result.stderr)
    assert error["type"] == "AccessRulesInvalid" and "account 2 (x)" in error["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("grant", "nobody-here", "PUB", "--topic", "orders"),
        ("grant", "nobody-here", "PUB"),
        ("grant", "nobody-here", "EVERYTHING", "--topic", "orders"),
        ("user", "delete", "nobody-here", "-y"),
        ("user", "update", "nobody-here", "--admin"),
        ("user", "add", "short"),
        ("user", "add", "web-shop", "--topic", "orders"),
        ("user", "add", "web-shop", "--topic", "orders=ALL"),
        ("list", "--user", "nobody-here"),
        ("test", "nobody-here", "PUB", "--topic", "orders"),
        ("white", "10.0.0.x"),
        ("white", "10.0.0.*", "--none"),
    ],
)
def test_what_cannot_be_is_wrong_usage(cluster: Discovery, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert cluster.store.rules.version == 0


def test_the_white_list_is_shown_and_replaced(cluster: Discovery) -> None:
    assert told("white") == []
    assert run("white", "10.0.0.*", "192.168.0.1-20").exit_code == 0
    assert [row["address"] for row in told("white")] == ["10.0.0.*", "192.168.0.1-20"]
    assert run("white", "--none").exit_code == 0 and told("white") == []


def test_who_could_not_be_told_is_named(cluster: Discovery) -> None:
    cluster.away.append("broker-a")
    result = run("user", "add", "web-shop")
    assert result.exit_code == 0
    assert "broker-a does not know it yet" in result.stderr


def test_a_process_without_ray_is_told_where_accounts_are_administered() -> None:
    with pytest.raises(ClientError, match="rmq-ray acl"):
        Admin(StaticDiscovery("127.0.0.1:9876")).acl.users()
