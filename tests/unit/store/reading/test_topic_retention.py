"""A topic that keeps less than the store: what is older is not handed out, and is not removed."""

from __future__ import annotations

from rmq_ray.store.reading.log_reader import GetMessageStatus
from tests.support.brokers.store_rig import ROOT, StoreRig, small_config

HOUR_MS = 3_600_000
TOPIC = "TopicTest"


def a_message_each_hour(count: int = 5) -> StoreRig:
    """Messages 0, 1, ... of queue 0, and as many of queue 1 of another topic; it is the hour of the
    last one, and a minute.
    """
    rig = StoreRig(config=small_config(segment_bytes=1 << 20))
    for number in range(count):
        rig.send([b"%d" % number], 2 * number)
        rig.send([b"%d" % number], 2 * number + 1, queue_id=1, topic="other")
        rig.clock.advance_ms(HOUR_MS if number + 1 < count else 60_000)
    return rig


def expire(rig: StoreRig, hours: int) -> int:
    return rig.store.expire_topics(rig.clock.now_ms(), {TOPIC: hours} if hours else {})


def test_what_is_older_than_the_topics_hours_is_not_handed_out() -> None:
    rig = a_message_each_hour()
    assert expire(rig, 2) == 1
    assert rig.store.bounds(TOPIC, 0) == (3, 5) and rig.bodies() == [b"3", b"4"]
    found = rig.store.get_messages(TOPIC, 0, 0, 10, 1 << 20, None)
    assert (found.status, found.next_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, 3)
    assert rig.bodies(1, "other") == [b"%d" % number for number in range(5)]
    assert expire(rig, 2) == 0
    rig.clock.advance_ms(HOUR_MS)
    assert expire(rig, 2) == 1 and rig.bodies() == [b"4"]


def test_nothing_but_what_readers_see_changes() -> None:
    rig = a_message_each_hour()
    begin, log_offset = rig.store.begin_offset, rig.store.log_offset_of(TOPIC, 0, 0)
    expire(rig, 1)
    assert rig.store.begin_offset == begin and rig.store.record_at(log_offset) is not None
    rig.store.flush()
    after = rig.next_life(rig.disk.after_kill())
    assert after.store.bounds(TOPIC, 0) == (0, 5), "nothing is written: it is found anew"
    assert expire(after, 1) == 1 and after.bodies() == [b"4"]


def test_a_queue_of_which_all_is_old_goes_on_where_it_was() -> None:
    rig = a_message_each_hour()
    rig.clock.advance_ms(HOUR_MS)
    expire(rig, 1)
    assert rig.store.bounds(TOPIC, 0) == (5, 5) and expire(rig, 1) == 0
    assert rig.send([b"new"], 90).base_queue_offset == 5
    assert expire(rig, 1) == 0 and rig.bodies() == [b"new"]


def test_a_topic_that_keeps_more_again_shows_what_the_log_still_has() -> None:
    rig = a_message_each_hour()
    expire(rig, 1)
    assert expire(rig, 3) == 1 and rig.store.bounds(TOPIC, 0) == (2, 5)
    assert expire(rig, 0) == 1 and rig.store.bounds(TOPIC, 0) == (0, 5)
    assert expire(rig, 0) == 0


def test_a_pin_holds_what_is_seen_and_brings_nothing_back() -> None:
    rig = a_message_each_hour()
    deadline_ms = rig.clock.monotonic_ms() + HOUR_MS
    pin = rig.store.pin(rig.store.log_offset_of(TOPIC, 0, 2), deadline_ms)
    expire(rig, 1)
    assert rig.store.bounds(TOPIC, 0) == (2, 5)
    rig.store.unpin(pin)
    expire(rig, 1)
    assert rig.store.bounds(TOPIC, 0) == (4, 5)
    rig.store.pin(0, rig.clock.monotonic_ms() + 2 * HOUR_MS)
    rig.clock.advance_ms(HOUR_MS)
    expire(rig, 1)
    assert rig.store.bounds(TOPIC, 0) == (4, 5)


def test_a_log_that_is_cut_below_the_beginning_is_filled_again_from_the_cut() -> None:
    rig = a_message_each_hour()
    expire(rig, 1)
    queue = rig.store.opened.queues.find(TOPIC, 0)
    assert queue is not None and queue.min_offset == 4
    queue.truncate_from(rig.store.log_offset_of(TOPIC, 0, 2))
    assert (queue.min_offset, queue.max_offset) == (2, 2)
    queue.truncate_from(rig.store.log_offset_of(TOPIC, 0, 1))
    assert (queue.min_offset, queue.max_offset) == (1, 1)


def test_retention_of_the_log_goes_on_beneath() -> None:
    rig = StoreRig(config=small_config(segment_bytes=4096, reserved_hours=3))
    for number in range(40):
        rig.send([b"%03d" % number * 60], number)
    rig.store.flush()
    for name in rig.disk.list_dir(f"{ROOT}/commitlog"):
        rig.disk.set_modified_ms(f"{ROOT}/commitlog/{name}", rig.clock.now_ms())
    rig.clock.advance_ms(4 * HOUR_MS)
    rig.send([b"young"], 40)
    expire(rig, 1)
    rig.store.request_cleaning()
    assert rig.store.clean(rig.clock.now_ms()).segments > 0
    assert rig.store.bounds(TOPIC, 0) == (40, 41) and expire(rig, 1) == 0
    assert expire(rig, 0) == 1 and 0 < rig.store.bounds(TOPIC, 0)[0] < 40
