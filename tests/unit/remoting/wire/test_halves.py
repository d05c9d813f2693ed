"""Bodies of our requests about transactions."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from rmq_ray.errors import MalformedFrame
from rmq_ray.remoting.wire.halves import (
    ENDS_MAX,
    End,
    HalvesHeader,
    pack_end_answers,
    pack_ends,
    unpack_end_answers,
    unpack_ends,
    unpack_halves_header,
)


def test_what_was_packed_is_read() -> None:
    ends = [End(7, 1 << 40, 8), End(8, 0, 12)]
    assert unpack_ends(pack_ends("web", ends)) == ("web", ends)
    assert unpack_end_answers(pack_end_answers([(0, None), (4, "too late")]), 2) == [
        (0, None),
        (4, "too late"),
    ]
    for header in (HalvesHeader("orders", 3, "web"), HalvesHeader("orders", 0, "web", 0)):
        assert unpack_halves_header(header.to_fields()) == header


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {},
        {"t": "a", "q": "0"},
        {"t": "a", "g": "b"},
        {"t": "", "q": "0", "g": "b"},
        {"t": "a", "q": "-1", "g": "b"},
        {"t": "a", "q": "99999999999", "g": "b"},
        {"t": "a", "q": "0", "g": "b", "i": "x"},
    ],
    ids=str,
)
def test_a_header_that_is_none_is_refused(fields: Any) -> None:
    with pytest.raises(MalformedFrame, match="halves need t, q and g"):
        unpack_halves_header(fields)


ONE = [1, 2, 8]


@pytest.mark.parametrize(
    "body",
    [
        7,
        "text",
        [],
        ["web"],
        ["web", []],
        [7, [ONE]],
        ["web", 7],
        ["web", [ONE] * (ENDS_MAX + 1)],
        ["web", [7]],
        ["web", [[1, 2]]],
        ["web", [[1, 2, -8]]],
        ["web", [[1, 2, True]]],
        ["web", [[1, 1 << 63, 8]]],
    ],
    ids=lambda body: repr(body)[:24],
)
def test_a_list_of_ends_that_is_none_is_refused(body: Any) -> None:
    with pytest.raises(MalformedFrame):
        unpack_ends(msgpack.packb(body))
    with pytest.raises(MalformedFrame):
        unpack_ends(b"\xc1")


@pytest.mark.parametrize(
    "body",
    [7, [], [[0, None]] * 3, [[0], [0]], [[0, 1], [0, None]], [["0", None], [0, None]]],
    ids=str,
)
def test_answers_that_do_not_fit_are_refused(body: Any) -> None:
    with pytest.raises(MalformedFrame):
        unpack_end_answers(msgpack.packb(body), 2)
