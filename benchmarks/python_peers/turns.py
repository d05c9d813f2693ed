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


def run(scene: Scene) -> None:
    """Ours alone, or, with ``--peers``, beside them."""
    made: list[Line] = []
    with ExitStack() as ends:
        clients, said = connected(scene, ends)
        p50, _ = floors.fdatasync_ms(str(scene.directory))
        said.append(f"A pwrite of 1 KiB and fdatasync takes {p50:.3g} ms (p50) on this disk.")
        print(*said, sep="\n", flush=True)
        for row in ROWS:
            for line in lines(row, in_turns(row, clients, scene.scale)):
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
    usual, synced = (
        ends.enter_context(scene.cluster(flush=mode)) for mode in ("async", "sync")
    )
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


def in_turns(row: Row, clients: list[Client], scale: float) -> list[Found]:
    """A round of each way, then the next round."""
    ways = [
        (client, number, way)
        for client in clients
        for number, way in enumerate(client.ways)
        if row.name in way["rows"]
    ]
    rounds: list[list[Measured]] = [[] for _ in ways]
    for _ in range(ROUNDS + 1):
        for measured, (client, number, way) in zip(rounds, ways, strict=True):
            if row.settled:
                settle()
            measured.append(client.measure(number, length(way["messages"], way["multiple"], scale)))
    return [
        Found(client.system, way["how"], tuple(measured), way["counts"])
        for measured, (client, _, way) in zip(rounds, ways, strict=True)
    ]


def length(full: int, multiple: int, scale: float) -> int:
    """Messages of a round."""
    return max(1, int(full * scale) // multiple) * multiple
