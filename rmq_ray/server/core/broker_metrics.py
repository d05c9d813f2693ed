"""A broker in numbers, under the names and labels of RocketMQ 5's metrics where it has one, else
``rmq_ray_`` (docs/metrics.md).

Decides: names, labels, and what is told of groups that are gone: nothing. Does not decide who
serves them (``actors.exporter``). ``snapshot`` copies what changes, in the broker's loop; the work
that it returns reads the store, beside the loop.

Invariants: nothing is counted here; a value that is not known now has no series, instead of 0; a
series ends with its topic or group.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rmq_ray.errors import RmqError
from rmq_ray.model.metrics import Family, Labels, Sample, with_labels
from rmq_ray.model.topics import DLQ_PREFIX, RETRY_PREFIX
from rmq_ray.remoting.wire.frame import language
from rmq_ray.remoting.wire.overview import DELAYED, UNCOMMITTED
from rmq_ray.server.admin.clients import Clients
from rmq_ray.server.admin.timers import Timers
from rmq_ray.server.base.counters import StoredTraffic, Traffic
from rmq_ray.server.base.histograms import histogram
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.consume_stats import store_ms_at
from rmq_ray.server.security.access_guard import refused_requests
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore

Key = tuple[str, str]
"""(topic, group)."""

FROM_STATUS = (
    ("rocketmq_half_messages", "gauge", "Half messages that wait for an end.", "half_messages"),
    ("rocketmq_commit_messages_total", "counter", "Half messages committed.", "half_committed"),
    (
        "rocketmq_rollback_messages_total",
        "counter",
        "Half messages rolled back, by their producer or for want of an answer.",
        "half_rolled_back half_discarded",
    ),
    ("rmq_ray_half_checks_total", "counter", "Producers asked about halves.", "half_checks"),
    ("rocketmq_timing_messages", "gauge", "Messages with a delivery time.", "timing_messages"),
    (
        "rocketmq_timer_dequeue_total",
        "counter",
        "Messages delivered at their time or level.",
        "timed_delivered delayed_delivered",
    ),
    ("rocketmq_topic_number", "gauge", "Topics here, system topics counted.", "topics"),
    ("rmq_ray_put_messages_total", "counter", "Messages stored.", "put_messages"),
    ("rmq_ray_put_bytes_total", "counter", "Bytes of records stored.", "put_bytes"),
    ("rmq_ray_put_frames_total", "counter", "Frames of our clients stored.", "put_frames"),
    ("rmq_ray_put_repeats_total", "counter", "Frames recognised as repeats.", "put_repeats"),
    ("rmq_ray_got_messages_total", "counter", "Messages handed out.", "got_messages"),
    ("rmq_ray_pulls_total", "counter", "Pulls and pops answered.", "pulls"),
    ("rmq_ray_pulls_missed_total", "counter", "Of these without messages.", "pulls_missed"),
    ("rmq_ray_parked_pulls", "gauge", "Pulls that wait for a message now.", "parked_pulls"),
    ("rmq_ray_waiting_acks", "gauge", "Sends that wait for disk or slaves.", "waiting_acks"),
    ("rmq_ray_in_flight_bytes", "gauge", "Their bytes.", "in_flight_bytes"),
    ("rmq_ray_refused_busy_total", "counter", "Requests refused as busy.", "refused_busy"),
    ("rmq_ray_flush_timeouts_total", "counter", "FLUSH_DISK_TIMEOUT answered.", "flush_timeouts"),
    ("rmq_ray_slave_timeouts_total", "counter", "FLUSH_SLAVE_TIMEOUT answered.", "slave_timeouts"),
    ("rmq_ray_sent_back_total", "counter", "Messages sent back for a retry.", "sent_back"),
    ("rmq_ray_dead_letters_total", "counter", "Messages that became dead letters.", "dead_letters"),
    ("rmq_ray_offset_moved_total", "counter", "Pulls of offsets not there.", "offset_moved"),
    (
        "rmq_ray_expired_messages_total",
        "counter",
        "Messages that retention took before a group had them.",
        "expired_messages",
    ),
    (
        "rmq_ray_disk_watermark",
        "gauge",
        "Percent that the disk is over; 0 = none.",
        "disk_watermark",
    ),
    ("rmq_ray_limited_sends_total", "counter", "Sends refused by a limit.", "limited_sends"),
    ("rmq_ray_limited_pulls_total", "counter", "Pulls that waited for a limit.", "limited_pulls"),
    ("rmq_ray_queue_locks", "gauge", "Queues locked for ordered consumers.", "queue_locks"),
    ("rmq_ray_connections", "gauge", "Open connections.", "connections"),
    (
        "rmq_ray_refused_connections_total",
        "counter",
        "Connections that were refused or turned away.",
        "refused_connections",
    ),
)
"""(name, kind, help, keys of the status that are added up)."""


LIMITS_TOLD = 1_000


class BrokerMetrics:
    """Of one core."""

    def __init__(
        self, runtime: BrokerRuntime, storage: BrokerStorage, timers: Timers, clients: Clients
    ) -> None:
        self._identity, self._clock = runtime.identity, runtime.clock
        self._counters = runtime.counters
        self._keeper, self._tables = storage.keeper, storage.tables
        self._members, self._popped = clients.members, clients.pops.ledger.table
        self._waiting = timers.waiting

    def snapshot(self, status: Mapping[str, Any]) -> Callable[[], list[Family]]:
        """In the loop. The returned work gives all families, and may run in any thread."""
        identity, now_ms, store = self._identity, self._clock.now_ms(), self._keeper.store
        offsets = {key: dict(queues) for key, queues in self._tables.offsets.tables().items()}
        queues = {
            topic: max(config.read_queues, config.write_queues)
            for topic, config in self._tables.topics.snapshot()[0].items()
        }
        self._counters.keep(queues)
        stored = list(self._counters.stored.items())
        handed_out = list(self._counters.handed_out.items())
        families = [
            *_from_status(status),
            self._counters.rpc.family(),
            *self._connections(),
            _gauge("rocketmq_broker_permission", "2 = write, 4 = read.", identity.permission),
            _gauge("rmq_ray_is_master", "1 = master.", float(not identity.is_slave)),
        ]
        in_flight: Counter[Key] = Counter()
        for (group, topic, _), queue in self._popped.queues.items():
            in_flight[topic, group] += queue.in_flight
        common = {
            "cluster": identity.cluster,
            "node_type": "broker",
            "node_id": identity.name,
            "broker_id": str(identity.broker_id),
        }
        waiting = self._waiting.look(store)

        def read() -> list[Family]:
            families.extend((*self._traffic(stored, handed_out), *self._histograms(stored)))
            families.extend(self._waits(waiting(), queues))
            if store is not None:
                # A store that fails or closes meanwhile is unknown, not empty.
                with contextlib.suppress(RmqError):
                    families.extend(
                        (
                            *self._lags(store, offsets, queues, in_flight, now_ms),
                            *_dead_letters(store, queues),
                            *_storage(store, now_ms),
                        )
                    )
            return with_labels(families, common)

        return read

    def _traffic(
        self,
        stored: Sequence[tuple[str, StoredTraffic]],
        handed_out: Sequence[tuple[tuple[str, str], Traffic]],
    ) -> list[Family]:
        """Beside the loop, as the next: a count that rises meanwhile is told a little later."""
        into = [(self._of_topic(topic), traffic) for topic, traffic in stored]
        out = [
            ({**self._of_topic(topic), "consumer_group": group}, traffic)
            for (topic, group), traffic in handed_out
        ]
        return [
            _family(
                f"rocketmq_{what}_{way}_total",
                "counter",
                f"{'Messages' if what == 'messages' else 'Bytes of records'} {words}.",
                [
                    (labels, traffic.messages if what == "messages" else traffic.bytes)
                    for labels, traffic in found
                ],
            )
            for way, words, found in (
                ("in", "stored, by topic", into),
                ("out", "handed out, by topic and group", out),
            )
            for what in ("messages", "throughput")
        ]

    def _histograms(self, by_topic: Sequence[tuple[str, StoredTraffic]]) -> list[Family]:
        stored = [(self._of_topic(topic), one) for topic, one in by_topic]
        return [
            histogram(
                "rocketmq_message_size",
                "Bytes of records stored; of a batch their mean.",
                [(labels, one.sizes) for labels, one in stored],
            ),
            histogram(
                "rocketmq_finish_message_latency",
                "From a half message to its commit, s.",
                [
                    ({"topic": labels["topic"]}, one.finished)
                    for labels, one in stored
                    if one.finished is not None
                ],
            ),
            histogram(
                "rocketmq_delay_message_latency",
                "How long messages shall wait for their time, s.",
                [
                    ({"topic": labels["topic"]}, one.delays)
                    for labels, one in stored
                    if one.delays is not None
                ],
            ),
        ]

    def _connections(self) -> list[Family]:
        consumers: Counter[tuple[str, str, str, str]] = Counter()
        groups = self._members.consumers.groups()
        for name in groups:
            group = self._members.consumers.find(name)
            if group is not None:
                mode = group.consume_type.value.lower()
                for client in group.channels.values():
                    consumers[name, language(client.language), str(client.version), mode] += 1
        producers: Counter[tuple[str, str]] = Counter()
        for channels in self._members.producers.groups().values():
            for client in channels.values():
                producers[language(client.language), str(client.version)] += 1
        return [
            _gauge("rocketmq_consumer_group_number", "Groups with members here.", len(groups)),
            _family(
                "rocketmq_consumer_connections",
                "gauge",
                "Connections of consumers, by group.",
                [
                    (
                        {
                            "consumer_group": group,
                            "language": spoken,
                            "version": version,
                            "consume_mode": mode,
                            "protocol_type": "remoting",
                        },
                        count,
                    )
                    for (group, spoken, version, mode), count in consumers.items()
                ],
            ),
            _family(
                "rocketmq_producer_connections",
                "gauge",
                "Connections of producers, counted in each of their groups.",
                [
                    ({"language": name, "version": version, "protocol_type": "remoting"}, count)
                    for (name, version), count in producers.items()
                ],
            ),
        ]

    def _lags(
        self,
        store: MessageStore,
        offsets: Mapping[Key, Mapping[int, int]],
        queues: Mapping[str, int],
        in_flight: Mapping[Key, int],
        now_ms: int,
    ) -> list[Family]:
        """Beside the loop."""
        lags: list[tuple[Labels, float]] = []
        waits: list[tuple[Labels, float]] = []
        flights: list[tuple[Labels, float]] = []
        ready: list[tuple[Labels, float]] = []
        for key, committed in offsets.items():
            topic, group = key
            if topic not in queues:
                continue
            lag, oldest_ms = 0, now_ms
            for queue_id in range(queues[topic]):
                low, high = store.bounds(topic, queue_id)
                at = max(low, committed.get(queue_id, 0))
                if at < high:
                    lag += high - at
                    stored_ms = store_ms_at(store, topic, queue_id, at)
                    oldest_ms = min(oldest_ms, stored_ms) if stored_ms >= 0 else oldest_ms
            labels = {
                **self._of_topic(topic),
                "consumer_group": group,
                "is_retry": _boolean(topic.startswith(RETRY_PREFIX)),
            }
            lags.append((labels, lag))
            waits.append((labels, now_ms - oldest_ms))
            if key in in_flight:
                flights.append((labels, in_flight[key]))
                ready.append((labels, max(0, lag - in_flight[key])))
        return [
            _family(f"rocketmq_consumer_{name}", "gauge", words, rows)
            for name, words, rows in (
                ("lag_messages", "Messages that a group has not settled.", lags),
                ("lag_latency", "Age of the oldest of these, ms.", waits),
                ("inflight_messages", "Popped, not settled, of simple consumers.", flights),
                ("ready_messages", "Not popped yet, of simple consumers.", ready),
            )
        ]

    def _waits(
        self, found: Mapping[str, Mapping[str, int]], queues: Iterable[str]
    ) -> Iterable[Family]:
        """Of each topic here that is none of the system's, and of each group's retry topic."""
        named = [topic for topic in queues if not self._tables.topics.is_system(topic)]
        for part, words in (
            (DELAYED, "Messages that wait for a delay before they are in the topic."),
            (UNCOMMITTED, "Half messages for the topic."),
        ):
            if part in found:
                rows: list[tuple[Labels, float]] = [
                    ({"topic": topic}, found[part].get(topic, 0))
                    for topic in named
                    if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
                ]
                yield _family(f"rmq_ray_{part}_messages", "gauge", words, rows)
        if DELAYED in found:
            retries: list[tuple[Labels, float]] = [
                (
                    {"consumer_group": topic.removeprefix(RETRY_PREFIX)},
                    found[DELAYED].get(topic, 0),
                )
                for topic in queues
                if topic.startswith(RETRY_PREFIX)
            ]
            words = "Messages that a group failed on and that wait for their retry."
            yield _family("rmq_ray_waiting_retries", "gauge", words, retries)

    def _of_topic(self, topic: str) -> dict[str, str]:
        return {"topic": topic, "is_system": _boolean(self._tables.topics.is_system(topic))}


def _protection(status: Mapping[str, Any]) -> Iterable[Family]:
    behind: list[tuple[Labels, float]] = [
        (
            {"consumer_group": row["group"], "topic": row["topic"]},
            row["oldest_age_ms"] / row["kept_ms"],
        )
        for row in status["falling_behind"]
    ]
    words = "Age of what a group lacks, of what retention keeps; from 0.8 on."
    yield _family("rmq_ray_group_falls_behind", "gauge", words, behind)
    for measure in ("bytes_per_s", "messages_per_s"):
        rows: list[tuple[Labels, float]] = [
            ({"kind": row["kind"], "name": row["name"]}, row[measure])
            for row in status["limits"][:LIMITS_TOLD]
            if row[measure] is not None
        ]
        words = f"Limits of topics, groups and accounts, {measure.partition('_')[0]} a second."
        yield _family(f"rmq_ray_limit_{measure}", "gauge", words, rows)


def _from_status(status: Mapping[str, Any]) -> Iterable[Family]:
    yield from _protection(status)
    for name, kind, words, keys in FROM_STATUS:
        values = [status[key] for key in keys.split() if key in status]
        if values:
            yield _family(name, kind, words, [({}, sum(values))])
    if "access" in status:
        refused = status["access"]["refused_accounts"]
        yield refused_requests("rmq_ray_refused_requests_total", refused)
    replication = status["replication"]
    yield _gauge("rmq_ray_leads", "1 = may write and acknowledge now.", replication["leads"])
    yield _gauge("rmq_ray_master_epoch", "Of the master; 0 without.", replication["master_epoch"])
    slaves = [({"slave": str(number)}, row) for number, row in replication["slaves"].items()]
    for name, words, key in (
        ("rmq_ray_slave_in_sync", "1 = has what is confirmed.", "in_sync"),
        ("rmq_ray_slave_lag_bytes", "Of log that a slave lacks.", "lag_bytes"),
        ("rmq_ray_slave_lag_ms", "Since a slave had the whole log.", "lag_ms"),
    ):
        yield _family(name, "gauge", words, [(labels, row[key]) for labels, row in slaves])


def _dead_letters(store: MessageStore, queues: Mapping[str, int]) -> list[Family]:
    """What retention took is counted, too: offsets only rise."""
    found: list[tuple[Labels, float]] = [
        (
            {
                "consumer_group": topic.removeprefix(DLQ_PREFIX),
                "topic": topic,
                "is_system": "false",
            },
            sum(store.bounds(topic, queue_id)[1] for queue_id in range(count)),
        )
        for topic, count in queues.items()
        if topic.startswith(DLQ_PREFIX)
    ]
    words = "Messages that became dead letters, by group."
    return [_family("rocketmq_send_to_dlq_messages_total", "counter", words, found)]


def _storage(store: MessageStore, now_ms: int) -> list[Family]:
    status = store.status()
    place = {"storage_type": "local", "storage_medium": "disk"}
    first_ms = store.earliest_store_ms()
    rows = [
        ("rocketmq_storage_size", "Bytes of log.", status["end"] - status["begin"]),
        (
            "rocketmq_storage_flush_behind_bytes",
            "Bytes of log not synced yet.",
            max(0, status["end"] - store.flushed_offset),
        ),
        (
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes of log not visible yet.",
            max(0, status["end"] - status["visible"]),
        ),
        ("rmq_ray_disk_full", "1 = sends are refused for want of room.", status["disk_full"]),
        ("rmq_ray_disk_free_bytes", "On the store's disk.", status["disk_free_bytes"]),
        ("rmq_ray_disk_used_ratio", "Of the store's disk.", status["disk_used_ratio"]),
        ("rmq_ray_quarantined_records", "Broken stretches of the log.", status["quarantined"]),
    ]
    if first_ms >= 0:
        words = "Age of the oldest message, ms."
        rows.append(("rocketmq_storage_message_reserve_time", words, now_ms - first_ms))
    return [
        _family(name, "gauge", words, [(place, value)])
        for name, words, value in rows
        if value is not None
    ]


def _gauge(name: str, words: str, value: float) -> Family:
    return _family(name, "gauge", words, [({}, value)])


def _family(name: str, kind: str, words: str, rows: Iterable[tuple[Labels, float]]) -> Family:
    return Family(name, kind, words, tuple(Sample(labels, float(value)) for labels, value in rows))


def _boolean(value: bool) -> str:
    return "true" if value else "false"
