"""Changes of the accounts of a cluster, each from whole rules to whole rules.

Decides what a change makes of the rules, what it refuses, and how it is told without secrets. Does
not decide who may change them, nor where they are kept. Callers: the store of accounts,
administration. Pure. Invariants: rules that a change returns can be written and read again; no
description has a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rmq_ray.errors import ConfigError
from rmq_ray.protocol.access.accounts import Account, ResourceKind, Right
from rmq_ray.protocol.access.rules import AccessRules, from_plain_acl, to_plain_acl

BOTH = Right.PUB | Right.SUB


@dataclass(slots=True)
class ChangeAuthor:
    """Who asked for a change: user and host of a process in Ray, an account at a broker."""

    host: str
    port: int = 0
    account: str = ""
    member: bool = True


class AccountChange(Protocol):
    """Anything that can be done to the accounts. Its ``on`` raises ``ConfigError`` for what cannot
    be; nothing has changed then.
    """

    @property
    def accounts(self) -> tuple[str, ...]:
        """Whose rights change; empty = all, or what belongs to none."""

    def on(self, rules: AccessRules) -> AccessRules:
        """The rules afterwards."""


@dataclass(frozen=True, slots=True)
class PutAccount:
    """Make an account, or change what is given of it (None leaves it). ``new``: True = it must not
    be there yet, False = it must, None = either. ``secret_key``: where it is ``""``, and where a
    new account gives none, the store generates one.
    """

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    admin: bool | None = None
    white_address: str | None = None
    default_topic: Right | None = None
    default_group: Right | None = None
    topics: Mapping[str, Right] | None = None
    groups: Mapping[str, Right] | None = None
    new: bool | None = None

    @property
    def accounts(self) -> tuple[str, ...]:
        """This one."""
        return (self.access_key,)

    def on(self, rules: AccessRules) -> AccessRules:
        """See ``AccountChange``."""
        known = rules.find(self.access_key)
        if self.new and known is not None:
            raise ConfigError(
                f"there is an account {self.access_key!r:.80} already; update it, or delete it "
                f"first",
                self.access_key[:80],
            )
        if self.new is False:
            known = _account(rules, self.access_key)
        base = known or Account(self.access_key, self.secret_key or "")
        given = {
            name: value
            for name in (
                "secret_key",
                "admin",
                "white_address",
                "default_topic",
                "default_group",
                "topics",
                "groups",
            )
            if (value := getattr(self, name)) is not None
        }
        return rules.with_account(replace(base, **given))


@dataclass(frozen=True, slots=True)
class DropAccount:
    """Take an account away."""

    access_key: str

    @property
    def accounts(self) -> tuple[str, ...]:
        """This one."""
        return (self.access_key,)

    def on(self, rules: AccessRules) -> AccessRules:
        """See ``AccountChange``."""
        return rules.without(self.access_key)


@dataclass(frozen=True, slots=True)
class GrantRight:
    """Add a right on one topic or group to what the account's entry there says; ``Right.NONE``
    denies it, whatever the account's defaults say.
    """

    access_key: str
    kind: ResourceKind
    name: str
    right: Right

    @property
    def accounts(self) -> tuple[str, ...]:
        """This one."""
        return (self.access_key,)

    def on(self, rules: AccessRules) -> AccessRules:
        """See ``AccountChange``."""
        account = _account(rules, self.access_key)
        entries = _entries(account, self.kind)
        if account.admin and not (account.topics or account.groups):
            raise ConfigError(
                f"{self.access_key} is an administrator and may do everything; an entry would hold "
                f"it to its entries: take admin away first",
                self.access_key,
            )
        held = entries.get(self.name, Right.NONE)
        entries[self.name] = (held | self.right) if self.right else Right.NONE
        return rules.with_account(_with_entries(account, self.kind, entries))


@dataclass(frozen=True, slots=True)
class RevokeRight:
    """Take a right on one topic or group away, wherever it came from: afterwards the account does
    not hold it there, also where its defaults would give it.
    """

    access_key: str
    kind: ResourceKind
    name: str
    right: Right = BOTH

    @property
    def accounts(self) -> tuple[str, ...]:
        """This one."""
        return (self.access_key,)

    def on(self, rules: AccessRules) -> AccessRules:
        """See ``AccountChange``."""
        account = _account(rules, self.access_key)
        entries = _entries(account, self.kind)
        held = Right.NONE
        for one in (Right.PUB, Right.SUB):
            if account.may(self.kind, self.name, one):
                held |= one
        left = held & ~self.right
        entries.pop(self.name, None)
        without = _with_entries(account, self.kind, entries)
        if left or without.may(self.kind, self.name, BOTH):
            entries[self.name] = left
        return rules.with_account(_with_entries(account, self.kind, entries))


@dataclass(frozen=True, slots=True)
class SetWhiteAddresses:
    """Another global white list: from there nobody needs an account."""

    texts: tuple[str, ...]

    @property
    def accounts(self) -> tuple[str, ...]:
        """None of them."""
        return ()

    def on(self, rules: AccessRules) -> AccessRules:
        """See ``AccountChange``."""
        return rules.with_white_addresses(self.texts)


@dataclass(frozen=True, slots=True)
class ReplaceAll:
    """The accounts and the white list of a whole file instead of those that there are. ``mapping``:
    of a ``plain_acl.yml``; ``source``: its path, for what is wrong in it.
    """

    mapping: object = field(repr=False)
    source: str

    @property
    def accounts(self) -> tuple[str, ...]:
        """All of them."""
        return ()

    def on(self, rules: AccessRules) -> AccessRules:
        """See ``AccountChange``."""
        found = from_plain_acl(self.mapping, self.source)
        return replace(found, version=rules.version + 1)


def checked(rules: AccessRules) -> AccessRules:
    """The rules as they are once they were written and read: ``AccessRulesInvalid`` where that is
    not possible.
    """
    return from_plain_acl(to_plain_acl(rules, secrets=True), "this change")


def same(one: AccessRules, other: AccessRules) -> bool:
    """Whether both mean the same, whatever their versions are."""
    return replace(one, version=0) == replace(other, version=0)


def differences(old: AccessRules, new: AccessRules) -> tuple[dict[str, Any], dict[str, Any]]:
    """(before, afterwards) of what differs: access key -> its members without the secret, None
    where there is no such account. A secret that changed reads ``******`` and ``(changed)``.
    """
    before, after = _shown(old), _shown(new)
    was: dict[str, Any] = {}
    now: dict[str, Any] = {}
    for key in {**before, **after}:
        one, other = before.get(key), after.get(key)
        pair = old.find(key), new.find(key)
        if pair[0] and pair[1] and pair[0].secret_key != pair[1].secret_key:
            other = {**(other or {}), "secretKey": "(changed)"}
        if one != other:
            was[key], now[key] = one, other
    return was, now


def _shown(rules: AccessRules) -> dict[str, Any]:
    plain = to_plain_acl(rules, secrets=False)
    found: dict[str, Any] = {account["accessKey"]: account for account in plain["accounts"]}
    found["globalWhiteRemoteAddresses"] = plain["globalWhiteRemoteAddresses"]
    return found


def _account(rules: AccessRules, access_key: str) -> Account:
    found = rules.find(access_key)
    if found is None:
        raise ConfigError(f"there is no account {access_key!r:.80}", access_key[:80])
    return found


def _entries(account: Account, kind: ResourceKind) -> dict[str, Right]:
    if kind is ResourceKind.CLUSTER:
        raise ConfigError("rights are held on topics and groups: name one", account.access_key)
    return dict(account.topics if kind is ResourceKind.TOPIC else account.groups)


def _with_entries(account: Account, kind: ResourceKind, entries: Mapping[str, Right]) -> Account:
    if kind is ResourceKind.TOPIC:
        return replace(account, topics=entries)
    return replace(account, groups=entries)
