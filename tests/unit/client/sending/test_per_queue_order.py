from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.client.sending.per_queue_order import PerQueueOrder
from rmq_ray.model.ids import MessageQueue

ONE, TWO = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)


@dataclass(eq=False)
class Frame:
    order_key: MessageQueue | None
    ordered: bool = False
    holds: bool = False
    number: int = 0
    waiting: Callable[[], None] | None = None


def launch(order: PerQueueOrder[Frame], queue: MessageQueue) -> Frame | None:
    frame = order.next(queue)
    if frame is not None:
        order.launched(queue)
    return frame


def test_frames_of_a_queue_leave_in_order_without_waiting_for_answers() -> None:
    order: PerQueueOrder[Frame] = PerQueueOrder()
    frames = [Frame(ONE) for _ in range(3)]
    for frame in frames:
        order.add(frame)
    order.add(Frame(TWO))
    assert [launch(order, ONE) for _ in range(4)] == [*frames, None]


def test_while_one_is_being_launched_no_other_thread_launches_the_next() -> None:
    order: PerQueueOrder[Frame] = PerQueueOrder()
    order.add(Frame(ONE))
    order.add(second := Frame(ONE))
    assert order.next(ONE) is not None and order.next(ONE) is None
    order.launched(ONE)
    assert order.next(ONE) is second


def test_an_ordered_frame_waits_for_those_that_are_out_and_others_wait_for_it() -> None:
    order: PerQueueOrder[Frame] = PerQueueOrder()
    before, ordered, after = Frame(ONE), Frame(ONE, ordered=True), Frame(ONE)
    for frame in (before, ordered, after):
        order.add(frame)
    assert launch(order, ONE) is before and launch(order, ONE) is None
    assert order.ended(before)[0] and launch(order, ONE) is ordered
    assert launch(order, ONE) is None
    assert order.ended(ordered)[0] and launch(order, ONE) is after
    assert order.ended(after) == (False, None)
    assert order._queues == {}


def test_newer_frames_wait_for_one_that_must_be_sent_again_and_leave_when_it_ended() -> None:
    order: PerQueueOrder[Frame] = PerQueueOrder()
    first, second, third = (Frame(ONE) for _ in range(3))
    order.add(first)
    order.add(second)
    assert launch(order, ONE) is first and launch(order, ONE) is second
    order.hold(first)
    order.hold(first)
    order.add(third)
    assert launch(order, ONE) is None
    assert order.ended(second) == (False, None)
    assert order.ended(first)[0] and launch(order, ONE) is third


def test_frames_are_sent_again_one_after_the_other_the_oldest_first() -> None:
    order: PerQueueOrder[Frame] = PerQueueOrder()
    first, second, third = (Frame(ONE) for _ in range(3))
    for frame in (first, second, third):
        order.add(frame)
        launch(order, ONE)
    for frame in (third, first, second):
        order.hold(frame)
    sent: list[str] = []
    assert not order.may_go(third, lambda: sent.append("third"))
    assert not order.may_go(second, lambda: sent.append("second"))
    assert order.may_go(first, lambda: sent.append("first"))
    _, action = order.ended(first)
    assert action is not None
    action()
    _, action = order.ended(second)
    assert action is not None
    action()
    assert (
        sent == ["second", "third"] and order.ended(third) == (False, None) and order._queues == {}
    )


def test_a_frame_that_ends_before_it_was_launched_leaves_its_place() -> None:
    order: PerQueueOrder[Frame] = PerQueueOrder()
    first, second = Frame(ONE, ordered=True), Frame(ONE)
    order.add(first)
    order.add(second)
    assert launch(order, ONE) is first
    order.ended(second)
    order.ended(first)
    assert order._queues == {}


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "ordered", "next", "hold", "end"]), st.integers(0, 5)),
        max_size=80,
    )
)
def test_whatever_happens_the_order_is_kept_and_nothing_is_forgotten(
    steps: list[tuple[str, int]],
) -> None:
    order: PerQueueOrder[Frame] = PerQueueOrder()
    added: list[Frame] = []
    left: list[Frame] = []
    out: list[Frame] = []

    def advance() -> None:
        while (frame := launch(order, ONE)) is not None:
            assert not any(other.ordered or other.holds for other in out) and not (
                frame.ordered and out
            )
            left.append(frame)
            out.append(frame)

    for step, number in steps:
        if step in ("add", "ordered"):
            added.append(Frame(ONE, step == "ordered"))
            order.add(added[-1])
        elif step == "next":
            advance()
        elif out:
            frame = out[number % len(out)]
            if step == "hold":
                order.hold(frame)
            else:
                out.remove(frame)
                order.ended(frame)
    while out or len(left) < len(added):
        advance()
        order.ended(out.pop(0))
    assert left == added and order._queues == {}
