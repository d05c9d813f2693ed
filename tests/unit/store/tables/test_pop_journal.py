"""PopJournal: what of a damaged file counts, appends that fail, a new file in the old one's
place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.errors import StoreFailed
from rmq_ray.files import Bytes, File, FileSystem
from rmq_ray.store.tables.pop_journal import PopJournal

EVENTS = [
    [1, "workers", "jobs", 0, 0],
    [2, "workers", "jobs", 0, 7, 1_000, -1, 0, 3, 3],
    [3, "workers", "jobs", 0, 7, b"\x05"],
]


def journal(directory: Path) -> PopJournal:
    return PopJournal(f"{directory}/rmq_ray/pop.journal", FileSystem())


def written(directory: Path, epoch: int = 4) -> PopJournal:
    made = journal(directory)
    made.reopen(made.write(epoch, EVENTS[:1]))
    made.append(EVENTS[1:])
    return made


def test_without_a_file_there_is_no_history(tmp_path: Path) -> None:
    history = journal(tmp_path).read()
    assert (history.epoch, history.events) == (0, [])


def test_what_was_appended_is_read_with_the_epoch_it_was_written_in(tmp_path: Path) -> None:
    written(tmp_path).close()
    history = journal(tmp_path).read()
    assert (history.epoch, history.events) == (4, EVENTS)


def test_a_file_cut_at_any_byte_counts_up_to_its_last_whole_entry(tmp_path: Path) -> None:
    written(tmp_path).close()
    path = tmp_path / "rmq_ray" / "pop.journal"
    data, seen = path.read_bytes(), set()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        events = journal(tmp_path).read().events
        assert events == EVENTS[: len(events)]
        seen.add(len(events))
    assert seen == {0, 1, 2}


def test_a_flipped_bit_ends_the_history_before_it(tmp_path: Path) -> None:
    written(tmp_path).close()
    path = tmp_path / "rmq_ray" / "pop.journal"
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        events = journal(tmp_path).read().events
        assert events == EVENTS[: len(events)] and len(events) < len(EVENTS)


@pytest.mark.parametrize("content", [b"", b"\0" * 4_096, b"something else altogether"])
def test_another_file_in_its_place_is_no_history(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rmq_ray").mkdir()
    (tmp_path / "rmq_ray" / "pop.journal").write_bytes(content)
    assert journal(tmp_path).read().events == []


def test_an_append_that_fails_half_way_is_written_over_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, pwrite = written(tmp_path), File.pwrite
    size = made.size

    def torn(file: File, data: Bytes, position: int) -> None:
        pwrite(file, data[: len(data) // 2], position)
        raise StoreFailed("the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(File, "pwrite", torn)
        with pytest.raises(StoreFailed):
            made.append(
                [[6, "workers", "jobs", 0, 7, b"a long event of which a part stays behind"]]
            )
    assert made.size == size
    made.append([EVENTS[0]])
    made.close()
    assert journal(tmp_path).read().events == [*EVENTS, EVENTS[0]]


def test_nothing_is_appended_before_there_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="written anew"):
        journal(tmp_path).append(EVENTS)


def test_a_new_file_takes_the_old_ones_place_as_a_whole(tmp_path: Path) -> None:
    made = written(tmp_path)
    size = made.write(5, EVENTS[:2])
    made.append([EVENTS[2]])
    assert journal(tmp_path).read().events == EVENTS[:2], (
        "what is appended before reopen() goes to the old file"
    )
    made.reopen(size)
    made.append([EVENTS[0]])
    made.close()
    history = journal(tmp_path).read()
    assert (history.epoch, history.events) == (5, [*EVENTS[:2], EVENTS[0]])
