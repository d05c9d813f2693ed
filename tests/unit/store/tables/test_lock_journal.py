"""The journal of queue locks: what a restarted broker knows of holders."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.errors import StoreFull
from rmq_ray.files import File, FileSystem
from rmq_ray.model.ids import MessageQueue
from rmq_ray.store.tables.lock_journal import SPARE_LINES, LockJournal, LockLine

A, B = (MessageQueue("orders", "broker-a", n) for n in range(2))
ONE, TWO = LockLine(1, "c1", "billing", A), LockLine(2, "c2", "billing", B)


def journal(directory: Path) -> LockJournal:
    return LockJournal(str(directory / "queue_locks"), FileSystem())


def test_what_was_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    first = journal(tmp_path)
    assert first.load() == ([], 0)
    first.append([ONE, TWO])
    first.append([LockLine(3, "c3", "other", A)])
    first.append([LockLine(0, None, "billing", A), LockLine(4, "c2", "billing", B)])
    assert journal(tmp_path).load() == (
        [LockLine(4, "c2", "billing", B), LockLine(3, "c3", "other", A)],
        4,
    )


def test_the_greatest_epoch_is_known_although_its_lock_is_free(tmp_path: Path) -> None:
    journal(tmp_path).append(
        [ONE, LockLine(9, "c1", "billing", B), LockLine(0, None, "billing", B)]
    )
    assert journal(tmp_path).load() == ([ONE], 9)


def test_a_half_written_line_does_not_count_and_is_written_over(tmp_path: Path) -> None:
    journal(tmp_path).append([ONE, TWO])
    path = tmp_path / "queue_locks"
    whole = path.read_bytes()
    for cut in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:cut])
        again = journal(tmp_path)
        assert again.load() == ([ONE], 1)
        again.append([LockLine(5, "c5", "billing", B)])
        assert journal(tmp_path).load() == ([ONE, LockLine(5, "c5", "billing", B)], 5)


def test_lines_that_make_no_sense_are_dropped(tmp_path: Path) -> None:
    wrong = [
        b"",
        b"{}",
        b"[1]",
        b'["1","c","g","t","b",0]',
        b'[1,2,"g","t","b",0]',
        b'[1,"c","g","t","b","0"]',
        b"\xff\xfe",
        b"[true,null,1,2,3,4]",
    ]
    journal(tmp_path).append([ONE])
    with (tmp_path / "queue_locks").open("ab") as file:
        file.write(b"\n".join(wrong) + b"\n")
    assert journal(tmp_path).load() == ([ONE], 1)


def test_a_failed_write_raises_and_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = journal(tmp_path)
    kept.append([ONE])

    def full(self: File, data: bytes, position: int) -> None:
        raise StoreFull("no room", self.path)

    with monkeypatch.context() as patched:
        patched.setattr(File, "pwrite", full)
        with pytest.raises(StoreFull):
            kept.append([TWO])
    kept.append([LockLine(3, "c3", "billing", B)])
    assert journal(tmp_path).load() == ([ONE, LockLine(3, "c3", "billing", B)], 3)


def test_a_long_journal_is_written_anew_with_what_is_in_force(tmp_path: Path) -> None:
    long = journal(tmp_path)
    long.append([ONE, LockLine(0, None, "billing", A)] * (SPARE_LINES // 2 + 3))
    assert long.is_long(1) and not long.is_long(2)
    long.rewrite([TWO])
    assert not long.is_long(1) and (tmp_path / "queue_locks").read_bytes().count(b"\n") == 1
    long.append([LockLine(3, "c3", "billing", A)])
    assert journal(tmp_path).load() == ([TWO, LockLine(3, "c3", "billing", A)], 3)
