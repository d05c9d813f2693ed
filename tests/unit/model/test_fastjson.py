"""The JSON dialect of RocketMQ's bodies and files: bare integer keys, object keys, no members
without value.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.model.fastjson import DEPTH_MAX, dumps, loads, quote

QUEUE = (("brokerName", "broker-a"), ("queueId", 2), ("topic", "TopicTest"))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
OBJECT_KEYS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9) | TEXTS, max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)
KEYS = TEXTS | st.integers(-(1 << 63), (1 << 63) - 1) | OBJECT_KEYS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    return [without_nulls(member) for member in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"offsetTable": {"T@g": {1: 5, 0: 3}}}, '{"offsetTable":{"T@g":{0:3,1:5}}}'),
        (
            {"offsetTable": {QUEUE: 333}},
            '{"offsetTable":{{"brokerName":"broker-a","queueId":2,"topic":"TopicTest"}:333}}',
        ),
        ({"brokerAddrs": {0: "127.0.0.1:10911"}}, '{"brokerAddrs":{0:"127.0.0.1:10911"}}'),
        ({"topicList": [], "table": {}, "gone": None}, '{"table":{},"topicList":[]}'),
        ({"consumeTps": 0.0, "ok": True, "n": -1}, '{"consumeTps":0.0,"n":-1,"ok":true}'),
        ({"s": 'a"\\\x01\x1f\x7f\n\u2028é/'}, '{"s":"a\\"\\\\\\u0001\\u001F\\u007F\\n\\u2028é/"}'),
        ([None, {2, 1}], "[null,[1,2]]"),
    ],
)
def test_values_are_written_as_fastjson_writes_them(value: Any, text: str) -> None:
    assert dumps(value) == text


def test_configuration_files_have_line_breaks_before_named_members_only() -> None:
    assert (
        dumps({"offsetTable": {"TopicTest@g": {0: 335, 1: 335}}}, pretty=True)
        == '{\n\t"offsetTable":{\n\t\t"TopicTest@g":{0:335,1:335\n\t\t}\n\t}\n}'
    )


@pytest.mark.seed("S4-218", "S4-227")
def test_progress_files_of_the_seed_documents_are_read() -> None:
    local = (
        '{\n"offsetTable":{{\n"brokerName":"broker-a",\n"queueId":2,\n"topic":"TopicTest"\n}:333,'
        '{\n"brokerName":"broker-a",\n"queueId":1,\n'
    )
    local += '"topic":"TopicTest"\n}:335\n}\n}'
    assert loads(local)["offsetTable"][QUEUE] == 333
    broker = (
        '{"offsetTable":{"%RETRY%g@g":{0:0},"TopicTest@TopicTest-Consumer":{0:335,1:335,2:333}}}'
    )
    assert loads(broker)["offsetTable"]["TopicTest@TopicTest-Consumer"] == {0: 335, 1: 335, 2: 333}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":"{0:1}", "m" : { 0 : "x" , -7:2 } }', {"a": "{0:1}", "m": {0: "x", -7: 2}}),
        ('{"m":{"0":"x"}}', {"m": {"0": "x"}}),
        (
            '{{"topic":"T","queueId":1,"brokerName":"b"}:{0:1}}',
            {(("brokerName", "b"), ("queueId", 1), ("topic", "T")): {0: 1}},
        ),
        ('{0:"\\u0041\\n\\"","b":[1.5e3,true,null,-0]}', {0: 'A\n"', "b": [1500.0, True, None, 0]}),
        ("{0:[],1:{}}", {0: [], 1: {}}),
        (b'{0:"\xc3\xa9"}', {0: "é"}),
        (" 7 ", 7),
    ],
)
def test_both_styles_are_read(text: str | bytes, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "}",
        "[1,]",
        "{0}",
        "{0:}",
        "{0:1",
        "{0:1,}",
        "{,}",
        "{true:1}",
        "{null:1}",
        "{1.5:1}",
        "{[1]:1}",
        '{{"a":[1]}:1}',
        '{{"a":{}}:1}',
        "{{0:1}:2}",
        "{0:1}x",
        "NaN",
        "[Infinity]",
        "{0:NaN}",
        "{0:01}",
        '{0:"\n"}',
        '{0:"\\x"}',
        '{0:"\\u12"}',
        "{a:1}",
        "'a'",
        "{0:" + "9" * 50 + "}",
        "1" * 5000,
        "1E400",
        "{0:-1e400}",
        b"\xff{}",
    ],
)
def test_what_is_not_in_the_dialect_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        loads(text)


@pytest.mark.parametrize("opening", ["[", '{"a":', "{0:", '{{"a":1}:'])
@pytest.mark.parametrize("levels", [DEPTH_MAX + 2, 100_000])
def test_depth_has_a_limit_in_both_readers(opening: str, levels: int) -> None:
    closing = "]" if opening == "[" else "}"
    with pytest.raises(ValueError, match="deep"):
        loads(opening * levels + "1" + closing * levels)


def test_values_that_are_too_deep_or_have_no_form_are_not_written() -> None:
    deep: Any = 1
    for _ in range(DEPTH_MAX + 2):
        deep = [deep]
    for value in (
        deep,
        {1.5: 1},
        {(1, 2): 1},
        object(),
        float("nan"),
        {"a": float("inf")},
        {True: 1},
    ):
        with pytest.raises(ValueError, match=r"\S"):
            dumps(value)


@settings(deadline=None)
@given(VALUES)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert loads(dumps(value)) == without_nulls(value)
    assert loads(dumps(value, pretty=True)) == without_nulls(value)


@settings(deadline=None)
@given(
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=20,
    )
)
def test_ordinary_json_means_the_same_as_to_everybody_else(value: Any) -> None:
    assert loads(json.dumps(value)) == value


@settings(deadline=None)
@given(st.text(st.sampled_from('{}[]:,"\\0123456789-.eEtruefalsn ulx\n\tu'), max_size=60))
def test_no_text_makes_the_reader_fail_otherwise_than_by_value_error(text: str) -> None:
    try:
        found = loads(text)
    except ValueError:
        return
    assert loads(dumps(found)) == without_nulls(found)


@settings(deadline=None)
@given(TEXTS)
def test_quoted_text_is_a_json_string(text: str) -> None:
    assert json.loads(quote(text)) == text
