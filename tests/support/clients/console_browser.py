"""A browser of the console that knows no scripts: pages as text."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import ClusterView
from rmq_ray.console.web.app import create_app
from tests.support.brokers.live_cluster import CLUSTER

TOKEN = "t" * 40


def opened(discovery: object, deadline_ms: int = 20_000, **settings: object) -> TestClient:
    """A browser that has signed in with the token."""
    source = ClusterView(discovery, deadline_ms=deadline_ms)  # type: ignore[arg-type]
    made = ConsoleSettings(CLUSTER, token=TOKEN, **settings)  # type: ignore[arg-type]
    client = TestClient(create_app(source, made), base_url="http://127.0.0.1:8092")
    assert client.get("/sign-in", params={"token": TOKEN}).status_code == 200
    return client


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


def csrf(page: str) -> str:
    """What its forms must send."""
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]
