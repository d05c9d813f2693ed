"""The console's pages about messages, dead letters and offsets, over real brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import msgpack
import pytest
from starlette.testclient import TestClient

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.dead_letters import DeadLetters
from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import ClusterView
from rmq_ray.console.web.app import create_app
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.rules import AccessRules
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster
from tests.support.clients.console_browser import cells, csrf, opened
from tests.support.waiting import eventually

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, brokers=2) as running:
        with closing(Admin(running)) as admin:
            admin.create_topic("orders", queues=1)
        yield running


@pytest.fixture
def browser(cluster: LiveCluster) -> Iterator[TestClient]:
    with opened(cluster, allow_write=True) as client:
        yield client


def send(cluster: LiveCluster, *bodies: bytes, queue: MessageQueue = QUEUE) -> list[str]:
    with Producer("p", discovery=cluster) as producer:
        return [producer.send("orders", one, keys=["k1"], queue=queue).message_id for one in bodies]


def posted(browser: TestClient, path: str, on: str, **form: object) -> str:
    """The page behind a form of the page ``on``."""
    answer = browser.post(path, data={"csrf": csrf(browser.get(on).text)} | form)
    assert answer.status_code == 200, answer.text
    return answer.text


def audited(cluster: LiveCluster) -> list[str]:
    return [json.dumps(line) for line in noted(cluster)]


def noted(cluster: LiveCluster) -> list[dict[str, object]]:
    path = cluster.store_path(0) / "rmq_ray" / "audit.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_newest_messages_of_all_brokers_and_one_with_its_body(
    cluster: LiveCluster, browser: TestClient
) -> None:
    send(cluster, b'{"id": 7}', b"plain words")
    send(cluster, b"on b", queue=MessageQueue("orders", "broker-b", 0))
    page = browser.get("/messages", params={"topic": "orders"}).text
    bodies = re.findall(r'<td class="body">(.*?)</td>', page)
    assert bodies == ["on b", "plain words", "{&#34;id&#34;: 7}"]
    (path,) = re.findall(r'href="(/messages/at\?[^"]+offset=0)"', page.split("plain words")[1])
    one = browser.get(path.replace("&amp;", "&")).text
    assert "Body, as json" in one and "&#34;id&#34;: 7" in one and "Log offset" in one
    assert "Body, as hex" in browser.get(path.replace("&amp;", "&") + "&as=hex").text


@pytest.mark.parametrize(
    ("body", "form", "told"),
    [
        (msgpack.packb({"a": [1, b"\xff"]}), "msgpack", "0xff"),
        (b"\xff\xfe\x00", "hex", "ff fe 00"),
        ("grün".encode(), "text", "grün"),
    ],
)
def test_bodies_are_decoded(
    cluster: LiveCluster, browser: TestClient, body: bytes, form: str, told: str
) -> None:
    send(cluster, body)
    where = {"topic": "orders", "broker": "broker-a", "queue": 0, "offset": 0}
    page = browser.get("/messages/at", params=where).text
    assert f"Body, as {form}" in page and told in page


def test_messages_are_found_by_key_id_time_and_offset(
    cluster: LiveCluster, browser: TestClient
) -> None:
    first, *_ = send(cluster, b"one", b"two", b"three")
    for asked in ({"key": first}, {"broker": "broker-a", "queue": "0", "offset": "0"}):
        page = browser.get("/messages", params={"topic": "orders", "count": 1} | asked).text
        assert re.findall(r'<td class="body">(.*?)</td>', page) == ["one"], asked
    assert "offset=1" in page, "the way on"
    page = browser.get("/messages", params={"topic": "orders", "key": "k1"}).text
    assert len(re.findall(r'<td class="body">', page)) == 3
    page = browser.get("/messages", params={"topic": "orders", "time": "2020-01-01T00:00"}).text
    assert re.findall(r'<td class="body">(.*?)</td>', page) == ["one", "two", "three"]
    wrong = browser.get("/messages", params={"topic": "orders", "time": "tomorrow"})
    assert wrong.status_code == 400 and "is no time" in wrong.text
    assert browser.get("/messages", params={"topic": "nothing"}).status_code == 404


def test_the_live_tail_is_sent_again_and_again(cluster: LiveCluster) -> None:
    with opened(cluster, live_ms=20) as browser:
        send(cluster, b"here")
        with browser.stream("GET", "/live/messages", params={"topic": "orders"}) as answer:
            lines = (line for line in answer.iter_lines() if "here" in line)
            assert next(lines) and next(lines)


def dead(cluster: LiveCluster, *bodies: bytes) -> None:
    """They became dead letters of ``billing``."""
    send(cluster, *bodies)
    with SimpleConsumer("orders", "billing", discovery=cluster, start_from="first") as worker:
        left = len(bodies)
        while left:
            for message in worker.receive(8, wait=5):
                message.reject()
                left -= 1
    with closing(DeadLetters(cluster)) as letters:
        eventually(
            lambda: sum(one["messages"] for one in letters.dead_letter_groups()) == len(bodies)
        )


def test_dead_letters_are_looked_at_resent_and_exported(
    cluster: LiveCluster, browser: TestClient
) -> None:
    dead(cluster, b"poison 1", b"poison 2", b"poison 3")
    assert cells(browser.get("/dead-letters").text, "billing")[1] == "3"
    page = browser.get("/dead-letters/billing").text
    assert page.count('name="id"') == 3 and "poison 2" in page
    ids = re.findall(r'name="id" value="([^"]+)"', page)
    told = posted(
        browser, "/dead-letters/billing/resend", "/dead-letters/billing", which="these", id=ids[0]
    )
    assert "Resent 1 to orders" in told
    posted(
        browser, "/dead-letters/billing/resend", "/dead-letters/billing", which="new", rate="1000"
    )
    eventually(lambda: "3 messages were sent" in browser.get("/dead-letters/billing").text)
    with closing(Admin(cluster)) as admin:
        there = sum(row["messages"] for row in admin.describe_topic("orders"))
        assert there >= 7, (
            "an answer that comes late makes a producer send again, to another broker"
        )
    eventually(lambda: any("resend dead letters" in line for line in audited(cluster)))
    lines = browser.get("/dead-letters/billing/export").text.splitlines()
    assert {json.loads(line)["body"] for line in lines} == {"poison 1", "poison 2", "poison 3"}
    table = browser.get("/dead-letters/billing/export", params={"format": "csv"}).text
    assert table.startswith("message_id,topic,") and table.count("\r\n") == 4
    assert "None: the group" in browser.get("/dead-letters/nobody").text
    assert browser.get("/dead-letters/nobody/export").status_code == 404


def committed(cluster: LiveCluster) -> dict[MessageQueue, int]:
    with closing(Admin(cluster)) as admin:
        found = admin.group_lag("billing")
    return {
        MessageQueue(row["topic"], row["broker"], row["queue"]): row["committed"] for row in found
    }


def consume(cluster: LiveCluster, count: int) -> None:
    with PullConsumer("billing", discovery=cluster) as consumer:
        consumer.assign([QUEUE])
        eventually(lambda: consumer.watermark_offsets(QUEUE)[1] >= count)
        eventually(lambda: consumer.commit({QUEUE: count}))


def test_offsets_move_to_what_the_preview_showed(cluster: LiveCluster, browser: TestClient) -> None:
    send(cluster, b"1", b"2", b"3", b"4")
    consume(cluster, 2)
    path = "/groups/billing/offsets"
    page = browser.get(path, params={"topic": "orders", "to": "first"}).text
    assert "<strong>2</strong> messages would be consumed again" in page
    assert committed(cluster)[QUEUE] == 2, "a preview moves nothing"
    targets = re.findall(r'name="target" value="([^"]+)"', page)
    assert "broker-a:0:0" in targets
    form = {"csrf": csrf(page), "topic": "orders", "target": targets}
    assert "goes on elsewhere in 1 queues" in browser.post(path, data=form).text
    assert committed(cluster)[QUEUE] == 0
    eventually(lambda: any("move offsets" in line for line in audited(cluster)))
    page = browser.get(path, params={"topic": "orders", "to": "last"}).text
    assert "<strong>4</strong> messages would never be consumed" in page
    for wrong in ({"to": "nowhere"}, {"to": "time"}):
        assert browser.get(path, params={"topic": "orders"} | wrong).status_code == 400


def test_three_clicks_lead_to_the_message_that_a_group_waits_at_and_it_can_be_skipped(
    cluster: LiveCluster, browser: TestClient
) -> None:
    send(cluster, b"good", b"poison", b"good too")
    consume(cluster, 1)
    front = browser.get("/").text
    assert "/groups/billing" in front
    (link,) = re.findall(r'href="(/messages/at\?[^"]+)"', browser.get("/groups/billing").text)
    page = browser.get(link.replace("&amp;", "&")).text
    assert "poison" in page and "Let billing skip it" in page
    form = {"topic": "orders", "broker": "broker-a", "queue": "0", "offset": "1"}
    posted(browser, "/groups/billing/skip", "/", **form)
    assert committed(cluster)[QUEUE] == 2
    again = browser.post("/groups/billing/skip", data=form | {"csrf": csrf(front)})
    assert again.status_code == 502 and "nothing was skipped" in again.text


def test_what_waits_for_a_time_is_shown(cluster: LiveCluster, browser: TestClient) -> None:
    with Producer("p", discovery=cluster) as producer:
        producer.send("orders", b"in a minute", delay_level=5)
        producer.send("orders", b"in an hour", delay=timedelta(hours=1))
    page = browser.get("/waiting").text
    assert "in a minute" in page and "in an hour" in page and "Partial" not in page


def test_topics_and_groups_are_made_set_and_tried(
    cluster: LiveCluster, browser: TestClient
) -> None:
    made = posted(browser, "/topics", "/topics", topic="payments", queues="2")
    assert "Topic payments is there" in made
    set_ = posted(browser, "/topics/payments/settings", "/topics/payments", retention_hours="24")
    assert "24 h" in set_
    form = {"body": "try", "tag": "t", "keys": "a b", "properties": "region=eu"}
    sent = posted(browser, "/topics/payments/send", "/topics/payments", **form)
    assert "Sent as" in sent and "region" in sent and "a b" in sent
    send(cluster, b"1")
    consume(cluster, 1)
    told = posted(browser, "/groups/billing/settings", "/groups/billing", retry_max_times="3")
    assert "is set as told" in told
    eventually(lambda: any('"UPDATE_AND_CREATE_TOPIC"' in line for line in audited(cluster)))


def test_without_allow_write_nothing_is_offered_and_nothing_done(cluster: LiveCluster) -> None:
    dead(cluster, b"poison")
    with opened(cluster) as browser:
        page = browser.get("/dead-letters/billing").text
        assert "only shows" in page and 'name="id"' not in page
        token = csrf(page)
        for path in ("/topics", "/groups/billing/skip", "/dead-letters/billing/resend"):
            answer = browser.post(path, data={"csrf": token})
            assert answer.status_code == 403 and "--allow-write" in answer.text, path


def test_a_form_without_its_token_does_nothing(browser: TestClient) -> None:
    answer = browser.post("/topics", data={"topic": "payments"})
    assert answer.status_code == 403 and "too old" in answer.text
    assert browser.get("/topics/payments").status_code == 404


RULES = AccessRules(
    {
        "operator": Account("operator", "the secret", admin=True),
        "a-reader": Account("a-reader", "the secret", topics={"orders": Right.SUB}),
    },
    version=1,
)


def test_an_account_sees_messages_that_it_may_read_and_changes_nothing(tmp_path: Path) -> None:
    with LiveCluster(tmp_path, rules=RULES) as running:
        with closing(Admin(running)) as admin:
            for topic in ("orders", "payments"):
                admin.create_topic(topic, queues=1)
        send(running, b"for readers")
        made, source = (
            ConsoleSettings(CLUSTER, accounts=True, allow_write=True),
            ClusterView(running),
        )
        with TestClient(create_app(source, made), base_url="http://127.0.0.1:8092") as browser:
            keys = {"access_key": "a-reader", "secret_key": "the secret"}
            assert browser.post("/sign-in", data=keys).status_code == 200
            page = browser.get("/messages", params={"topic": "orders"}).text
            assert "for readers" in page
            for path in ("/messages?topic=payments", "/dead-letters/billing"):
                told = browser.get(path).text
                assert "Partial" in told and "may not SUB" in told, path
            form = {"csrf": csrf(page), "which": "new"}
            for path in ("/dead-letters/billing/resend", "/topics/orders/send", "/topics"):
                answer = browser.post(path, data=form | {"topic": "mine", "body": "x"})
                assert answer.status_code == 403, path
        with closing(Admin(running)) as admin:
            assert sum(row["messages"] for row in admin.describe_topic("orders")) == 1
            assert "mine" not in admin.topics()
