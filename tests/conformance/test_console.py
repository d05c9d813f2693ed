"""The console over real brokers, asked as a browser asks."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import ClusterView
from rmq_ray.console.web.app import create_app
from rmq_ray.model.ids import Address
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import RegisterBrokerHeader
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.clients.collecting import fails_for_hours
from tests.support.clients.console_browser import TOKEN, cells, opened
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, brokers=2) as running:
        with closing(Admin(running)) as admin:
            admin.create_topic("orders", queues=2)
        yield running


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
        # nothing is committed before the consumer knows where the queue begins
        eventually(lambda: consumer.commit({full[0]: count}))


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


def test_what_waits_for_a_retry_a_delay_or_a_commit_stands_with_group_and_topic(
    cluster: LiveCluster, browser: TestClient
) -> None:
    assert "groups, none of them behind.</p>" in browser.get("/").text
    with PushConsumer(
        "billing",
        listener=fails_for_hours,
        subscriptions={"orders": "*"},
        start_from="first",
        discovery=cluster,
    ):
        send(cluster, 3)
        with Producer("p", discovery=cluster) as producer:
            producer.send("orders", b"later", delay=timedelta(hours=1))
        with closing(Admin(cluster)) as admin:
            eventually(lambda: admin.waiting()["delayed"].get("%RETRY%billing") == 3)
            found = admin.waiting()
    assert found == {"delayed": {"%RETRY%billing": 3, "orders": 1}, "uncommitted": {}}
    assert cells(browser.get("/groups").text, "billing")[9] == "3"
    front = browser.get("/").text
    assert cells(front, "billing")[6] == "3" and "none of them behind" not in front
    group = browser.get("/groups/billing").text
    assert "<dt>Wait for a retry</dt><dd>3</dd>" in group and cells(group, "orders")
    assert cells(browser.get("/topics").text, "orders")[8:10] == ["1", "0"]
    assert "<dt>Delayed</dt><dd>1</dd>" in browser.get("/topics/orders").text


@contextmanager
def silent_broker(cluster: LiveCluster, name: str) -> Iterator[None]:
    """Registered as any other; it takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = Address(*server.getsockname())
        header = RegisterBrokerHeader(name, str(address), CLUSTER, str(address), 0)
        there = Address.parse(cluster.lookup().name_servers[0])
        credentials = Credentials(CLUSTER, "name_server", SECRET)
        line = Connection(there, credentials, RemotingLimits(), SYSTEM_CLOCK)
        with closing(line):
            asked = Command(RequestCode.REGISTER_BROKER, fields=header.to_fields())
            assert line.request(asked, 5_000).code == 0
            yield


def test_a_broker_that_hangs_is_named_and_costs_no_more_than_the_deadline(
    cluster: LiveCluster,
) -> None:
    send(cluster, 10)
    consume(cluster, "billing", 3)
    with silent_broker(cluster, "broker-c"), opened(cluster, deadline_ms=2_000) as browser:
        for path in ("/", "/groups", "/groups/billing", "/topics", "/topics/orders", "/clients"):
            watch = Stopwatch()
            page = browser.get(path)
            assert page.status_code == 200 and watch.lived_s < 3.0, path
            assert "did not answer: broker-c" in page.text, path
        assert cells(browser.get("/").text, "broker-c")[2].startswith("did not answer")
        groups = browser.get("/groups").text
        assert cells(groups, "billing")[1] == "≥ 7", "a sum of some brokers is no whole sum"
        assert cells(groups, "billing")[8] == "unknown", "no dead letters were found, not none"
        assert cells(browser.get("/topics").text, "orders")[1] == "≥ 10"
        assert browser.get("/groups/who-knows").status_code == 200, "broker-c may have it"


def test_a_broker_that_has_gone_is_missed(cluster: LiveCluster, browser: TestClient) -> None:
    assert "did not answer" not in browser.get("/groups").text
    cluster.run(cluster.brokers[1].stop())
    page = browser.get("/groups").text
    assert "did not answer: broker-b (no name server knows it now" in page
    assert cells(browser.get("/").text, "broker-b")[2].startswith("did not answer")


def test_what_is_not_there_is_said_with_a_404(browser: TestClient) -> None:
    for path in ("/groups/nobody", "/topics/nothing", "/nowhere"):
        answer = browser.get(path)
        assert answer.status_code == 404, path
    assert "no broker has the topic" in browser.get("/topics/nothing").text


def test_names_of_topics_do_not_become_code(cluster: LiveCluster, browser: TestClient) -> None:
    page = browser.get("/groups", params={"q": '"><script>alert(1)</script>'}).text
    assert "<script>alert" not in page
    assert browser.get("/topics/%3Cscript%3Ex").text.count("<script>x") == 0


def test_a_topic_shows_its_queues_and_who_reads_it(
    cluster: LiveCluster, browser: TestClient
) -> None:
    send(cluster, 10)
    consume(cluster, "billing", 4)
    assert cells(browser.get("/topics").text, "orders")[1] == "10"
    page = browser.get("/topics/orders").text
    assert cells(page, "billing")[1] == "6"
    rows = [line for line in page.splitlines() if line.startswith("<tr><td>broker-")]
    assert len(rows) >= 4 and any(">10<" in row for row in rows)
    assert "orders" not in browser.get("/topics?q=nothing-like-it").text.split("<tbody>")[1]


def test_a_running_consumer_is_seen_with_what_it_subscribes_to(
    cluster: LiveCluster, browser: TestClient
) -> None:
    with PullConsumer("readers", discovery=cluster, client_id="me@host") as consumer:
        consumer.subscribe("orders", "paid")
        eventually(lambda: "me@host" in browser.get("/clients").text)
        page = browser.get("/groups/readers").text
        assert cells(page, "me@host")[1] in ("broker-a", "broker-b")
        assert cells(page.split("Subscriptions")[1], "orders")[1] == "paid"
        assert cells(browser.get("/groups").text, "readers")[4] == "1"


def test_a_live_table_is_sent_again_and_again(cluster: LiveCluster) -> None:
    with opened(cluster, live_ms=20) as browser, browser.stream("GET", "/live/groups") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line.startswith("event:"))
        assert [next(lines) for _ in range(3)] == ["event: rows"] * 3


RULES = AccessRules(
    {
        "operator": Account("operator", "the secret", admin=True),
        "a-reader": Account("a-reader", "the secret", topics={"orders": Right.SUB}),
    },
    version=1,
)


def test_people_sign_in_with_their_account_and_see_what_it_may(tmp_path: Path) -> None:
    with LiveCluster(tmp_path, rules=RULES) as running:
        with closing(Admin(running)) as admin:
            admin.create_topic("orders")
            admin.create_topic("payments")
        made, source = ConsoleSettings(CLUSTER, accounts=True), ClusterView(running, probe=Probe())
        base = "http://127.0.0.1:8092"
        with TestClient(create_app(source, made), base_url=base) as browser:
            keys = {"access_key": "operator", "secret_key": "not the secret"}
            refused = browser.post("/sign-in", data=keys)
            assert refused.status_code == 403 and "do not fit" in refused.text
            assert browser.get("/sign-in", params={"token": ""}).status_code == 403
            keys["secret_key"] = "the secret"
            assert browser.post("/sign-in", data=keys).status_code == 200
            page = browser.get("/").text
            assert cells(page, "broker-a")[2] == "serving" and "operator" in page
            assert "controller: serving" in page and browser.get("/audit").status_code == 200
            assert "payments" in browser.get("/topics").text


def test_an_account_with_few_rights_sees_no_more(tmp_path: Path) -> None:
    with LiveCluster(tmp_path, rules=RULES) as running:
        with closing(Admin(running)) as admin:
            for topic in ("orders", "payments"):
                admin.create_topic(topic)
        made, source = ConsoleSettings(CLUSTER, accounts=True), ClusterView(running, probe=Probe())
        base = "http://127.0.0.1:8092"
        with TestClient(create_app(source, made), base_url=base) as browser:
            browser.post("/sign-in", data={"access_key": "a-reader", "secret_key": "the secret"})
            page = browser.get("/topics").text
            assert "orders" in page and "payments" not in page and "has a right on" in page
            assert browser.get("/topics/orders").status_code == 200
            for path in ("/topics/payments", "/groups/billing"):
                told = browser.get(path).text
                assert "has no right on" in told and "Partial" in told, path
            page = browser.get("/").text
            assert cells(page, "broker-a")[2] == "not told to this account"
            assert "controller: serving" not in page, "the console's own eyes are not the account's"
            assert browser.get("/audit").status_code == 403
            assert browser.get("/rates.json").status_code == 403
            assert "no administrator" in browser.get("/settings").text


class Probe:
    """A controller and audit logs as Ray would tell them."""

    def controller(self) -> dict[str, object]:
        return {"state": "serving", "members": {"broker-a/0": "created 1"}}

    def audit(self, lines: int, **wanted: object) -> list[dict[str, object]]:
        line = {"time": "2026-11-22T10:00", "event": "changed", "party": "broker broker-a"}
        more = {"request": "DELETE_TOPIC_IN_BROKER", "resources": ["topic:orders"]}
        silent = {"event": "unknown", "party": "broker-b/0", "reason": "no answer"}
        return [silent, line | more | {"account": "operator", "new": {"who": str(wanted["who"])}}]


def test_the_audit_page_shows_what_was_changed_and_which_log_is_missing(
    cluster: LiveCluster,
) -> None:
    source = ClusterView(cluster, probe=Probe())
    app = create_app(source, ConsoleSettings(CLUSTER, token=TOKEN))
    with TestClient(app, base_url="http://127.0.0.1:8092") as browser:
        browser.get("/sign-in", params={"token": TOKEN})
        page = browser.get("/audit", params={"who": "oper"}).text
        row = cells(page, "2026-11-22T10:00")
        assert row[2:5] == ["operator", "DELETE_TOPIC_IN_BROKER", "topic:orders"]
        assert row[5] == "who oper" and "broker-b/0 (no answer)" in page
        assert "controller: serving" in browser.get("/").text


def test_settings_stand_beside_each_other_and_those_that_differ_first(
    cluster: LiveCluster, browser: TestClient
) -> None:
    page = browser.get("/settings").text
    row = cells(page, "rmq_ray.store.segment_bytes")
    assert row[1] == row[2] == "262144"
    assert "brokers differ" not in page, "names and paths differ as they should"
    assert browser.get("/audit").status_code == 503, "without Ray nobody reads the logs"


def test_rates_are_the_consoles_own_samples(browser: TestClient) -> None:
    assert set(browser.get("/rates.json").json()) == {"at", "stored", "handed_out"}
