"""Seeded SQL92 expressions and property strings: lawful ones of every form, and broken ones made of
them.
"""

from __future__ import annotations

import random

NAMES = ("a", "b", "amount", "region", "TAGS", "_x", "$y", "absent", "In1")
TEXTS = (
    "",
    "5",
    "05",
    "+5",
    "-5",
    "5.0",
    "5.",
    ".5",
    "5e0",
    "5E1",
    " 5",
    "5 ",
    "5f",
    "0x5",
    "0x1p2",
    "hz",
    "TagA",
    "true",
    "TRUE",
    "false",
    "NaN",
    "Infinity",
    "-Infinity",
    "2147483647",
    "2147483648",
    "-2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "0",
    "-0",
    "-0.0",
    "0.0",
    "1e400",
    "1_000",
    "\u0665",
    "\uff15",
    "it's",
    "标签",
    "null",
    "4.9E-324",
    "9007199254740993",
    "12345678901234567890",
    "0000000000000000000007",
    "٣.5",
    "\U0001d7d9",
)
NUMBERS = (
    "0",
    "1",
    "5",
    "05",
    "5L",
    "5l",
    "0L",
    "10",
    "100",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "5.0",
    "5.",
    ".5",
    "5E0",
    "5e-1",
    "5.5E1",
    "0.0",
    "1E400",
    "1E-400",
    "4.9E-324",
    "9007199254740993",
    "9007199254740993.0",
    "0x5",
    "1.7976931348623157E308",
)
OPERATORS = ("=", "<>", ">", ">=", "<", "<=", "!=", "==")
WEIGHTS = (6, 4, 5, 5, 5, 5, 1, 1)
BLANKS = (" ", "  ", "\t", "\n", " /* c */ ", " -- c\n", "/**/", "--")
BLANK_WEIGHTS = (60, 5, 2, 2, 2, 2, 1, 1)


class RandomFilters:
    """One stream of cases; the seed fixes it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def expression(self) -> str:
        """Three of four are lawful in form; what is compared with what is up to chance."""
        chance = self._random
        parts = self._condition(chance.randrange(4))
        if chance.random() < 0.25:
            at = chance.randrange(len(parts))
            other = chance.choice(
                (
                    *NAMES,
                    *NUMBERS,
                    *OPERATORS,
                    "(",
                    ")",
                    "NOT",
                    "AND",
                    "NULL",
                    "IS",
                    ",",
                    "'x'",
                    "'",
                    "-",
                    "BETWEEN",
                    "IN",
                    "#",
                )
            )
            parts = chance.choice(
                (
                    parts[:at] + parts[at + 1 :],
                    [*parts[:at], other, *parts[at:]],
                    [*parts[:at], other, *parts[at + 1 :]],
                )
            )
        text = ""
        for part in parts:
            text += part + chance.choices(BLANKS, BLANK_WEIGHTS)[0]
        return text

    def properties(self) -> str:
        """A property string; names repeat now and then."""
        chance = self._random
        pairs = [
            (chance.choice(NAMES[:7]), chance.choice(TEXTS)) for _ in range(chance.randrange(6))
        ]
        return "\x02".join(f"{name}\x01{value}" for name, value in pairs if value) + chance.choice(
            ("", "\x02") if pairs else ("",)
        )

    def _condition(self, depth: int) -> list[str]:
        chance = self._random
        form = chance.random()
        if depth and form < 0.45:
            word = chance.choice(("AND", "OR", "and", "Or"))
            return [*self._condition(depth - 1), word, *self._condition(depth - 1)]
        if depth and form < 0.6:
            return [chance.choice(("NOT", "not")), "(", *self._condition(depth - 1), ")"]
        if depth and form < 0.7:
            return ["(", *self._condition(depth - 1), ")"]
        return self._term()

    def _term(self) -> list[str]:
        chance = self._random
        left, form = self._operand(), chance.random()
        if form < 0.55:
            return [*left, chance.choices(OPERATORS, WEIGHTS)[0], *self._operand()]
        if form < 0.65:
            return [*left, "IS", *chance.choice((["NULL"], ["NOT", "NULL"]))]
        if form < 0.8:
            return [
                *left,
                *chance.choice(([], ["NOT"])),
                "BETWEEN",
                *self._operand(),
                "AND",
                *self._operand(),
            ]
        if form < 0.95:
            texts = [self._quoted() for _ in range(chance.randrange(1, 7))]
            return [
                *left,
                *chance.choice(([], ["NOT"])),
                "IN",
                "(",
                *", , ".join(texts).replace(", , ", "\0,\0").split("\0"),
                ")",
            ]
        return left

    def _operand(self) -> list[str]:
        chance = self._random
        form = chance.random()
        if form < 0.5:
            return [chance.choice(NAMES)]
        if form < 0.75:
            return [*chance.choice(([], [], ["-"], ["+"], ["-", "-"])), chance.choice(NUMBERS)]
        if form < 0.88:
            return [self._quoted()]
        if form < 0.93:
            return [chance.choice(("TRUE", "FALSE", "NULL", "true"))]
        if form < 0.96:
            return [chance.choice(("-", "NOT")), chance.choice(NAMES)]
        return ["(", *self._condition(0), ")"]

    def _quoted(self) -> str:
        return "'" + self._random.choice(TEXTS).replace("'", "''") + "'"
