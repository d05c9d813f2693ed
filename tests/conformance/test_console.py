"""The console over real brokers, asked as a browser asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.console.app import create_app
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import Source
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster

TOKEN = "t" * 40


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, brokers=2) as running:
        with closing(Admin(running)) as admin:
            admin.create_topic("orders", queues=2)
        yield running


def opened(discovery: object, **settings: object) -> TestClient:
    """A browser that has signed in with the token."""
    source = Source(discovery)  # type: ignore[arg-type]
    made = ConsoleSettings(CLUSTER, token=TOKEN, **settings)  # type: ignore[arg-type]
    client = TestClient(create_app(source, made), base_url="http://127.0.0.1:8092")
    assert client.get("/sign-in", params={"token": TOKEN}).status_code == 200
    return client


@pytest.fixture
def browser(cluster: LiveCluster) -> Iterator[TestClient]:
    with opened(cluster) as client:
        yield client


def send(cluster: LiveCluster, count: int) -> None:
    with Producer("p", discovery=cluster) as producer:
        producer.send_batch("orders", [b"%d" % number for number in range(count)])


def consume(cluster: LiveCluster, group: str, count: int) -> None:
    """The group has consumed so many of the queue that has messages, and goes."""
    with PullConsumer(group, discovery=cluster) as consumer:
        queues = consumer.fetch_message_queues("orders")
        consumer.assign(queues)
        full = [queue for queue in queues if consumer.watermark_offsets(queue)[1] >= count]
        assert consumer.commit({full[0]: count})


def cells(page: str, first: str) -> list[str]:
    """Texts of the table row whose first cell is this."""
    for row in re.findall(r"<tr.*?</tr>", page, re.S):
        found = [
            re.sub(r"<[^>]+>", "", cell).strip()
            for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.S)
        ]
        if found and found[0] == first:
            return found
    raise AssertionError(f"no row of {first}: {page}")


def test_the_front_page_leads_to_a_group_that_is_stuck(
    cluster: LiveCluster, browser: TestClient
) -> None:
    send(cluster, 10)
    consume(cluster, "billing", 3)
    page = browser.get("/").text
    assert "did not answer" not in page
    assert cells(page, "broker-a")[2] == "serving" and cells(page, "broker-b")[2] == "serving"
    row = cells(page, "billing")
    assert row[1] == "7" and row[4] == "nobody consumes"
    link = re.search(r'href="(/groups/billing)"', page)
    assert link is not None
    queues = browser.get(link[1]).text
    assert "orders" in queues and "broker-b" in queues
