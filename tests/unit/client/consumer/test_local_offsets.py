"""Offsets of a broadcasting consumer in its file, and whose directory that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.client.consumer.local_offset_store import LocalFileOffsetStore, LocalPlace
from rmq_ray.client.consumer.offset_store import ReadOffset
from rmq_ray.clock import ManualClock
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError, StoreCorrupt
from rmq_ray.files import FileSystem
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import ClusterAddress

QUEUES = [MessageQueue("TopicTest", "broker-a", number) for number in range(3)]
MEMORY, STORE, MEMORY_FIRST = ReadOffset.MEMORY, ReadOffset.STORE, ReadOffset.MEMORY_FIRST
CLUSTER = ClusterAddress("blue", ("127.0.0.1:9876",))


def store(directory: Path) -> LocalFileOffsetStore:
    made = LocalFileOffsetStore(str(directory), FileSystem(), ManualClock())
    made.load()
    return made


@pytest.mark.seed("S4-218", "S4-217")
def test_the_file_is_rocketmqs_and_is_read_again(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for queue, offset in zip(QUEUES, (335, 335, 333), strict=True):
        kept.update(queue, offset)
    kept.persist_all(QUEUES)
    text = "".join((tmp_path / "offsets.json").read_text().split())
    keys = [
        f'{{"brokerName":"broker-a","queueId":{number},"topic":"TopicTest"}}' for number in range(3)
    ]
    assert text == f'{{"offsetTable":{{{keys[0]}:335,{keys[1]}:335,{keys[2]}:333}}}}'
    again = store(tmp_path)
    assert [again.read(queue, MEMORY) for queue in QUEUES] == [-1, -1, -1]
    assert [again.read(queue, STORE) for queue in QUEUES] == [335, 335, 333]
    assert (
        again.clone() == dict(zip(QUEUES, (335, 335, 333), strict=True))
        and again.clone("other") == {}
    )


@pytest.mark.seed("S4-217")
@pytest.mark.parametrize(
    "damage", ["", "{", '{"offsetTable":7}', None], ids=["empty", "torn", "wrong", "missing"]
)
def test_a_broken_or_missing_file_is_replaced_by_the_one_before(
    tmp_path: Path, damage: str | None
) -> None:
    kept = store(tmp_path)
    for offset in (10, 20):
        kept.update(QUEUES[0], offset)
        kept.persist_all(QUEUES)
    if damage is None:
        (tmp_path / "offsets.json").unlink()
    else:
        (tmp_path / "offsets.json").write_text(damage)
    assert store(tmp_path).read(QUEUES[0], STORE) == 10
    (tmp_path / "offsets.json.bak").write_text("{")
    if damage is not None:
        with pytest.raises(StoreCorrupt, match="no readable table"):
            store(tmp_path)


def test_an_offset_rises_unless_it_is_corrected_and_what_is_away_stays_in_the_file(
    tmp_path: Path,
) -> None:
    kept = store(tmp_path)
    kept.update(QUEUES[0], 5)
    kept.update(QUEUES[0], 3)
    assert kept.read(QUEUES[0], MEMORY) == 5
    kept.update(QUEUES[0], 3, increase_only=False)
    kept.update(QUEUES[1], 8)
    kept.persist_all([QUEUES[1]])
    assert (
        kept.read(QUEUES[0], MEMORY_FIRST),
        store(tmp_path).clone(),
        store(tmp_path).read(QUEUES[0], STORE),
    ) == (3, {}, -1)
    assert kept.persist(QUEUES[0]) and not kept.persist(QUEUES[2])
    kept.remove(QUEUES[0])
    assert (
        kept.read(QUEUES[0], MEMORY),
        kept.read(QUEUES[0], MEMORY_FIRST),
        kept.read(QUEUES[1], STORE),
    ) == (-1, 3, 8)


def test_nothing_is_written_while_nothing_changes_and_a_refused_write_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = store(tmp_path / "there")
    kept.update(QUEUES[0], 5)
    kept.persist_all(QUEUES)
    (tmp_path / "there" / "offsets.json").unlink()
    kept.persist_all(QUEUES)
    assert not (tmp_path / "there" / "offsets.json").exists()
    (tmp_path / "blocked").write_text("a file where a directory should be")
    refused = LocalFileOffsetStore(str(tmp_path / "blocked"), FileSystem(), ManualClock())
    refused.update(QUEUES[0], 5)
    assert refused.persist(QUEUES[0]) is False and "next time again" in caplog.text


@pytest.mark.seed("S4-216")
def test_the_path_is_the_home_directory_client_id_and_group(tmp_path: Path) -> None:
    assert ConsumerConfig("g").offsets_root == str(Path.home() / ".rocketmq_offsets")
    assert ConsumerConfig("g", local_offset_dir="/data").offsets_root == "/data"
    place = LocalPlace.claim(str(tmp_path), CLUSTER, "billing", "10.0.0.1@DEFAULT", FileSystem())
    assert (place.client_id, place.directory) == (
        "10.0.0.1@DEFAULT",
        f"{tmp_path}/10.0.0.1@DEFAULT/billing",
    )
    with pytest.raises(ClientError, match="give each its own client_id"):
        LocalPlace.claim(str(tmp_path), CLUSTER, "billing", "10.0.0.1@DEFAULT", FileSystem())
    place.release()
    LocalPlace.claim(str(tmp_path), CLUSTER, "billing", "10.0.0.1@DEFAULT", FileSystem()).release()


def test_who_gives_no_client_id_takes_the_first_free_place_and_finds_it_again(
    tmp_path: Path,
) -> None:
    places = [
        LocalPlace.claim(str(tmp_path), CLUSTER, "billing", None, FileSystem()) for _ in range(3)
    ]
    assert [place.client_id for place in places] == [
        "127.0.0.1@blue.billing",
        "127.0.0.1@blue.billing.1",
        "127.0.0.1@blue.billing.2",
    ]
    places[1].release()
    assert (
        LocalPlace.claim(str(tmp_path), CLUSTER, "billing", None, FileSystem()).client_id
        == "127.0.0.1@blue.billing.1"
    )
    assert (
        LocalPlace.claim(str(tmp_path), CLUSTER, "other", None, FileSystem()).client_id
        == "127.0.0.1@blue.other"
    )
