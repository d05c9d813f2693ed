from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.client.outgoing.per_queue_order import Lanes
from rmq_ray.model.ids import MessageQueue

ONE, TWO = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)


@dataclass(eq=False)
class Frame:
    lane: MessageQueue | None
    ordered: bool = False
    holds: bool = False
    number: int = 0
    waiting: Callable[[], None] | None = None


def launch(lanes: Lanes[Frame], queue: MessageQueue) -> Frame | None:
    frame = lanes.next(queue)
    if frame is not None:
        lanes.launched(queue)
    return frame


def test_frames_of_a_queue_leave_in_order_without_waiting_for_answers() -> None:
    lanes: Lanes[Frame] = Lanes()
    frames = [Frame(ONE) for _ in range(3)]
    for frame in frames:
        lanes.add(frame)
    lanes.add(Frame(TWO))
    assert [launch(lanes, ONE) for _ in range(4)] == [*frames, None]


def test_while_one_is_being_launched_no_other_thread_launches_the_next() -> None:
    lanes: Lanes[Frame] = Lanes()
    lanes.add(Frame(ONE))
    lanes.add(second := Frame(ONE))
    assert lanes.next(ONE) is not None and lanes.next(ONE) is None
    lanes.launched(ONE)
    assert lanes.next(ONE) is second


def test_an_ordered_frame_waits_for_those_that_are_out_and_others_wait_for_it() -> None:
    lanes: Lanes[Frame] = Lanes()
    before, ordered, after = Frame(ONE), Frame(ONE, ordered=True), Frame(ONE)
    for frame in (before, ordered, after):
        lanes.add(frame)
    assert launch(lanes, ONE) is before and launch(lanes, ONE) is None
    assert lanes.ended(before)[0] and launch(lanes, ONE) is ordered
    assert launch(lanes, ONE) is None
    assert lanes.ended(ordered)[0] and launch(lanes, ONE) is after
    assert lanes.ended(after) == (False, None)
    assert lanes._lanes == {}


def test_newer_frames_wait_for_one_that_must_be_sent_again_and_leave_when_it_ended() -> None:
    lanes: Lanes[Frame] = Lanes()
    first, second, third = (Frame(ONE) for _ in range(3))
    lanes.add(first)
    lanes.add(second)
    assert launch(lanes, ONE) is first and launch(lanes, ONE) is second
    lanes.hold(first)
    lanes.hold(first)
    lanes.add(third)
    assert launch(lanes, ONE) is None
    assert lanes.ended(second) == (False, None)
    assert lanes.ended(first)[0] and launch(lanes, ONE) is third


def test_frames_are_sent_again_one_after_the_other_the_oldest_first() -> None:
    lanes: Lanes[Frame] = Lanes()
    first, second, third = (Frame(ONE) for _ in range(3))
    for frame in (first, second, third):
        lanes.add(frame)
        launch(lanes, ONE)
    for frame in (third, first, second):
        lanes.hold(frame)
    sent: list[str] = []
    assert not lanes.may_go(third, lambda: sent.append("third"))
    assert not lanes.may_go(second, lambda: sent.append("second"))
    assert lanes.may_go(first, lambda: sent.append("first"))
    _, action = lanes.ended(first)
    assert action is not None
    action()
    _, action = lanes.ended(second)
    assert action is not None
    action()
    assert (
        sent == ["second", "third"] and lanes.ended(third) == (False, None) and lanes._lanes == {}
    )


def test_a_frame_that_ends_before_it_was_launched_leaves_its_place() -> None:
    lanes: Lanes[Frame] = Lanes()
    first, second = Frame(ONE, ordered=True), Frame(ONE)
    lanes.add(first)
    lanes.add(second)
    assert launch(lanes, ONE) is first
    lanes.ended(second)
    lanes.ended(first)
    assert lanes._lanes == {}


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "ordered", "next", "hold", "end"]), st.integers(0, 5)),
        max_size=80,
    )
)
def test_whatever_happens_the_order_is_kept_and_nothing_is_forgotten(
    steps: list[tuple[str, int]],
) -> None:
    lanes: Lanes[Frame] = Lanes()
    added: list[Frame] = []
    left: list[Frame] = []
    out: list[Frame] = []

    def advance() -> None:
        while (frame := launch(lanes, ONE)) is not None:
            assert not any(other.ordered or other.holds for other in out) and not (
                frame.ordered and out
            )
            left.append(frame)
            out.append(frame)

    for step, number in steps:
        if step in ("add", "ordered"):
            added.append(Frame(ONE, step == "ordered"))
            lanes.add(added[-1])
        elif step == "next":
            advance()
        elif out:
            frame = out[number % len(out)]
            if step == "hold":
                lanes.hold(frame)
            else:
                out.remove(frame)
                lanes.ended(frame)
    while out or len(left) < len(added):
        advance()
        lanes.ended(out.pop(0))
    assert left == added and lanes._lanes == {}
