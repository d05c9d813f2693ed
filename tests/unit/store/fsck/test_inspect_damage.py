"""Verifying and dumping directories that are damaged anyhow, or no stores at all: a report or a
typed error, never anything else; nothing is changed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_ray.errors import RmqError, StoreCorrupt, StoreError
from rmq_ray.store.fsck import inspect
from tests.support.stores import small_store

MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    lambda data, chance: data.__setitem__(chance.randrange(len(data)), chance.randrange(256)),
    lambda data, chance: data.__delitem__(slice(chance.randrange(len(data)), None)),
    lambda data, chance: data.clear(),
    lambda data, chance: data.__setitem__(
        slice(0, min(len(data), 4_096)), chance.randbytes(min(len(data), 4_096))
    ),
    lambda data, chance: data.__setitem__(
        slice(0, min(len(data), 200)), b"\xff" * min(len(data), 200)
    ),
    lambda data, chance: data.extend(chance.randbytes(chance.randrange(1, 5_000))),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "sound"
    small_store.fill(path)
    return path


def seen(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("seed", range(24))
def test_a_store_that_is_damaged_anyhow_gives_a_report_or_a_typed_error(
    sound: Path, tmp_path: Path, seed: int
) -> None:
    chance, store = random.Random(seed), Path(shutil.copytree(sound, tmp_path / "store"))
    for _ in range(chance.choice((1, 1, 3))):
        file = chance.choice(
            [path for path in sorted(store.rglob("*")) if path.is_file() and path.stat().st_size]
        )
        if chance.random() < 0.15:
            file.unlink()
            if chance.random() < 0.5:
                file.mkdir()
            continue
        data = bytearray(file.read_bytes())
        chance.choice(MUTATIONS)(data, chance)
        file.write_bytes(data)
    before = seen(store)
    for look in (inspect.verify, inspect.dump):
        try:
            look(str(store))
        except RmqError as error:
            assert str(store) in error.message, "an error names the place"
    assert seen(store) == before


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"notes.txt": b"hello"},
        {"commitlog": b"a file"},
        {"commitlog/00000000000000000000": b""},
        {"commitlog/readme": b"x"},
        {"commitlog/00000000000000000000": b"\x7fELF" + bytes(4_092)},
        {"orders-0/00000000000000000000.log": bytes(100), "meta.properties": b"version=1"},
        {
            "commitlog/00000000000000000000": bytes(4_096),
            "consumequeue/a/b/c": b"x",
            "index/x": b"",
            "rmq_ray/identity": b"\xff",
            "checkpoint": b"1",
        },
        {"commitlog/00000000000000000017": bytes(4_096)},
        {"commitlog/-0000000000000000001": bytes(64)},
    ],
)
def test_a_directory_of_somebody_else_is_reported_or_refused_with_its_name(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    store = tmp_path / "place"
    store.mkdir()
    for name, data in files.items():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(data)
    before = seen(tmp_path)
    for look in (inspect.verify, inspect.dump):
        try:
            found = look(str(store))
            assert (
                found == []
                or found.fault_count
                or set(files["commitlog/00000000000000000000"]) == {0}
            )  # type: ignore[union-attr]
        except (StoreError, StoreCorrupt) as error:
            assert str(store) in error.message
    assert seen(tmp_path) == before
