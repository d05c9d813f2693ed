"""What runs when: every server at once, a process for each system's client, and of each row all
ways in turns, ``ROUNDS`` of them behind one that warms up.
"""

from __future__ import annotations

import textwrap
from contextlib import ExitStack
from typing import Any

import rmq_ray as rmq
from benchmarks import floors
from benchmarks.python_peers.client import Client
from benchmarks.python_peers.rows import OURS, ROWS, TITLE, Found, Line, Row, lines, table
from benchmarks.python_peers.servers import SERVERS, Missing, started
from benchmarks.python_peers.way import Measured
from benchmarks.scene import ROUNDS, Scene
from benchmarks.settle import settle

TOUCHED_BYTES = 512 << 20
"""Of a round, which is short."""


def run(scene: Scene) -> None:
    """Ours alone, or, with ``--peers``, beside them."""
    made: list[Line] = []
    with ExitStack() as ends:
        clients, said = connected(scene, ends)
        p50, _ = floors.fdatasync_ms(str(scene.directory))
        said.append(f"A pwrite of 1 KiB and fdatasync takes {p50:.3g} ms (p50) on this disk.")
        print(*said, sep="\n", flush=True)
        known: dict[tuple[str, int], Found] = {}
        for row in ROWS:
            for line in lines(row, in_turns(row, clients, scene.scale, known)):
                made.append(line)
                scene.report.add(line.figure)
                print(f"    client's CPU: {line.cpu_us:.3g} us a message", flush=True)
    if scene.with_peers:
        text = "\n".join(
            textwrap.fill(each, 100, break_long_words=False, break_on_hyphens=False)
            for each in said
        )
        scene.tables[TITLE] = f"{text}\n\n{table(made)}"


def connected(scene: Scene, ends: ExitStack) -> tuple[list[Client], list[str]]:
    """A client of each system that is here, and what runs or is missing."""
    usual, synced = (ends.enter_context(scene.cluster(flush=mode)) for mode in ("async", "sync"))
    where: dict[str, Any] = {"async": reached(usual), "sync": reached(synced)}
    clients = [ends.enter_context(Client(OURS, where))]
    running, missing = [clients[0].versions], []
    for system in SERVERS if scene.with_peers else ():
        try:
            server, where = ends.enter_context(started(system, scene.directory))
            client = ends.enter_context(Client(system, where))
        except Missing as error:
            missing.append(f"Not measured, as it cannot be had here: {error}.")
            continue
        clients.append(client)
        running.append(f"{server} with {client.versions}")
    return clients, [f"{'; '.join(running)}.", *missing]


def reached(mq: rmq.Cluster) -> tuple[str, list[str], str]:
    """What a process without Ray needs to reach it."""
    found = mq.discovery.lookup()
    return found.cluster, list(found.name_servers), found.secret.hex()


def in_turns(
    row: Row, clients: list[Client], scale: float, known: dict[tuple[str, int], Found]
) -> list[Found]:
    """A round of each way, then the next round. A way that an earlier row has measured is not
    measured again.
    """
    ways = [
        (client, number)
        for client in clients
        for number, way in enumerate(client.ways)
        if row.name in way["rows"]
    ]
    rounds: dict[tuple[str, int], list[Measured]] = {
        (client.system, number): [] for client, number in ways
    }
    for _ in range(ROUNDS + 1):
        for client, number in ways:
            if (client.system, number) in known:
                continue
            if row.settled:
                settle(TOUCHED_BYTES)
            way = client.ways[number]
            messages = length(way["messages"], way["multiple"], scale)
            rounds[client.system, number].append(client.measure(number, messages))
    for client, number in ways:
        way, measured = client.ways[number], rounds[client.system, number]
        found = Found(client.system, way["how"], tuple(measured), way["counts"])
        known.setdefault((client.system, number), found)
    return [known[client.system, number] for client, number in ways]


def length(full: int, multiple: int, scale: float) -> int:
    """Messages of a round."""
    return max(1, int(full * scale) // multiple) * multiple
