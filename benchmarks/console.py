"""The console's pages over three brokers with 1,000 topics and 2,300 groups: how long a page takes,
and how long while one broker hangs (SIGSTOP).

The size is the same at every scale; ``--scale`` shortens the rounds.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections import defaultdict
from contextlib import suppress

import httpx

import rmq_ray as rmq
from benchmarks.report import Figure
from benchmarks.scene import Crew, Scene
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.web.actor import find_or_start
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.topics import DEFAULT_TOPIC
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import CreateTopicHeader, UpdateOffsetHeader

TOPICS, GROUPS, BROKERS, QUEUES = 1_000, 2_300, 3, 4
PAGES = ("/", "/topics", "/groups", "/groups/group-7", "/topics/topic-7", "/clients")
ROUNDS = 100
GOAL_MS, GOAL_HANGING_MS = 100.0, 2_500.0
TOKEN = "a token for the benchmark"
ASK_MS = 20_000


def run(scene: Scene) -> None:
    """The 95th percentile of each page; the slowest page with a broker that hangs."""
    rounds = max(20, int(ROUNDS * scene.scale))
    with scene.cluster(brokers=BROKERS) as mq:
        fill(mq)
        url, _ = find_or_start(ConsoleSettings(mq.name, token=TOKEN, port=0))
        with httpx.Client(base_url=url.partition("/sign-in")[0], timeout=20.0) as browser:
            browser.get(url)
            for page in PAGES:
                page_ms(browser, page)  # templates are compiled, connections opened
                taken = [page_ms(browser, page) for _ in range(rounds)]
                told = Figure(f"page {page}, p95", p95(taken), "ms", "goal", GOAL_MS, 1.0, True)
                scene.report.add(told)
            pid = int(mq.status()["broker-c/0"]["pid"])
            os.kill(pid, signal.SIGSTOP)
            try:
                slow = [page_ms(browser, page, "did not answer: broker-c") for page in PAGES]
            finally:
                with suppress(ProcessLookupError):  # the controller ends what hangs too long
                    os.kill(pid, signal.SIGCONT)
            scene.report.add(
                Figure(
                    "slowest page while a broker hangs",
                    max(slow),
                    "ms",
                    "goal",
                    GOAL_HANGING_MS,
                    1.0,
                    True,
                )
            )


def page_ms(browser: httpx.Client, path: str, says: str = "") -> float:
    """As a browser without a cache sees it."""
    began = time.perf_counter()
    answer = browser.get(path)
    taken = (time.perf_counter() - began) * 1000
    if answer.status_code != 200 or ("did not answer" in answer.text) is not bool(says):
        raise RuntimeError(f"{path}: {answer.status_code}, {answer.text[:2_000]}")
    return taken


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(values, n=20)[18]


def fill(mq: rmq.Cluster) -> None:
    """Topics with four messages each, and groups that have consumed one of them."""
    lines = {name: _line(mq, address[0]) for name, address in mq.addresses.items() if 0 in address}
    crew = Crew(len(lines), lambda number: _create_topics(list(lines.values())[number]))
    crew.join()
    ends: dict[str, MessageQueue] = {}
    with mq.producer() as producer:
        for number in range(TOPICS):
            topic = f"topic-{number}"
            ends[topic] = producer.send_batch(topic, [b"x"] * 4)[0].queue
    commits = defaultdict(list)
    for number in range(GROUPS):
        queue = ends[f"topic-{number % TOPICS}"]
        commits[queue.broker_name].append((f"group-{number}", queue))
    for broker, found in commits.items():
        for group, queue in found:
            header = UpdateOffsetHeader(group, queue.topic, queue.queue_id, 1)
            _ask(lines[broker], RequestCode.UPDATE_CONSUMER_OFFSET, header.to_fields())
    for line in lines.values():
        line.close()


def _line(mq: rmq.Cluster, address: str) -> Connection:
    found = mq.discovery.lookup()
    credentials = Credentials(found.cluster, "broker", found.secret)
    return Connection(Address.parse(address), credentials, RemotingLimits(), SYSTEM_CLOCK)


def _create_topics(line: Connection) -> None:
    for number in range(TOPICS):
        header = CreateTopicHeader(f"topic-{number}", DEFAULT_TOPIC, QUEUES, QUEUES, 6)
        _ask(line, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_fields())


def _ask(line: Connection, code: RequestCode, fields: dict[str, str]) -> None:
    answer = line.request(Command(code, fields=fields), ASK_MS)
    if answer.code != 0:
        raise RuntimeError(f"{code.name}: {answer.remark}")
