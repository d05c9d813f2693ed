"""What a checkpoint keeps of the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.errors import ClientError, StoreMissing
from rmq_ray.transfer_queue.saved_position import SAVED, load_position, save_position


def test_a_position_is_read_back_and_a_newer_one_takes_its_place(tmp_path: Path) -> None:
    directory = str(tmp_path / "step-7" / "values")
    for position in (0, 128):
        save_position(directory, "experience", position)
        assert load_position(directory, "experience") == position
    assert [file.name for file in Path(directory).iterdir()] == [SAVED]


def test_a_checkpoint_of_another_topic_is_refused(tmp_path: Path) -> None:
    save_position(str(tmp_path), "experience", 7)
    with pytest.raises(ClientError, match="of the topic 'experience', and this is 'other'"):
        load_position(str(tmp_path), "other")


@pytest.mark.parametrize(
    "text",
    ["", '{"topic": "exp', "[]", '{"topic": "experience"}', '"\\ud800', "\xff"]
    + [f'{{"topic": "experience", "position": {bad}}}' for bad in ("null", "-1", "1.5", '"1"')],
)
def test_a_damaged_checkpoint_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / SAVED).write_bytes(text.encode("latin-1"))
    with pytest.raises(ClientError, match="is damaged"):
        load_position(str(tmp_path), "experience")


def test_a_checkpoint_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing):
        load_position(str(tmp_path), "experience")
