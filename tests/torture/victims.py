"""Who is meant by "the master", and what can be done to a process: found through the cluster's own
actors, again and again while they restart.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import rmq_ray as rmq
from rmq_ray.actors import gateway, names
from tests.torture.boots import Boots
from tests.torture.disk import Disk
from tests.torture.modes import Mode

ASK_S = 3.0
FOUND_S = 60.0
"""Longer than that no member may be away."""


class Copy(NamedTuple):
    """One copy of a broker."""

    broker: str
    replica: int

    @property
    def host(self) -> str:
        """The directory that stands for its disk."""
        return self.broker if not self.replica else f"{self.broker}.replica-{self.replica}"


class Victims:
    """Of one cluster; draws which broker and which slave."""

    def __init__(
        self, mq: rmq.Cluster, disk: Disk, boots: Boots, mode: Mode, draw: random.Random
    ) -> None:
        self._mq, self._disk, self._boots, self._mode, self._draw = mq, disk, boots, mode, draw
        self._killed: list[tuple[Copy, int]] = []

    # --- finding ----------------------------------------------------------------------------------

    def copy(self, role: str) -> Copy:
        """The master's, or that of one of the slaves."""
        broker = self.broker_names()[self._draw.randrange(self._mode.brokers)]
        if not self._mode.replicas:
            return Copy(broker, 0)
        master = eventually(lambda: self._master(broker))
        if role == "master":
            return Copy(broker, master)
        slaves = [number for number in range(self._mode.replicas + 1) if number != master]
        return Copy(broker, self._draw.choice(slaves))

    def broker_names(self) -> list[str]:
        """As they are started."""
        return ["broker-" + "ab"[number] for number in range(self._mode.brokers)]

    def copies(self) -> list[Copy]:
        """All of all brokers."""
        replicas = range(self._mode.replicas + 1)
        return [Copy(broker, replica) for broker in self.broker_names() for replica in replicas]

    def pid(self, copy: Copy) -> int:
        """And what starts next starts on its host."""
        if not self._boots.shows(copy.host):
            self._await_restarts()
            self._boots.is_at(copy.host)
        return self._pid(names.broker(self._mq.name, *copy))

    def port(self, copy: Copy) -> int:
        """That it listens on."""
        actor = names.broker(self._mq.name, *copy)
        found = eventually(lambda: gateway.call(gateway.find(actor), "serving", timeout_s=ASK_S))
        return int(found.rpartition(":")[2])

    def name_server_port(self) -> int:
        """That it listens on."""
        return eventually(lambda: int(self._mq.discovery.lookup().name_servers[0].split(":")[-1]))

    def helper_pid(self, role: str) -> int:
        """Of the controller, the name server, or the hold service."""
        name = self._mq.name
        if role == "controller":
            found = names.controller(name)
            return eventually(
                lambda: int(gateway.call(gateway.find(found), "pid", timeout_s=ASK_S))
            )
        if role == "name server":
            return self._pid(names.name_server(name, 0))
        return self._pid(names.hold_service(name, self.copy("master")[0]))

    def promote(self) -> None:
        """A slave, by hand."""
        controller = gateway.find(names.controller(self._mq.name))
        with contextlib.suppress(rmq.RmqError):  # it may refuse: no slave is in the set right now
            gateway.call(controller, "promote", "broker-a", None, False, timeout_s=30.0)

    def _master(self, broker: str) -> int | None:
        controller = gateway.find(names.controller(self._mq.name))
        found = gateway.call(controller, "elections", timeout_s=ASK_S)[broker]
        return found["master"] if found["serving"] else None

    @staticmethod
    def _pid(actor: str) -> int:
        return eventually(
            lambda: int(gateway.call(gateway.find(actor), "status", timeout_s=ASK_S)["pid"])
        )

    def _await_restarts(self) -> None:
        """Whoever was killed has opened its store again, and knows its boot."""
        for copy, before in self._killed:
            actor = names.broker(self._mq.name, *copy)
            eventually(lambda a=actor, pid=before: self._pid(a) != pid)
            eventually(lambda a=actor: _ping(a) != "starting")
        self._killed.clear()

    # --- deeds ------------------------------------------------------------------------------------

    def kill(self, copy: Copy) -> None:
        """With SIGKILL."""
        pid = self.pid(copy)
        send_signal(pid, signal.SIGKILL)
        self._killed.append((copy, pid))

    def cut_power(self, copies: list[Copy]) -> None:
        """Of their hosts, all at once: the disks are off, the programs die, the disks forget."""
        pids = {copy: self.pid(copy) for copy in copies}
        self._await_restarts()
        self._boots.begins([copy.host for copy in copies])
        with self._off({copy.host: pid for copy, pid in pids.items()}):
            for copy in copies:
                self._disk.lose_power(copy.host)
        self._killed += pids.items()

    def cut_power_of(self, role: str) -> None:
        """Of the host of the name server or of the controller."""
        host = "controller" if role == "controller" else "name-server-0"
        with self._off({host: self.helper_pid(role)}):
            self._disk.lose_power(host)

    @contextlib.contextmanager
    def down(self, copy: Copy) -> Iterator[None]:
        """Killed, and kept from its disk as long as the block lasts."""
        pid = self.pid(copy)
        with self._off({copy.host: pid}):
            yield
        self._killed.append((copy, pid))

    @contextlib.contextmanager
    def _off(self, pids: dict[str, int]) -> Iterator[None]:
        for host in pids:
            self._disk.set(host, off=True)
        for pid in pids.values():
            send_signal(pid, signal.SIGKILL)
        for pid in pids.values():
            eventually(lambda p=pid: not _lives(p))
        yield
        for host in pids:
            self._disk.set(host, off=False)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Nothing happens where it is gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def stop_for(pid: int, seconds: float) -> None:
    """A hang."""
    send_signal(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        send_signal(pid, signal.SIGCONT)


@contextlib.contextmanager
def no_more_memory(pid: int) -> Iterator[None]:
    """Beyond the address space that a process has: its allocations fail, or it dies of one."""
    with open(f"/proc/{pid}/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (size, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)


def eventually(ask: Callable[[], Any]) -> Any:
    """What it returns once that is neither None nor False; 0 counts."""
    deadline = time.monotonic() + FOUND_S
    while True:
        with contextlib.suppress(rmq.RmqError, KeyError):
            found = ask()
            if found is not None and found is not False:
                return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {FOUND_S:.0f} s; {threading.active_count()} threads")
        time.sleep(0.05)


def _ping(actor: str) -> str:
    return str(gateway.call(gateway.find(actor), "ping", timeout_s=ASK_S))


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
