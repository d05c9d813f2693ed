"""What one broker or name server knows of the cluster's accounts: the rules that the controller
told it last, and their copy on its disk, so that it serves with them after a restart without a
controller.

Decides: that older rules never replace newer ones, and when the copy is written. Does not decide
what rules mean. Invariants: rules hold from the moment in which they are told, also where the disk
does not take the copy, which is tried again with each telling; without any rules nobody has an
account. One loop calls everything but ``_write``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Set
from typing import Any

from rmq_ray.errors import RmqError
from rmq_ray.files import FileSystem
from rmq_ray.protocol.access.changes import AccountChange, ChangeAuthor, checked
from rmq_ray.protocol.access.decision import Action, check
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.server.security.rules_file import ACCESS_FILE, RulesFile

log = logging.getLogger("rmq_ray.server.security")
NONE_YET = -1
OnNarrowed = Callable[[Set[str]], None]
"""Accounts that are gone, or hold less than they did: their access keys. On the loop."""
ChangeRules = Callable[[AccountChange, ChangeAuthor], Awaitable[object]]


class AccessCopy:
    """``directory``: where the copy lies, ``""`` = nowhere; it may come later, as a store's does.
    ``rules`` is None before any were told. ``on_narrowed``: hears whose connections are to end;
    None = each request is judged alone. ``change_rules``: makes a change for the whole cluster;
    None = there is no controller, and this copy is all there is.
    """

    def __init__(self, cluster: str, directory: str, files: FileSystem) -> None:
        self._cluster = cluster
        self._directory = directory
        self._files = files
        self._file = RulesFile(f"{directory}/{ACCESS_FILE}", files) if directory else None
        self._writing = asyncio.Lock()
        self._unsaved = ""
        self._keys: dict[str, bytes] = {}
        self.rules: AccessRules | None = None
        self.change_rules: ChangeRules | None = None
        self.on_narrowed: OnNarrowed | None = None

    @property
    def version(self) -> int:
        """Of the rules; -1 before any were told, and while their copy is not on disk: the
        controller tells them again then.
        """
        return NONE_YET if self.rules is None or self._unsaved else self.rules.version

    def load(self) -> None:
        """Read the copy; one that cannot be read is as none."""
        if self._file is None:
            return
        try:
            found = self._file.read()
        except RmqError as error:
            log.error("the copy of the accounts was not read: %s", error)
            self._unsaved = str(error)
            return
        if found is not None:
            self._hold(found)

    async def take(self, rules: AccessRules) -> None:
        """From the controller; in force on return."""
        if self.rules is not None and rules.version < self.rules.version:
            return
        self._hold(rules)
        async with self._writing:
            await asyncio.to_thread(self._write)

    async def change(self, change: AccountChange, author: ChangeAuthor) -> None:
        """In force here on return, and wherever else the controller tells it. ``ConfigError`` for
        what cannot be, ``NotAuthorized`` for an author that is no administrator, and what the
        controller raises: nothing has changed then.
        """
        if self.change_rules is not None:
            await self.change_rules(change, author)
            return
        rules = self.rules or AccessRules()
        if not author.member:
            check(rules, rules.find(author.account), Action.ADMIN, ())
        await self.take(checked(change.on(rules)))

    def key_of(self, access_key: str) -> bytes | None:
        """What the connections of this account prove (``remoting.handshake.AccountKey``)."""
        return self._keys.get(access_key)

    def status(self) -> dict[str, Any]:
        """Version and number of accounts; ``unsaved``: why there is no copy on disk."""
        rules = self.rules
        found: dict[str, Any] = {
            "version": NONE_YET if rules is None else rules.version,
            "accounts": 0 if rules is None else len(rules.accounts),
        }
        return found | ({"unsaved": self._unsaved} if self._unsaved else {})

    def _hold(self, rules: AccessRules) -> None:
        cluster = self._cluster
        self._keys = {key: one.handshake_key(cluster) for key, one in rules.accounts.items()}
        before, self.rules = self.rules, rules
        if before is not None and self.on_narrowed is not None:
            self.on_narrowed(before.narrowed(rules))

    def _write(self) -> None:
        rules = self.rules
        if self._file is None or rules is None:
            return
        try:
            if not self._files.is_dir(self._directory):
                self._unsaved = f"{self._directory} is not made yet"
                return
            self._file.write(rules)
        except RmqError as error:
            if not self._unsaved:
                log.error("the copy of the accounts is not on disk: %s", error)
            self._unsaved = str(error)
            return
        self._unsaved = ""
