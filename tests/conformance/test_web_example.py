"""examples/web.py: requests become messages that a consumer beside them counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from examples import web
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.admin.health import Health
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tests.support.waiting import eventually


def test_orders_are_stored_and_counted_and_what_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LiveCluster(tmp_path) as cluster:
        (server,) = cluster.lookup().name_servers
        with TestClient(web.app(server, SECRET, CLUSTER)) as shop:
            answers = [shop.post("/orders", params={"sku": sku}) for sku in ("pear", "fig", "pear")]
            assert [answer.status_code for answer in answers] == [202] * 3
            assert len({answer.json()["message"] for answer in answers}) == 3
            assert eventually(lambda: shop.get("/sold").json() == {"pear": 2, "fig": 1})
            assert shop.post("/orders", params={"sku": ""}).status_code == 400
            assert shop.get("/health").json() == {"broker": "broker-a"}
            monkeypatch.setattr(Admin, "health", lambda *_, timeout: Health(problem="all is dark"))
            ill = shop.get("/health")
            assert (ill.status_code, ill.json()) == (503, {"error": "all is dark"})
