"""SQL92 filters: thousands of seeded expressions over many property strings, each verdict as Apache
RocketMQ's own filter gives it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.protocol.filters.sql92_compiler import compile_condition
from rmq_ray.protocol.filters.sql92_numbers import NotComparable
from rmq_ray.protocol.filters.sql92_parser import parse
from tests.support.stores.random_filters import RandomFilters
from tools import interop

EXPRESSIONS = 6_000
STRINGS = 12
TRAILING = "refused for what follows the condition"


def ours(expression: str, properties: list[str]) -> str:
    """In FilterCheck's letters."""
    try:
        evaluate = compile_condition(parse(expression))
    except SubscriptionInvalid as error:
        return TRAILING if "is complete" in error.message else "refused"
    letters = ""
    for text in properties:
        try:
            letters += {True: "t", False: "f", None: "n"}[evaluate(text.encode())]
        except NotComparable:
            letters += "e"
    return letters


def _position(expression: str) -> int:
    with pytest.raises(SubscriptionInvalid) as caught:
        parse(expression)
    return int(caught.value.args[2])


@pytest.mark.interop
@pytest.mark.seed("S4-008", "S4-099", "S4-231")
def test_every_verdict_is_that_of_apache_rocketmqs_own_filter(tmp_path: Path) -> None:
    chance = RandomFilters(20_240_501)
    cases = [
        (chance.expression(), [chance.properties() for _ in range(STRINGS)])
        for _ in range(EXPRESSIONS)
    ]
    asked = tmp_path / "cases.jsonl"
    asked.write_text(
        "".join(
            json.dumps({"expression": expression, "properties": properties}) + "\n"
            for expression, properties in cases
        )
    )
    theirs = interop.run("FilterCheck", asked).splitlines()
    assert len(theirs) == EXPRESSIONS
    mine = [ours(expression, properties) for expression, properties in cases]
    trailing = 0
    for i, (expression, properties) in enumerate(cases):
        # theirs ignores the rest of the text without a word; what precedes it must mean the same
        if mine[i] == TRAILING:
            mine[i] = ours(expression[: _position(expression)], properties)
            trailing += theirs[i] != "refused"
    different = [
        (cases[i][0], cases[i][1], mine[i], theirs[i])
        for i in range(EXPRESSIONS)
        if mine[i] != theirs[i]
    ]
    assert not different, different[:5]
    assert trailing > 100
    letters = "".join(line for line in theirs if line != "refused")
    assert theirs.count("refused") > 1_000 and all(
        letters.count(letter) > 1_000 for letter in "tfne"
    ), "the cases cover too little"
