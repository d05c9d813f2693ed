"""SQL92 filters, second step: tokens to a tree, with RocketMQ's checks of what may stand where
(protocol-behaviour 21.2).

    or          and { OR and }
    and         equality { AND equality }
    equality    comparison { = comparison | <> comparison | IS NULL | IS NOT NULL }
    comparison  unary { > >= < <= unary | [NOT] BETWEEN unary AND unary | [NOT] IN ( text {, text} )
                }
    unary       + unary | - unary | NOT unary | literal | property | ( or )

Decides: whether an expression is refused and at which character, and its limits: ``PARTS_MAX``
tokens, ``DEPTH_MAX`` levels. So evaluating one takes a bounded number of steps. Does not decide
what parts mean for a message (``sql92_compiler``). Pure.
"""

from __future__ import annotations

import math

from rmq_ray.protocol.filters.sql92_numbers import INT_MAX, LONG_MAX, Number
from rmq_ray.protocol.filters.sql92_syntax import (
    CONDITIONS,
    And,
    Cast,
    Comparison,
    Condition,
    Constant,
    Member,
    Negative,
    Node,
    Not,
    Or,
    Property,
    Text,
    Truth,
)
from rmq_ray.protocol.filters.sql92_tokens import Kind, Token, check_length, fault, next_token

PARTS_MAX = 1_024
DEPTH_MAX = 64

_TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}
_LEAST_DOUBLE = 5e-324


def parse(expression: str) -> Condition:
    """The tree of a condition. ``SubscriptionInvalid`` with the position of the first fault."""
    return _Parser(expression).parse()


class _Parser:
    """Recursive descent; ``_next`` is the token that was not taken yet."""

    def __init__(self, expression: str) -> None:
        check_length(expression)
        self._expression = expression
        self._open = self._taken = 0
        self._next, self._end = next_token(expression, 0)

    def parse(self) -> Condition:
        """The whole expression."""
        if self._at_end():
            raise self._fault(
                self._next.at,
                "the expression is empty; write a condition like amount > 100, or subscribe to '*'",
            )
        found = self._condition(self._or())
        if not self._at_end():
            raise self._fault(
                self._next.at,
                f"the condition before {self._next} is complete; AND, OR or the end may follow",
            )
        return found

    # --- levels -----------------------------------------------------------------------------------

    def _or(self) -> Node:
        left = self._and()
        if not self._is("OR"):
            return left
        parts = [self._condition(left)]
        while self._take("OR"):  # ends: takes a token each round
            parts.append(self._condition(self._and()))
        return Or(tuple(parts), left.at, self._above(left.at, *parts))

    def _and(self) -> Node:
        left = self._equality()
        if not self._is("AND"):
            return left
        parts = [self._condition(left)]
        while self._take("AND"):  # ends: takes a token each round
            parts.append(self._condition(self._equality()))
        return And(tuple(parts), left.at, self._above(left.at, *parts))

    def _equality(self) -> Node:
        left = self._comparison()
        while True:  # ends: takes a token each round
            if self._take("="):
                left = self._equal(left, self._comparison())
            elif self._take("<>"):
                left = self._negated(self._equal(left, self._comparison()))
            elif self._take("IS"):
                is_not = self._take("NOT")
                null = self._expect("NULL", "IS is followed by NULL or NOT NULL")
                equal = Comparison(
                    "=", left, Truth(None, null.at), left.at, self._above(left.at, left)
                )
                left = self._negated(equal) if is_not else equal
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:  # ends: takes a token each round
            operator = next((text for text in (">=", "<=", ">", "<") if self._take(text)), None)
            negated = operator is None and self._take("NOT")
            if operator is not None:
                left = self._ordered(operator, left, self._unary())
            elif self._take("BETWEEN"):
                left = self._between(left, negated)
            elif self._take("IN"):
                left = self._member(left, negated)
            elif negated:
                raise self._fault(
                    self._next.at, f"NOT is followed by BETWEEN or IN here, not by {self._next}"
                )
            else:
                return left

    def _unary(self) -> Node:
        token = self._next
        self._open += 1
        if self._open > DEPTH_MAX:
            raise self._fault(token.at, f"more than {DEPTH_MAX} levels of parentheses and signs")
        found: Node
        if self._take("+"):
            found = self._unary()
        elif self._take("-"):
            found = self._negative(token, self._unary())
        elif self._take("NOT"):
            found = self._negated(self._condition(self._unary()), token.at)
        else:
            found = self._primary()
        self._open -= 1
        return found

    def _primary(self) -> Node:
        token = self._next
        if self._take("("):
            found = self._or()
            self._expect(")", "a closing parenthesis is missing")
            return found
        if token.kind is Kind.END or (
            token.kind in (Kind.KEYWORD, Kind.SYMBOL) and token.text not in _TRUTHS
        ):
            raise self._fault(
                token.at, f"a value, a property or a condition is expected, not {token}"
            )
        self._advance()
        if token.kind is Kind.KEYWORD:
            return Truth(_TRUTHS[token.text], token.at)
        if token.kind is Kind.ID:
            return Property(token.text, token.at)
        if token.kind is Kind.TEXT:
            return Text(token.text, token.at)
        return self._whole(token) if token.kind is Kind.INTEGER else self._floating(token)

    # --- parts and their checks -------------------------------------------------------------------

    def _whole(self, token: Token) -> Constant:
        value = int(token.text.rstrip("lL")) if len(token.text) <= 20 else LONG_MAX + 1
        if value > LONG_MAX:
            raise self._fault(token.at, f"{token.text} is greater than {LONG_MAX}")
        return Constant(Number.INT if value <= INT_MAX else Number.LONG, value, token.at)

    def _floating(self, token: Token) -> Constant:
        value = float(token.text)
        if math.isinf(value):
            raise self._fault(
                token.at, f"{token.text} is greater than the greatest floating-point number"
            )
        if value < _LEAST_DOUBLE:
            raise self._fault(
                token.at,
                f"{token.text} is less than the least positive floating-point number; write "
                f"0 for zero",
            )
        return Constant(Number.DOUBLE, value, token.at)

    def _negative(self, sign: Token, inner: Node) -> Node:
        if isinstance(inner, Constant):
            return Constant(inner.number, -inner.value, sign.at, literal=False)
        return Negative(inner, sign.at, self._above(sign.at, inner))

    def _negated(self, inner: Condition, at: int | None = None) -> Not:
        begin = inner.at if at is None else at
        return Not(inner, begin, self._above(begin, inner))

    def _condition(self, node: Node) -> Condition:
        if isinstance(node, Property):
            return Cast(node, node.at, 2)
        if isinstance(node, CONDITIONS):
            return node
        raise self._fault(
            node.at, "a condition is expected here, this is a value; compare it with something"
        )

    def _equal(self, left: Node, right: Node) -> Comparison:
        for side in (left, right):
            if isinstance(side, Truth) and side.value is None:
                raise self._fault(side.at, "NULL cannot be compared; write IS NULL or IS NOT NULL")
        if isinstance(left, Truth) and (
            isinstance(right, Text) or (isinstance(right, Constant) and right.literal)
        ):
            raise self._fault(right.at, "TRUE and FALSE cannot be compared with this value")
        return Comparison("=", left, right, left.at, self._above(left.at, left, right))

    def _ordered(self, operator: str, left: Node, right: Node) -> Comparison:
        for side in (left, right):
            if isinstance(side, Text):
                raise self._fault(
                    side.at,
                    f"a text cannot be compared by {operator}; leave the quotes away where a "
                    f"number is meant",
                )
            if isinstance(side, CONDITIONS):
                raise self._fault(
                    side.at,
                    f"a condition cannot be compared by {operator}; only numbers and "
                    f"properties can",
                )
        return Comparison(operator, left, right, left.at, self._above(left.at, left, right))

    def _between(self, value: Node, negated: bool) -> Condition:
        low = self._unary()
        self._expect("AND", "BETWEEN needs two values with AND between them")
        high = self._unary()
        if negated:
            below, beyond = self._ordered("<", value, low), self._ordered(">", value, high)
            return Or((below, beyond), value.at, self._above(value.at, below, beyond))
        if (
            isinstance(low, Constant)
            and isinstance(high, Constant)
            and low.literal
            and high.literal
            and _is_above(low, high)
        ):
            raise self._fault(
                low.at,
                f"BETWEEN {low.value} AND {high.value} matches nothing; the lower value "
                f"comes first",
            )
        least, most = self._ordered(">=", value, low), self._ordered("<=", value, high)
        return And((least, most), value.at, self._above(value.at, least, most))

    def _member(self, left: Node, negated: bool) -> Member:
        if not isinstance(left, Property):
            raise self._fault(left.at, "a property is expected before IN")
        self._expect("(", "IN is followed by texts in parentheses")
        values = [self._text()]
        while self._take(","):  # ends: takes a token each round
            values.append(self._text())
        self._expect(")", "a comma or a closing parenthesis is expected")
        return Member(left, frozenset(values), negated, left.at)

    def _text(self) -> str:
        token = self._next
        if token.kind is not Kind.TEXT:
            raise self._fault(token.at, f"IN takes texts in single quotes, not {token}")
        self._advance()
        return token.text

    # --- tokens -----------------------------------------------------------------------------------

    def _advance(self) -> None:
        self._taken += 1
        self._next, self._end = next_token(self._expression, self._end)
        if self._taken >= PARTS_MAX and not self._at_end():
            raise self._fault(self._next.at, f"the expression has more than {PARTS_MAX} parts")

    def _at_end(self) -> bool:
        return self._next.kind is Kind.END

    def _is(self, text: str) -> bool:
        token = self._next
        return token.text == text and token.kind in (Kind.KEYWORD, Kind.SYMBOL)

    def _take(self, text: str) -> bool:
        taken = self._is(text)
        if taken:
            self._advance()
        return taken

    def _expect(self, text: str, otherwise: str) -> Token:
        token = self._next
        if not self._take(text):
            raise self._fault(token.at, f"{otherwise}, not {token}")
        return token

    def _above(self, at: int, *parts: Node) -> int:
        depth = 1 + max(part.depth for part in parts)
        if depth > DEPTH_MAX:
            raise self._fault(at, f"more than {DEPTH_MAX} levels of conditions within one another")
        return depth

    def _fault(self, at: int, what: str) -> Exception:
        return fault(self._expression, at, what)


def _is_above(low: Constant, high: Constant) -> bool:
    if Number.DOUBLE in (low.number, high.number):
        return float(low.value) > float(high.value)
    return low.value > high.value
