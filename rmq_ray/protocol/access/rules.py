"""All accounts of a cluster, and RocketMQ's ``plain_acl.yml`` as values.

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
      - {accessKey: web-shop, secretKey: "12345678", whiteRemoteAddress: "", admin: false,
         defaultTopicPerm: DENY, defaultGroupPerm: SUB, topicPerms: [orders=PUB|SUB],
         groupPerms: [billing=SUB]}
    dataVersion: [{counter: 7, timestamp: 0}]

Decides what is read from such a mapping: rights as Apache RocketMQ reads them (a word that it does
not know denies), but nothing is passed over that may have been meant otherwise: members with other
names, keys that stand twice and texts of another kind are faults, and all of them are told at once.
Does not decide where rules are kept, nor how YAML is read. Callers: the store of accounts,
administration. Pure. Invariant: rules that exist are sound; no fault tells a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rmq_ray.errors import AccessRulesInvalid, ConfigError
from rmq_ray.model.topics import RETRY_PREFIX
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.addresses import is_white, white_list

ACCOUNTS_MAX = 10_000
ENTRIES_MAX = 100_000
"""Rights on topics and groups of one account, and texts of the global white list."""
_FILE = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
_ACCOUNT = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)
_BOOLEANS = {True: True, False: False, "true": True, "false": False, None: False}


@dataclass(frozen=True, slots=True)
class AccessRules:
    """``white_addresses``: from where nobody needs an account. ``version``: grows with each
    change.

    >>> rules = AccessRules().with_account(Account("web-shop", "12345678"))
    >>> rules.find("web-shop") is not None, rules.find("somebody"), rules.version
    (True, None, 1)
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white_addresses: tuple[str, ...] = ()
    version: int = 0

    def find(self, access_key: str) -> Account | None:
        """The account of this key."""
        return self.accounts.get(access_key)

    def narrowed(self, later: AccessRules) -> frozenset[str]:
        """Access keys of those that are more by these rules than by later ones."""
        return frozenset(
            key for key, one in self.accounts.items() if one.is_more_than(later.find(key))
        )

    def needs_no_account(self, host: str) -> bool:
        """Whether the global white list has this address."""
        return is_white(self.white_addresses, host)

    def with_account(self, account: Account) -> AccessRules:
        """The rules after this account was made, or put in the place of its older self."""
        accounts = {**self.accounts, account.access_key: account}
        if len(accounts) > ACCOUNTS_MAX:
            raise ConfigError(f"there are {ACCOUNTS_MAX} accounts already; take some away first")
        return replace(self, accounts=accounts, version=self.version + 1)

    def without(self, access_key: str) -> AccessRules:
        """The rules after this account was taken away; ``ConfigError`` when there is none."""
        if access_key not in self.accounts:
            raise ConfigError(f"there is no account {access_key!r:.80}", access_key[:80])
        left = {key: account for key, account in self.accounts.items() if key != access_key}
        return replace(self, accounts=left, version=self.version + 1)

    def with_white_addresses(self, texts: tuple[str, ...]) -> AccessRules:
        """The rules with another global white list; ``ConfigError`` for a text that cannot be
        read.
        """
        for text in texts:
            white_list(text)
        return replace(self, white_addresses=texts, version=self.version + 1)


def from_plain_acl(mapping: object, source: str) -> AccessRules:
    """What the mapping of a ``plain_acl.yml`` says. ``AccessRulesInvalid`` names all its faults,
    and ``source``, where they stand.
    """
    reader = _Reader()
    rules = reader.rules(mapping)
    if rules is None or reader.faults:
        faults = tuple(reader.faults)
        raise AccessRulesInvalid(
            f"the accounts in {source} cannot be used: {'; '.join(faults)}", source, faults
        )
    return rules


def to_plain_acl(rules: AccessRules, *, secrets: bool) -> dict[str, Any]:
    """The mapping of a ``plain_acl.yml``; without ``secrets`` each of them reads ``******``."""
    return {
        "globalWhiteRemoteAddresses": list(rules.white_addresses),
        "accounts": [
            {
                "accessKey": account.access_key,
                "secretKey": account.secret_key if secrets else "******",
                "whiteRemoteAddress": account.white_address,
                "admin": account.admin,
                "defaultTopicPerm": str(account.default_topic),
                "defaultGroupPerm": str(account.default_group),
                "topicPerms": [f"{name}={right}" for name, right in account.topics.items()],
                "groupPerms": [f"{name}={right}" for name, right in account.groups.items()],
            }
            for account in rules.accounts.values()
        ],
        "dataVersion": [{"counter": rules.version, "timestamp": 0}],
    }


class _Reader:
    """Collects the faults of one mapping."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def rules(self, mapping: object) -> AccessRules | None:
        """None, or incomplete, when there are faults."""
        if not isinstance(mapping, dict) or not mapping:
            self.faults.append("it has no accounts, but is empty or no mapping")
            return None
        self._known(mapping, _FILE, "the file")
        listed = self._listed(mapping, "accounts", "the file", ACCOUNTS_MAX)
        accounts: dict[str, Account] = {}
        for number, given in enumerate(listed, 1):
            account = self._account(given, f"account {number}")
            if account is None:
                continue
            if account.access_key in accounts:
                self.faults.append(f"account {number}: {account.access_key} stands there already")
            accounts[account.access_key] = account
        return AccessRules(accounts, self._white_addresses(mapping), self._version(mapping))

    def _account(self, given: object, where: str) -> Account | None:
        if not isinstance(given, dict):
            self.faults.append(f"{where} is no mapping")
            return None
        key = given.get("accessKey")
        if key is not None and not isinstance(key, dict | list):
            where = f"{where} ({key!s:.40})"
        before = len(self.faults)
        self._known(given, _ACCOUNT, where)
        topics: dict[str, Right] = {}
        groups = self._rights(given, "groupPerms", where)
        for name, right in self._rights(given, "topicPerms", where).items():
            group = name.removeprefix(RETRY_PREFIX)
            (topics if group == name else groups)[group] = right
        admin = given.get("admin")
        if admin.__class__ not in (bool, str, type(None)) or admin not in _BOOLEANS:
            self.faults.append(f"{where}: admin must be true or false")
        access, secret, white = (
            self._text(given, name, where)
            for name in ("accessKey", "secretKey", "whiteRemoteAddress")
        )
        if len(self.faults) > before:
            return None
        of_topics, of_groups = (
            _as_apache(given.get(name)) for name in ("defaultTopicPerm", "defaultGroupPerm")
        )
        try:
            return Account(
                access, secret, _BOOLEANS[admin], white, of_topics, of_groups, topics, groups
            )
        except ConfigError as error:
            self.faults.append(f"{where}: {error.message}")
            return None

    def _rights(self, given: Mapping[Any, Any], name: str, where: str) -> dict[str, Right]:
        found: dict[str, Right] = {}
        for entry in self._listed(given, name, where, ENTRIES_MAX):
            parts = [part for part in entry.split("=") if part] if isinstance(entry, str) else []
            if len(parts) != 2 or not parts[0].strip():
                self.faults.append(f"{where}: {name} has {entry!r:.80}; write name=PUB|SUB")
                continue
            found[parts[0].strip()] = _as_apache(parts[1])
        return found

    def _white_addresses(self, mapping: Mapping[Any, Any]) -> tuple[str, ...]:
        name, found = "globalWhiteRemoteAddresses", []
        for text in self._listed(mapping, name, "the file", ENTRIES_MAX):
            try:
                white_list(str(text))
                found.append(str(text))
            except ConfigError as error:
                self.faults.append(f"{name}: {error.message}")
        return tuple(found)

    def _version(self, mapping: Mapping[Any, Any]) -> int:
        listed = self._listed(mapping, "dataVersion", "the file", ENTRIES_MAX)
        counter = listed[0].get("counter", 0) if listed and isinstance(listed[0], dict) else 0
        if counter.__class__ is not int or counter < 0:
            self.faults.append("dataVersion: counter must be a number from 0 on")
            return 0
        return int(counter)

    def _listed(self, given: Mapping[Any, Any], name: str, where: str, most: int) -> list[Any]:
        listed = given.get(name)
        if listed is None:
            return []
        if not isinstance(listed, list):
            self.faults.append(f"{where}: {name} must be a list")
            return []
        if len(listed) > most:
            self.faults.append(f"{where}: {name} has {len(listed)} entries; {most} are allowed")
            return []
        return listed

    def _text(self, given: Mapping[Any, Any], name: str, where: str) -> str:
        """A number is what an unquoted key of digits looks like in YAML."""
        value = given.get(name)
        if value is None:
            return ""
        if value.__class__ not in (str, int):
            self.faults.append(f"{where}: {name} must be text; put it in quotes")
            return ""
        return str(value)

    def _known(self, given: Mapping[Any, Any], names: tuple[str, ...], where: str) -> None:
        for name in given:
            if name not in names:
                self.faults.append(
                    f"{where}: {name!r:.40} is no member; there are {', '.join(names)}"
                )


def _as_apache(word: object) -> Right:
    """A right as Apache RocketMQ reads it: what it does not know denies."""
    try:
        return Right.parse(word) if isinstance(word, str) else Right.NONE
    except ConfigError:
        return Right.NONE
