"""The exporter of a cluster: ``/metrics`` for Prometheus, from what its brokers and name servers
say of themselves at the moment of the scrape (docs/metrics.md).

    GET /metrics ─> controller: who is there ─> every server: metrics() ─> one text
                                 clients in actors: report() every 10 s ────^

Decides: how long a server may take, what is told of one that does not answer: ``rmq_ray_up`` 0 and
nothing else. Does not decide names and values (``server.core.broker_metrics``, the clients). Made
by the first who asks for its address; ends with the cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rmq_ray.actors import gateway, names
from rmq_ray.actors.client_metrics import ClientSeries
from rmq_ray.actors.shell import be_urgent
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ConfigError, RmqError
from rmq_ray.model.metrics import Family, FamilyText, Sample, page_of, text_of

SCRAPE_S = 2.5
CONTROLLER_S = 1.0
REQUEST_S = 10.0
UP = "rmq_ray_up"
UP_HELP = "1 = the server answered this scrape."


class ExporterShell:
    """Listens on ``host:port`` (0 = any free one) when it is made."""

    def __init__(self, cluster: str, host: str, port: int) -> None:
        be_urgent()
        self._error: RmqError | None = None
        self._clients = ClientSeries(SYSTEM_CLOCK)
        self._host, self._port = host or gateway.node_address(), port
        scraped = ClusterCollector(cluster, self._clients)
        try:
            server = ThreadingHTTPServer((self._host, port), partial(MetricsPage, scraped))
        except OSError as error:
            self._error = ConfigError(
                f"the exporter cannot listen on {self._host}:{port}: {error}; give another port",
                str(port),
            )
            return
        server.daemon_threads = True
        self._port = int(server.server_port)
        threading.Thread(target=server.serve_forever, name="rmq-exporter", daemon=True).start()

    def report(self, source: str, families: list[Family]) -> None:
        """What a client says of itself now; ``source``: the same each time, and nobody else's."""
        self._clients.take(source, families)

    def address(self) -> str:
        """What to scrape. Raises ``ConfigError`` where it cannot listen."""
        if self._error is not None:
            raise self._error
        return f"http://{self._host}:{self._port}/metrics"


class MetricsPage(BaseHTTPRequestHandler):
    """Any path is ``/metrics``."""

    timeout = REQUEST_S

    def __init__(self, scraped: ClusterCollector, *arguments: Any) -> None:
        self._scraped = scraped
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        """One scrape."""
        body = page_of(self._scraped.collect()).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """A scrape is nothing to write down."""


class ClusterCollector:
    """Of one cluster; each scrape asks anew."""

    def __init__(self, cluster: str, clients: ClientSeries) -> None:
        self._cluster = cluster
        self._clients = clients

    def collect(self) -> list[FamilyText]:
        """What all of them say; brokers have made text of it already."""
        try:
            plan = gateway.call(gateway.controller(self._cluster), "plan", timeout_s=SCRAPE_S)
        except RmqError:
            own = {"cluster": self._cluster, "actor": "controller"}
            return text_of([Family(UP, "gauge", UP_HELP, (Sample(own, 0.0),))])
        actors = [*plan.listeners(), *gateway.archivists(self._cluster)]
        handles = {name: gateway.find(name) for name in actors}
        texts: list[FamilyText] = []
        found: list[Family] = []
        up: list[Sample] = []
        for name, answer in gateway.call_each(handles, "metrics", timeout_s=SCRAPE_S).items():
            answered = not isinstance(answer, RmqError)
            labels = {"cluster": self._cluster, "actor": name.partition("/")[2]}
            up.append(Sample(labels, float(answered)))
            for family in answer if answered else ():
                if isinstance(family, FamilyText):
                    texts.append(family)
                else:
                    found.append(family)
        found += self._controller()
        found += self._clients.families()
        return text_of([Family(UP, "gauge", UP_HELP, tuple(up)), *found]) + texts

    def _controller(self) -> list[Family]:
        """What it knows; nothing where it does not answer."""
        handle = gateway.controller(self._cluster)
        try:
            members = gateway.call(handle, "members", timeout_s=CONTROLLER_S)
            elections = gateway.call(handle, "elections", timeout_s=CONTROLLER_S)
        except RmqError:
            return []
        return controller_families(self._cluster, members, elections)


def controller_families(
    cluster: str,
    members: Mapping[str, Mapping[str, int]],
    elections: Mapping[str, Mapping[str, Any]],
) -> list[Family]:
    """``members``, ``elections``: as the controller's methods of that name tell them."""
    common = {"cluster": cluster, "node_type": "controller"}
    rows = [
        (
            "rmq_ray_controller_creations_total",
            "counter",
            "Times that an actor was created.",
            "creations",
        ),
        (
            "rmq_ray_controller_kills_total",
            "counter",
            "Times that it was killed, as it hung.",
            "kills",
        ),
        ("rmq_ray_controller_stopped", "gauge", "1 = stopped on purpose.", "stopped"),
    ]
    found = [
        Family(
            name,
            kind,
            words,
            tuple(
                Sample({**common, "actor": actor.partition("/")[2]}, float(told[key]))
                for actor, told in members.items()
            ),
        )
        for name, kind, words, key in rows
    ]
    epochs = tuple(
        Sample({**common, "node_id": broker}, float(told["master_epoch"]))
        for broker, told in elections.items()
    )
    words = "Of a broker with slaves: each election raises it."
    return [*found, Family("rmq_ray_controller_epoch", "gauge", words, epochs)]


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
