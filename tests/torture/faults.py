"""What is done to a cluster: a deck of faults, each with its victim, shuffled by a seed.

    processes   kill and hang of a broker's master or slave, hold service, name server, controller;
                a hang is SIGSTOP for some seconds; no more memory for a broker
    power       of the host of one copy, of the name server, of the controller, of all at once:
                the host's disk is switched off, its programs are killed, its disk forgets
    disk        one write or one sync fails, and the sync forgets; full, slow, short writes
    damage      while a broker is down: a flipped bit in its log; queues, index and other derived
                files cut short or gone
    network     a port is cut off, both ways or one way; a slave alone is apart from its master;
                packets are lost; a proxy loses, delays, reorders, repeats, tears answers
    clocks      of one process jump an hour, and back
    by hand     promotion of a slave, a consumer that is replaced

Decides which faults a mode may survive without loss (docs/promises.md) and marks the others. Does
not judge.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.torture import network
from tests.torture.clocks import Clocks
from tests.torture.disk import Disk
from tests.torture.history import EVERY_BROKER, Fault, History
from tests.torture.modes import Mode
from tests.torture.victims import Victims, no_more_memory, send_signal, stop_for
from tests.torture.workload import Workload

HELPERS = ("hold service", "name server", "controller")
ANSWERS = ("lost", "late", "overtaken", "repeated", "torn")
HANG_S = (0.3, 4.0)
CUT_S = (0.3, 5.0)
"""Shorter and longer than a lease, and than a change of master takes."""
DISK_TROUBLE_S = 1.0
SLOW_SYNC_S = 0.3
LOST_PACKETS_PERCENT = 10
CLOCK_S = 3_600
FAULTS_MIN = 3
CALM_PAUSE_S = (0.05, 0.3)
OUTAGE_S_MAX = 60.0
"""Longer than that no send may stand still."""
DERIVED = (
    "consumequeue",
    "index",
    "checkpoint",
    "rmq_ray/checkpoint",
    "rmq_ray/quarantine",
    "rmq_ray/pop.journal",
    "rmq_ray/timer.json",
    "rmq_ray/queue_locks",
    "config/consumerOffset.json",
    "config/topics.json",
)
"""What a broker can lose and make again, at most with repeats (docs/file-format.md)."""
FLIP_SHARE_MAX = 0.95
"""Behind a flipped bit valid records follow: at the end of a log it is a torn write."""


@dataclass(frozen=True)
class Card:
    """One fault of the deck."""

    kind: str
    do: Callable[[], str]
    """Does it and returns the broker that it hit, or ""."""
    kills: bool = False
    """A broker's process is gone, or another one may be elected: offsets of groups are as of the
    last time they were saved, or fetched. Of every broker where none was hit: a controller that
    does not answer renews nobody's lease.
    """
    power: bool = False
    flips: int = 0
    early: bool = False


class Faults:
    """Of one cluster."""

    def __init__(
        self,
        victims: Victims,
        disk: Disk,
        clocks: Clocks,
        mode: Mode,
        workload: Workload,
        draw: random.Random,
        only: re.Pattern[str],
    ) -> None:
        self._only = only
        self._victims, self._disk, self._clocks, self._mode = victims, disk, clocks, mode
        self._workload, self._random = workload, draw
        self.not_back: list[str] = []

    def run(self, history: History, until: float) -> None:
        """One after the other until then, and ``FAULTS_MIN`` of them; each waits until sends are
        acknowledged again.
        """
        for played, card in enumerate(self._cards()):
            if time.monotonic() > until and played >= FAULTS_MIN:
                return
            self._play(card, history)
            time.sleep(self._random.uniform(*CALM_PAUSE_S))

    def _play(self, card: Card, history: History) -> None:
        # where there are copies a broken record is mended from one of them
        flips = 0 if self._mode.replicas else card.flips
        fault = Fault(card.kind, "", time.monotonic(), flips=flips, early=card.early)
        try:
            fault.broker = card.do() or (EVERY_BROKER if card.kills else "")
        except TimeoutError as error:
            self.not_back.append(f"{card.kind}: {error}")
        fault.ended = time.monotonic()
        fault.may_lose = card.power and self._mode.power_loses
        fault.may_move_back = card.kills
        history.faults.append(fault)
        deadline = fault.ended + OUTAGE_S_MAX
        while self._workload.last_ok <= fault.ended and time.monotonic() < deadline:
            time.sleep(0.01)
        fault.over = time.monotonic()
        if fault.over >= deadline:
            self.not_back.append(f"no send was acknowledged in {OUTAGE_S_MAX:.0f} s: {card.kind}")

    def _cards(self) -> Iterator[Card]:
        while True:  # as long as the caller takes cards
            deck = [
                *self._processes(),
                *self._power_losses(),
                *self._disk_troubles(),
                *self._damages(),
                *self._network_troubles(),
                *self._clock_jumps(),
                *self._by_hand(),
            ]
            deck = [card for card in deck if self._only.search(card.kind)]
            self._random.shuffle(deck)
            yield from deck

    @property
    def _elects(self) -> bool:
        """Whether there is somebody to elect."""
        return self._mode.replicas > 0

    def _broker_roles(self) -> tuple[str, ...]:
        return ("master", "slave") if self._mode.replicas else ("master",)

    # --- the deck ---------------------------------------------------------------------------------

    def _processes(self) -> Iterator[Card]:
        for role in self._broker_roles():
            yield Card(f"kill -9 of the {role}", partial(self._kill, role), kills=True)
            yield Card(f"hang of the {role}", partial(self._hang, role), kills=True)
            yield Card(f"no memory for the {role}", partial(self._starve, role), kills=True)
        for role in HELPERS:
            elects = role == "controller" and self._elects
            yield Card(f"kill -9 of the {role}", partial(self._kill_helper, role), elects)
            yield Card(f"hang of the {role}", partial(self._hang_helper, role), elects)

    def _power_losses(self) -> Iterator[Card]:
        for role in self._broker_roles():
            yield Card(f"loss of power, {role}", partial(self._power, role), True, power=True)
        yield Card("loss of power, name server", partial(self._power_of, "name server"))
        of_controller = partial(self._power_of, "controller")
        yield Card("loss of power, controller", of_controller, self._elects)
        if self._mode.all_hosts_at_once:
            yield Card("loss of power, all hosts at once", self._power_of_all, True, power=True)

    def _disk_troubles(self) -> Iterator[Card]:
        trouble = self._trouble
        for role in self._broker_roles():
            yield Card(f"a write fails, {role}", partial(trouble, role, write_errors=1), True)
            yield Card(f"a sync fails, {role}", partial(trouble, role, sync_errors=1), True)
            forgets = partial(trouble, role, sync_errors=1, forgets=True)
            yield Card(f"a sync fails and forgets, {role}", forgets, True, power=True)
            yield Card(f"the disk is full, {role}", partial(trouble, role, full=True), True)
            slow = partial(trouble, role, sync_delay_s=SLOW_SYNC_S)
            yield Card(f"syncs are slow, {role}", slow)
            yield Card(f"writes are short, {role}", partial(trouble, role, short_writes=20), True)

    def _damages(self) -> Iterator[Card]:
        for role in self._broker_roles():
            for which in ("a sealed", "the active"):
                kind = f"a bit flips in {which} segment, {role}"
                yield Card(kind, partial(self._flip, role, which == "a sealed"), True, flips=1)
            yield Card(f"derived files are gone, {role}", partial(self._lose_derived, role), True)
            yield Card(f"a derived file is cut, {role}", partial(self._cut_derived, role), True)

    def _network_troubles(self) -> Iterator[Card]:
        for role in self._broker_roles():
            for what, ways in (
                ("is cut off", (True, True)),
                ("gets nothing", (True, False)),
                ("is not heard", (False, True)),
            ):
                yield Card(f"{role} {what}", partial(self._cut_off, role, *ways), kills=True)
            yield Card(f"{role} loses packets", partial(self._lose_packets, role), kills=True)
        if self._mode.replicas:
            for what, ways in (
                ("master and slave are apart", (True, True)),
                ("a slave is not heard by its master", (True, False)),
                ("a slave hears nothing of its master", (False, True)),
            ):
                yield Card(what, partial(self._part, *ways), kills=True)
        yield Card("name server is cut off", self._cut_off_name_server)
        for kind in ANSWERS:
            yield Card(f"answers are {kind}", partial(self._spoil_answers, kind), kills=True)

    def _clock_jumps(self) -> Iterator[Card]:
        for way, seconds in (("ahead", CLOCK_S), ("back", -CLOCK_S)):
            for role in self._broker_roles():
                kind = f"clock an hour {way}, {role}"
                yield Card(kind, partial(self._jump, role, seconds), kills=True, early=True)
            kind = f"clock an hour {way}, controller"
            yield Card(kind, partial(self._jump_helper, seconds), self._elects)

    def _by_hand(self) -> Iterator[Card]:
        yield Card("a consumer is replaced", self._replace_consumer)
        if self._mode.replicas:
            yield Card("promotion by hand", self._promote, kills=True)

    # --- processes and power ----------------------------------------------------------------------

    def _kill(self, role: str) -> str:
        copy = self._victims.copy(role)
        self._victims.kill(copy)
        return copy.broker

    def _hang(self, role: str) -> str:
        copy = self._victims.copy(role)
        stop_for(self._victims.pid(copy), self._random.uniform(*HANG_S))
        return copy.broker

    def _starve(self, role: str) -> str:
        copy = self._victims.copy(role)
        with no_more_memory(self._victims.pid(copy)):
            time.sleep(self._random.uniform(*HANG_S))
        return copy.broker

    def _kill_helper(self, role: str) -> str:
        send_signal(self._victims.helper_pid(role), signal.SIGKILL)
        return ""

    def _hang_helper(self, role: str) -> str:
        stop_for(self._victims.helper_pid(role), self._random.uniform(*HANG_S))
        return ""

    def _power(self, role: str) -> str:
        copy = self._victims.copy(role)
        self._victims.cut_power([copy])
        return copy.broker

    def _power_of(self, role: str) -> str:
        self._victims.cut_power_of(role)
        return ""

    def _power_of_all(self) -> str:
        """One after the other within some milliseconds."""
        self._victims.cut_power(self._victims.copies())
        for role in ("name server", "controller"):
            self._victims.cut_power_of(role)
        return EVERY_BROKER

    # --- disks ------------------------------------------------------------------------------------

    def _trouble(self, role: str, **values: Any) -> str:
        copy = self._victims.copy(role)
        self._victims.pid(copy)
        self._disk.set(copy.host, **values)
        time.sleep(DISK_TROUBLE_S)
        self._disk.set(copy.host, **{name: type(value)() for name, value in values.items()})
        return copy.broker

    def _flip(self, role: str, sealed: bool) -> str:
        copy = self._victims.copy(role)
        with self._victims.down(copy):
            segments = sorted(self._disk.files(copy.host, "commitlog"))
            which = self._random.choice(segments[:-1] or segments) if sealed else segments[-1]
            self._disk.flip(copy.host, which, self._random.uniform(0.0, FLIP_SHARE_MAX))
        return copy.broker

    def _lose_derived(self, role: str) -> str:
        copy = self._victims.copy(role)
        with self._victims.down(copy):
            for path in self._random.sample(DERIVED, 2):
                self._disk.remove(copy.host, path)
        return copy.broker

    def _cut_derived(self, role: str) -> str:
        copy = self._victims.copy(role)
        with self._victims.down(copy):
            found = self._disk.files(copy.host, self._random.choice(DERIVED))
            if found:
                path = self._random.choice(sorted(found))
                self._disk.cut(copy.host, path, self._random.random())
        return copy.broker

    # --- the network ------------------------------------------------------------------------------

    def _cut_off(self, role: str, requests: bool, answers: bool) -> str:
        copy = self._victims.copy(role)
        port = self._victims.port(copy)
        return self._while(network.cut(port, requests=requests, answers=answers), copy.broker)

    def _part(self, requests: bool, answers: bool) -> str:
        slave, master = self._victims.copy("slave"), self._victims.copy("master")
        port, pid = self._victims.port(master), self._victims.pid(slave)
        return self._while(
            network.apart(port, pid, requests=requests, answers=answers), slave.broker
        )

    def _cut_off_name_server(self) -> str:
        port = self._victims.name_server_port()
        return self._while(network.cut(port, requests=True, answers=True), "")

    def _lose_packets(self, role: str) -> str:
        copy = self._victims.copy(role)
        port = self._victims.port(copy)
        return self._while(network.lossy(port, LOST_PACKETS_PERCENT), copy.broker)

    def _spoil_answers(self, kind: str) -> str:
        copy = self._victims.copy("master")
        port, seed = self._victims.port(copy), self._random.randrange(1 << 30)
        return self._while(network.proxied(port, kind, seed), copy.broker)

    def _while(self, trouble: AbstractContextManager[None], broker: str) -> str:
        with trouble:
            time.sleep(self._random.uniform(*CUT_S))
        return broker

    # --- clocks, by hand --------------------------------------------------------------------------

    def _jump(self, role: str, seconds: int) -> str:
        copy = self._victims.copy(role)
        return self._while(self._clocks.ahead(self._victims.pid(copy), seconds), copy.broker)

    def _jump_helper(self, seconds: int) -> str:
        pid = self._victims.helper_pid("controller")
        return self._while(self._clocks.ahead(pid, seconds), "")

    def _promote(self) -> str:
        self._victims.promote()
        return "broker-a"

    def _replace_consumer(self) -> str:
        self._workload.restart_a_consumer()
        return ""
