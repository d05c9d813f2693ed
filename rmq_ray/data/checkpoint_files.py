"""Where a stream's memory (``client.scan.stream_checkpoint``) is kept: any file system that pyarrow
knows, by path or URI (``s3://bucket/prefix``).

    <checkpoint>/rmq_ray/owner  the token of the program that opened it last

Decides: how a file appears whole (written under another name and moved), and who may write: the
program that owns it. One that was thought dead and still runs is told so at its
next plan or mark. Does not decide what the files say.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import fs

from rmq_ray.errors import ClientError

FOLDER = "rmq_ray"
OWNER, STREAM = "owner", "stream.json"


def file_system(uri: object, what: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it. ``ClientError`` for what is neither;
    ``what``: the name of the argument.
    """
    text = os.fspath(uri) if isinstance(uri, str | os.PathLike) else ""
    if not text.strip():
        raise ClientError(
            f"{what} must name a directory that outlives this program, by path or URI, not "
            f"{uri!r:.80}",
            repr(uri)[:80],
        )
    try:
        if "://" not in text:
            return fs.LocalFileSystem(), os.path.abspath(text)
        found, path = fs.FileSystem.from_uri(text)
        return found, path
    except (OSError, ValueError, TypeError) as error:
        raise ClientError(
            f"{what} {text!r} is no directory that pyarrow can reach: {error}", text
        ) from None


class FilesOfCheckpoint:
    """``stream_checkpoint.TextFiles`` under one path or URI. A new one belongs to the program that
    opens it, another one to who says ``own``.
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self._fs, root = file_system(uri, "checkpoint")
        self._uri, self._root = os.fspath(uri), f"{root}/{FOLDER}"
        self._token = uuid.uuid4().hex
        with self._told("written to"):
            for folder in ("plans", "done"):
                self._fs.create_dir(f"{self._root}/{folder}", recursive=True)
        if self.read(STREAM) is None:
            self.own()

    def own(self) -> None:
        """This program writes from now on, and no other one that did before. Not done by opening:
        a program that means another stream must not stop this one.
        """
        self._put(OWNER, self._token)

    def __str__(self) -> str:
        return f"{self._uri}/{FOLDER}"

    def read(self, name: str) -> str | None:
        """The text; None where there is no such file."""
        with self._told("read"):
            if not self._exists(name):
                return None
            with self._fs.open_input_stream(f"{self._root}/{name}") as stream:
                return bytes(stream.read()).decode("utf-8")

    def write(self, name: str, text: str) -> None:
        """A new file, whole or not there. ``ClientError`` where it exists, or another program has
        opened the directory since.
        """
        if self._exists(name) or self.read(OWNER) != self._token:
            raise ClientError(
                f"{self}/{name}: another program has opened this checkpoint and goes on from "
                f"it; stop one of them",
                self._uri,
            )
        self._put(name, text)

    def numbers(self, folder: str) -> list[int]:
        """The files of a folder whose names are numbers, in order."""
        with self._told("read"):
            found = self._fs.get_file_info(
                fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
            )
        return sorted(int(info.base_name) for info in found if info.base_name.isdecimal())

    def delete(self, name: str) -> None:
        """Nothing where it is not there."""
        with self._told("written to"):
            if self._exists(name):
                self._fs.delete_file(f"{self._root}/{name}")

    def _exists(self, name: str) -> bool:
        return bool(self._fs.get_file_info(f"{self._root}/{name}").type == fs.FileType.File)

    def _put(self, name: str, text: str) -> None:
        part = f"{self._root}/{name}.{uuid.uuid4().hex}.part"
        with self._told("written to"):
            with self._fs.open_output_stream(part) as stream:
                stream.write(text.encode("utf-8"))
            self._fs.move(part, f"{self._root}/{name}")

    @contextmanager
    def _told(self, how: str) -> Iterator[None]:
        """What the file system says, as an error of ours."""
        try:
            yield
        except OSError as error:
            raise ClientError(
                f"the checkpoint {self._uri} cannot be {how}: {error}; give a directory that "
                f"this program may write to",
                self._uri,
            ) from error
