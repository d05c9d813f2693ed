"""Who asks, and may he: access control of one broker or name server, before a handler runs.

    a member of the cluster        everything: brokers, replicas, clients inside Ray
    an account, by our handshake   what its rights say now; the connection proved it once
    Apache RocketMQ's clients      each request is signed; white lists of RocketMQ's ACL count

Decides: who the asker is, and how a refusal is told: to ours as NOT_AUTHORIZED, to Apache's clients
as their own brokers tell it. Does not decide what an account may (``protocol.access.decision``) nor
what a request touches (``touched``). One loop calls everything. Invariants: without rules nobody
but members is served; a request that is refused changes nothing, and is counted and noted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Set
from typing import Any

from rmq_ray.errors import NotAuthorized
from rmq_ray.model.metrics import Family, Sample
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.accounts import Account, ResourceKind, Right
from rmq_ray.protocol.access.decision import Action, check
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.protocol.access.signature import ACCESS_KEY, SIGNATURE, matches
from rmq_ray.remoting.request_table import Row
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.security.audit_log import AuditLog
from rmq_ray.server.security.touched import Touched, topic, touched

APACHES_WORDS = "org.apache.rocketmq.acl.common.AclException: "
"""How Apache RocketMQ's brokers begin a refusal, with code 1."""
PASSED_MAX = 10_000
_NOBODY_ASKED = "access white list"
"""In a connection's notes: its address needs no account."""
_SIGNERS = "access keys"
"""In a connection's notes: who signed requests over it."""


class AskedBy:
    """A connection as one signed request sees it: the next one on it may be another account's while
    this one is still worked on.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.account = peer.account

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)

    def __eq__(self, other: object) -> bool:
        return self._peer == other

    def __hash__(self) -> int:
        return hash(self._peer)


def asked_as(peer: Peer, access_keys: Set[str]) -> bool:
    """Whether one of these accounts has asked for something over this connection."""
    return not peer.member and not access_keys.isdisjoint(
        {peer.account, *peer.attributes.get(_SIGNERS, ())}
    )


class AccessGuard:
    """``copy``: the accounts as this server knows them. ``party``: its name in the audit log.
    ``is_there``: whether there is this topic or group; of those that are not there an account that
    is no administrator may ask for ``names_max``, since the server began.
    """

    def __init__(
        self,
        copy: AccessCopy,
        party: str,
        audit: AuditLog | None,
        is_there: Callable[[ResourceKind, str], bool] = lambda _kind, _name: True,
        names_max: int = 0,
    ) -> None:
        self._copy = copy
        self._party = party
        self._audit = audit
        self._is_there = is_there
        self._names_max = names_max
        self._new_names: defaultdict[str, set[tuple[ResourceKind, str]]] = defaultdict(set)
        self._passed: set[tuple[str, Action, object]] = set()
        self._passed_of: AccessRules | None = None
        self.refused: Counter[str] = Counter()
        """Requests, by account; "" = of nobody who could prove who he is."""

    def admit(self, row: Row, command: Command, peer: Peer) -> None:
        """``NotAuthorized`` says who may not do what, and what helps; ``MalformedFrame`` for a
        request that does not say what it touches.
        """
        if peer.member:
            return
        found: Touched = ()
        account: Account | None = None
        try:
            rules = self._rules()
            account = self._asker(rules, command, peer)
            if account is not None:
                found = touched(row, command)
                self._check(rules, account, row.action, found)
        except NotAuthorized as error:
            self._note(row, peer, account, found, error)
            raise

    def check_topic(self, peer: Peer, action: Action, name: str) -> None:
        """The same of a topic that only the record itself tells."""
        if peer.member or peer.attributes.get(_NOBODY_ASKED):
            return
        found = (topic(name),)
        account: Account | None = None
        try:
            rules = self._rules()
            account = rules.find(peer.account)
            if account is None:
                raise NotAuthorized(f"the account {peer.account} is gone", peer.account)
            self._check(rules, account, action, found)
        except NotAuthorized as error:
            self._note(None, peer, account, found, error)
            raise

    def may_send(self, peer: Peer, name: str) -> bool:
        """Whether the client at the other end, as it was last heard, may send to a topic."""
        if peer.member or peer.attributes.get(_NOBODY_ASKED):
            return True
        account = None if self._copy.rules is None else self._copy.rules.find(peer.account)
        return account is not None and account.may(*topic(name), Right.PUB)

    def refusal(self, command: Command, peer: Peer, error: NotAuthorized) -> Command:
        """As the asker's kind of client knows it."""
        if peer.trusted:
            return command.answer(ResponseCode.NOT_AUTHORIZED, remark=error.message)
        return command.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"{APACHES_WORDS}{error.message}, {self._party}"
        )

    def _rules(self) -> AccessRules:
        rules = self._copy.rules
        if rules is None:
            raise NotAuthorized(
                "this server knows no accounts yet, and serves members of the cluster only; ask "
                "whoever administers the cluster (rmq-ray acl)"
            )
        if rules is not self._passed_of:
            self._passed_of = rules
            self._passed.clear()
        return rules

    def _asker(self, rules: AccessRules, command: Command, peer: Peer) -> Account | None:
        """None = an address that needs no account."""
        if peer.trusted:
            account = rules.find(peer.account)
            if account is None:
                raise NotAuthorized(
                    f"the account {peer.account} is gone; ask whoever administers the cluster "
                    f"(rmq-ray acl)",
                    peer.account,
                )
            return account
        if rules.needs_no_account(peer.host):
            peer.attributes[_NOBODY_ASKED] = True
            return None
        peer.attributes.pop(_NOBODY_ASKED, None)
        peer.account = ""
        account = signer(rules, command, peer.host)
        peer.account = account.access_key
        peer.attributes.setdefault(_SIGNERS, set()).add(peer.account)
        return account

    def _check(self, rules: AccessRules, account: Account, action: Action, found: Touched) -> None:
        key = (account.access_key, action, found if found.__class__ is tuple else tuple(found))
        if key in self._passed:
            return
        check(rules, account, action, key[2])
        if not account.admin:
            self._count_new(account, key[2])
        if len(self._passed) < PASSED_MAX:
            self._passed.add(key)

    def _count_new(self, account: Account, found: Touched) -> None:
        """What is asked for and not there is made by many a request; each counts once."""
        asked = self._new_names[account.access_key]
        for resource in found:
            if self._is_there(*resource) or resource in asked:
                continue
            if len(asked) >= self._names_max:
                raise NotAuthorized(
                    f"the account {account.access_key} has asked for {self._names_max} topics and "
                    f"groups that were not there, {resource[0].value} {resource[1]:.127} is one "
                    f"too many: an administrator creates it, or raises limits.account_names_max",
                    account.access_key,
                )
            asked.add(resource)

    def status(self) -> dict[str, object]:
        """What was refused, altogether and by account."""
        return {"refused": self.refused.total(), "refused_accounts": dict(self.refused)}

    def _note(
        self,
        row: Row | None,
        peer: Peer,
        account: Account | None,
        found: Touched,
        error: NotAuthorized,
    ) -> None:
        self.refused["" if account is None else account.access_key] += 1
        if self._audit is not None:
            resources = [(kind.value, name) for kind, name in found]
            self._audit.refused(self._party, peer, row, resources, error.message)


def refused_requests(name: str, accounts: Mapping[str, int]) -> Family:
    """What a server refused, by account, as a metric."""
    return Family(
        name,
        "counter",
        "Requests that the rights of an account, or none, did not allow.",
        tuple(Sample({"account": account}, float(count)) for account, count in accounts.items()),
    )


def signer(rules: AccessRules, command: Command, host: str) -> Account:
    """The account that signed a request of Apache RocketMQ's clients, in the words of its broker
    where there is none. An account's own white list stands for a signature.
    """
    fields = command.fields or {}
    access_key = fields.get(ACCESS_KEY)
    if not access_key:
        raise NotAuthorized("No accessKey is configured")
    account = rules.find(access_key)
    if account is None:
        raise NotAuthorized(f"No acl config for {access_key:.80}", access_key[:80])
    if account.needs_no_signature_from(host):
        return account
    if not matches(fields, command.body, account.secret_key, fields.get(SIGNATURE, "")):
        raise NotAuthorized(f"Check signature failed for accessKey={access_key}", access_key)
    return account
