"""The archivist's actor on its own loop, without Ray, over a real broker: flush, upkeep."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import TableError, TableStorageError
from rmq_ray.table import actor, tables
from rmq_ray.table.rules import TableSpec
from rmq_ray.table.source import TopicSource
from rmq_ray.table.storage import Storage
from rmq_ray.table.upkeep import expired, redecode, rewrite
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.waiting import eventually_async

TOPIC = "acted"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with LiveCluster(tmp_path / "store") as running:
        monkeypatch.setattr(actor, "RayDiscovery", lambda _name: running)
        monkeypatch.setattr(actor, "is_restart", lambda: False)
        yield running


def send(cluster: LiveCluster, *bodies: bytes) -> None:
    with Producer("p", discovery=cluster) as producer:
        for body in bodies:
            producer.send(TOPIC, body)


def acting(
    spec: TableSpec, work: Callable[[actor.ArchivistShell], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        shell = actor.ArchivistShell("live", spec.to_json())
        await work(shell)
        await shell.stop()
        (loop,) = [
            task for task in asyncio.all_tasks() if task.get_name() == f"table of {spec.topic}"
        ]
        loop.cancel()

    asyncio.run(run())


class Calls:
    """The gateway in front of one archivist and a controller that does as it is told."""

    def __init__(self, shell: actor.ArchivistShell, loop: asyncio.AbstractEventLoop) -> None:
        self.made: list[str] = []
        self._shell, self._loop = shell, loop

    def find(self, _name: str) -> Any:
        return self._shell

    def controller(self, _cluster: str) -> Any:
        return None

    def call(self, handle: Any, method: str, *arguments: Any, timeout_s: float = 20.0) -> Any:
        self.made.append(method)
        if handle is None:
            return None
        asked = getattr(handle, method)(*arguments)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(timeout_s)

    def kill(self, _name: str, *, for_good: bool) -> None:
        assert for_good
        self.made.append("kill")


def rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("day=*/*.parquet"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "small", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("to mount a file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_flush_upkeep_and_changes_of_a_table(cluster: LiveCluster, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    spec = TableSpec(TOPIC, str(folder), decode="json", columns={"n": "int"})
    send(cluster, b'{"n": 1}')

    async def work(shell: actor.ArchivistShell) -> None:
        await shell.open()
        for number in range(4):
            await asyncio.to_thread(send, cluster, *[b'{"n": 5}'] * 8, b'{"n": 9999999999}')
            assert await shell.flush(20.0)
            assert rows(folder) == 1 + 8 * (number + 1)
        first, files, runs = await shell.begin_upkeep()
        made = [one for run in runs for one in rewrite(spec.to_json(), run, first)]
        gone = [one for run in runs for one in run]
        second, _, _ = await shell.begin_upkeep()
        with pytest.raises(TableError, match="another upkeep"):
            await shell.replace_files(first, gone, made)
        assert await shell.replace_files(second, gone, made) == len(gone)
        assert rows(folder) == 33 and len(made) < len(gone) <= len(files)
        await shell.change(
            TableSpec(TOPIC, str(folder), decode="json", columns={"n": "long"}).to_json()
        )
        wider = shell._spec.to_json()
        third, files, _ = await shell.begin_upkeep()
        bad = [one for one in files if one.rejected]
        assert sum(one.rows for one in bad) == 4 and expired(files, 0) == []
        await shell.replace_files(third, bad, redecode(wider, bad, third), "first")
        assert rows(folder) == 37
        status = await shell.status()
        assert (status["state"], status["rows"], status["rejected_rows"]) == ("running", 37, 0)
        assert {family.name for family in await shell.metrics()} >= {"rmq_table_up"}
        await shell.drop()
        assert not list(folder.glob("day=*/*.parquet"))

    acting(spec, work)


def test_what_keeps_an_archivist_is_told_until_it_has_passed(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    send(cluster, b"1")
    folder = tmp_path / "t"
    folder.write_text("a file in the folder's place")

    async def work(shell: actor.ArchivistShell) -> None:
        with pytest.raises(TableError):
            await shell.flush(20.0)
        status = await shell.status()
        assert status["state"] == "waiting" and "goes on by itself" in status["error"]
        assert (await shell.metrics())[0].samples[0].value == 0
        folder.unlink()
        await shell.flush(20.0)
        status = await shell.status()
        assert (status["state"], status["error"], rows(folder)) == ("running", "", 1)

    acting(TableSpec(TOPIC, str(folder)), work)


@pytest.mark.parametrize("paused", [True, False])
def test_the_log_is_held_while_a_table_is_paused_or_its_place_is_away_and_not_when_it_is_dropped(
    cluster: LiveCluster, tmp_path: Path, paused: bool
) -> None:
    send(cluster, *[os.urandom(10_000)] * 10)
    folder = tmp_path / "t"
    if not paused:
        folder.write_text("a file in the folder's place")
    pins = cluster.store().opened.retention.pins

    async def work(shell: actor.ArchivistShell) -> None:
        await eventually_async(
            lambda: (
                shell._hold is not None
                and shell._hold.held_bytes > 100_000
                and (paused or shell._error is not None)
            )
        )
        status = await shell.status()
        assert status["state"] == ("paused" if paused else "waiting")
        assert status["holding"]
        await eventually_async(lambda: len(pins) == 1)  # two while one takes the other's place
        (held,) = [
            family for family in await shell.metrics() if family.name == "rmq_table_held_bytes"
        ]
        assert held.samples[0].value == status["held_bytes"]
        await shell.let_go()
        assert len(pins) == 0

    acting(TableSpec(TOPIC, str(folder), paused=paused), work)
    assert not list(tmp_path.glob("t/day=*"))


def test_a_table_whose_files_cannot_be_deleted_goes_on_until_a_drop_succeeds(
    cluster: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, *[os.urandom(10_000)] * 10)
    spec, pins = TableSpec(TOPIC, str(tmp_path / "t")), cluster.store().opened.retention.pins
    away = True

    def delete(storage: Storage, name: str) -> None:
        if away:
            raise TableStorageError("injected: away", storage.uri)
        deleted(storage, name)

    deleted = Storage.delete
    monkeypatch.setattr(Storage, "delete", delete)

    async def work(shell: actor.ArchivistShell) -> None:
        nonlocal away
        calls = Calls(shell, asyncio.get_running_loop())
        monkeypatch.setattr(tables, "gateway", calls)
        monkeypatch.setattr(tables, "RayDiscovery", lambda name: SimpleNamespace(cluster=name))
        made, known = tables.Tables("live"), {TOPIC: spec}
        made._registry = SimpleNamespace(all=lambda: known, forget=known.pop)
        await shell.flush(20.0)
        await asyncio.to_thread(shell._held().renew)
        with pytest.raises(TableStorageError, match="away"):
            await asyncio.to_thread(made.drop, TOPIC, delete_files=True)
        await asyncio.to_thread(shell._held().renew)
        assert (await shell.status())["holding"] and len(pins) == 1
        assert known and calls.made == ["drop"], "what may fail or come late ends nothing before it"
        await asyncio.to_thread(send, cluster, b"behind it")
        await shell.flush(20.0)
        assert rows(tmp_path / "t") == 11
        away = False
        assert await asyncio.to_thread(made.drop, TOPIC, delete_files=True) == {"foreign_files": 0}
        status = await shell.status()
        assert (status["holding"], status["held_bytes"], len(pins)) == (False, 0, 0)
        assert not known and calls.made[-2:] == ["let_go", "kill"]
        await asyncio.to_thread(shell._renew)
        await shell.drop()  # once more is no error
        assert not await shell._do(shell._step) and len(pins) == 0

    acting(spec, work)
    assert not [path for path in (tmp_path / "t").rglob("*") if path.is_file()]


def test_a_hold_that_is_made_while_the_table_is_dropped_holds_nothing(
    cluster: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, b"1")
    pins = cluster.store().opened.retention.pins
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> TopicSource:
        begun.set()
        assert go_on.wait(20)
        return TopicSource(*arguments)

    monkeypatch.setattr(actor, "TopicSource", slow)

    async def work(shell: actor.ArchivistShell) -> None:
        assert await asyncio.to_thread(begun.wait, 20)
        dropped = asyncio.create_task(shell.let_go())
        await eventually_async(lambda: shell._stopped)
        go_on.set()
        await dropped
        await eventually_async(lambda: shell._hold is not None and not shell._making.locked())
        shell._held().renew()
        assert len(pins) == 0 and not shell._held().holding

    acting(TableSpec(TOPIC, str(tmp_path / "t"), paused=True), work)


def test_a_disk_that_is_full_is_told_and_with_more_space_each_row_is_there_once(
    cluster: LiveCluster, small_disk: Path
) -> None:
    folder = small_disk / "t"
    sent = [os.urandom(10_000) for _ in range(100)]
    send(cluster, *sent)

    async def work(shell: actor.ArchivistShell) -> None:
        for _ in range(3):
            with pytest.raises(TableStorageError, match="free space"):
                await shell.flush(20.0)
        status = await shell.status()
        assert status["state"] == "waiting" and "free space" in status["error"]
        assert status["rows"] == 0
        more = ["mount", "-o", "remount,size=8m", str(small_disk)]
        subprocess.run(more, check=True)
        await shell.flush(20.0)
        assert (await shell.status())["error"] == ""

    acting(TableSpec(TOPIC, str(folder)), work)
    found = [
        body
        for path in folder.glob("day=*/*.parquet")
        for body in pq.read_table(path, partitioning=None)["body"].to_pylist()
    ]
    assert sorted(found) == sorted(sent)
    assert not [path for path in (folder / "_rmq/staging").rglob("*") if path.is_file()]
