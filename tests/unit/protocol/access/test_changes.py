"""Changes of accounts: what each makes of the rules, and what it refuses."""

from __future__ import annotations

import pytest

from rmq_ray.errors import ConfigError
from rmq_ray.protocol.access.accounts import Account, ResourceKind, Right
from rmq_ray.protocol.access.changes import (
    DropAccount,
    GrantRight,
    PutAccount,
    RevokeRight,
    SetWhiteAddresses,
    differences,
)
from rmq_ray.protocol.access.rules import AccessRules

BOTH = Right.PUB | Right.SUB
TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
SECRET = "a-secret-of-web"


def rules_of(**settings: object) -> AccessRules:
    return AccessRules().with_account(Account("web-shop", SECRET, **settings))  # type: ignore[arg-type]


def web(rules: AccessRules) -> Account:
    return rules.accounts["web-shop"]


def test_an_account_is_made_once_and_changed_in_what_is_given() -> None:
    made = PutAccount("web-shop", SECRET, topics={"orders": Right.PUB}, new=True).on(AccessRules())
    changed = PutAccount("web-shop", admin=True, new=False).on(made)
    assert web(changed) == Account("web-shop", SECRET, True, topics={"orders": Right.PUB})
    with pytest.raises(ConfigError, match="already"):
        PutAccount("web-shop", SECRET, new=True).on(made)
    for change in (PutAccount("web-shap", admin=True, new=False), DropAccount("web-shap")):
        with pytest.raises(ConfigError, match="no account 'web-shap'"):
            change.on(made)


def test_grants_add_up_and_a_denial_denies() -> None:
    rules = rules_of(default_topic=Right.SUB)
    for right in (Right.PUB, Right.SUB):
        rules = GrantRight("web-shop", TOPIC, "orders", right).on(rules)
    assert web(rules).topics == {"orders": BOTH}
    rules = GrantRight("web-shop", TOPIC, "orders", Right.NONE).on(rules)
    assert not web(rules).may(TOPIC, "orders", BOTH)


@pytest.mark.parametrize(
    "settings",
    [
        {"topics": {"orders": BOTH}},
        {"topics": {"orders": Right.PUB}, "default_topic": BOTH},
        {"default_topic": Right.PUB},
        {"admin": True},
        {"admin": True, "topics": {"orders": BOTH}},
    ],
)
def test_what_was_revoked_is_not_held_any_more_wherever_it_came_from(
    settings: dict[str, object],
) -> None:
    """Taking the last entry of an administrator away would let it do everything."""
    after = web(RevokeRight("web-shop", TOPIC, "orders").on(rules_of(**settings)))
    assert not after.may(TOPIC, "orders", BOTH)


def test_one_right_is_revoked_and_the_other_stays() -> None:
    after = web(
        RevokeRight("web-shop", TOPIC, "orders", Right.PUB).on(rules_of(default_topic=BOTH))
    )
    assert after.may(TOPIC, "orders", Right.SUB) and not after.may(TOPIC, "orders", Right.PUB)
    assert after.may(TOPIC, "others", Right.PUB)


def test_a_grant_does_not_take_an_administrators_rights_away() -> None:
    with pytest.raises(ConfigError, match="may do everything"):
        GrantRight("web-shop", GROUP, "billing", Right.SUB).on(rules_of(admin=True))


def test_differences_tell_no_secret() -> None:
    old = rules_of()
    new = PutAccount("web-shop", "another-secret", groups={"billing": Right.SUB}).on(old)
    before, after = differences(old, SetWhiteAddresses(("10.0.0.*",)).on(new))
    assert before["web-shop"]["groupPerms"] == [] and before["globalWhiteRemoteAddresses"] == []
    assert after["web-shop"]["groupPerms"] == ["billing=SUB"]
    assert after["web-shop"]["secretKey"] == "(changed)"
    assert after["globalWhiteRemoteAddresses"] == ["10.0.0.*"]
    assert differences(new, DropAccount("web-shop").on(new))[1] == {"web-shop": None}
    assert SECRET not in str((before, after)) and "another-secret" not in str((before, after))
