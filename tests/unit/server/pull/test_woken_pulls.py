"""A held pull that was woken by the frame written last: its answer comes from memory, and is the
one that any pull would get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.errors import StoreFailed
from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command, encode_bytes
from rmq_ray.server.pull.pull_handlers import PullHandlers
from rmq_ray.store.reading.log_reader import LogReader
from tests.support.brokers.broker_bench import Bench, bodies_of, page_of
from tests.support.faults.fake_peer import FakePeer

SUSPEND, INLINE = 2, 4


class Held:
    """A bench whose hold says later who is to be woken, as the real one does: when the frame's
    append is over.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.peer = FakePeer()
        self._woken: list[Callable[[], None]] = []
        bench.offload.later = self._woken

    def pull(self, offset: int, flags: int = SUSPEND | INLINE, **asked: Any) -> None:
        assert (
            self.bench.core.handle(
                self.bench.pull_command(offset=offset, flags=flags, **asked), self.peer
            )
            is None
        )

    def answer(self) -> Command:
        """What the pull gets now that it is woken."""
        assert self._woken and not self.peer.sent
        for wake in self._woken:
            wake()
        answer: Command
        (answer,) = self.peer.take()
        return answer


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    bench = Bench(tmp_path).open()
    bench.send(bodies_=[b"old"])
    yield Held(bench)
    bench.close()


def both_ways(
    held: Held,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[], object],
    flags: int = SUSPEND | INLINE,
    **asked: Any,
) -> tuple[bool, Command]:
    """(whether the short way was taken, the answer). The long way gives the same bytes and counts
    the same.
    """
    bench, taken = held.bench, []
    plain = PullHandlers._just_written
    store, counters = bench.core.keeper.store, bench.core.counters
    assert store is not None

    def watched(*args: Any) -> Command | None:
        answer = plain(*args)
        taken.append(answer is not None)
        return answer

    def counted(
        answer: Callable[[], Command | None],
    ) -> tuple[Command | None, dict[str, int], dict[int, int]]:
        """The answer, what it added to the counts, and how far behind the group is said to be."""
        before = counters.as_dict()
        given = answer()
        return (
            given,
            {name: value - before[name] for name, value in counters.as_dict().items()},
            bench.core.tables.offsets.behind.of("billing", "orders"),
        )

    offset = store.bounds("orders", 0)[1]
    with monkeypatch.context() as patch:
        patch.setattr(PullHandlers, "_just_written", watched)
        held.pull(offset, flags, **asked)
        prepare()
        short, *told = counted(held.answer)
    long, *told_then = counted(
        lambda: bench.core.handle(
            bench.pull_command(offset=offset, flags=flags, **asked), held.peer
        )
    )
    assert short is not None and long is not None
    long.opaque = short.opaque
    assert encode_bytes(short) == encode_bytes(long)
    assert told == told_then
    return any(taken), short


@pytest.mark.parametrize(
    ("count", "quick"), [(1, True), (3, True), (15, True), (16, False), (40, False)]
)
def test_a_small_frame_comes_from_memory_byte_for_byte_as_from_the_log(
    held: Held, monkeypatch: pytest.MonkeyPatch, count: int, quick: bool
) -> None:
    bodies = [b"new-%d" % number for number in range(count)]
    taken, answer = both_ways(
        held, monkeypatch, lambda: held.bench.send(bodies_=bodies), count_max=100
    )
    assert taken is quick
    assert bodies_of(page_of(answer)) == bodies


def test_what_was_asked_for_limits_the_answer(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, answer = both_ways(
        held, monkeypatch, lambda: held.bench.send(bodies_=[b"a", b"b", b"c"]), count_max=2
    )
    assert not taken and bodies_of(page_of(answer)) == [b"a", b"b"]


def test_two_frames_in_a_row_are_both_in_the_answer(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two() -> None:
        held.bench.send(bodies_=[b"first"])
        held.bench.send(bodies_=[b"second"])

    taken, answer = both_ways(held, monkeypatch, two)
    assert not taken and bodies_of(page_of(answer)) == [b"first", b"second"]


def test_a_frame_of_another_queue_behind_it_changes_nothing(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two() -> None:
        held.bench.send(bodies_=[b"mine"])
        held.bench.send(queue_id=1, bodies_=[b"other"])

    taken, answer = both_ways(held, monkeypatch, two)
    assert not taken and bodies_of(page_of(answer)) == [b"mine"]


def test_a_pull_with_a_filter_goes_the_long_way(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, answer = both_ways(
        held, monkeypatch, lambda: held.bench.send(tag="paid"), expression="paid"
    )
    assert not taken and bodies_of(page_of(answer)) == [b"hello"]


def test_members_of_a_group_are_answered_from_memory_too(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.bench.heartbeat(held.peer)
    held.peer.take()
    taken, answer = both_ways(
        held, monkeypatch, lambda: held.bench.send(bodies_=[b"new"]), flags=SUSPEND, sub_version=1
    )
    assert taken and bodies_of(page_of(answer)) == [b"new"]


def test_a_reader_from_before_a_cut_goes_the_long_way(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = held.bench.core.keeper.store
    assert store is not None
    taken, _ = both_ways(held, monkeypatch, lambda: held.bench.send(), epoch=store.epoch)
    assert taken
    cut = [(1, 0), (2, store.visible_offset)]
    with monkeypatch.context() as patch:
        patch.setattr(type(store.opened.epochs), "current", property(lambda _self: 2))
        patch.setattr(type(store.opened.epochs), "entries", property(lambda _self: tuple(cut)))
        taken, answer = both_ways(
            held, patch, lambda: held.bench.send(bodies_=[b"behind"]), epoch=1
        )
    assert not taken and bodies_of(page_of(answer)) == [b"behind"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda core: setattr(core.identity, "permission", 2), ResponseCode.NO_PERMISSION),
        (
            lambda core: core.tables.groups.put(GroupConfig("billing", consume_enable=False)),
            ResponseCode.NO_PERMISSION,
        ),
        (
            lambda core: core.tables.topics.put(TopicConfig("orders", 4, 4, 2)),
            ResponseCode.NO_PERMISSION,
        ),
    ],
)
def test_what_was_forbidden_while_the_pull_was_held_is_refused_when_it_wakes(
    held: Held, change: Callable[[object], None], code: int
) -> None:
    held.pull(1)
    held.bench.send()
    change(held.bench.core)
    assert held.answer().code == code


def test_a_log_that_failed_meanwhile_answers_nothing_from_memory(held: Held) -> None:
    held.pull(1)
    held.bench.send()
    store = held.bench.core.keeper.store
    assert store is not None
    store.opened.log.failure = StoreFailed("a write failed", "log")
    assert held.answer().code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_queue_whose_end_is_not_the_frames_end_is_read(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written and not visible yet is not handed out, from memory neither."""
    store = held.bench.core.keeper.store
    assert store is not None
    held.bench.send()
    reader: LogReader = store.opened.reader
    assert reader.recent_from("orders", 0, 1, 10, 1 << 20) is not None
    queue = store.opened.queues.find("orders", 0)
    assert queue is not None
    monkeypatch.setattr(queue, "_max", 1)
    assert reader.recent_from("orders", 0, 1, 10, 1 << 20) is None
    monkeypatch.setattr(queue, "_max", 2)
    monkeypatch.setattr(queue, "_min", 2)
    assert reader.recent_from("orders", 0, 1, 10, 1 << 20) is None
