"""The one store of a cluster's accounts: what survives a crash, who is told, what a fault leaves
as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.actors.control.account_store import AccountStore
from rmq_ray.clock import ManualClock
from rmq_ray.errors import (
    AccessRulesInvalid,
    ClusterError,
    ConfigError,
    NotAuthorized,
    StoreFailed,
)
from rmq_ray.files import FileSystem
from rmq_ray.protocol.access.accounts import Account, ResourceKind, Right
from rmq_ray.protocol.access.changes import (
    ChangeAuthor,
    DropAccount,
    GrantRight,
    PutAccount,
    ReplaceAll,
)
from rmq_ray.protocol.access.decision import Action
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.server.security.audit_log import AuditLog, AuditQuestion
from rmq_ray.server.security.rules_file import RulesFile
from tests.support.faults.crash_fs import CrashFileSystem, keep_none

HOME = "/data/accounts"
ME = ChangeAuthor("root@host", 4711)
SECRET = "a-secret-of-web"
WEB = PutAccount("web-shop", SECRET, topics={"orders": Right.PUB})


class Members:
    """Brokers and name servers: what each was told, and which are away."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.rules: dict[str, AccessRules | None] = dict.fromkeys(names)
        self.away: set[str] = set()
        self.calls: list[tuple[str, str]] = []

    async def ask(self, name: str, method: str, arguments: Sequence[Any], timeout_s: float) -> Any:
        self.calls.append((name, method))
        if name in self.away:
            raise ClusterError(f"{name} does not answer")
        known = self.rules[name]
        if method == "set_access_rules":
            self.rules[name] = arguments[0]
            return None
        return known if method == "access_rules" else -1 if known is None else known.version

    def restart(self, name: str) -> None:
        """It comes back without a disk."""
        self.rules[name] = None
        self.away.discard(name)


class Rig:
    """A store over a disk in memory; ``again`` is the controller's next life."""

    def __init__(
        self,
        members: Members | None = None,
        disk: FileSystem | None = None,
        watched: str | None = None,
        home: str = HOME,
    ) -> None:
        self.disk = disk or CrashFileSystem()
        self.members = members or Members("broker-a", "name-server-0")
        self.audit = AuditLog(None, ManualClock())
        self.store = AccountStore(
            home, lambda: self.members.names, self.members.ask, self.audit, self.disk, watched
        )

    async def ready(self) -> AccountStore:
        await self.store.open()
        await self.store.round()
        return self.store

    def again(self, disk: FileSystem | None = None, **changed: Any) -> Rig:
        return Rig(self.members, disk or self.disk, **changed)

    def lines(self) -> list[dict[str, Any]]:
        return self.audit.newest(AuditQuestion())


def test_a_change_reaches_every_member_and_the_disk() -> None:
    async def run() -> None:
        rig = Rig()
        store = await rig.ready()
        made = await store.change(WEB, ME)
        assert made["untold"] == {} and made["after"]["web-shop"]["topicPerms"] == ["orders=PUB"]
        for rules in rig.members.rules.values():
            assert rules is not None and rules.find("web-shop") is not None
        assert SECRET not in str(made) + str(store.view()) + repr(WEB) + str(rig.lines())
        later = rig.again(rig.disk.survivor(keep_none))  # type: ignore[attr-defined]
        assert (await later.ready()).rules == store.rules

    asyncio.run(run())


def test_a_secret_is_generated_and_told_once() -> None:
    async def run() -> None:
        store = await Rig().ready()
        made = await store.change(PutAccount("web-shop", new=True), ME)
        account = store.rules.find("web-shop")
        assert account is not None and account.secret_key == made["secret_key"]
        assert len(made["secret_key"]) >= 32
        again = await store.change(PutAccount("web-shop", admin=True), ME)
        assert "secret_key" not in again
        renewed = await store.change(PutAccount("web-shop", "", new=False), ME)
        assert renewed["secret_key"] == store.rules.accounts["web-shop"].secret_key
        assert renewed["secret_key"] != made["secret_key"]

    asyncio.run(run())


@pytest.mark.parametrize("action", ["open", "pwrite", "datasync", "rename"])
def test_a_disk_that_fails_leaves_the_old_accounts(action: str) -> None:
    """Also the next controller finds them: the new file was never in the old one's place."""

    async def run() -> None:
        rig = Rig()
        store = await rig.ready()
        await store.change(WEB, ME)
        assert isinstance(rig.disk, CrashFileSystem)
        rig.disk.fail_next(action, "access.rules")
        with pytest.raises(StoreFailed):
            await store.change(DropAccount("web-shop"), ME)
        assert store.rules.find("web-shop") is not None
        assert rig.members.rules["broker-a"] == store.rules
        assert rig.lines()[-1]["event"] == "failed"
        later = await rig.again(rig.disk.survivor(keep_none)).ready()
        assert later.rules.find("web-shop") is not None

    asyncio.run(run())


def test_a_power_loss_between_write_and_rename_leaves_the_old_accounts() -> None:
    async def run() -> None:
        rig = Rig()
        store = await rig.ready()
        await store.change(WEB, ME)
        assert isinstance(rig.disk, CrashFileSystem)
        file = RulesFile(f"{HOME}/access.rules", rig.disk)
        rig.disk.fail_next("rename", "access.rules")
        with pytest.raises(StoreFailed):
            file.write(store.rules.without("web-shop"))
        for kept in (rig.disk.survivor(keep_none), rig.disk.after_kill()):
            assert (await rig.again(kept).ready()).rules == store.rules

    asyncio.run(run())


def test_the_highest_version_counts_wherever_it_is_found() -> None:
    """The controller's disk is lost, and one member missed the last change."""

    async def run() -> None:
        rig = Rig()
        store = await rig.ready()
        await store.change(WEB, ME)
        rig.members.away.add("name-server-0")
        made = await store.change(GrantRight("web-shop", ResourceKind.TOPIC, "t", Right.SUB), ME)
        assert list(made["untold"]) == ["name-server-0"]
        assert list(store.status()["untold"]) == ["name-server-0"]
        rig.members.away.clear()
        later = await rig.again(CrashFileSystem()).ready()
        assert later.rules == store.rules
        assert all(rules == store.rules for rules in rig.members.rules.values())

    asyncio.run(run())


def test_no_change_before_it_is_known_which_accounts_there_were() -> None:
    """Else a controller that lost its disk would replace all accounts by one."""

    async def run() -> None:
        rig = Rig()
        await (await rig.ready()).change(WEB, ME)
        rig.members.away.add("broker-a")
        rig.members.rules["name-server-0"] = None
        store = await rig.again(CrashFileSystem()).ready()
        with pytest.raises(ClusterError, match="not known yet .* broker-a did not answer"):
            await store.change(PutAccount("another", "12345678"), ME)
        rig.members.away.clear()
        await store.change(PutAccount("another", "12345678"), ME)
        assert set(store.rules.accounts) == {"web-shop", "another"}

    asyncio.run(run())


def test_who_comes_back_is_told_again() -> None:
    async def run() -> None:
        rig = Rig()
        store = await rig.ready()
        await store.change(WEB, ME)
        rig.members.restart("broker-a")
        await store.round()
        assert rig.members.rules["broker-a"] == store.rules
        rig.members.calls.clear()
        await store.round()
        assert {method for _, method in rig.members.calls} == {"access_version"}

    asyncio.run(run())


def test_a_fault_in_an_imported_file_changes_nothing_and_all_faults_are_told() -> None:
    async def run() -> None:
        rig = Rig()
        store = await rig.ready()
        await store.change(WEB, ME)
        wrong = {"accounts": [{"accessKey": "short"}, {"accessKey": "web-shop", "secretKye": "x"}]}
        with pytest.raises(AccessRulesInvalid) as caught:
            await store.change(ReplaceAll(wrong, "plain_acl.yml"), ME)
        assert len(caught.value.faults) >= 2
        assert list(store.rules.accounts) == ["web-shop"] and store.rules.version == 1
        assert rig.lines()[-1]["event"] == "failed"
        assert "plain_acl.yml" in rig.lines()[-1]["reason"]

    asyncio.run(run())


def test_a_damaged_file_of_the_controller_is_replaced_by_what_members_know() -> None:
    async def run() -> None:
        rig = Rig()
        store = await rig.ready()
        await store.change(WEB, ME)
        assert isinstance(rig.disk, CrashFileSystem)
        rig.disk.flip(f"{HOME}/access.rules", 10)
        rig.members.away.add("broker-a")
        later = rig.again()
        await later.store.open()
        assert later.store.status()["state"].startswith("faulty: ")
        with pytest.raises(ClusterError, match="not known yet"):
            await later.store.change(DropAccount("web-shop"), ME)
        rig.members.away.clear()
        await later.store.round()
        assert later.store.rules == store.rules
        assert later.store.status()["state"] == "serving"

    asyncio.run(run())


def test_the_file_is_private(tmp_path: Path) -> None:
    async def run() -> None:
        home = tmp_path / "accounts"
        home.mkdir()
        (home / "access.rules.tmp").write_bytes(b"left, and readable for all")
        store = await Rig(disk=FileSystem(), home=str(home)).ready()
        await store.change(WEB, ME)
        assert (home / "access.rules").stat().st_mode & 0o777 == 0o600
        assert [path.name for path in home.iterdir()] == ["access.rules"]

    asyncio.run(run())


def test_a_watched_file_is_what_counts_and_its_faults_are_told(tmp_path: Path) -> None:
    """Read at start and when it changes; the old accounts stay while it has a fault."""

    async def run() -> None:
        path = tmp_path / "plain_acl.yml"
        good = "accounts:\n- {accessKey: RocketMQ, secretKey: 12345678, admin: true}\n"
        path.write_text(good)
        rig = Rig(disk=FileSystem(), watched=str(path), home=str(tmp_path / "home"))
        store = await rig.ready()
        assert list(store.rules.accounts) == ["RocketMQ"]
        assert rig.members.rules["broker-a"] == store.rules
        with pytest.raises(ConfigError, match="change that file"):
            await store.change(WEB, ME)
        before = len(rig.lines())
        path.write_text(good + "- {accessKey: nobody}\n")
        await store.round()
        await store.round()
        assert list(store.rules.accounts) == ["RocketMQ"]
        assert "plain_acl.yml" in store.status()["state"]
        assert [line["event"] for line in rig.lines()[before:]] == ["failed"]
        path.unlink()
        await store.round()
        assert list(store.rules.accounts) == ["RocketMQ"]
        path.write_text(good + "- {accessKey: web-shop, secretKey: 'another one'}\n")
        await store.round()
        assert list(store.rules.accounts) == ["RocketMQ", "web-shop"]
        assert store.status()["state"] == "serving"
        assert rig.members.rules["name-server-0"] == store.rules
        version = store.rules.version
        later = await rig.again(watched=str(path), home=str(tmp_path / "home")).ready()
        assert later.rules.version == version, "the same file is no change"

    asyncio.run(run())


def test_what_an_account_may_is_told_with_the_reason() -> None:
    async def run() -> None:
        store = await Rig().ready()
        await store.change(WEB, ME)
        orders, bills = [(ResourceKind.TOPIC, "orders")], [(ResourceKind.TOPIC, "bills")]
        assert store.test("web-shop", Action.PUB, orders) == (True, "")
        allowed, why = store.test("web-shop", Action.PUB, bills)
        assert not allowed and "bills" in why
        with pytest.raises(ConfigError, match="no account 'nobody-here'"):
            store.test("nobody-here", Action.PUB, orders)

    asyncio.run(run())


def test_a_right_that_could_not_be_read_again_is_refused() -> None:
    """``=`` in a name would make the file unreadable at the next start."""

    async def run() -> None:
        store = await Rig().ready()
        await store.change(PutAccount("web-shop", SECRET), ME)
        with pytest.raises(AccessRulesInvalid):
            await store.change(GrantRight("web-shop", ResourceKind.GROUP, "a=b", Right.SUB), ME)
        assert store.rules.accounts["web-shop"] == Account("web-shop", SECRET)

    asyncio.run(run())


def test_an_account_changes_accounts_only_as_an_administrator() -> None:
    async def run() -> None:
        rig = Rig()
        store = await rig.ready()
        await store.change(WEB, ME)
        await store.change(PutAccount("operators", SECRET, admin=True), ME)
        web = ChangeAuthor("root@host", 1, "web-shop", member=False)
        with pytest.raises(NotAuthorized):
            await store.change(DropAccount("operators"), web)
        with pytest.raises(NotAuthorized):
            store.export(web)
        assert "operators" in store.rules.accounts
        assert rig.lines()[-1]["account"] == "web-shop" and rig.lines()[-1]["event"] == "failed"
        await store.change(DropAccount("web-shop"), ChangeAuthor("h", 1, "operators", False))

    asyncio.run(run())
