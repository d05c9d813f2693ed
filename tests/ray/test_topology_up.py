"""``plan`` and ``up`` from a topology file, on one node: a first start makes stores, a later one wants them back, and what is wrong starts nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rmq_ray as rmq
from rmq_ray.actors import gateway
from rmq_ray.cluster import plan, start_from
from rmq_ray.errors import ConfigError, StoreForeign, StoreMissing

FILE = """\
cluster = "{name}"
[defaults.store]
segment_bytes = 1048576
flush = "sync"
[[brokers]]
name = "broker-a"
store = {{ path = "a" }}
[[brokers]]
name = "broker-b"
store = {{ path = "b" }}
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Write]:
    name = f"topo-{abs(hash(request.node.name)) % 10**8}"

    def to_file(text: str = FILE, **changes: str) -> Path:
        text = text.format(name=name)
        for old, new in changes.items():
            text = text.replace(old, new)
        (tmp_path / "rmq.toml").write_text(text)
        return tmp_path / "rmq.toml"

    yield to_file
    if name in gateway.clusters():
        rmq.connect(name).stop()


def test_a_first_start_makes_the_stores_and_a_later_one_finds_them_with_their_messages(write: Write) -> None:
    file = write()
    before = plan(file)
    assert [(step.actor, step.action) for step in before.steps] == [("name-server-0", "create"), ("broker-a", "create"), ("broker-b", "create")]
    assert before.steps[1].store.startswith("made new") and not (file.parent / "a").exists()
    first = start_from(file)
    with rmq.Producer(cluster=first.name) as producer:
        producer.send("orders", b"kept")
    status = first.status()
    known = json.loads((file.parent / "rmq.stores.json").read_text())
    assert known == {name: status[f"{name}/0"]["identity"] for name in ("broker-a", "broker-b")}
    assert {status[f"{name}/0"]["flush"] for name in known} == {"sync"}
    running = plan(file)
    assert running.running and not running.changes and {step.action for step in running.steps} == {"attach"}
    assert start_from(file).name == first.name
    first.admin.close()
    first.stop()
    assert plan(file).steps[1].store.startswith(f"found {known['broker-a']}")
    again = start_from(file)
    assert sum(state["store"]["end"] > 0 for name, state in again.status().items() if name in ("broker-a/0", "broker-b/0")) >= 1
    again.stop()


def test_a_store_that_is_gone_is_never_made_again_and_another_brokers_is_refused(write: Write) -> None:
    file = write()
    start_from(file).stop()
    (file.parent / "b").rename(file.parent / "elsewhere")
    with pytest.raises(StoreMissing, match=r"rmq.toml, line 10, on .*/b does not exist, expected is store .* of broker-b: mount its disk") as missing:
        start_from(file)
    assert plan(file).steps[2].error is not None and str(plan(file).steps[2].error) == str(missing.value)
    (file.parent / "b").mkdir()
    with pytest.raises(StoreMissing, match="/b is empty.*remove broker-b from .*rmq.stores.json"):
        start_from(file)
    (file.parent / "b").rmdir()
    shutil.copytree(file.parent / "a", file.parent / "b")
    with pytest.raises(StoreForeign, match="is store .*, expected is .* of broker-b: mount the right disk"):
        start_from(file)
    assert gateway.find(f"{plan(file).steps[0].actor}") is None and not plan(file).running
    shutil.rmtree(file.parent / "b")
    (file.parent / "elsewhere").rename(file.parent / "b")
    start_from(file).stop()


def test_unknown_resources_and_directories_of_others_are_refused_with_their_lines(write: Write) -> None:
    file = write(**{'name = "broker-b"': 'name = "broker-b"\nresource = "no_such_disk"', 'path = "b"': 'path = "/b"'})
    with pytest.raises(ConfigError, match="rmq.toml, line 10: no node of this Ray cluster offers the resource 'no_such_disk': none is offered"):
        start_from(file)
    (file.parent / "a").mkdir()
    (file.parent / "a" / "thesis.tex").touch()
    with pytest.raises(StoreForeign, match=r"line 7, on .*/a holds files that are no store \(thesis.tex\): give broker-a an empty directory"):
        start_from(write())
    assert not plan(file).running


def test_a_running_cluster_with_other_settings_is_left_as_it_is(write: Write) -> None:
    first = start_from(write())
    pid = first.status()["broker-a/0"]["pid"]
    changed = write(**{'flush = "sync"': 'flush = "async"', 'name = "broker-b"': 'name = "broker-c"'})
    assert plan(changed).changes == ("broker-a: flush sync -> async", "broker-c: is new", "broker-b: is gone from the file")
    with pytest.raises(rmq.ClusterError, match="broker-a: flush sync -> async; .*rmq-ray down"):
        start_from(changed)
    assert first.status()["broker-a/0"]["pid"] == pid
