"""SQL92 filters, first step: text to tokens (protocol-behaviour 21.2).

    "amount >= 100 AND name = 'o''neil'"  ->  ID amount, SYMBOL >=, INTEGER 100, KEYWORD AND, ID
                                              name, SYMBOL =, TEXT o'neil, END

Decides: what a token is, the longest one wins. Does not decide what a sequence of tokens means
(``sql92_parser``). Pure.

Tokens are made one by one, so that the first fault is the one that is told. Every fault, in
whichever step it is found, is made by ``fault``: it carries the character's position.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from rmq_ray.errors import SubscriptionInvalid

EXPRESSION_CHARS_MAX = 4_096
KEYWORDS = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"))
_SHOWN_BEFORE, _SHOWN_AFTER = 30, 30

_SKIPPED = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)+")
_TOKEN = re.compile(
    r"(?P<FLOAT>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|"
    r"[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<INTEGER>[1-9][0-9]*[lL]?|0)"
    r"|(?P<TEXT>'(?:''|[^'])*')"
    r"|(?P<ID>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<SYMBOL><>|>=|<=|[=<>(),+-])"
)


class Kind(Enum):
    """Of a token."""

    FLOAT = "a number"
    INTEGER = "a whole number"
    TEXT = "a text"
    ID = "a property"
    SYMBOL = "a symbol"
    KEYWORD = "a keyword"
    END = "the end"


class Token(NamedTuple):
    """``text``: keywords in upper case, texts without quotes; ``at``: position of its first
    character.
    """

    kind: Kind
    text: str
    at: int

    def __str__(self) -> str:
        return "the end of the expression" if self.kind is Kind.END else repr(self.text)


def fault(expression: str, at: int, what: str) -> SubscriptionInvalid:
    """The error for a fault at character ``at`` (from 0): args are the message with a caret under
    the character, the expression, the position.
    """
    begin, end = max(0, at - _SHOWN_BEFORE), at + _SHOWN_AFTER
    shown = "".join(c if c.isprintable() else " " for c in expression[begin:end])
    before, after = "... " if begin else "", " ..." if end < len(expression) else ""
    pointer = " " * (len(before) + at - begin) + "^"
    return SubscriptionInvalid(
        f"SQL filter, character {at + 1}: {what}\n  {before}{shown}{after}\n  {pointer}",
        expression[:EXPRESSION_CHARS_MAX],
        at,
    )


def check_length(expression: str) -> None:
    """``SubscriptionInvalid`` for an expression that is too long to be looked at."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise fault(
            expression,
            EXPRESSION_CHARS_MAX,
            f"the expression has {len(expression)} characters, the limit is {EXPRESSION_CHARS_MAX}",
        )


def next_token(expression: str, at: int) -> tuple[Token, int]:
    """(the token at or behind character ``at``, where it ends). ``SubscriptionInvalid`` for a
    character that begins none.

    >>> next_token("a <>'it''s' -- why\\n", 4)
    (Token(kind=<Kind.TEXT: 'a text'>, text="it's", at=4), 11)
    """
    skipped = _SKIPPED.match(expression, at)
    begin = skipped.end() if skipped is not None else at
    if begin >= len(expression):
        return Token(Kind.END, "", begin), begin
    match = _TOKEN.match(expression, begin)
    if match is None:
        raise fault(expression, begin, _unreadable(expression[begin:]))
    return _token(str(match.lastgroup), match.group(), begin), match.end()


def _token(group: str, text: str, at: int) -> Token:
    if group == "TEXT":
        return Token(Kind.TEXT, text[1:-1].replace("''", "'"), at)
    if group == "ID" and text.upper() in KEYWORDS:
        return Token(Kind.KEYWORD, text.upper(), at)
    return Token(Kind[group], text, at)


def _unreadable(rest: str) -> str:
    if rest[0] == "'":
        return "this text has no closing quote; write '' for a quote inside of a text"
    if rest[0] == '"':
        return "texts stand in single quotes"
    if rest.startswith("/*"):
        return "this comment has no end"
    if rest.startswith(("!=", "==", "&", "|")):
        return f"{rest[0]!r} is no operator here; there are = <> > >= < <= AND OR NOT"
    return f"{rest[0]!r} has no meaning here"
