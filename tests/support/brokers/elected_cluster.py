"""Replicas of one broker under a controller of a hundred lines: real ports and disks, one thread,
no Ray.

    with ElectedCluster(tmp_path, replicas=3) as cluster:      # a Discovery, too
        cluster.kill(cluster.master)                           # as kill -9: nothing is flushed, the
                                                               # page cache stays
        cluster.elect()                                        # what the controller does then;
                                                               # ``automatic=True`` does it by
                                                               # itself

Elections follow the rules of the real controller: fence, promises, greatest (log epoch, end) of the
sync state set, the former master among equals.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.server.broker.broker import Broker
from rmq_ray.server.replication.leadership import Leadership
from rmq_ray.store.front.message_store import MessageStore
from tests.support.brokers.live_cluster import CLUSTER, SECRET, WAIT_S, LiveCluster
from tests.support.waiting import eventually

NAME = "broker-a"


class ElectedCluster(LiveCluster):
    """``replicas`` of broker-a; ``broker``: settings of all. ``listening`` False: the controller
    hears no proposals.
    """

    def __init__(
        self,
        directory: Path,
        replicas: int = 2,
        broker: Mapping[str, Any] | None = None,
        automatic: bool = False,
        **store: Any,
    ) -> None:
        super().__init__(
            directory, brokers=0, broker={"replica_sync_ms": 300, **(broker or {})}, **store
        )
        self._replica_count = replicas
        self._automatic = automatic
        self._watching: asyncio.Task[None] | None = None
        self._electing = False
        self.replicas: dict[int, Broker] = {}
        self.told = Assignment(NAME, 0, None, None, tuple(range(replicas)))
        self.listening = True
        self.elections = 0

    # --- for tests, from their own thread ---

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """An election waits for promises, and for disks that are read."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(3 * WAIT_S)

    @property
    def master(self) -> int:
        """The replica that is master."""
        assert self.told.master is not None
        return self.told.master

    def kill(self, replica: int) -> None:
        """As kill -9."""
        self.run(drop(self.replicas.pop(replica)))

    def start(self, replica: int, **changes: Any) -> None:
        """Start it (again) on its directory."""
        self.run(self._start_replica(replica, **changes))

    def elect(self, wanted: int | None = None) -> int:
        """One election; the new master."""
        self.run(self._elect(wanted))
        return self.master

    def report(self, replica: int) -> ReplicaReport:
        return self.replicas[replica].report()

    def replica_store(self, replica: int) -> MessageStore:
        core = self.replicas[replica].core
        assert core is not None and core.keeper.store is not None
        return core.keeper.store

    def settled(self) -> None:
        """Wait until the master has every living replica in its set, and they have everything."""

        def all_there() -> bool:
            core = self.replicas[self.master].core
            if (
                core is None
                or core.keeper.store is None
                or self.told.sync_state_set != tuple(sorted(self.replicas))
            ):
                return False
            end = core.keeper.store.end_offset
            return core.replication.leads and all(
                self.report(number).end == end for number in self.replicas
            )

        eventually(all_there)

    def replica_path(self, replica: int) -> Path:
        return self._directory / f"{NAME}-{replica}"

    # --- inside ---

    async def _start(self) -> None:
        await super()._start()
        for number in range(self._replica_count):
            await self._start_replica(number)
        await self._elect(None)
        if self._automatic:
            self._watching = asyncio.create_task(self._watch())

    async def _stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for broker in self.replicas.values():
            await broker.stop()
        await super()._stop()

    async def _start_replica(self, number: int, **changes: Any) -> None:
        assert self.name_server is not None
        path = self.replica_path(number)
        fresh = not path.exists()
        config = BrokerConfig(
            StoreConfig(str(path), **self._settings),
            broker_name=NAME,
            cluster_name=CLUSTER,
            name_servers=(str(self.name_server.address),),
        )
        config = config.but(**self._broker_settings).but(**changes)
        broker = Broker(
            config,
            SYSTEM_CLOCK,
            Credentials(CLUSTER, "broker", SECRET),
            leadership=Leadership(number, self._proposed),
        )
        await broker.start(create=fresh)
        self.replicas[number] = broker
        await broker.attend(self.told)

    def _proposed(self, epoch: int, wanted: tuple[int, ...]) -> None:
        if (
            not self.listening
            or self._electing
            or epoch != self.told.master_epoch
            or self.told.master is None
        ):
            return
        version = self.told.version + (wanted != self.told.sync_state_set)
        self.told = Assignment(
            NAME, epoch, self.told.master, self.told.master_address, wanted, version
        )
        asyncio.get_running_loop().call_soon(self._tell, self.told.master)

    def _tell(self, number: int) -> None:
        if number in self.replicas:
            task = asyncio.ensure_future(self.replicas[number].attend(self.told))
            task.add_done_callback(lambda done: done.cancelled() or done.result())

    async def _elect(self, wanted: int | None) -> None:
        self._electing = True
        try:
            before = self.told
            self.told = Assignment(NAME, before.master_epoch + 1, None, None, before.sync_state_set)
            await self._choose(before.master, wanted)
        finally:
            self._electing = False

    async def _choose(self, former: int | None, wanted: int | None) -> None:
        epoch, members = self.told.master_epoch, self.told.sync_state_set
        for number in members:
            if number in self.replicas:
                await self.replicas[number].fence(epoch)
        for _ in range(1_000):
            reports = [
                self.replicas[number].report() for number in members if number in self.replicas
            ]
            if reports and all(r.role is Role.SLAVE for r in reports):
                best = max(
                    reports,
                    key=lambda r: (
                        r.replica == wanted,
                        r.log_epoch,
                        r.end,
                        r.replica == former,
                        -r.replica,
                    ),
                )
                if best.replica == former or former is None or not best.promise_ms:
                    break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError(f"nobody can be elected: {reports}")
        self.told = Assignment(
            NAME, epoch, best.replica, best.address, tuple(sorted(r.replica for r in reports)), 1
        )
        self.elections += 1
        await self.replicas[best.replica].attend(self.told)
        for _ in range(1_000):
            if self.replicas[best.replica].report().role is Role.MASTER:
                break
            await asyncio.sleep(0.005)
        await self.replicas[best.replica].registered(WAIT_S)
        for number in list(self.replicas):
            if number in self.replicas:  # else it was killed meanwhile
                await self.replicas[number].attend(self.told)

    async def _watch(self) -> None:
        """Elect when the master is not there, or not serving."""
        while True:
            await asyncio.sleep(0.05)
            broker = self.replicas.get(self.told.master) if self.told.master is not None else None
            if broker is None or broker.report().role is not Role.MASTER:
                with contextlib.suppress(AssertionError, KeyError, TimeoutError):
                    await asyncio.wait_for(self._elect(None), WAIT_S)


async def drop(broker: Broker) -> None:
    """End a broker as a kill does: connections break, nothing is flushed or written, the next start
    is an unclean one.
    """
    broker._stopped = True
    if broker._leadership is not None:
        await broker._leadership.end()
    if broker._replica is not None:
        await broker._replica.stop()
    if broker._ticking is not None:
        broker._ticking.cancel()
    if broker._registration is not None:
        for task in broker._registration._tasks:
            task.cancel()
        for server in broker._registration._servers:
            await broker._registration._drop(server)
    core, broker._core = broker._core, None
    for peer in list(broker._listener.peers):
        peer.abort("killed")
    await broker._listener.close()
    for threads in (broker._reads, broker._offload):
        if threads is not None:
            threads.close()
    if core is not None:
        await core.pulls.parked.close()
        store = core.keeper.close()
        core.pops.close()
        core.lock_handlers.close()
        if store is not None:
            _let_go(store)


def _let_go(store: MessageStore) -> None:
    """Without a flush or a checkpoint."""
    if store._checkpointer is not None:
        store._checkpointer.stop()
    if store._flusher is not None:
        store._flusher.stop()
    if store._parts is not None:
        store._parts.close()
    store._lock_file.release()
