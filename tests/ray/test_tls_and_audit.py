"""A cluster that takes TLS only, found through Ray and without it, and what its audit logs say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray.cli.main import main
from tests.support.certificates import Certificates
from tests.support.clients.collecting import Collector


def test_a_cluster_under_tls_is_used_without_a_setting_and_tells_who_changed_it(
    start: Callable[..., rmq.Cluster], tmp_path: Path
) -> None:
    files = Certificates(tmp_path / "pem")
    mq = start(tls=files.settings())
    mq.admin.create_topic("orders", queues=2)
    collector = Collector()
    with (
        mq.producer() as producer,
        mq.push_consumer(
            "g", listener=collector, subscriptions={"orders": "*"}, start_from="first"
        ),
    ):
        producer.send("orders", b"found through Ray")
        collector.wait_for(1, 30)
    where = mq.discovery.lookup()
    with rmq.Producer(
        name_servers=list(where.name_servers),
        secret=where.secret,
        cluster=mq.name,
        tls=files.client(),
    ) as producer:
        producer.send("orders", b"found by addresses")
    with (
        pytest.raises(rmq.RmqError, match="TLS"),
        rmq.Producer(
            name_servers=list(where.name_servers), secret=where.secret, cluster=mq.name
        ) as producer,
    ):
        producer.send("orders", b"in the clear")
    lines = mq.audit(lines=1_000)
    made = [line for line in lines if line["event"] == "changed"]
    assert [line["resources"] for line in made] == [["topic:orders"]]
    assert made[0]["party"] == "broker broker-a" and made[0]["address"].startswith("127.")


def test_a_topology_file_with_the_files_of_tls_init_starts_a_cluster_under_tls(
    tmp_path: Path,
) -> None:
    pem = tmp_path / "pem"
    assert CliRunner().invoke(main, ["tls", "init", str(pem)]).exit_code == 0
    (tmp_path / "rmq.toml").write_text(
        f"""
        cluster = "tls-file"
        [tls]
        certificate = "pem/server.pem"
        key = "pem/server.key"
        ca = "pem/ca.pem"
        [[brokers]]
        name = "broker-a"
        store = {{ path = "{tmp_path}/data", segment_bytes = 67108864 }}
        """
    )
    mq = rmq.start_from(tmp_path / "rmq.toml")
    try:
        mq.admin.create_topic("orders")
        with mq.producer() as producer:
            assert producer.send("orders", b"1").status is rmq.SendStatus.SEND_OK
        assert mq.status()["broker-a/0"]["tls"]["mode"] == "enforcing"
    finally:
        mq.stop()
