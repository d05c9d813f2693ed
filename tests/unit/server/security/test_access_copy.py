"""What a broker or name server keeps of the accounts, with and without its disk."""

from __future__ import annotations

import asyncio

from rmq_ray.protocol.access.accounts import Account
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.server.security.access_copy import AccessCopy
from tests.support.faults.crash_fs import CrashFileSystem, keep_none

HOME = "/store/rmq_ray"
WEB = Account("web-shop", "12345678")
RULES = AccessRules().with_account(WEB)
NEWER = RULES.without("web-shop")


def copy_on(disk: CrashFileSystem) -> AccessCopy:
    return AccessCopy("default", HOME, disk)


def test_rules_are_there_again_after_a_power_loss() -> None:
    async def run() -> None:
        disk = CrashFileSystem()
        disk.make_dirs(HOME)
        copy = copy_on(disk)
        copy.load()
        assert copy.version == -1 and copy.key_of("web-shop") is None
        await copy.take(RULES)
        assert copy.key_of("web-shop") == WEB.handshake_key("default")
        again = copy_on(disk.survivor(keep_none))
        again.load()
        assert again.rules == RULES and again.version == 1

    asyncio.run(run())


def test_older_rules_never_replace_newer_ones() -> None:
    async def run() -> None:
        disk = CrashFileSystem()
        disk.make_dirs(HOME)
        copy = copy_on(disk)
        await copy.take(NEWER)
        await copy.take(RULES)
        assert copy.rules == NEWER and copy.key_of("web-shop") is None

    asyncio.run(run())


def test_rules_hold_while_the_disk_fails_and_are_asked_for_again() -> None:
    """Also while the directory of a new store is not made yet."""

    async def run() -> None:
        disk = CrashFileSystem()
        copy = copy_on(disk)
        await copy.take(RULES)
        assert copy.rules == RULES and copy.version == -1
        assert "not made yet" in copy.status()["unsaved"]
        disk.make_dirs(HOME)
        disk.fail_next("pwrite", "access.rules", "ENOSPC")
        await copy.take(RULES)
        assert copy.rules == RULES and copy.version == -1
        await copy.take(RULES)
        assert copy.status() == {"version": 1, "accounts": 1}

    asyncio.run(run())


def test_a_damaged_copy_is_as_none() -> None:
    async def run() -> None:
        disk = CrashFileSystem()
        disk.make_dirs(HOME)
        await copy_on(disk).take(RULES)
        disk.flip(f"{HOME}/access.rules", 5)
        copy = copy_on(disk)
        copy.load()
        assert copy.rules is None and copy.version == -1
        await copy.take(RULES)
        assert copy.version == 1

    asyncio.run(run())
