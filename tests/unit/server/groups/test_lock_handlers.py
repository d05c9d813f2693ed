"""Queue locks through a whole broker core: who is granted what, whose commits count, and what a
restarted broker knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.errors import StoreFull
from rmq_ray.model.groups import LockHolder
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.pulling import PullSysFlag
from rmq_ray.remoting.wire import bodies, body_json
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.store.tables.lock_journal import LockJournal, LockLine
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

COMMIT = int(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUBSCRIPTION)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", queue_id)


def ask(bench: Bench, client_id: str, *queue_ids: int, code: int = Code.LOCK_BATCH_MQ) -> Command:
    """As RocketMQ's own clients ask."""
    return bench.ask(
        code, None, bodies.encode_lock("billing", client_id, [queue(n) for n in queue_ids])
    )


def granted(bench: Bench, client_id: str, *queue_ids: int) -> list[int]:
    return [
        found.queue_id for found in bodies.decode_locked(ask(bench, client_id, *queue_ids).body)
    ]


def lock(bench: Bench, client_id: str, queue_id: int = 0, epoch: int = 0) -> int | None:
    """As clients of ours ask; the epoch, None when refused."""
    answer = bench.ask(
        Code.LOCK_BATCH_MQ,
        None,
        bodies.encode_lock("billing", client_id, [queue(queue_id)], [epoch]),
    )
    return bodies.decode_locked_epochs(answer.body).get(queue(queue_id))


def commit(
    bench: Bench, peer: FakePeer, offset: int, epoch: int | None = None, oneway: bool = False
) -> int:
    fields = {
        "consumerGroup": "billing",
        "topic": "orders",
        "queueId": "0",
        "commitOffset": str(offset),
    }
    if epoch is not None:
        fields["rmqLockEpoch"] = str(epoch)
    if oneway:
        bench.core.handle(bench.command(Code.UPDATE_CONSUMER_OFFSET, fields, oneway=True), peer)
        return 0
    return bench.ask(Code.UPDATE_CONSUMER_OFFSET, fields, peer=peer).code


def stored(bench: Bench) -> int | None:
    return bench.core.tables.offsets.query("orders", "billing", 0)


def member(bench: Bench, client_id: str, port: int) -> FakePeer:
    peer = FakePeer(port=port)
    bench.heartbeat(peer, client_id=client_id)
    return peer


def test_queue_locks_are_granted_refused_released_and_expire(bench: Bench) -> None:
    assert granted(bench, "c1", 0, 1) == [0, 1]
    assert granted(bench, "c2", 0, 1, 2) == [2]
    assert ask(bench, "c1", 1, code=Code.UNLOCK_BATCH_MQ).code == 0
    assert granted(bench, "c2", 0, 1) == [1]
    bench.clock.advance_ms(60_001)
    assert granted(bench, "c2", 0) == [0]


def test_rocketmqs_own_clients_see_nothing_of_epochs(bench: Bench) -> None:
    assert body_json.parse(ask(bench, "c1", 0).body) == {
        "lockOKMQSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "orders"}]
    }


def test_how_long_a_silent_holder_keeps_its_queue_is_a_setting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, queue_lock_ms=2_000).open()
    assert granted(bench, "c1", 0) == [0]
    bench.clock.advance_ms(2_001)
    assert granted(bench, "c2", 0) == [0]
    bench.close()


def test_a_commit_for_a_locked_queue_counts_only_from_its_holder(bench: Bench) -> None:
    holder, zombie = member(bench, "c1", 1), member(bench, "c2", 2)
    ask(bench, "c1", 0)
    bench.send(bodies_=[b"x"] * 9)
    assert commit(bench, zombie, 9) == ResponseCode.SYSTEM_ERROR and stored(bench) is None
    assert commit(bench, holder, 9) == 0 and stored(bench) == 9


def test_a_zombie_cannot_commit_once_another_has_had_the_queue(bench: Bench) -> None:
    zombie, other = member(bench, "c1", 1), member(bench, "c2", 2)
    bench.send(bodies_=[b"x"] * 9)
    old = lock(bench, "c1")
    assert commit(bench, zombie, 3, old) == 0 and stored(bench) == 3
    bench.clock.advance_ms(60_001)
    new = lock(bench, "c2")
    assert old is not None and new is not None and new > old
    assert commit(bench, other, 5, new) == 0
    assert (
        commit(bench, zombie, 4, old) == commit(bench, zombie, 9, old) == ResponseCode.SYSTEM_ERROR
    )
    commit(bench, zombie, 9, old, oneway=True)
    assert stored(bench) == 5
    status = bench.core.status()
    assert (status["commits_fenced"], status["offsets_refused"], status["queue_locks"]) == (3, 3, 1)


def test_a_zombie_cannot_commit_after_the_queue_was_given_back_nor_by_a_fresh_connection(
    bench: Bench,
) -> None:
    member(bench, "c1", 1)
    bench.send(bodies_=[b"x"] * 9)
    old = lock(bench, "c1")
    ask(bench, "c1", 0, code=Code.UNLOCK_BATCH_MQ)
    assert commit(bench, FakePeer(port=9), 7, old) == ResponseCode.SYSTEM_ERROR, (
        "an administrator names no lock"
    )
    assert stored(bench) is None


def test_nobody_is_an_administrator_by_naming_a_lock(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 9)
    epoch = lock(bench, "c1")
    fresh = FakePeer(port=9)
    assert commit(bench, fresh, 10, epoch) == ResponseCode.SYSTEM_ERROR, "the log ends at 9"
    assert (
        commit(bench, fresh, 9, epoch) == 0
        and commit(bench, fresh, 4, epoch) == 0
        and stored(bench) == 4
    ), "the holder may go back"


def test_a_zombies_pull_commits_nothing(bench: Bench) -> None:
    zombie = member(bench, "c1", 1)
    bench.send(bodies_=[b"x"] * 9)
    old = lock(bench, "c1")
    assert bench.pull(flags=COMMIT, commit_offset=2, lock_epoch=old, peer=zombie)[0] == 0
    assert stored(bench) == 2
    new = lock(bench, "c1")  # another life of the same client id
    assert bench.pull(flags=COMMIT, commit_offset=8, lock_epoch=old, peer=zombie)[0] == 0, (
        "the pull itself is served"
    )
    assert stored(bench) == 2
    assert (
        bench.pull(flags=COMMIT, commit_offset=8, lock_epoch=new, peer=zombie)[0] == 0
        and stored(bench) == 8
    )


def test_an_administrator_may_set_offsets_of_locked_queues(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 9)
    lock(bench, "c1")
    assert commit(bench, FakePeer(port=9), 1) == 0 and stored(bench) == 1


def restarted(bench: Bench, tmp_path: Path) -> Bench:
    """After kill -9: what lies on disk, a new process."""
    bench.core.close()()  # gives the store's lock back; the journal has no say in a clean stop
    return Bench(tmp_path, clock=bench.clock).open(create=False)


def test_a_restarted_broker_knows_the_holders_and_fences_the_others(
    bench: Bench, tmp_path: Path
) -> None:
    bench.send(bodies_=[b"x"] * 9)
    first, freed = lock(bench, "c1", 0), lock(bench, "c1", 1)
    ask(bench, "c1", 1, code=Code.UNLOCK_BATCH_MQ)
    again = restarted(bench, tmp_path)
    assert lock(again, "c2", 0) is None, "its holder may still be at work"
    assert first is not None and commit(again, FakePeer(port=1), 5, first) == 0
    assert lock(again, "c1", 0, first) == first
    taken = lock(again, "c2", 1)
    assert taken is not None and freed is not None and taken > freed
    again.clock.advance_ms(60_001)
    later = lock(again, "c2", 0)
    assert later is not None and later > taken
    again.close()


def test_a_broker_that_lost_its_journal_gives_no_old_epoch_again(
    bench: Bench, tmp_path: Path
) -> None:
    old = lock(bench, "c1")
    bench.core.close()()
    (tmp_path / "store" / "rmq_ray" / "queue_locks").unlink()
    bench.clock.advance_ms(10)
    again = Bench(tmp_path, clock=bench.clock).open(create=False)
    new = lock(again, "c2")
    assert old is not None and new is not None and new > old
    assert commit(again, FakePeer(port=1), 5, old) == ResponseCode.SYSTEM_ERROR
    again.close()


def test_locks_of_a_later_epoch_have_greater_epochs_than_all_before_it(
    bench: Bench, tmp_path: Path
) -> None:
    core = bench.core
    line = LockLine(0, None, "billing", queue(0))
    epochs = []
    for number, (epoch, highest) in enumerate([(0, 7), (1, 0), (2, 9 << 44), (3, 5), (10, 1)]):
        core.lock_handlers.load(([line], highest), epoch)
        epoch = lock(bench, f"c{number}", number)
        assert epoch is not None and epoch > highest
        epochs.append(epoch)
    assert epochs == sorted(set(epochs)) and epochs[-1] < 1 << 63


def test_what_cannot_be_written_is_not_granted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = lock(bench, "c1", 1)

    def full(self: LockJournal, lines: object) -> None:
        if lines:
            raise StoreFull("no room", "queue_locks")

    with monkeypatch.context() as patched:
        patched.setattr(LockJournal, "append", full)
        assert lock(bench, "c1", 0) is None
        assert lock(bench, "c1", 1, mine or 0) == mine, "a refresh writes nothing"
        assert ask(bench, "c1", 1, code=Code.UNLOCK_BATCH_MQ).code == 0
    assert lock(bench, "c2", 0) is not None and lock(bench, "c2", 1) is not None


def test_a_broker_that_stops_grants_and_writes_nothing_more(bench: Bench) -> None:
    lock(bench, "c1", 0)
    path = Path(bench.config.store.path, "rmq_ray", "queue_locks")
    before = path.read_bytes()
    bench.core.close()()
    answer = bench.ask(
        Code.LOCK_BATCH_MQ, None, bodies.encode_lock("billing", "c2", [queue(1)], [0])
    )
    assert answer.code == ResponseCode.STILL_RECOVERING
    assert ask(bench, "c1", 0, code=Code.UNLOCK_BATCH_MQ).code == 0
    assert path.read_bytes() == before


def test_housekeeping_forgets_clients_that_are_gone_and_shortens_the_journal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_ray.store.tables.lock_journal.SPARE_LINES", 8)
    lock(bench, "c1", 0)
    bench.clock.advance_ms(600_001)
    for _ in range(5):
        lock(bench, "c2", 1)
        ask(bench, "c2", 1, code=Code.UNLOCK_BATCH_MQ)
    kept = lock(bench, "c2", 2)
    bench.core.tick()
    assert len(bench.core.members.locks) == 1
    lines, highest = bench.core.tables.locks.load()
    assert [(line.client_id, line.queue, line.epoch) for line in lines] == [
        ("c2", queue(2), kept)
    ] and highest == kept
    assert Path(bench.config.store.path, "rmq_ray", "queue_locks").read_bytes().count(b"\n") == 1


# --- killed consumers -----------------------------------------------------------------------------


def hang_up(bench: Bench, peer: FakePeer) -> None:
    """As the system of a killed process does."""
    peer.closed = peer.hung_up = True
    bench.core.closed(peer)


def test_the_queue_of_a_killed_consumer_is_free_five_seconds_later(bench: Bench) -> None:
    killed, other = member(bench, "c1", 1), member(bench, "c2", 2)
    bench.send(bodies_=[b"x"] * 9)
    old = lock(bench, "c1")
    hang_up(bench, killed)
    bench.clock.advance_ms(5_000)
    assert lock(bench, "c2") is None
    bench.clock.advance_ms(1)
    new = lock(bench, "c2")
    assert new is not None and commit(bench, other, 5, new) == 0
    assert commit(bench, killed, 9, old) == ResponseCode.SYSTEM_ERROR, "the epoch is over"
    assert stored(bench) == 5


def test_a_consumer_that_reconnects_or_has_another_connection_keeps_its_queues(
    bench: Bench,
) -> None:
    first, second = member(bench, "c1", 1), member(bench, "c1", 2)
    lock(bench, "c1")
    hang_up(bench, first)
    bench.clock.advance_ms(6_000)
    assert lock(bench, "c2") is None, "one of two connections ended"
    hang_up(bench, second)
    bench.clock.advance_ms(4_000)
    member(bench, "c1", 3)
    bench.clock.advance_ms(10_000)
    assert lock(bench, "c2") is None


def test_a_connection_that_this_broker_closed_or_the_network_lost_leaves_the_sixty_seconds(
    bench: Bench,
) -> None:
    silent = member(bench, "c1", 1)
    lock(bench, "c1")
    silent.closed = True
    bench.core.closed(silent)
    bench.clock.advance_ms(60_000)
    assert lock(bench, "c2") is None
    bench.clock.advance_ms(1)
    assert lock(bench, "c2") is not None


def test_who_waits_is_told_whom_for_and_so_is_an_administrator(bench: Bench) -> None:
    killed = member(bench, "c1", 1)
    member(bench, "c2", 2)
    lock(bench, "c1")
    bench.clock.advance_ms(3_000)

    def told() -> dict[MessageQueue, LockHolder]:
        body = bodies.encode_lock("billing", "c2", [queue(0), queue(1)], [0, 0])
        return bodies.decode_lock_holders(bench.ask(Code.LOCK_BATCH_MQ, None, body).body)

    assert told() == {queue(0): LockHolder("c1", 57_000)}
    hang_up(bench, killed)
    assert told() == {queue(0): LockHolder("c1", 5_000, left=True)}
    answer = bench.ask(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "billing"})
    assert bodies.decode_lock_holders(answer.body) == {
        queue(0): LockHolder("c1", 5_000, left=True),
        queue(1): LockHolder("c2", 60_000),
    }
