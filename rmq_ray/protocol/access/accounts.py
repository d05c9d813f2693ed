"""One account: what it proves itself with and what it may do, by the rules of RocketMQ's ACL 1.0.

    explicit entry of the topic or group  >  the account's default  >  DENY

An administrator without entries of its own passes everything; one with entries is held to them, as
anybody else is.

Decides: what is an account, whether it may. Does not decide who is asked for it (``decision``).
Pure. Invariant: an ``Account`` that exists is sound; its secret is in no ``repr`` and no error.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from itertools import chain

from rmq_ray.errors import ConfigError
from rmq_ray.model.topics import RETRY_PREFIX, SYSTEM_TOPICS
from rmq_ray.protocol.access.addresses import white_list

KEY_CHARS_MIN = 7
"""Of access keys and secrets, as Apache RocketMQ demands."""
KEY_CHARS_MAX = 255
EVERY = "*"
"""Instead of a name: all topics, or all groups, that there are."""
_HANDSHAKE = b"rmq_ray handshake\0"


class ResourceKind(Enum):
    """On what a right is held."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    """The cluster as a whole: nothing that belongs to one topic or group."""


class Right(Flag):
    """What an account holds on a topic or group. Asked for, several mean: one of them."""

    NONE = 0
    PUB = auto()
    SUB = auto()

    @classmethod
    def parse(cls, text: str) -> Right:
        """From the words of ``plain_acl.yml``; ``ConfigError`` for any other."""
        found = _WORDS.get(text.strip())
        if found is None:
            raise ConfigError(f"{text!r:.80} is no right; write one of {', '.join(_WORDS)}")
        return found

    def __str__(self) -> str:
        return _TEXTS[self]


_WORDS = {
    "DENY": Right.NONE,
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": Right.PUB | Right.SUB,
    "SUB|PUB": Right.PUB | Right.SUB,
}
_TEXTS = {right: word for word, right in reversed(_WORDS.items())}


@dataclass(frozen=True, slots=True)
class Account:
    """``white_address``: from where it needs no signature (``addresses``); "" = from nowhere.
    ``groups`` are named without ``%RETRY%``.

    >>> web = Account("web-shop", "12345678", topics={"orders": Right.PUB})
    >>> web.may(ResourceKind.TOPIC, "orders", Right.PUB)
    True
    >>> web.may(ResourceKind.TOPIC, "orders", Right.SUB)
    False
    """

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool = False
    white_address: str = ""
    default_topic: Right = Right.NONE
    default_group: Right = Right.NONE
    topics: Mapping[str, Right] = field(default_factory=dict)
    groups: Mapping[str, Right] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = [*_key_faults("accessKey", self.access_key, shown=True)]
        faults += _key_faults("secretKey", self.secret_key, shown=False)
        faults += _name_faults("topic", self.topics)
        faults += _name_faults("group", self.groups)
        try:
            white_list(self.white_address)
        except ConfigError as error:
            faults.append(error.message)
        if faults:
            raise ConfigError("; ".join(faults))

    def may(self, kind: ResourceKind, name: str, wanted: Right) -> bool:
        """Whether this account holds one of ``wanted`` there. What belongs to the cluster as a
        whole is open to every account, unless it is for administrators (``decision``). Topics of
        the brokers' own (delayed and half messages of everybody) need an entry.
        """
        if kind is ResourceKind.CLUSTER or self._may_everything:
            return True
        topic = kind is ResourceKind.TOPIC
        held, default = (
            (self.topics, self.default_topic) if topic else (self.groups, self.default_group)
        )
        if name == EVERY:
            return all(right & wanted for right in chain(held.values(), (default,)))
        if topic and name in SYSTEM_TOPICS:
            default = Right.NONE
        return bool(held.get(name, default) & wanted)

    def is_more_than(self, later: Account | None) -> bool:
        """Whether who is connected as this account has to prove itself anew to ``later``, its next
        self: it is gone, proves itself otherwise, or holds less somewhere.
        """
        if later is None or self.admin > later.admin:
            return True
        if (self.secret_key, self.white_address) != (later.secret_key, later.white_address):
            return True
        if self._may_everything or later._may_everything:
            return not later._may_everything
        return _holds_more(
            self.topics, self.default_topic, later.topics, later.default_topic
        ) or _holds_more(self.groups, self.default_group, later.groups, later.default_group)

    @property
    def _may_everything(self) -> bool:
        return self.admin and not (self.topics or self.groups)

    def needs_no_signature_from(self, host: str) -> bool:
        """Whether its white list has this address."""
        return white_list(self.white_address).has(host)

    def handshake_key(self, cluster: str) -> bytes:
        """What this account's connections of ours prove instead of the secret, so that the secret
        itself need not travel with plans and tasks.
        """
        return hmac.digest(self.secret_key.encode(), _HANDSHAKE + cluster.encode(), "sha256")


def _holds_more(
    held: Mapping[str, Right], default: Right, later: Mapping[str, Right], later_default: Right
) -> bool:
    return bool(default & ~later_default) or any(
        held.get(name, default) & ~later.get(name, later_default) for name in {*held, *later}
    )


def _key_faults(what: str, value: object, *, shown: bool) -> Iterable[str]:
    """``shown``: the value may stand in the text."""
    told = f" {value!r:.80}" if shown else ""
    if not isinstance(value, str):
        yield f"the {what}{told} must be a string"
    elif not KEY_CHARS_MIN <= len(value) <= KEY_CHARS_MAX:
        yield (
            f"the {what}{told} has {len(value)} characters; {KEY_CHARS_MIN} to {KEY_CHARS_MAX} "
            f"are allowed"
        )
    elif not value.isprintable() or value != value.strip():
        yield f"the {what}{told} has blanks at its ends, or characters that cannot be printed"


def _name_faults(what: str, rights: Mapping[str, Right]) -> Iterable[str]:
    for name, right in rights.items():
        if not name.strip() or name.startswith(RETRY_PREFIX):
            yield f"{name!r:.80} is no name of a {what}"
        if right.__class__ is not Right:
            yield f"the right on {what} {name!r:.80} is {right!r:.80}; give a Right"
