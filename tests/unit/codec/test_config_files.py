"""Config files: Apache RocketMQ's text to the byte, ``.bak`` when the main file is broken, never a
silently empty table.

``tests/golden/config`` was written by Apache RocketMQ 4.9.7's own managers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_ray.codec.config_files import (
    ConfigFile,
    broadcast_offsets_file,
    consumer_offsets_file,
    delay_offsets_file,
    filters_file,
    groups_file,
    kv_file,
    topics_file,
)
from rmq_ray.errors import StoreCorrupt, StoreError
from rmq_ray.files import FileSystem
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import DataVersion, GroupConfig, TopicConfig
from tests.support.faults.crash_fs import CrashFileSystem, keep_all, keep_none

GOLDEN = Path(__file__).parents[2] / "golden" / "config"
TABLES: dict[str, tuple[Any, Any]] = {
    "topics.json": (
        topics_file,
        ({"TopicTest": TopicConfig("TopicTest", 4, 4, 6)}, DataVersion(3, 1_700_000_000_000)),
    ),
    "subscriptionGroup.json": (
        groups_file,
        (
            {"please_rename_group": GroupConfig("please_rename_group")},
            DataVersion(1, 1_700_000_000_000),
        ),
    ),
    "consumerOffset.json": (
        consumer_offsets_file,
        {("TopicTest", "groupA"): {0: 335, 1: 335, 2: 333}},
    ),
    "delayOffset.json": (delay_offsets_file, {1: 10, 3: 22}),
    "kvConfig.json": (kv_file, {"ORDER_TOPIC_CONFIG": {"TopicOrder": "broker-a:4;broker-b:4"}}),
    "offsets.json": (broadcast_offsets_file, {MessageQueue("TopicTest", "broker-a", 0): 335}),
}


@pytest.mark.seed("S0-008", "S4-201", "S4-218", "S4-224")
@pytest.mark.parametrize("name", TABLES)
def test_the_file_is_the_one_that_apache_rocketmq_writes(tmp_path: Path, name: str) -> None:
    make, table = TABLES[name]
    file = make(FileSystem(), str(tmp_path / "config" / name))
    assert file.load() is None
    file.save(table)
    assert (tmp_path / "config" / name).read_text() == (GOLDEN / name).read_text()
    assert make(FileSystem(), str(GOLDEN / name)).load() == table
    assert not (tmp_path / "config" / f"{name}.tmp").exists()


def test_filters_that_apache_rocketmq_wrote_are_kept(tmp_path: Path) -> None:
    table = filters_file(FileSystem(), str(GOLDEN / "consumerFilter.json")).load()
    assert table is not None and table["T"]["groupFilterData"]["G"]["expression"] == "a > 5"
    file = filters_file(FileSystem(), str(tmp_path / "consumerFilter.json"))
    file.save(table)
    assert filters_file(FileSystem(), str(tmp_path / "consumerFilter.json")).load() == table


@pytest.mark.seed("S4-227")
def test_the_progress_of_several_groups_reads_as_the_example_shows_it(tmp_path: Path) -> None:
    text = """{ "offsetTable":{
        "TopicTest@please_rename_unique_group_name_4":{0:1,1:0,2:0,3:0 },
        "TopicTest@TopicTest-Consumer":{0:335,1:335,2:333 },
        "%RETRY%please_rename_unique_group_name_4@please_rename_unique_group_name_4":{0:0 },
        "rocket-mq-topic@rocket-mq-consumer-demo":{0:0,1:0,"2":1,"3":1 } } }"""
    (tmp_path / "consumerOffset.json").write_text(text)
    assert consumer_offsets_file(FileSystem(), str(tmp_path / "consumerOffset.json")).load() == {
        ("TopicTest", "please_rename_unique_group_name_4"): {0: 1, 1: 0, 2: 0, 3: 0},
        ("TopicTest", "TopicTest-Consumer"): {0: 335, 1: 335, 2: 333},
        ("%RETRY%please_rename_unique_group_name_4", "please_rename_unique_group_name_4"): {0: 0},
        ("rocket-mq-topic", "rocket-mq-consumer-demo"): {0: 0, 1: 0, 2: 1, 3: 1},
    }


def test_members_of_rocketmq_5_are_ignored_and_missing_ones_have_their_defaults(
    tmp_path: Path,
) -> None:
    path = tmp_path / "topics.json"
    path.write_text(
        '{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":5},'
        '"topicConfigTable":{"T":{"attributes":{},"perm":2,"topicName":"T"}}}'
    )
    assert topics_file(FileSystem(), str(path)).load() == (
        {"T": TopicConfig("T", 16, 16, 2)},
        DataVersion(2, 5),
    )
    path.write_text('{"topicConfigTable":{}}')
    assert topics_file(FileSystem(), str(path)).load() == ({}, DataVersion())


@pytest.mark.parametrize(
    ("attributes", "hours"),
    [
        ('{"reserve.time":"24","message.type":"FIFO"}', 24),
        ('{"reserve.time":24}', 24),
        ('{"reserve.time":"-1"}', 0),
        ('{"reserve.time":"9999999999999999"}', 0),
        ("null", 0),
        ('["reserve.time"]', 0),
    ],
)
def test_a_topics_retention_is_the_attribute_of_rocketmq_5(
    tmp_path: Path, attributes: str, hours: int
) -> None:
    path = tmp_path / "topics.json"
    path.write_text(f'{{"topicConfigTable":{{"T":{{"attributes":{attributes},"perm":2}}}}}}')
    found = topics_file(FileSystem(), str(path)).load()
    assert found is not None and found[0]["T"].retention_hours == hours
    topics_file(FileSystem(), str(path)).save(found)
    assert topics_file(FileSystem(), str(path)).load() == found
    assert ('"attributes":{\n\t\t\t\t"reserve.time":"24"' in path.read_text()) == (hours == 24)


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "   ",
        "{",
        '{"topicConfigTable":{"T":{"perm":"six"}}}',
        '{"topicConfigTable":[]}',
        "[]",
        "null",
        '{"other":1}',
    ],
)
@pytest.mark.seed("S4-217")
def test_a_broken_main_file_is_answered_from_the_bak_and_both_broken_is_an_error(
    tmp_path: Path, broken: str
) -> None:
    path = tmp_path / "topics.json"
    first, second = (
        ({"A": TopicConfig("A")}, DataVersion(1, 1)),
        ({"B": TopicConfig("B")}, DataVersion(2, 2)),
    )
    file = topics_file(FileSystem(), str(path))
    file.save(first)
    file.save(second)
    path.write_text(broken)
    assert topics_file(FileSystem(), str(path)).load() == first
    path.unlink()
    assert topics_file(FileSystem(), str(path)).load() == first
    path.write_text(broken)
    (tmp_path / "topics.json.bak").write_text(broken)
    with pytest.raises(StoreCorrupt, match=r"restore the file, or remove it"):
        topics_file(FileSystem(), str(path)).load()


def test_a_broken_file_without_a_bak_is_an_error_and_no_file_is_an_empty_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "consumerOffset.json"
    assert consumer_offsets_file(FileSystem(), str(path)).load() is None
    for broken in (
        '{"offsetTable":{"no-group":{0:1}}}',
        '{"offsetTable":{"a@b@c":{0:1}}}',
        '{"offsetTable":{"a@b":{0:"x"}}}',
        "",
    ):
        path.write_text(broken)
        with pytest.raises(StoreCorrupt):
            consumer_offsets_file(FileSystem(), str(path)).load()


def test_what_was_saved_once_has_a_bak_already(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv_file(FileSystem(), str(path)).save({"N": {"k": "1"}})
    path.write_bytes(path.read_bytes()[:9])
    assert kv_file(FileSystem(), str(path)).load() == {"N": {"k": "1"}}


def test_the_good_bak_is_not_overwritten_by_a_broken_main_file(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    file = kv_file(FileSystem(), str(path))
    for value in ("0", "1"):
        file.save({"N": {"k": value}})
    file = kv_file(FileSystem(), str(path))
    assert file.load() == {"N": {"k": "1"}}
    file.save({"N": {"k": "2"}})  # the first save of another life keeps what it found
    path.write_text("{")
    again = kv_file(FileSystem(), str(path))
    assert again.load() == {"N": {"k": "1"}}
    again.save({"N": {"k": "3"}})
    assert kv_file(FileSystem(), str(path) + ".bak").load() == {"N": {"k": "1"}}
    assert kv_file(FileSystem(), str(path)).load() == {"N": {"k": "3"}}


@pytest.mark.parametrize("skip", range(4))
@pytest.mark.parametrize("action", ["pwrite", "datasync", "rename", "sync_dir"])
def test_a_save_that_ends_anywhere_leaves_the_old_or_the_new_table(action: str, skip: int) -> None:
    disk = CrashFileSystem()
    file: ConfigFile[dict[int, int]] = delay_offsets_file(disk, "/s/config/delayOffset.json")
    file.save({1: 1})
    file.save({1: 2})
    disk.fail_next(action, "/s/config", skip=skip)
    try:
        file.save({1: 3})
        failed = False
    except StoreError:
        failed = True
    for after in (
        disk.survivor(keep_all),
        disk.survivor(keep_none, "boot-2"),
        disk.survivor(lambda n, _: 5, "boot-2"),
    ):
        found = delay_offsets_file(after, "/s/config/delayOffset.json").load()
        assert found in (({1: 2}, {1: 3}) if failed else ({1: 3},))
