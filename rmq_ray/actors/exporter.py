"""The exporter of a cluster: ``/metrics`` for Prometheus, from what its brokers and name servers
say of themselves at the moment of the scrape (docs/metrics.md).

    GET /metrics ─> controller: who is there ─> every server: metrics() ─> one text

Decides: how long a server may take, what is told of one that does not answer: ``rmq_ray_up`` 0 and
nothing else. Does not decide names and values (``server.core.broker_metrics``). Made by the first
who asks for its address; ends with the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from rmq_ray.actors import gateway, names
from rmq_ray.actors.shell import be_urgent
from rmq_ray.errors import ConfigError, RmqError
from rmq_ray.model.metrics import Family, Sample

SCRAPE_S = 2.5
UP = "rmq_ray_up"


class ExporterShell:
    """Listens on ``host:port`` (0 = any free one) when it is made."""

    def __init__(self, cluster: str, host: str, port: int) -> None:
        be_urgent()
        self._error: RmqError | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ClusterCollector(cluster))
        self._host, self._port = host or gateway.node_address(), port
        try:
            server, _ = start_http_server(port, self._host, registry)
            self._port = int(server.server_port)
        except OSError as error:
            self._error = ConfigError(
                f"the exporter cannot listen on {self._host}:{port}: {error}; give another port",
                str(port),
            )

    def address(self) -> str:
        """What to scrape. Raises ``ConfigError`` where it cannot listen."""
        if self._error is not None:
            raise self._error
        return f"http://{self._host}:{self._port}/metrics"


class ClusterCollector(Collector):
    """Of one cluster; each scrape asks anew."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """Every family once, whatever brokers are there."""
        try:
            plan = gateway.call(gateway.controller(self._cluster), "plan", timeout_s=SCRAPE_S)
        except RmqError:
            own = {"cluster": self._cluster, "actor": "controller"}
            yield from exposed([Family(UP, "gauge", UP_HELP, (Sample(own, 0.0),))])
            return
        handles = {name: gateway.find(name) for name in plan.listeners()}
        found: list[Family] = []
        up: list[Sample] = []
        for name, answer in gateway.call_each(handles, "metrics", timeout_s=SCRAPE_S).items():
            answered = not isinstance(answer, RmqError)
            labels = {"cluster": self._cluster, "actor": name.partition("/")[2]}
            up.append(Sample(labels, float(answered)))
            if answered:
                found += answer
        yield from exposed([Family(UP, "gauge", UP_HELP, tuple(up)), *found])


UP_HELP = "1 = the server answered this scrape."


def exposed(families: Iterable[Family]) -> list[Metric]:
    """As the library wants them, those of one name as one.

    >>> one = Family("a_total", "counter", "A.", (Sample({"b": "1"}, 2.0),))
    >>> [(metric.name, len(metric.samples)) for metric in exposed([one, one])]
    [('a', 2)]
    """
    found: dict[str, Metric] = {}
    for family in families:
        metric = found.get(family.name)
        if metric is None:
            base = family.name.removesuffix("_total")
            metric = found[family.name] = Metric(base, family.help, family.kind)
        for labels, value in family.samples:
            metric.add_sample(family.name, dict(labels), value)
    return list(found.values())


def find_or_start(cluster: str, host: str, port: int) -> str:
    """The address of a cluster's exporter, which runs from now on. ``ClusterError`` where the
    cluster does not, ``ConfigError`` where the port is taken.
    """
    gateway.cluster_address(cluster)
    name = names.exporter(cluster)
    handle = gateway.find(name)
    if handle is None:
        handle = gateway.create(ExporterShell, name, (cluster, host, port))
    try:
        return str(gateway.call(handle, "address"))
    except ConfigError:
        gateway.kill(name, for_good=True)
        raise


def stop(cluster: str) -> bool:
    """End it; False where none runs."""
    return gateway.kill(names.exporter(cluster), for_good=True)
