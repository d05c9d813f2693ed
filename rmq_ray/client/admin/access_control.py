"""Accounts of a cluster, as administration changes them: what ``mq.admin.acl`` offers.

Decides how accounts are written in a call and shown; what a change makes of them is decided in
``protocol.access.changes``, by the controller that keeps them. Invariant: no secret is returned but
one that was generated in this call, and what ``export(secrets=True)`` is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.ports import Discovery, KeepsAccounts
from rmq_ray.protocol.access.accounts import ResourceKind, Right
from rmq_ray.protocol.access.changes import (
    AccountChange,
    DropAccount,
    GrantRight,
    PutAccount,
    ReplaceAll,
    RevokeRight,
    SetWhiteAddresses,
)
from rmq_ray.protocol.access.decision import Action

Rights = Mapping[str, str]
"""Name of a topic or group -> ``DENY``, ``PUB``, ``SUB`` or ``PUB|SUB``."""
ACTIONS = {action.name: action for action in (Action.PUB, Action.SUB, Action.ADMIN)}


class AccessControl:
    """Who may do what in a cluster with ``foreign="acl"``: ``mq.admin.acl``.

    Every change holds at once in the whole cluster and returns ``version``, ``before`` and
    ``after`` (what differs), ``untold`` (member -> why it could not be told yet; it is told as soon
    as it answers) and ``secret_key`` where one was generated: it is shown this once. Raises
    ``ConfigError`` for what cannot be (``AccessRulesInvalid`` lists all faults of a file),
    ``ClusterError`` where the controller cannot say which accounts there were, ``ClientError`` in a
    process that knows the cluster by its addresses only. Nothing has changed then.
    """

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def users(self) -> list[dict[str, Any]]:
        """All accounts, without secrets: ``access_key``, ``admin``, ``default_topic``,
        ``default_group``, ``topics``, ``groups`` (name -> right), ``white_address``.
        """
        return [
            {
                "access_key": account["accessKey"],
                "admin": account["admin"],
                "default_topic": account["defaultTopicPerm"],
                "default_group": account["defaultGroupPerm"],
                "topics": _split(account["topicPerms"]),
                "groups": _split(account["groupPerms"]),
                "white_address": account["whiteRemoteAddress"],
            }
            for account in self._ask("accounts")["accounts"]
        ]

    def create(
        self,
        access_key: str,
        secret_key: str | None = None,
        *,
        admin: bool = False,
        default_topic: str = "DENY",
        default_group: str = "DENY",
        topics: Rights | None = None,
        groups: Rights | None = None,
        white_address: str = "",
    ) -> dict[str, Any]:
        """Make an account; without ``secret_key`` one is generated. ``white_address``: from where
        it needs no signature.
        """
        return self._change(
            PutAccount(
                access_key,
                secret_key,
                admin,
                white_address,
                Right.parse(default_topic),
                Right.parse(default_group),
                _rights(topics or {}),
                _rights(groups or {}),
                new=True,
            )
        )

    def update(
        self,
        access_key: str,
        secret_key: str | None = None,
        *,
        admin: bool | None = None,
        default_topic: str | None = None,
        default_group: str | None = None,
        topics: Rights | None = None,
        groups: Rights | None = None,
        white_address: str | None = None,
    ) -> dict[str, Any]:
        """Change what is given of an account; ``topics`` and ``groups`` replace all its entries.
        ``secret_key`` ``""``: a new one is generated.
        """
        return self._change(
            PutAccount(
                access_key,
                secret_key,
                admin,
                white_address,
                None if default_topic is None else Right.parse(default_topic),
                None if default_group is None else Right.parse(default_group),
                None if topics is None else _rights(topics),
                None if groups is None else _rights(groups),
                new=False,
            )
        )

    def delete(self, access_key: str) -> dict[str, Any]:
        """Take an account away: its next request is refused."""
        return self._change(DropAccount(access_key))

    def grant(
        self,
        access_key: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        right: str = "SUB",
    ) -> dict[str, Any]:
        """Add ``PUB``, ``SUB`` or ``PUB|SUB`` on a topic, or ``SUB`` on a group; ``DENY`` denies
        it.
        """
        return self._change(GrantRight(access_key, *_named(topic, group), Right.parse(right)))

    def revoke(
        self,
        access_key: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        right: str = "PUB|SUB",
    ) -> dict[str, Any]:
        """Take a right on a topic or group away: the account does not hold it there afterwards,
        also where its defaults would give it.
        """
        return self._change(RevokeRight(access_key, *_named(topic, group), Right.parse(right)))

    @property
    def white_addresses(self) -> list[str]:
        """From where nobody needs an account."""
        return list(self._ask("accounts")["globalWhiteRemoteAddresses"])

    def set_white_addresses(self, addresses: Sequence[str]) -> dict[str, Any]:
        """Replace them: ``10.10.103.*``, ``192.168.0.1-20``, ``*`` ..."""
        if isinstance(addresses, str):
            raise ConfigError(f"addresses must be a list of texts, like [{addresses!r:.80}]")
        return self._change(SetWhiteAddresses(tuple(addresses)))

    def test(
        self, access_key: str, action: str, *, topic: str | None = None, group: str | None = None
    ) -> dict[str, Any]:
        """Whether the account may ``PUB`` or ``SUB`` on a topic or group, or what is for
        administrators (``ADMIN``): ``allowed``, and ``why`` not.
        """
        wanted = ACTIONS.get(action)
        if wanted is None:
            raise ConfigError(f"action must be {', '.join(ACTIONS)}, not {action!r:.80}", action)
        kind, name = (ResourceKind.CLUSTER, "") if wanted is Action.ADMIN else _named(topic, group)
        allowed, why = self._ask("test_account", access_key, wanted, kind, name)
        return {"allowed": allowed, "why": why}

    def import_plain_acl(self, path: str | Path) -> dict[str, Any]:
        """Put the accounts and the white list of RocketMQ's ``plain_acl.yml`` in the place of
        those that there are.
        """
        return self._change(ReplaceAll(_read(path), str(path)))

    def export(self, *, secrets: bool = False) -> dict[str, Any]:
        """The mapping of a ``plain_acl.yml``; with ``secrets`` it can be imported again, and the
        audit log tells that they were read.
        """
        return dict(self._ask("export_accounts" if secrets else "accounts"))

    def _change(self, change: AccountChange) -> dict[str, Any]:
        return dict(self._ask("change_accounts", change))

    def _ask(self, method: str, *arguments: Any) -> Any:
        if not isinstance(self._discovery, KeepsAccounts):
            raise ClientError(
                "accounts are administered in the cluster's Ray cluster: use rmq.connect there, "
                "`rmq-ray acl`, or RocketMQ's mqadmin with an administrator's account"
            )
        return self._discovery.ask_accounts(method, *arguments)


def _rights(given: Rights) -> dict[str, Right]:
    return {name: Right.parse(text) for name, text in given.items()}


def _split(entries: Sequence[str]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in entries)


def _named(topic: str | None, group: str | None) -> tuple[ResourceKind, str]:
    if (topic is None) == (group is None):
        raise ConfigError("name one topic or one group", topic, group)
    return (ResourceKind.GROUP, group) if topic is None else (ResourceKind.TOPIC, topic)  # type: ignore[return-value]


def _read(path: str | Path) -> Any:
    try:
        from rmq_ray.topology.yaml_text import read_yaml  # PyYAML is for those who have a file

        return read_yaml(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", str(path)) from None
