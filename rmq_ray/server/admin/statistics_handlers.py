"""How a broker does now and did lately, under RocketMQ's names: 28 and 315 (remoting 5;
protocol-behaviour 25).

Decides: what each name stands for here. RocketMQ's thread pools are queues in front of threads;
ours: sends whose answer waits for disk or slaves, and reads that wait for a thread (pulls of cold
messages, queries). Does not decide the values. A name without a counterpart here is left out.
"""

from __future__ import annotations

from rmq_ray.model.topics import SCHEDULE_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire import bodies, bodies_admin
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import BrokerStatsHeader
from rmq_ray.server.admin.timers import Timers
from rmq_ray.server.base.responses import Refused
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.base.statistics import Statistics
from rmq_ray.server.send.send_path import SendPath
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore

VERSION_TEXT, VERSION = "V4_9_7", 407
NO_TRANSIENT_POOL = 0x7FFFFFFF
"""What RocketMQ tells of a broker without a pool of transient buffers."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class StatisticsHandlers:
    """See the module."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        timers: Timers,
        statistics: Statistics,
        path: SendPath,
    ) -> None:
        self._identity, self._config, self._files = runtime.identity, runtime.config, runtime.files
        self._clock, self._reads, self._counters = runtime.clock, runtime.reads, runtime.counters
        self._keeper = storage.keeper
        self._delays = timers.delays
        self._rate, self._statistics = statistics.rate, statistics
        self._path = path

    def view(self, command: Command, peer: Peer) -> Command:
        """315: a statistic over the last minute, hour and day."""
        header = BrokerStatsHeader.from_fields(command.fields)
        name, key = header.stats_name, header.stats_key
        found = self._statistics.view(name, key, self._clock.now_ms())
        if found is None:
            raise Refused(f"The stats <{name}> <{key}> not exist", ResponseCode.SYSTEM_ERROR)
        windows = {
            "statsMinute": found.minute,
            "statsHour": found.hour,
            "statsDay": found.day,
        }
        body = bodies_admin.encode_broker_stats(
            {name: (window.sum, window.tps) for name, window in windows.items()}
        )
        return command.answer(fields={}, body=body)

    def runtime_info(self, command: Command, peer: Peer) -> Command:
        """28."""
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        table = {**self._life(), **self._traffic(), **self._queues(), **self._log(store)}
        return command.answer(
            body=bodies.encode_table({name: str(value) for name, value in table.items()})
        )

    def _life(self) -> dict[str, object]:
        boot_ms = self._identity.boot_ms
        return {
            "bootTimestamp": boot_ms,
            "startAcceptSendRequestTimeStamp": boot_ms,
            "runtime": _duration(self._clock.now_ms() - boot_ms),
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": VERSION,
        }

    def _traffic(self) -> dict[str, object]:
        counters, rate, days = self._counters, self._rate, self._statistics
        stored, gets = counters.put_messages, rate.get_tps()
        return {
            "putTps": rate.put_tps(),
            "getTotalTps": gets,
            "getFoundTps": gets,
            "getMissTps": rate.miss_tps(),
            "getTransferedTps": gets,
            "putMessageTimesTotal": stored,
            "putMessageSizeTotal": counters.put_bytes,
            "putMessageAverageSize": counters.put_bytes / stored if stored else 0.0,
            "msgPutTotalTodayNow": stored,
            "msgPutTotalTodayMorning": days.put_days.today,
            "msgPutTotalYesterdayMorning": days.put_days.yesterday,
            "msgGetTotalTodayNow": counters.got_messages,
            "msgGetTotalTodayMorning": days.got_days.today,
            "msgGetTotalYesterdayMorning": days.got_days.yesterday,
        }

    def _queues(self) -> dict[str, object]:
        acks, reads = self._path.acks, self._reads.waiting()
        found: dict[str, object] = {
            "sendThreadPoolQueueSize": len(acks),
            "sendThreadPoolQueueHeadWaitTimeMills": int(
                acks.oldest_wait_ms(self._clock.monotonic_ms())
            ),
            "pageCacheLockTimeMills": int(self._path.fast.lost_ms),
        }
        for pool in ("pull", "query"):
            found |= {
                f"{pool}ThreadPoolQueueSize": reads.count,
                f"{pool}ThreadPoolQueueCapacity": reads.count_max,
                f"{pool}ThreadPoolQueueHeadWaitTimeMills": reads.first_ms,
            }
        return found

    def _log(self, store: MessageStore) -> dict[str, object]:
        disk, buffers = self._files.disk_space(self._config.store.path), store.opened.log.pool
        ratio = f"{disk.used_ratio:.4f}"
        return {
            "remainTransientStoreBufferNumbs": (
                NO_TRANSIENT_POOL if buffers is None else buffers.free
            ),
            "dispatchBehindBytes": store.end_offset - store.visible_offset,
            "remainHowManyDataToFlush": _bytes(max(0, store.end_offset - store.flushed_offset)),
            "commitLogMaxOffset": store.visible_offset,
            "commitLogMinOffset": store.begin_offset,
            "commitLogDirCapacity": (
                f"Total : {_bytes(disk.total_bytes)}, Free : {_bytes(disk.free_bytes)}."
            ),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "earliestMessageTimeStamp": store.earliest_store_ms(),
            **{
                f"scheduleMessageOffset_{level}": (
                    f"{offset},{store.bounds(SCHEDULE_TOPIC, level - 1)[1]}"
                )
                for level, offset in self._delays.offsets().items()
            },
        }


def _duration(elapsed_ms: int) -> str:
    seconds = elapsed_ms // 1_000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def _bytes(count: float) -> str:
    """``5.5 KiB``."""
    unit = 0
    while count >= 1_024 and unit < len(UNITS) - 1:
        count, unit = count / 1_024, unit + 1
    return f"{count:.1f} {UNITS[unit]}"
