"""The console in a real browser: an operator finds what is stuck and repairs it. Takes the pictures
of docs/images (``python -m tools.browser screenshots``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import ClusterView
from rmq_ray.console.web.serving import Running, new_token
from rmq_ray.model.ids import MessageQueue
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster
from tests.support.tools import obtained
from tests.support.waiting import eventually
from tools import browser

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PICTURES = (
    "console-cluster",
    "console-cluster-dark",
    "console-group",
    "console-message",
    "console-dead-letters",
    "console-offsets",
    "console-phone",
)
PICTURE_BYTES_MAX = 150_000
WAIT_S = 20.0
GONE = ("stale element reference", "does not belong to the document")
"""What the driver says of an element that was drawn anew between finding and clicking it."""
QUEUE = MessageQueue("orders", "broker-a", 0)
POISON = b'{"order": 4711, "amount": "12,50 EUR", "customer": {"id": "c-17", "country": "DE"}}'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A group that waits at a message, one with dead letters, one that is well."""
    obtained(browser.program)
    with LiveCluster(tmp_path_factory.mktemp("cluster"), brokers=2) as running:
        with closing(Admin(running)) as admin:
            for topic in ("orders", "payments", "shipments"):
                admin.create_topic(topic, queues=2)
        with Producer("shop", discovery=running) as producer:
            for number in range(3):
                body = b'{"order": %d, "amount": 1250}' % (4708 + number)
                producer.send("orders", body, keys=[f"o-{4708 + number}"], queue=QUEUE)
            producer.send("orders", POISON, tag="paid", keys=["o-4711"], queue=QUEUE)
            bodies = [b'{"order": %d, "amount": 990}' % (5000 + i) for i in range(240)]
            producer.send_batch("orders", bodies)
            producer.send_batch("payments", [b'{"payment": %d}' % i for i in range(30)])
        _consume(running, "shipping", {QUEUE: 3})
        _let_fail(running)
        yield running


def _consume(cluster: LiveCluster, group: str, positions: dict[MessageQueue, int]) -> None:
    with PullConsumer(group, discovery=cluster) as consumer:
        consumer.assign(list(positions))
        eventually(lambda: consumer.watermark_offsets(QUEUE)[1] >= 3)
        eventually(lambda: consumer.commit(positions))


def _let_fail(cluster: LiveCluster) -> None:
    def charge(messages: list[Any], _ctx: Any) -> None:
        if messages[0].body == b'{"payment": 7}' or messages[0].body == b'{"payment": 21}':
            raise ValueError("no account of the customer is open")

    consumer = PushConsumer(
        "billing",
        discovery=cluster,
        listener=charge,
        subscriptions={"payments": "*"},
        max_reconsume_times=0,
        start_from="first",
    )
    with consumer, closing(Admin(cluster)) as admin:

        def died() -> bool:
            found = admin.topics(system=True)
            return "%DLQ%billing" in found and (
                sum(row["messages"] for row in admin.describe_topic("%DLQ%billing")) == 2
            )

        eventually(died, WAIT_S)


@pytest.fixture(scope="module")
def console(cluster: LiveCluster) -> Iterator[str]:
    """Where a browser begins."""
    settings = ConsoleSettings(CLUSTER, port=0, allow_write=True, token=new_token(), live_ms=500)
    running = Running(ClusterView(cluster), settings)
    thread = threading.Thread(target=running.run, name="console", daemon=True)
    thread.start()
    yield running.url
    running.stop()
    thread.join(WAIT_S)


class Operator:
    """Somebody in front of the browser; ``clicks`` counts."""

    def __init__(self, driver: Chrome, url: str, pictures: Path) -> None:
        self.driver = driver
        self.clicks = 0
        self._pictures = pictures
        self._base = url.partition("/sign-in")[0]
        driver.get(url)
        eventually(lambda: "Brokers" in self.text, WAIT_S)

    @property
    def text(self) -> str:
        """What stands on the page, taken in one step: pages and live tables change meanwhile."""
        return str(self.driver.execute_script("return document.body?.innerText ?? ''"))

    def go(self, path: str) -> None:
        """By typing an address."""
        self.driver.get(self._base + path)

    def click(self, css: str) -> None:
        """The first that fits, on the page that is there; live tables are drawn anew meanwhile."""
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.common.by import By

        def clicked() -> bool:
            try:
                self.driver.find_element(By.CSS_SELECTOR, css).click()
            except WebDriverException as error:
                if any(words in str(error.msg) for words in GONE):
                    return False
                raise
            return True

        eventually(clicked, WAIT_S)
        self.clicks += 1

    def sees(self, words: str) -> None:
        """Soon."""
        eventually(lambda: words in self.text, WAIT_S)

    def picture(self, name: str) -> None:
        """Of what is seen now, without what changes from run to run."""
        path = self._pictures / f"{name}.png"
        assert name in PICTURES and self.driver.save_screenshot(str(path))
        assert 5_000 < path.stat().st_size < PICTURE_BYTES_MAX, f"{name}: {path.stat().st_size}"

    def complaints(self) -> list[str]:
        """What the browser wrote: scripts that failed, what the policy kept out."""
        return [line["message"] for line in self.driver.get_log("browser")]

    def emulate(self, **features: str) -> None:
        """As ``prefers-color-scheme``."""
        told = [{"name": name.replace("_", "-"), "value": v} for name, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})


@pytest.fixture
def operator(console: str, tmp_path: Path) -> Iterator[Operator]:
    pictures = Path(os.environ.get(browser.PICTURES_TO, str(tmp_path)))
    with browser.opened(tmp_path / "profile") as driver:
        made = Operator(driver, console, pictures)
        yield made
        assert made.complaints() == []


def test_an_operator_finds_the_message_that_a_group_waits_at_and_lets_it_skip_it(
    operator: Operator,
) -> None:
    operator.sees("nobody consumes")
    operator.picture("console-cluster")
    operator.click('a[href="/groups/shipping"]')
    operator.sees("Message that waits")
    operator.picture("console-group")
    operator.click('a[href^="/messages/at?topic=orders&broker=broker-a&queue=0&offset=3"]')
    operator.sees("12,50 EUR")
    assert operator.clicks <= 3
    operator.click("#skip")
    operator.sees("shipping goes on elsewhere in 1 queues of orders")


def test_dead_letters_show_why_they_died_and_are_resent(
    operator: Operator, cluster: LiveCluster
) -> None:
    operator.click('a[href="/dead-letters/billing"]')
    operator.sees("no account of the customer is open")
    operator.picture("console-dead-letters")
    operator.click("tbody td.when a")
    operator.sees("Its listener failed")
    operator.picture("console-message")
    operator.click("#resend")
    assert operator.clicks == 3
    operator.sees("Resent 1 to payments")
    with closing(Admin(cluster)) as admin:
        assert sum(row["messages"] for row in admin.describe_topic("payments")) == 31


def test_offsets_are_reset_as_the_preview_showed(operator: Operator, cluster: LiveCluster) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    operator.go("/groups/shipping/offsets")
    Select(operator.driver.find_element(By.NAME, "to")).select_by_value("first")
    operator.click("#preview")
    operator.sees("would be consumed again")
    operator.picture("console-offsets")
    operator.click("#move")
    operator.sees("shipping goes on elsewhere")
    with closing(Admin(cluster)) as admin:
        assert {row["committed"] for row in admin.group_lag("shipping")} == {0}


def test_it_is_dark_for_who_wants_it_so_and_fits_a_phone(operator: Operator) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    operator.emulate(prefers_color_scheme="light")
    light = operator.driver.execute_script(ground)
    operator.emulate(prefers_color_scheme="dark")
    assert operator.driver.execute_script(ground) != light
    operator.picture("console-cluster-dark")
    operator.emulate(prefers_color_scheme="light")
    operator.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 780, "deviceScaleFactor": 1, "mobile": True},
    )
    wider = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    message = "/messages/at?topic=orders&broker=broker-a&queue=0&offset=3&group=shipping"
    paths = ("/", "/groups", "/topics/orders", "/dead-letters/billing", "/waiting", "/settings")
    for path in (*paths, "/messages?topic=orders", "/groups/shipping/offsets", message):
        operator.go(path)
        assert operator.driver.execute_script(wider) == 0, path
    operator.picture("console-phone")


def test_the_keyboard_reaches_the_filter_and_the_content(operator: Operator) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    operator.go("/topics")
    body = operator.driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert operator.driver.switch_to.active_element.text == "Skip to the content"
    operator.driver.switch_to.active_element.send_keys("/")
    focused = operator.driver.switch_to.active_element
    assert focused.get_attribute("id") == "filter"
    focused.send_keys("pay", Keys.ENTER)
    eventually(lambda: "q=pay" in operator.driver.current_url, WAIT_S)
    operator.sees("payments")
    assert "shipments" not in operator.text


def test_the_live_tail_shows_what_comes(operator: Operator, cluster: LiveCluster) -> None:
    operator.go("/messages?topic=shipments&tail=1")
    operator.sees("No message")
    with Producer("shop", discovery=cluster) as producer:
        producer.send("shipments", b"parcel 1 left the house")
    operator.sees("parcel 1 left the house")
    assert "No message" not in operator.text


def test_the_pages_have_their_pictures() -> None:
    """Taken by ``python -m tools.browser screenshots``."""
    for name in PICTURES:
        path = browser.IMAGES / f"{name}.png"
        assert path.exists() and path.stat().st_size < PICTURE_BYTES_MAX, name
