"""Accounts and ``plain_acl.yml``: what they say, what is refused of them, and how they decide."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import AccessRulesInvalid, ConfigError, NotAuthorized
from rmq_ray.protocol.access.accounts import EVERY, Account, ResourceKind, Right
from rmq_ray.protocol.access.decision import Action, check
from rmq_ray.protocol.access.rules import AccessRules, from_plain_acl, to_plain_acl

TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
PUB, SUB, NONE = Right.PUB, Right.SUB, Right.NONE
SECRET = "never-told-8"
PLAIN: dict[str, Any] = {
    "globalWhiteRemoteAddresses": ["10.10.103.*"],
    "accounts": [
        {
            "accessKey": "RocketMQ",
            "secretKey": 12345678,
            "whiteRemoteAddress": None,
            "admin": False,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", " topicC = SUB ", "%RETRY%g0=SUB"],
            "groupPerms": ["groupA=DENY", "groupB=PUBSUB", "groupC=SUB"],
        },
        {"accessKey": "rocketmq2", "secretKey": SECRET, "whiteRemoteAddress": "*", "admin": True},
    ],
    "dataVersion": [{"counter": 7, "timestamp": 1}],
}


def account(**changed: Any) -> Account:
    return Account("web-shop", SECRET, **changed)


@pytest.mark.parametrize(
    ("word", "right"),
    [("DENY", NONE), ("PUB", PUB), ("SUB", SUB), ("PUB|SUB", PUB | SUB), ("SUB|PUB", PUB | SUB)],
)
def test_a_right_has_the_words_of_plain_acl(word: str, right: Right) -> None:
    assert Right.parse(f" {word} ") is right
    assert Right.parse(str(right)) is right


@pytest.mark.parametrize("word", ["", "ANY", "pub", "PUB,SUB", "PUB | SUB"])
def test_a_word_that_is_no_right_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"is no right; write one of DENY, PUB, SUB, PUB\|SUB"):
        Right.parse(word)


@pytest.mark.parametrize(
    ("holder", "kind", "name", "wanted", "allowed"),
    [
        (account(), TOPIC, "t", PUB, False),
        (account(default_topic=PUB), TOPIC, "t", PUB, True),
        (account(default_topic=PUB), TOPIC, "t", SUB, False),
        (account(default_topic=PUB), TOPIC, "t", PUB | SUB, True),
        (account(default_topic=PUB | SUB, topics={"t": NONE}), TOPIC, "t", PUB, False),
        (account(default_topic=PUB | SUB, topics={"t": PUB}), TOPIC, "t", SUB, False),
        (account(topics={"t": SUB}), TOPIC, "t", SUB, True),
        (account(topics={"t": SUB}), TOPIC, "t2", SUB, False),
        (account(topics={"t": SUB}), GROUP, "t", SUB, False),
        (account(groups={"t": SUB}), GROUP, "t", SUB, True),
        (account(default_group=SUB), GROUP, "t", SUB, True),
        (account(), CLUSTER, "", SUB, True),
        (account(admin=True), TOPIC, "t", PUB, True),
        (account(admin=True, topics={"t": NONE}), TOPIC, "t", PUB, False),
        (account(admin=True, topics={"t": SUB}), TOPIC, "t2", PUB, False),
        (account(admin=True, groups={"g": SUB}), TOPIC, "t", PUB, False),
        (account(default_topic=PUB), TOPIC, EVERY, PUB, True),
        (account(default_topic=PUB, topics={"t": NONE}), TOPIC, EVERY, PUB, False),
        (account(topics={"t": PUB}), TOPIC, EVERY, PUB, False),
        (account(admin=True), TOPIC, EVERY, PUB, True),
    ],
)
def test_an_explicit_right_beats_the_default_and_administrators_pass(
    holder: Account, kind: ResourceKind, name: str, wanted: Right, allowed: bool
) -> None:
    assert holder.may(kind, name, wanted) is allowed


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Account("short", SECRET), "the accessKey 'short' has 5 characters; 7 to 255"),
        (lambda: Account("web-shop", "secret"), "the secretKey has 6 characters"),
        (lambda: Account("", ""), "the accessKey '' has 0 characters"),
        (lambda: Account("web-shop\n", SECRET), "characters that cannot be printed"),
        (lambda: account(white_address="10.0"), "'10.0' cannot be read"),
        (lambda: account(topics={"%RETRY%g": SUB}), "'%RETRY%g' is no name of a topic"),
        (lambda: account(groups={" ": SUB}), "' ' is no name of a group"),
        (lambda: account(topics={"t": "SUB"}), "the right on topic 't' is 'SUB'; give a Right"),
    ],
)
def test_an_account_that_is_not_sound_cannot_be_made(made: Any, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made()
    assert told in raised.value.message and SECRET not in raised.value.message


def test_a_secret_is_in_no_repr_and_proves_itself_by_a_key_of_each_cluster() -> None:
    holder = account()
    rules = AccessRules().with_account(holder)
    assert SECRET not in repr(holder) + repr(rules)
    assert holder.handshake_key("a") != holder.handshake_key("b")
    assert len(holder.handshake_key("a")) == 32
    assert SECRET.encode() not in holder.handshake_key("a")
    assert pickle.loads(pickle.dumps(rules)) == rules


def test_plain_acl_is_read_as_apache_reads_it() -> None:
    rules = from_plain_acl(PLAIN, "plain_acl.yml")
    first, second = rules.accounts.values()
    assert first.secret_key == "12345678" and not first.admin and second.admin
    assert first.topics == {"topicA": NONE, "topicB": PUB | SUB, "topicC": SUB}
    assert first.groups == {"groupA": NONE, "groupB": NONE, "groupC": SUB, "g0": SUB}
    assert (first.default_topic, first.default_group) == (NONE, SUB)
    assert rules.version == 7
    assert rules.needs_no_account("10.10.103.4") and not rules.needs_no_account("10.10.104.4")
    assert second.needs_no_signature_from("1.2.3.4")
    assert not first.needs_no_signature_from("1.2.3.4")


def test_rules_are_written_so_that_they_can_be_read_again() -> None:
    rules = from_plain_acl(PLAIN, "plain_acl.yml")
    assert from_plain_acl(to_plain_acl(rules, secrets=True), "again") == rules
    shown = to_plain_acl(rules, secrets=False)
    assert SECRET not in str(shown) and "12345678" not in str(shown)


def test_all_faults_are_told_in_one_error_without_secrets() -> None:
    wrong = {
        "globalWhiteRemoteAddresses": ["10.0.0.300"],
        "account": [],
        "accounts": [
            {"accessKey": "web-shop", "secretKey": SECRET, "topicPrems": ["t=DENY"]},
            {"accessKey": "one-more", "secretKey": "short", "admin": False},
            {"accessKey": "one-more", "secretKey": SECRET, "admin": "yes"},
            {"accessKey": "last-one", "secretKey": SECRET, "groupPerms": ["g", "a=b=c"]},
            {"secretKey": SECRET},
            "web",
            {"accessKey": "web-shop", "secretKey": 1.5, "whiteRemoteAddress": "1"},
        ],
        "dataVersion": [{"counter": -1}],
    }
    with pytest.raises(AccessRulesInvalid) as raised:
        from_plain_acl(wrong, "conf/plain_acl.yml")
    error = raised.value
    assert error.args[1] == "conf/plain_acl.yml" and len(error.faults) == 11
    assert SECRET not in str(error.args) and "'short'" not in str(error.args)
    for told in (
        "conf/plain_acl.yml",
        "'account' is no member",
        "account 1 (web-shop): 'topicPrems' is no member",
        "account 2 (one-more): the secretKey has 5 characters",
        "account 3 (one-more): admin must be true or false",
        "account 4 (last-one): groupPerms has 'g'; write name=PUB|SUB",
        "account 4 (last-one): groupPerms has 'a=b=c'",
        "account 5: the accessKey '' has 0 characters",
        "account 6 is no mapping",
        "account 7 (web-shop): secretKey must be text; put it in quotes",
        "'10.0.0.300' cannot be read",
        "counter must be a number",
    ):
        assert told in error.message
    assert pickle.loads(pickle.dumps(error)).faults == error.faults


def test_an_account_that_stands_twice_is_a_fault() -> None:
    twice = {"accounts": [PLAIN["accounts"][1]] * 2}
    with pytest.raises(AccessRulesInvalid, match="account 2: rocketmq2 stands there already"):
        from_plain_acl(twice, "f")


@pytest.mark.parametrize("mapping", [None, {}, [], "accounts", 3])
def test_an_empty_file_drops_no_accounts(mapping: object) -> None:
    with pytest.raises(AccessRulesInvalid, match="it has no accounts"):
        from_plain_acl(mapping, "f")


def test_a_change_makes_new_rules_of_a_later_version() -> None:
    rules = AccessRules().with_account(account())
    changed = rules.with_account(account(admin=True)).with_white_addresses(("10.0.0.*",))
    assert not rules.accounts["web-shop"].admin and changed.accounts["web-shop"].admin
    assert (rules.version, changed.version) == (1, 3)
    assert changed.needs_no_account("10.0.0.9") and not rules.needs_no_account("10.0.0.9")
    assert changed.without("web-shop").find("web-shop") is None
    with pytest.raises(ConfigError, match="there is no account 'nobody'"):
        rules.without("nobody")
    with pytest.raises(ConfigError, match="cannot be read"):
        rules.with_white_addresses(("10",))


ADMIN = Account("root-one", SECRET, admin=True)
READER = account(topics={"orders": SUB}, groups={"billing": SUB})
RULES = AccessRules().with_account(ADMIN).with_account(READER)


@pytest.mark.parametrize(
    ("holder", "action", "touched"),
    [
        (None, Action.NONE, [(TOPIC, "orders")]),
        (READER, Action.SUB, [(TOPIC, "orders"), (GROUP, "billing")]),
        (READER, Action.ANY, [(TOPIC, "orders")]),
        (READER, Action.PUB, [(TOPIC, "RMQ_SYS_TRACE_TOPIC")]),
        (READER, Action.PUB, [(GROUP, "billing")]),
        (READER, Action.SUB, []),
        (READER, Action.ANY, [(CLUSTER, "")]),
        (ADMIN, Action.ADMIN, [(CLUSTER, "")]),
        (ADMIN, Action.PUB, [(TOPIC, "payments")]),
    ],
)
def test_who_may_is_let_pass(
    holder: Account | None, action: Action, touched: list[tuple[ResourceKind, str]]
) -> None:
    assert check(RULES, holder, action, touched) is None


@pytest.mark.parametrize(
    ("holder", "action", "touched", "told"),
    [
        (None, Action.ANY, [(CLUSTER, "")], "no account asks for this; give access_key"),
        (READER, Action.PUB, [(TOPIC, "orders")], "may not PUB on topic orders; an administrator"),
        (READER, Action.SUB, [(TOPIC, "orders"), (TOPIC, "x")], "may not SUB on topic x"),
        (READER, Action.ANY, [(TOPIC, "x")], "may not PUB or SUB on topic x"),
        (READER, Action.PUB, [(GROUP, "other")], "may not SUB on group other"),
        (READER, Action.ANY, [(TOPIC, EVERY)], "may not PUB or SUB on all topics"),
        (READER, Action.SUB, [(TOPIC, "RMQ_SYS_TRACE_TOPIC")], "may not SUB on topic RMQ_SYS"),
        (READER, Action.ADMIN, [], "the account web-shop is no administrator"),
        (Account("gone-now", SECRET, admin=True), Action.ADMIN, [], "account gone-now is gone"),
    ],
)
def test_who_may_not_is_told_what_and_who_can_grant_it(
    holder: Account | None,
    action: Action,
    touched: list[tuple[ResourceKind, str]],
    told: str,
) -> None:
    with pytest.raises(NotAuthorized) as raised:
        check(RULES, holder, action, touched)
    assert told in raised.value.message and "rmq-ray acl" in raised.value.message


def test_what_an_account_may_now_counts_not_what_it_might_when_it_came() -> None:
    before = account(admin=True)
    with pytest.raises(NotAuthorized, match="no administrator"):
        check(RULES, before, Action.ADMIN, [])


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**9)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(["t=PUB", "t=SUB|PUB", "t=", "=", "10.0.0.*", "DENY", "web-shop", SECRET]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*PLAIN, *PLAIN["accounts"][0], "counter", 3, None]), inner, max_size=5
        )
    ),
    max_leaves=12,
)
ACCOUNTS = st.fixed_dictionaries(
    {"accessKey": st.sampled_from(["web-shop", "one-more", 12345678, None]), "secretKey": VALUES},
    optional={name: VALUES for name in PLAIN["accounts"][0] if not name.endswith("Key")},
)


@settings(max_examples=200, deadline=None)
@given(
    VALUES
    | st.fixed_dictionaries(
        {"accounts": st.lists(ACCOUNTS, max_size=3)},
        optional={"globalWhiteRemoteAddresses": VALUES, "dataVersion": VALUES},
    )
)
def test_any_mapping_is_read_and_kept_or_refused_with_its_faults(mapping: object) -> None:
    try:
        rules = from_plain_acl(mapping, "any")
    except AccessRulesInvalid as error:
        assert error.faults
        return
    assert from_plain_acl(to_plain_acl(rules, secrets=True), "again") == rules
