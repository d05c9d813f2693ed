from dataclasses import fields

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.client.sending.arrow_columns import Columns, read_rows
from rmq_ray.client.sending.arrow_sending import cut
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, MessageIllegal, MessageTooLarge
from rmq_ray.model.message import RESERVED_PROPERTIES
from rmq_ray.protocol.validators import property_text

LIMIT = 1_000
NAMES = pa.table({"body": [b"a", b"b"], "key": ["k1", "k2"], "tag": ["t", None]})


def bodies(rows):
    return [body for window in rows for body in window.bodies.to_pylist()]


def texts(rows):
    return [
        text.decode()
        for window in rows
        for text in (
            window.texts.to_pylist() if window.texts is not None else [b""] * len(window.bodies)
        )
    ]


WORD = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=12)
NAME = WORD.filter(lambda name: name not in RESERVED_PROPERTIES)
ROW = st.tuples(
    st.binary(min_size=1, max_size=30),
    st.one_of(st.none(), WORD),
    st.one_of(st.none(), WORD),
    st.one_of(st.none(), WORD),
    WORD,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=30), st.booleans(), st.integers(0, 3))
def test_every_row_gets_the_property_string_that_a_send_would_give_it(rows, large, skipped):
    string, binary = (pa.large_string(), pa.large_binary()) if large else (pa.string(), pa.binary())
    table = pa.table(
        {
            "b": pa.array([row[0] for row in rows], binary),
            "k": pa.array([row[1] for row in rows], string),
            "t": pa.array([row[2] for row in rows], string),
            "region": pa.array([row[3] for row in rows], string),
            "shop": pa.array([row[4] for row in rows], string),
        }
    ).slice(skipped)
    rows = rows[skipped:]
    found = read_rows(table, Columns("b", "k", "t", ["region", "shop"]), LIMIT)
    expected = [
        property_text(
            tag, [key] if key else [], {n: v for n, v in (("region", region), ("shop", shop)) if v}
        )
        for _, key, tag, region, shop in rows
    ]
    assert (bodies(found), texts(found)) == ([row[0] for row in rows], expected)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.one_of(st.none(), st.dictionaries(NAME, st.one_of(st.none(), WORD), max_size=3)),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 3),
)
def test_a_map_column_gives_its_pairs_and_leaves_nulls_out(maps, skipped):
    column = pa.array(
        [None if each is None else list(each.items()) for each in maps],
        pa.map_(pa.string(), pa.string()),
    )
    table = pa.table({"body": [b"x"] * len(maps), "p": column}).slice(skipped)
    expected = [
        "".join(
            f"{name}\x01{value}\x02" for name, value in (each or {}).items() if value is not None
        )
        for each in maps[skipped:]
    ]
    assert texts(read_rows(table, Columns("body", properties="p"), LIMIT)) == expected


@pytest.mark.parametrize(
    "names",
    [
        ["region", "shop"],
        iter(["region", "shop"]),
        dict.fromkeys(["region", "shop"]),
        ["region", "shop", "region"],
    ],
)
def test_names_of_property_columns_may_come_in_any_collection_and_count_once(names):
    table = pa.table({"body": [b"x"] * 2, "region": ["eu", "us"], "shop": ["a", None]})
    assert texts(read_rows(table, Columns("body", properties=names), LIMIT)) == [
        "region\x01eu\x02shop\x01a\x02",
        "region\x01us\x02",
    ]


def test_several_keys_of_a_row_are_joined_and_no_keys_are_no_property():
    table = pa.table(
        {"body": [b"x"] * 4, "k": pa.array([["a", "b"], [], None, ["c"]], pa.list_(pa.string()))}
    )
    assert texts(read_rows(table, Columns("body", "k"), LIMIT)) == [
        "KEYS\x01a b\x02",
        "",
        "",
        "KEYS\x01c\x02",
    ]


TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary(3), pa.binary_view()]


def behind_a_dictionary(values):
    plain = values.cast(pa.binary()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(plain.indices, plain.dictionary.cast(values.type))


def in_runs(values):
    plain = pc.run_end_encode(values.cast(pa.binary()))
    return pa.RunEndEncodedArray.from_arrays(plain.run_ends, plain.values.cast(values.type))


def dictionary_in_runs(values):
    plain = pc.run_end_encode(values.cast(pa.binary()))
    words = plain.values.cast(pa.string()).dictionary_encode()
    return pa.RunEndEncodedArray.from_arrays(plain.run_ends, words)


LAYOUTS = [lambda values: values, behind_a_dictionary, in_runs, dictionary_in_runs]
CUTS = {
    "whole": lambda table: table,
    "sliced": lambda table: pa.concat_tables([table.slice(0, 2), table]).slice(2),
    "a slice": lambda table: table.slice(3, 3),
    "chunks": lambda table: pa.concat_tables([table.slice(n, 1) for n in range(len(table))]),
}
WORDS = ["aaa", "aaa", None, "bbb", None, "ccc", "ccc"]


@pytest.mark.parametrize("cut_into", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", TEXTS + BINARIES, ids=str)
def test_columns_may_have_any_layout(kind, layout, cut_into):
    filled = layout(pa.array([word or "ddd" for word in WORDS]).cast(kind))
    table = cut_into(pa.table({"body": filled, "row": range(len(WORDS))}))
    wanted = [WORDS[row] for row in table["row"].to_pylist()]
    found = bodies(read_rows(table, Columns("body"), LIMIT))
    assert found == [(word or "ddd").encode() for word in wanted]
    if kind in TEXTS:
        label = layout(pa.array(WORDS).cast(kind))
        table = cut_into(pa.table({"body": filled, "label": label}))
        found = texts(read_rows(table, Columns("body", "label", "label", ["label"]), LIMIT))
        assert found == [
            "" if word is None else f"KEYS\x01{word}\x02TAGS\x01{word}\x02label\x01{word}\x02"
            for word in wanted
        ]


NOTHING = {
    "null": pa.nulls(3),
    "null behind a dictionary": pa.nulls(3).dictionary_encode(),
    "null in runs": pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.nulls(1)),
    "lists of null": pa.array([None, [], None]),
    "maps of null": pa.array([None, [], [("left out", None)]], pa.map_(pa.string(), pa.null())),
}


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        pytest.param(columns, NOTHING[name], id=f"{argument}, {name}")
        for argument, columns, names in (
            ("key", Columns("body", key="label"), list(NOTHING)[:4]),
            ("tag", Columns("body", tag="label"), list(NOTHING)[:3]),
            ("a property", Columns("body", properties=["label"]), list(NOTHING)[:3]),
            ("all properties", Columns("body", properties="label"), ["null", "maps of null"]),
        )
        for name in names
    ],
)
def test_a_column_in_which_nothing_is_means_none_in_every_row(columns, values):
    table = pa.table({"body": ["a", "b", "c"], "label": values})
    rows = read_rows(table, columns, LIMIT)
    assert bodies(rows) == [b"a", b"b", b"c"] and texts(rows) == [""] * 3


def test_every_column_that_may_be_left_out_is_among_those_in_which_nothing_was():
    """A new argument of ``Columns`` belongs into the test above."""
    assert [field.name for field in fields(Columns)] == ["body", "key", "tag", "properties"]


@pytest.mark.parametrize("values", [pa.nulls(2), pa.nulls(2).dictionary_encode()])
def test_a_body_column_in_which_nothing_is_lacks_its_bodies(values):
    with pytest.raises(MessageIllegal, match="column 'body', row 0 is null"):
        read_rows(pa.table({"body": values}), Columns("body"), LIMIT)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([["a"], ["b"]], pa.list_view(pa.string())), "type list_view"),
        (pa.array([[1], [2]]), "type list<item: int64>"),
        (pa.array([1, 2]).dictionary_encode(), "type dictionary<values=int64"),
        (pc.run_end_encode(pa.array([1, 1])), "type run_end_encoded<"),
    ],
)
def test_a_layout_that_cannot_be_read_is_named(values, words):
    with pytest.raises(ClientError, match=words):
        read_rows(pa.table({"body": ["a", "b"], "k": values}), Columns("body", "k"), LIMIT)


def test_without_labels_there_is_no_text_column_and_without_rows_nothing():
    (window,) = read_rows(NAMES, Columns("body"), LIMIT)
    assert window.texts is None
    assert read_rows(NAMES.slice(0, 0), Columns("body", "key", "tag"), LIMIT) == []


def test_many_small_chunks_become_one_run_of_rows():
    table = pa.concat_tables([pa.table({"body": [b"%d" % n]}) for n in range(300)])
    (window,) = read_rows(table, Columns("body"), LIMIT)
    assert window.bodies.to_pylist() == [b"%d" % n for n in range(300)]


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        (
            Columns("nothing"),
            ClientError,
            "no columns named 'nothing'; it has 'body', 'key', 'tag'",
        ),
        (Columns("body", "nothing"), ClientError, "'nothing'"),
        (Columns("body", 5), ClientError, "names no column"),
        (Columns("body", properties=["key", "nothing"]), ClientError, "'nothing'"),
        (
            Columns("body", properties=["body"]),
            ClientError,
            "'body' has type binary, string is needed",
        ),
        (
            Columns("body", properties="key"),
            ClientError,
            "'key' has type string, map<string, string>",
        ),
        (Columns("body", tag="body"), ClientError, "'body' has type binary"),
    ],
)
def test_columns_that_are_missing_or_of_another_type_are_named(columns, error, words):
    with pytest.raises(error) as caught:
        read_rows(NAMES, columns, LIMIT)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("column", "values", "kind", "words"),
    [
        ("body", [b"x", None], pa.binary(), "column 'body', row 1 is null"),
        ("body", [b"x", b""], pa.binary(), "column 'body', row 1 is empty"),
        (
            "key",
            ["k", "two words"],
            pa.string(),
            "column 'key', row 1 holds a blank inside a key ('two words')",
        ),
        (
            "key",
            [["a"], ["b", None]],
            pa.list_(pa.string()),
            "column 'key', row 1 holds an empty key or a null",
        ),
        (
            "key",
            [["a"], ["b", ""]],
            pa.list_(pa.string()),
            "column 'key', row 1 holds an empty key",
        ),
        (
            "key",
            [["a", "b"], ["c d"]],
            pa.list_(pa.string()),
            "column 'key', row 1 holds a blank inside a key ('c d')",
        ),
        ("key", ["k", "a\x01b"], pa.string(), "column 'key', row 1 holds the separator"),
        ("tag", ["t", "  "], pa.string(), "column 'tag', row 1 is a blank tag"),
        ("tag", ["t", "a\x02b"], pa.string(), "column 'tag', row 1 holds the separator"),
        ("p", ["v", ""], pa.string(), "column 'p', row 1 is an empty property"),
        (
            "p",
            [[("a", "b")], [("c", "")]],
            pa.map_(pa.string(), pa.string()),
            "column 'p', row 1 holds an empty value",
        ),
        (
            "p",
            [[("a", "b")], [("KEYS", "x")]],
            pa.map_(pa.string(), pa.string()),
            "column 'p', row 1: the property name 'KEYS' is reserved",
        ),
        (
            "p",
            [[("a", "b")], [("", "x")]],
            pa.map_(pa.string(), pa.string()),
            "column 'p', row 1: the property name '' is empty",
        ),
        (
            "p",
            [[("a", "b")], [("c", "x\x01y")]],
            pa.map_(pa.string(), pa.string()),
            "column 'p': a value of rows 0 to 1 holds the separator",
        ),
    ],
)
def test_bad_values_are_named_by_column_and_row(column, values, kind, words):
    table = pa.table({"body": [b"1", b"2"]} | {column: pa.array(values, kind)})
    properties = () if column != "p" else "p" if pa.types.is_map(kind) else ["p"]
    columns = Columns(
        "body", "key" if column == "key" else None, "tag" if column == "tag" else None, properties
    )
    with pytest.raises(MessageIllegal) as caught:
        read_rows(table, columns, LIMIT)
    assert words in str(caught.value)


def test_a_reserved_name_may_not_be_the_name_of_a_property_column():
    with pytest.raises(MessageIllegal, match="'UNIQ_KEY' is reserved"):
        read_rows(
            pa.table({"body": [b"x"], "UNIQ_KEY": ["1"]}),
            Columns("body", properties=["UNIQ_KEY"]),
            LIMIT,
        )


def test_what_is_too_long_is_told_with_its_row():
    with pytest.raises(
        MessageTooLarge, match="column 'body', row 2 has 1001 bytes, the limit is 1000"
    ) as caught:
        read_rows(pa.table({"body": [b"x", b"x", b"x" * 1_001]}), Columns("body"), LIMIT)
    assert caught.value.args[1:] == (1_001, 1_000)
    with pytest.raises(MessageTooLarge, match="column 'k', row 1"):
        read_rows(
            pa.table({"body": [b"x", b"x"], "k": ["a", "b" * 40_000]}), Columns("body", "k"), LIMIT
        )
    with pytest.raises(MessageTooLarge, match="keys, tag and properties"):
        read_rows(
            pa.table({"body": [b"x"], "k": ["a" * 20_000], "t": ["b" * 20_000]}),
            Columns("body", "k", "t"),
            LIMIT,
        )


def test_what_is_no_table_and_names_that_two_columns_have_are_refused():
    with pytest.raises(ClientError, match="not list"):
        read_rows([b"x"], Columns("body"), LIMIT)
    twice = pa.Table.from_arrays([pa.array([b"x"]), pa.array([b"y"])], names=["body", "body"])
    with pytest.raises(ClientError, match="2 columns named 'body'"):
        read_rows(twice, Columns("body"), LIMIT)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=60), st.integers(200, 3_000), st.booleans()
)
def test_frames_hold_all_rows_in_order_and_no_more_bytes_than_one_row_needs(
    lengths, bytes_max, labelled
):
    table = pa.table(
        {
            "body": [bytes([n % 256]) * length for n, length in enumerate(lengths)],
            "k": [str(n) for n in range(len(lengths))],
        }
    )
    rows = read_rows(table, Columns("body", "k" if labelled else None), LIMIT)
    frames = list(cut(rows, ProducerConfig(batch_bytes_max=bytes_max)))
    assert [frame.begin for frame in frames] == [0, *[frame.end for frame in frames[:-1]]]
    assert frames[-1].end == len(lengths)
    for frame in frames:
        found, labels, flags = frame.parts()
        assert [len(body) for body in found] == lengths[frame.begin : frame.end] and flags is None
        assert labels == [
            f"KEYS\x01{n}\x02" if labelled else "" for n in range(frame.begin, frame.end)
        ]
        assert frame.weight <= bytes_max or frame.end - frame.begin == 1


def test_a_frame_has_at_most_65536_rows():
    rows = read_rows(
        pa.table({"body": pa.array([b"x"] * 70_000, pa.binary())}), Columns("body"), LIMIT
    )
    frames = list(cut(rows, ProducerConfig(batch_bytes_max=8 << 20, buffer_bytes_max=8 << 20)))
    assert max(frame.end - frame.begin for frame in frames) <= 65_536 and frames[-1].end == 70_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": None},
        {"body": 5},
        {"key": ["key"]},
        {"tag": 3.5},
        {"properties": 5},
        {"properties": None},
        {"properties": ["key", None]},
        {"properties": b""},
        {"tag": "\ud800"},
    ],
)
def test_a_name_of_a_column_is_a_string(wrong):
    with pytest.raises(ClientError, match=f"{next(iter(wrong))}.* names no column"):
        read_rows(NAMES, Columns(**{"body": "body", **wrong}), LIMIT)
