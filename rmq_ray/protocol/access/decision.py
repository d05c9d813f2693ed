"""The one decision of access control: may this account do that to these?

    PUB, SUB   on each topic that is touched; on each group: SUB, whatever is done with it
    ANY        PUB or SUB on each topic
    ADMIN      the account is an administrator

Whoever has an account may write traces: PUB on the trace topic is free.

Decides nothing about who proved to be that account, nor about what a request touches. Callers: the
guard of servers. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from rmq_ray.errors import NotAuthorized
from rmq_ray.model.topics import TRACE_TOPIC
from rmq_ray.protocol.access.accounts import EVERY, Account, ResourceKind, Right
from rmq_ray.protocol.access.rules import AccessRules


class Action(Enum):
    """The right that a request needs."""

    NONE = "none"
    PUB = "PUB"
    SUB = "SUB"
    ANY = "PUB or SUB"
    ADMIN = "ADMIN"


_WANTED = {
    Action.PUB: Right.PUB,
    Action.SUB: Right.SUB,
    Action.ANY: Right.PUB | Right.SUB,
}


def check(
    rules: AccessRules,
    account: Account | None,
    action: Action,
    touched: Iterable[tuple[ResourceKind, str]],
) -> None:
    """``NotAuthorized`` names the account, the right and the topic or group, and says who grants
    it. ``account``: who asks, None = nobody; what it may now stands in ``rules``.
    """
    if action is Action.NONE:
        return
    if account is None:
        raise NotAuthorized(
            "no account asks for this; give access_key and secret_key, or ask whoever "
            "administers the cluster for them (rmq-ray acl)"
        )
    key = account.access_key
    current = rules.find(key)
    if current is None:
        raise NotAuthorized(
            f"the account {key} is gone; ask whoever administers the cluster (rmq-ray acl)", key
        )
    if action is Action.ADMIN:
        if not current.admin:
            raise NotAuthorized(
                f"the account {key} is no administrator, and this is for administrators; one of "
                f"them can do it, or make this account one (rmq-ray acl)",
                key,
            )
        return
    for kind, name in touched:
        wanted = Right.SUB if kind is ResourceKind.GROUP else _WANTED[action]
        if current.may(kind, name, wanted) or (action is Action.PUB and name == TRACE_TOPIC):
            continue
        what = f"all {kind.value}s" if name == EVERY else f"{kind.value} {name}"
        needed = action.value if kind is ResourceKind.TOPIC else str(wanted)
        raise NotAuthorized(
            f"the account {key} may not {needed} on {what}; an administrator can grant it "
            f"(rmq-ray acl grant)",
            key,
            kind.value,
            name,
        )
