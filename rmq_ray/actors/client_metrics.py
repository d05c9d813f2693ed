"""What clients in actors count, told to Prometheus on two ways (docs/metrics.md).

    ProducerActor, ConsumerActor, @consumer: metrics() every 10 s
        ├──> ray.util.metrics        Ray's own endpoint of the node: its Prometheus has them
        └──> the cluster's exporter  if one runs: ``ClientSeries`` sums them up at ``/metrics``

Decides when they are told, and what becomes of series whose client has gone. Does not decide what
is counted (``client``). A thread of the actor does it: a send or a listener never waits for it.

Invariants: no series is of one client, so that a thousand of them have as many series as one;
counters never fall because a client ends.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray.util import metrics as ray_metrics

from rmq_ray.actors import gateway, names
from rmq_ray.actors.discovery import meant_cluster
from rmq_ray.clock import Clock
from rmq_ray.errors import RmqError
from rmq_ray.model.metrics import Family, Sample, with_labels

log = logging.getLogger("rmq_ray.client")
REPORT_S = 10.0
CALL_S = 2.0
SILENT_MS = 60_000
"""After so long a client counts as gone."""
KEPT_MS = 3_600_000
"""For so long series stay that no client tells any more."""
Key = tuple[str, tuple[tuple[str, str], ...]]
"""Of a series: name with part, and labels."""


class ClientReporter:
    """Tells what ``metrics`` says until it is closed, and once more then. ``settings``: of the
    client; ``node_type``: "producer" or "consumer".
    """

    def __init__(
        self,
        metrics: Callable[[], list[Family]],
        node_type: str,
        settings: Mapping[str, Any],
        interval_s: float = REPORT_S,
    ) -> None:
        self._metrics = metrics
        self._interval_s = interval_s
        servers = settings.get("name_servers")
        self._cluster = meant_cluster(settings.get("cluster"), servers)
        self._in_ray = servers is None
        self._labels = {"cluster": self._cluster, "node_type": node_type}
        self._source = secrets.token_hex(8)
        self._to_ray = RaySeries()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the last of it; nothing more after that."""
        self._closed.set()
        self._thread.join(2 * CALL_S)

    def _run(self) -> None:
        while True:  # ends: when it is closed
            is_last = self._closed.wait(self._interval_s)
            try:
                self._tell()
            except RmqError as error:
                log.info("the exporter of %s does not take metrics: %s", self._cluster, error)
            except Exception:
                log.exception("metrics of a client could not be told")
            if is_last:
                return

    def _tell(self) -> None:
        found = with_labels(self._metrics(), self._labels)
        self._to_ray.take(found)
        exporter = gateway.find(names.exporter(self._cluster)) if self._in_ray else None
        if exporter is not None:
            gateway.call(exporter, "report", self._source, found, timeout_s=CALL_S)


class RaySeries:
    """This process's series at Ray's endpoint, under the same names: Ray puts ``ray_`` before them.
    A histogram's buckets, sum and count are counters there, as Ray's own takes single values only.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, ray_metrics.Gauge] = {}
        self._counters: dict[str, ray_metrics.Counter] = {}
        self._told: dict[Key, float] = {}

    def take(self, families: Iterable[Family]) -> None:
        """What is true now."""
        for family in families:
            for labels, value, part in family.samples:
                name = family.name + part
                if family.kind == "gauge":
                    self._set(name, family.help, dict(labels), value)
                else:
                    self._count(name, family.help, dict(labels), value)

    def _set(self, name: str, words: str, labels: dict[str, str], value: float) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = ray_metrics.Gauge(name, words, tuple(labels))
        gauge.set(value, labels)

    def _count(self, name: str, words: str, labels: dict[str, str], value: float) -> None:
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = ray_metrics.Counter(name, words, tuple(labels))
        key = _key(name, labels)
        more = value - self._told.get(key, 0.0)
        if more > 0:
            counter.inc(more, labels)
            self._told[key] = value


class ClientSeries:
    """The sum of what clients say of themselves. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[str, tuple[float, list[Family]]] = {}
        self._gone: dict[Key, tuple[float, float]] = {}
        """Counters of clients that are gone, and when they were told last."""

    def take(self, source: str, families: list[Family]) -> None:
        """What one of them says now."""
        with self._lock:
            self._clients[source] = (self._clock.monotonic_ms(), families)

    def families(self) -> list[Family]:
        """One series for each name and set of labels."""
        with self._lock:
            self._forget(self._clock.monotonic_ms())
            kinds: dict[str, tuple[str, str]] = {}
            values: dict[str, dict[Key, Sample]] = {}
            for _, families in self._clients.values():
                for family in families:
                    kinds[family.name] = (family.kind, family.help)
                    found = values.setdefault(family.name, {})
                    for sample in family.samples:
                        key = _key(family.name + sample.part, sample.labels)
                        before = found.get(key)
                        added = self._gone.get(key, (0.0, 0.0))[0] if before is None else 0.0
                        found[key] = sample._replace(
                            value=sample.value + added + (0.0 if before is None else before.value)
                        )
        return [
            Family(name, *kinds[name], tuple(samples.values())) for name, samples in values.items()
        ]

    def _forget(self, now_ms: float) -> None:
        """Under the lock."""
        for source, (told_ms, families) in list(self._clients.items()):
            if now_ms - told_ms > SILENT_MS:
                del self._clients[source]
                self._keep(families, told_ms)
        for key, (_, told_ms) in list(self._gone.items()):
            if now_ms - told_ms > KEPT_MS:
                del self._gone[key]

    def _keep(self, families: list[Family], told_ms: float) -> None:
        for family in families:
            for labels, value, part in family.samples:
                if family.kind != "gauge":
                    key = _key(family.name + part, labels)
                    before = self._gone.get(key, (0.0, 0.0))
                    self._gone[key] = (before[0] + value, max(before[1], told_ms))


def _key(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple(sorted(labels.items()))
