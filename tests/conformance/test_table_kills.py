"""The archivist, which is a table's committer, is killed with signal 9 before and behind each of
its steps, while messages come: in the end each acknowledged message is in the table once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.table.rules import TableSpec
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.tables.table_rig import rows_in

TOPIC, EACH = "killed", 12
PROGRAM = "tests.support.tables.killed_archivist"
Ledger = set[tuple[int, int, bytes]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path / "store") as running:
        admin = Admin(running)
        admin.create_topic(TOPIC, queues=2)
        admin.close()
        yield running


def lives(cluster: LiveCluster, spec: TableSpec, ledger: Ledger) -> list[dict[str, Any]]:
    """How each life ended; before each one ``EACH`` messages are acknowledged."""
    servers = ";".join(cluster.lookup().name_servers)
    command = [sys.executable, "-m", PROGRAM, servers, SECRET.hex(), CLUSTER, spec.to_json()]
    ended: list[dict[str, Any]] = []
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run,
        Producer("p", discovery=cluster) as producer,
    ):
        assert run.stdin is not None and run.stdout is not None
        while not ended or ended[-1]["signal"]:
            for n in range(EACH):
                body = b'{"n": %d}' % (len(ledger) + 1) if n % 4 else b"no json %d" % len(ledger)
                told = producer.send(TOPIC, body)
                ledger.add((told.queue.queue_id, told.queue_offset, body))
            run.stdin.write("\n")
            run.stdin.flush()
            ended.append(json.loads(run.stdout.readline()))
    return ended


def by_glob(folder: Path) -> list[tuple[int, int, bytes]]:
    """Rows and rejected rows, by pyarrow alone."""
    return [
        row
        for part in ("day=*/*.parquet", "_rejected/day=*/*.parquet")
        for row in rows_in(ds.dataset(sorted(map(str, folder.glob(part)))).to_table())
    ]


def by_catalog(folder: Path) -> list[tuple[int, int, bytes]]:
    """The same, by pyiceberg alone."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}.db")
    found = [
        row
        for name in (TOPIC, f"{TOPIC}__rejected")
        for row in rows_in(catalog.load_table(("default", name)).scan().to_arrow())
    ]
    catalog.engine.dispose()
    return found


@pytest.mark.parametrize("read", [by_glob, by_catalog], ids=["parquet", "iceberg"])
def test_a_committer_that_is_killed_at_each_step_loses_and_doubles_nothing(
    cluster: LiveCluster, tmp_path: Path, read: Any
) -> None:
    folder, ledger = tmp_path / "t", set()
    catalog = {"name": "lake", "uri": f"sqlite:///{folder}.db"} if read is by_catalog else {}
    spec = TableSpec(TOPIC, str(folder), catalog=catalog, decode="json", columns={"n": "int"})
    ended = lives(cluster, spec.checked(), ledger)
    last = ended.pop()
    assert (last["signal"], last["code"]) == (0, 0), last["at"]
    assert {one["signal"] for one in ended} == {9}
    steps = {one["at"].split()[0] for one in ended}
    assert steps == {"begin", "sync", "finish"} | ({"commit"} if catalog else {"delete"})
    found = read(folder)
    numbers = [int(body.split()[-1].rstrip(b"}")) for _, _, body in found]
    wanted = [int(body.split()[-1].rstrip(b"}")) for _, _, body in ledger]
    assert (len(found), sum(numbers)) == (EACH * (len(ended) + 1), sum(wanted))
    assert sorted(found) == sorted(ledger)
