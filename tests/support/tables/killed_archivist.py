"""An archivist that is killed with signal 9 at one step after the other; a program.

    stdin   one line for each life: what is to be archived has been sent
    stdout  {"step": 3, "after": false, "signal": 9, "at": "finish _rmq/offsets.json"}

Each life is a fork: a new committer that takes the table over, commits what is there, sweeps, and
dies at its step, just before it is carried out or just behind it. Steps are all changes of the
table's files, and commits to the catalog. The program ends with the first life that comes to its
end without having met its step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.columns import schema_of
from rmq_ray.table.iceberg import IcebergTable
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.rules import TableSpec
from rmq_ray.table.source import TopicSource
from rmq_ray.table.storage import Storage

STEPS_MAX = 200


class Death:
    """Counts steps and ends the process at one; ``told``: where that is said first."""

    def __init__(self, step: int, after: bool, told: int) -> None:
        self._left, self._after, self._told = step, after, told

    def step(self, what: str, work: Any, *arguments: Any) -> Any:
        self._left -= 1
        due = self._left == -1  # steps within this one count, too
        if due and not self._after:
            self._die(what)
        found = work(*arguments)
        if due:
            self._die(what)
        return found

    def _die(self, what: str) -> None:
        os.write(self._told, what.encode())
        os.kill(os.getpid(), signal.SIGKILL)


class DyingStorage(Storage):
    """Each change of a file is a step; ``finish`` is two: all is written, and it is there."""

    def __init__(self, uri: str, death: Death) -> None:
        super().__init__(uri)
        self._death = death

    def begin(self, name: str) -> Any:
        return self._death.step(f"begin {name}", super().begin, name)

    def finish(self, name: str, stream: Any) -> int:
        return self._death.step(f"finish {name}", super().finish, name, stream)

    def _sync(self, path: str) -> None:
        self._death.step(f"sync {path}", super()._sync, path)

    def delete(self, name: str) -> None:
        self._death.step(f"delete {name}", super().delete, name)


class DyingCatalog(SqlCatalog):
    """A commit is a step."""

    death: Death

    def commit_table(self, *arguments: Any) -> Any:
        return self.death.step("commit", super().commit_table, *arguments)


def live(spec: TableSpec, where: StaticDiscovery, writer: str, death: Death) -> None:
    """One life."""
    target: Any
    if spec.catalog:
        catalog = DyingCatalog("lake", uri=spec.catalog["uri"])
        catalog.death = death
        target = IcebergTable(spec, schema_of(spec.columns), writer, catalog)
        target.storage = DyingStorage(spec.location, death)
    else:
        target = ManifestTable(DyingStorage(spec.location, death), spec.topic, writer)
    archivist = Archivist(spec, TopicSource(where, spec.topic), target, SYSTEM_CLOCK)
    archivist.turn(force=True)
    archivist.turn(force=True)  # rows that the first turn's guess of their size left over
    archivist.sweep()


def main() -> None:
    """``name servers, secret as hex, cluster, spec`` are the arguments."""
    servers, secret, cluster, text = sys.argv[1:]
    spec = TableSpec.from_json(text)
    for life in range(STEPS_MAX):
        if not sys.stdin.readline():
            return
        step, after = divmod(life, 2)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                death = Death(step, bool(after), write)
                live(
                    spec,
                    StaticDiscovery(servers, bytes.fromhex(secret), cluster),
                    f"w{life}",
                    death,
                )
                os._exit(0)
            except BaseException as error:  # noqa: BLE001 - told by the parent
                os.write(write, repr(error)[:500].encode())
                os._exit(1)
        os.close(write)
        with os.fdopen(read, "rb") as told:
            at = told.read().decode()
        _, status = os.waitpid(child, 0)
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        found = {"step": step, "after": bool(after), "signal": killed, "code": code, "at": at}
        print(json.dumps(found), flush=True)
        if not killed:
            return


if __name__ == "__main__":
    main()
