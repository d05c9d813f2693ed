"""A port is kept for the next start; a disk that refuses costs only that."""

from __future__ import annotations

import asyncio
import errno

import pytest

from rmq_ray.errors import ConfigError, StoreFailed, StoreUnreadable
from rmq_ray.model.ids import Address
from rmq_ray.server.base.listen_port import keep, listen
from tests.support.faults.crash_fs import CrashFileSystem

PATH = "/d/port"
HOST = "127.0.0.1"


class Ports:
    """What a listener asks of the kernel; some are taken."""

    def __init__(self, *taken: int) -> None:
        self.taken = set(taken)

    async def start(self, host: str, port: int) -> Address:
        if port in self.taken:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return Address(host, port)


def disk(kept: bytes | None = None) -> CrashFileSystem:
    found = CrashFileSystem()
    found.make_dirs("/d")
    if kept is not None:
        found.write_whole(PATH, kept)
    return found


def bound(files: CrashFileSystem, *taken: int, configured: int = 0, must_keep: bool = False) -> int:
    return asyncio.run(
        listen(Ports(*taken), HOST, configured, PATH, files, must_keep=must_keep)
    ).port


def content(files: CrashFileSystem) -> bytes:
    return bytes(files.names[PATH].current)


def test_a_free_port_is_chosen_once_and_bound_again() -> None:
    files = disk()
    first = bound(files)
    assert content(files) == str(first).encode()
    assert bound(files) == first


def test_a_kept_port_that_is_taken_is_given_up_unless_it_must_be_kept() -> None:
    files = disk(b"20001")
    with pytest.raises(ConfigError, match="20001"):
        bound(files, 20001, must_keep=True)
    assert bound(files, 20001) != 20001
    assert content(files) != b"20001"


def test_a_configured_port_is_bound_or_refused_and_not_kept() -> None:
    files = disk()
    assert bound(files, configured=20007) == 20007
    assert PATH not in files.names
    with pytest.raises(ConfigError, match="another port"):
        bound(files, 20007, configured=20007)


def test_what_is_on_disk_already_is_not_written_again() -> None:
    files = disk(b"20001")
    keep(PATH, 20001, files)
    syncs = files.syncs
    keep(PATH, 20001, files)
    assert files.syncs == syncs
    keep(PATH, 20002, files)
    assert content(files) == b"20002"


@pytest.mark.parametrize(
    ("action", "error"), [("pwrite", "EIO"), ("pwrite", "ENOSPC"), ("datasync", "EIO")]
)
def test_a_disk_that_refuses_the_port_ends_no_start(
    action: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = disk(b"20001")
    files.fail_next(action, "port", error)
    keep(PATH, 20002, files)
    assert not files.faults, "the fault was met"
    assert content(files) == b"20001"
    assert "port 20002 is not kept" in caplog.text


def test_a_port_that_cannot_be_read_is_chosen_anew_unless_it_must_be_kept() -> None:
    files = disk(b"20001")
    files.fail_next("pread", "port")
    with pytest.raises(StoreUnreadable):
        bound(files, must_keep=True)
    files.fail_next("open", "port")
    with pytest.raises(StoreFailed):
        bound(files, must_keep=True)
    files.fail_next("pread", "port")
    assert bound(files, 20001) in range(20_000, 32_000)
