"""``rmq-ray console`` as whoever types it: an actor that serves pages until it is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray.actors import gateway, names
from rmq_ray.cli.main import main
from tests.support.waiting import eventually


def run(mq: rmq.Cluster, *arguments: str) -> dict[str, str]:
    words = ["--cluster", mq.name, "--format", "json", "console", *arguments]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_the_command_prints_where_an_actor_serves_the_cluster(
    start: Callable[..., rmq.Cluster],
) -> None:
    mq = start(brokers=2)
    mq.admin.create_topic("orders")
    address = run(mq, "--port", "0")["address"]
    assert run(mq, "--port", "0")["address"] == address, "the one that runs"
    base, _, token = address.partition("/sign-in?token=")
    assert len(token) > 40
    with httpx.Client(base_url=base, timeout=20) as browser:
        assert browser.get("/").status_code == 303
        assert browser.get("/sign-in", params={"token": token}).status_code == 200

        def whole() -> str:
            """A broker has two seconds to answer, and may need more on a busy machine."""
            page = browser.get("/").text
            return page if "did not answer" not in page else ""

        page = eventually(whole)
        assert "controller: serving" in page and "broker-a" in page and "broker-b" in page
        assert "orders" in browser.get("/topics").text
        audit = browser.get("/audit", params={"request": "UPDATE_AND_CREATE_TOPIC"})
        assert "topic:orders" in audit.text
        mq.stop_broker("broker-b")
        eventually(lambda: "did not answer: broker-b" in browser.get("/groups").text, 30)
    assert run(mq, "--stop") == {"console": "stopped"}
    assert run(mq, "--stop") == {"console": "was not running"}
    run(mq, "--port", "0")
    mq.stop()
    eventually(lambda: gateway.find(names.console(mq.name)) is None, 30)
