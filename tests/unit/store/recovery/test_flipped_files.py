"""A store any of whose files has wrong bytes opens, or says why not; what it hands out was sent, at
its own offset.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from rmq_ray.codec.record import decode_record
from rmq_ray.errors import RmqError
from rmq_ray.store.front.message_store import MessageStore
from tests.support.stores import small_store

Place = tuple[str, int, int]


def handed_out(store: MessageStore) -> dict[Place, bytes]:
    """(topic, queue, offset) -> body of what readers get."""
    found: dict[Place, bytes] = {}
    for (topic, queue_id), (offset, high) in store.queues().items():
        while offset < high:
            result = store.get_messages(topic, queue_id, offset, 500, 1 << 22, None)
            data, at = b"".join(bytes(part) for part in result.parts), 0
            for size in result.sizes.tolist():
                record = decode_record(data, at)
                found[topic, queue_id, record.queue_offset] = record.body
                at += size
            assert result.next_offset > offset, "a read goes on"
            offset = result.next_offset
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flipped") / "sound"
    small_store.fill(path)
    return path


@pytest.fixture(scope="module")
def sent(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Place, bytes]:
    copy = Path(shutil.copytree(sound, tmp_path_factory.mktemp("flipped") / "copy"))
    store = small_store.opened(copy)
    try:
        return handed_out(store)
    finally:
        store.shutdown()


def flip(store: Path, chance: random.Random, *, killed: bool) -> None:
    """Up to three files get up to eight wrong bits or a wrong stretch, where there are any bytes.
    ``killed``: no clean end, so that a start reads more.
    """
    files = [path for path in sorted(store.rglob("*")) if path.is_file() and path.stat().st_size]
    for file in chance.sample(files, chance.choice((1, 1, 2, 3))):
        data = bytearray(file.read_bytes())
        used = len(data.rstrip(b"\0")) or len(data)
        for _ in range(chance.choice((1, 1, 8))):
            data[chance.randrange(used)] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            at = chance.randrange(used)
            data[at : at + 64] = chance.randbytes(min(64, len(data) - at))
        file.write_bytes(data)
    if killed:
        (store / "abort").touch()
        (store / "rmq_ray" / "checkpoint").unlink(missing_ok=True)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_store_with_wrong_bytes_says_why_or_hands_out_what_was_sent(
    sound: Path, sent: dict[Place, bytes], tmp_path: Path, seed: int, killed: bool
) -> None:
    chance = random.Random(f"{seed} {killed}")
    path = Path(shutil.copytree(sound, tmp_path / "store"))
    flip(path, chance, killed=killed)
    try:
        store = small_store.opened(path)
    except RmqError as error:
        assert str(path) in error.message, "an error names the place"
        return
    try:
        found = handed_out(store)
        small_store.Filler(store, seed=2).frame("later", 0, 3)
        store.flush()
        store.dispatch_durable()
        assert [place for place in handed_out(store) if place[0] == "later"] == [
            ("later", 0, offset) for offset in range(3)
        ]
    except RmqError:
        return
    finally:
        store.shutdown()
    wrong = {place: body for place, body in found.items() if sent.get(place) != body}
    assert not wrong, "only what was sent, each message at its own offset"
