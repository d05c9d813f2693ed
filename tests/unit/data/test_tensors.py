"""Arrays into message bodies and back, without a copy for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_ray.data.tensors import arrays, decoded, encoded, joined
from rmq_ray.errors import BodyUnreadable, ClientError


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(4, 3, 2),
        np.asfortranarray(np.arange(12.0).reshape(4, 3)),
        np.array([True, False, True, False]),
        np.array([[True, False]] * 4),
        np.arange(4, dtype=">i4"),
        np.arange(4, dtype=np.float16),
        np.arange(8, dtype=np.uint8)[::2],
    ],
)
def test_an_array_comes_back_as_it_was_and_lies_in_the_body(array: Any) -> None:
    body, rows = encoded({"x": array, "n": np.arange(4)})
    found = arrays(decoded(body))["x"]
    assert rows == 4 and np.array_equal(found, array) and found.shape == array.shape
    assert found.dtype == array.dtype.newbyteorder("=")
    assert np.shares_memory(found, np.frombuffer(body, np.uint8)), "nothing was copied"


def test_arrow_columns_lists_and_tables_do_too() -> None:
    table = pa.table({"text": ["a", "b"], "n": [1, 2]})
    assert arrays(decoded(encoded(table)[0]))["text"].tolist() == ["a", "b"]
    assert arrays(decoded(encoded({"x": [[1, 2], [3, 4]]})[0]))["x"].tolist() == [[1, 2], [3, 4]]
    batch = table.to_batches()[0]
    assert decoded(encoded(batch)[0]).equals(batch)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "mapping of names to arrays"),
        ([1, 2], "mapping of names to arrays"),
        ({"x": np.array([object()])}, "'x' cannot be a tensor"),
        ({"x": np.array(1.0)}, "0-dimensional"),
        ({"x": [[1], [1, 2]]}, "'x' cannot be a tensor"),
        ({"x": ["a"]}, "Arrow array"),
        ({"x": np.ones((2, 0))}, "is empty"),
        ({"x": np.ones(2), "y": np.ones(3)}, "as many rows"),
    ],
)
def test_what_cannot_be_tensors_is_refused(columns: Any, message: str) -> None:
    with pytest.raises(ClientError, match=message):
        encoded(columns)


def test_several_batches_are_one_where_they_go_together() -> None:
    one, two = {"x": np.ones((2, 3))}, {"x": np.zeros((1, 3))}
    assert joined([one, two])["x"].shape == (3, 3) and joined([one])["x"] is one["x"]
    for other in ({"y": np.ones(1)}, {"x": np.ones((1, 4))}):
        with pytest.raises(ClientError):
            joined([one, other])
    with pytest.raises(BodyUnreadable, match="no batch of arrays"):
        decoded(b"hello")
