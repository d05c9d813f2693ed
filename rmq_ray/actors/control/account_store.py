"""The one store of a cluster's accounts: the controller keeps them and tells every broker, slave
and name server.

    change ─> checked as a whole ─> access.rules on disk ─> this store ─> every member's actor
    watched file, when it changes ─^                          ^─ a member that knows newer ones

Decides: which rules hold, that a change with a fault changes nothing, who has to be told again.
Does not decide what rules mean (``protocol.access``), nor how a member checks them.

Invariants: rules have a version that grows; whoever has the highest is right, so that accounts
survive the loss of the controller's disk. No change is made before it is known which accounts there
were: own file, or every member's answer. A change is on disk before anybody hears of it. Members
that could not be told are told again in each round, as are those that come back; none of them is
waited for. Secrets are in no answer but in that of ``export``, and where one was generated.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rmq_ray.errors import ClusterError, ConfigError, NotAuthorized, RmqError, StoreError
from rmq_ray.files import FileSystem
from rmq_ray.protocol.access.accounts import ResourceKind
from rmq_ray.protocol.access.changes import (
    AccountChange,
    ChangeAuthor,
    PutAccount,
    ReplaceAll,
    checked,
    differences,
    same,
)
from rmq_ray.protocol.access.decision import Action, check
from rmq_ray.protocol.access.rules import AccessRules, to_plain_acl
from rmq_ray.server.security.audit_log import AuditLog
from rmq_ray.server.security.rules_file import ACCESS_FILE, RulesFile
from rmq_ray.topology.yaml_text import read_yaml

log = logging.getLogger("rmq_ray.controller")
ROUND_S = 1.0
CALL_S = 1.0
SECRET_BYTES = 24
PARTY = "controller"
AskMember = Callable[[str, str, tuple[Any, ...], float], Awaitable[Any]]
"""(actor, method, arguments, time-out in s) -> its answer; ``RmqError`` where there is none."""


@dataclass(slots=True)
class WatchedFile:
    """A ``plain_acl.yml`` that is the source of all accounts. ``fault``: what is wrong with it now,
    ``""`` = nothing.
    """

    path: str
    files: FileSystem
    fault: str = ""
    change: ReplaceAll | None = None
    _seen: tuple[int, int] | None = field(default=None, repr=False)

    def look(self) -> bool:
        """Whether it was read anew. A fault in it, or of the disk, is kept in ``fault``."""
        try:
            seen = (self.files.modified_ms(self.path), self.files.file_size(self.path))
            if seen == self._seen:
                return False
            self._seen = seen
            change = ReplaceAll(read_yaml(self.files.read_whole(self.path), self.path), self.path)
            change.on(AccessRules())
        except RmqError as error:
            if isinstance(error, StoreError):
                self._seen = None
            is_new = self.fault != str(error)
            self.fault = str(error)
            return is_new
        self.change, self.fault = change, ""
        return True


class AccountStore:
    """The rules of one cluster. ``directory``: where they are kept, None = with the members only.
    ``members``: actors that must know them; ``ask`` calls one of them. ``watched``: path of the
    file that they come from; changes are refused then.
    """

    def __init__(
        self,
        directory: str | None,
        members: Callable[[], Sequence[str]],
        ask: AskMember,
        audit: AuditLog,
        files: FileSystem,
        watched: str | None = None,
    ) -> None:
        self._directory = directory
        self._file = RulesFile(f"{directory}/{ACCESS_FILE}", files) if directory else None
        self._members = members
        self._ask = ask
        self._audit = audit
        self._files = files
        self._watched = WatchedFile(watched, files) if watched else None
        self._changing = asyncio.Lock()
        self._settled = False
        self._fault = ""
        self._told: dict[str, int] = {}
        self._untold: dict[str, str] = {}
        self.rules = AccessRules()

    async def open(self) -> None:
        """Read what was kept. A file that cannot be read is as if there were none: what members
        know counts.
        """
        if self._file is None:
            return
        async with self._changing:
            try:
                found = await asyncio.to_thread(self._file.read)
            except RmqError as error:
                log.error("the accounts were not read: %s", error)
                self._fault = str(error)
                return
            if found is not None:
                self.rules, self._settled = found, True

    async def run(self) -> None:
        """Look after the members and the file until the controller ends."""
        await self.open()
        while True:
            await self.round()
            await asyncio.sleep(ROUND_S)

    async def round(self) -> None:
        """One look at the file and at every member."""
        found = await self._hear_and_tell()
        async with self._changing:
            await self._adopt(found)
            await self._settle()
            await self._follow_file()
        await self._hear_and_tell(only_behind=True)

    # --- what others ask for ----------------------------------------------------------------------

    async def change(self, change: AccountChange, author: ChangeAuthor) -> dict[str, Any]:
        """Make it hold for the whole cluster, on disk and at every member that answers. Returns
        ``version``, ``before`` and ``after`` of what differs, ``untold`` (member -> why not yet),
        and ``secret_key`` where one was generated.

        ``ConfigError`` for what cannot be, ``ClusterError`` where it is not known yet which
        accounts there were, ``StoreError`` where the disk does not take it, ``NotAuthorized`` for
        an account that is no administrator: nothing has changed then.
        """
        secret = ""
        async with self._changing:
            old = self.rules
            try:
                self._must_be_administrator(author)
                if self._watched is not None:
                    raise ConfigError(
                        f"the accounts of this cluster are what {self._watched.path} says: change "
                        f"that file, it is read again at once",
                        self._watched.path,
                    )
                await self._must_be_settled()
                old = self.rules
                change, secret = self._with_secret(change, old)
                new = checked(change.on(old))
                await self._keep(new)
            except RmqError as error:
                self._note(change, author, old, old, str(error))
                raise
            before, after = self._note(change, author, old, new)
        await self._hear_and_tell()
        made = {"version": new.version, "before": before, "after": after, "untold": self.untold()}
        return made | ({"secret_key": secret} if secret else {})

    def view(self) -> dict[str, Any]:
        """The members of a ``plain_acl.yml``, without secrets."""
        return to_plain_acl(self.rules, secrets=False)

    def export(self, author: ChangeAuthor) -> dict[str, Any]:
        """The same with secrets, which is noted. ``NotAuthorized`` for an account that is no
        administrator.
        """
        self._must_be_administrator(author)
        self._audit.changed(PARTY, author, None, [("accounts", "all")], new={"did": "export"})
        return to_plain_acl(self.rules, secrets=True)

    def test(
        self, access_key: str, action: Action, touched: Sequence[tuple[ResourceKind, str]]
    ) -> tuple[bool, str]:
        """(whether this account may, why not). ``ConfigError`` where there is no such account."""
        account = self.rules.find(access_key)
        if account is None:
            raise ConfigError(f"there is no account {access_key!r:.80}", access_key[:80])
        try:
            check(self.rules, account, action, touched)
        except NotAuthorized as error:
            return False, error.message
        return True, ""

    def untold(self) -> dict[str, str]:
        """Members that do not have these rules yet -> why."""
        return {
            name: self._untold.get(name, "not asked yet")
            for name in self._members()
            if self._told.get(name) != self.rules.version
        }

    def status(self) -> dict[str, Any]:
        """How many accounts, who does not know them, and what is wrong with them."""
        fault = (self._watched.fault if self._watched else "") or self._fault
        found: dict[str, Any] = {
            "state": f"faulty: {fault}" if fault else "serving",
            "version": self.rules.version,
            "accounts": len(self.rules.accounts),
            "white_addresses": len(self.rules.white_addresses),
            "untold": self.untold(),
        }
        if self._watched is not None:
            found["file"] = self._watched.path
        return found

    # --- parts ------------------------------------------------------------------------------------

    def _must_be_administrator(self, author: ChangeAuthor) -> None:
        """Members are; of who came as an account its rights count."""
        if not author.member:
            check(self.rules, self.rules.find(author.account), Action.ADMIN, ())

    def _with_secret(self, change: AccountChange, rules: AccessRules) -> tuple[AccountChange, str]:
        """(the change, the secret that was generated): a new account that gives none gets one, and
        who asks for one (``""``).
        """
        if not isinstance(change, PutAccount):
            return change, ""
        is_new = change.access_key not in rules.accounts and change.new is not False
        if change.secret_key or (change.secret_key is None and not is_new):
            return change, ""
        made = urlsafe_b64encode(self._files.random_bytes(SECRET_BYTES)).decode()
        return replace(change, secret_key=made), made

    async def _keep(self, new: AccessRules) -> None:
        """On disk first, then here."""
        if self._file is not None:
            await asyncio.to_thread(self._write, self._file, new)
            self._fault = ""
        self.rules = new

    def _write(self, file: RulesFile, rules: AccessRules) -> None:
        self._files.make_dirs(str(self._directory))
        file.write(rules)

    async def _must_be_settled(self) -> None:
        if self._settled:
            return
        await self._adopt(await self._hear_and_tell())
        await self._settle()
        if not self._settled:
            silent = ", ".join(name for name in self._members() if name not in self._told)
            raise ClusterError(
                f"it is not known yet which accounts there were: {silent or 'no member'} did not "
                f"answer, and there is no copy here; start what is stopped, then try again",
                silent,
            )

    async def _settle(self) -> None:
        """Once every member was heard, what the newest of them knows is all there was."""
        members = self._members()
        if self._settled or not members or any(name not in self._told for name in members):
            return
        self._settled = True
        await self._keep_if_possible(self.rules)

    async def _keep_if_possible(self, rules: AccessRules) -> None:
        """For rules that hold already, at the members or in the watched file."""
        self.rules = rules
        try:
            await self._keep(rules)
        except RmqError as error:
            if self._fault != str(error):
                log.error("the accounts are not on the controller's disk: %s", error)
            self._fault = str(error)

    async def _follow_file(self) -> None:
        """Where the file says something else than the rules that hold, it counts."""
        file = self._watched
        if file is None:
            return
        author = ChangeAuthor(file.path)
        if await asyncio.to_thread(file.look) and file.fault:
            log.error("the old accounts stay: %s", file.fault)
            self._audit.changed(
                PARTY, author, None, [("accounts", "all")], outcome=f"the old stay: {file.fault}"
            )
        if file.change is None or not self._settled:
            return
        old, new = self.rules, file.change.on(self.rules)
        if not same(old, new):
            await self._keep_if_possible(new)
            self._note(file.change, author, old, new)

    async def _hear_and_tell(self, *, only_behind: bool = False) -> AccessRules:
        """Ask every member which rules it has and give it ours; the newest that any of them had."""
        asked = [
            name
            for name in self._members()
            if not only_behind or self._told.get(name) != self.rules.version
        ]
        heard = await asyncio.gather(*(self._newest_at(name) for name in asked))
        return max(heard, key=lambda rules: rules.version, default=self.rules)

    async def _adopt(self, found: AccessRules) -> None:
        """Newer rules hold from now on."""
        if found.version > self.rules.version:
            log.warning("version %d of the accounts was found at a member", found.version)
            await self._keep_if_possible(found)

    async def _newest_at(self, name: str) -> AccessRules:
        """Ours after this member was told them, or its own where they are newer."""
        ours = self.rules
        try:
            held = await self._ask(name, "access_version", (), CALL_S)
            if held > ours.version:
                found: AccessRules = await self._ask(name, "access_rules", (), CALL_S)
                self._told.setdefault(name, -1)
                return found
            if held != ours.version or self._told.get(name) != ours.version:
                await self._ask(name, "set_access_rules", (ours,), CALL_S)
            self._told[name] = ours.version
            self._untold.pop(name, None)
        except RmqError as error:
            self._untold[name] = str(error)
            if self._told.get(name) is not None:
                self._told[name] = -1
        return ours

    def _note(
        self,
        change: AccountChange,
        author: ChangeAuthor,
        old: AccessRules,
        new: AccessRules,
        outcome: str = "",
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The change's line in the audit log; (before, after) of what differs."""
        before, after = differences(old, new)
        whose = [("account", key) for key in change.accounts] or [("accounts", "all")]
        self._audit.changed(
            PARTY,
            author,
            None,
            whose,
            old=before or None,
            new={"did": type(change).__name__, **after},
            outcome=outcome,
        )
        return before, after
