"""A cluster whose clients need accounts, from the file of a RocketMQ cluster to a stolen key: its
accounts are in one place, hold everywhere within seconds, and survive a broker that is killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray.cli.main import main
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import RemotingError
from rmq_ray.model.ids import Address
from rmq_ray.protocol.access.signature import ACCESS_KEY, SIGNATURE, sign
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.outcomes import judging
from tests.support.waiting import eventually

PLAIN_ACL = """
globalWhiteRemoteAddresses:

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - orders=PUB|SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""
WITHIN_S, WAIT_MS = 5.0, 20_000

pytestmark = pytest.mark.timeout(240)


def sent_as(mq: rmq.Cluster, key: str, secret: str, topic: str = "orders") -> Command:
    """The answer to a SEND_MESSAGE as RocketMQ's clients with their ACL hook make it."""
    fields = {
        "producerGroup": "java",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
        ACCESS_KEY: key,
    }
    fields[SIGNATURE] = sign(fields, b"body", secret)
    broker = Address.parse(mq.addresses["broker-a"][0])
    connection = Connection(broker, None, RemotingLimits(), SYSTEM_CLOCK)
    try:
        return connection.request(
            Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"body"), WAIT_MS
        )
    finally:
        connection.close()


def test_accounts_are_imported_hold_everywhere_and_survive_a_killed_broker(
    start: Callable[..., rmq.Cluster], tmp_path: Path
) -> None:
    mq = start(foreign="acl")
    acl = mq.admin.acl
    mq.admin.create_topic("orders", queues=2)
    assert acl.users() == [] and sent_as(mq, "RocketMQ", "12345678").code == 1
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    made = acl.import_plain_acl(file)
    assert made["untold"] == {} and [one["access_key"] for one in acl.users()] == [
        "RocketMQ",
        "rocketmq2",
    ]
    assert sent_as(mq, "RocketMQ", "12345678").code == 0
    assert "Check signature failed" in (sent_as(mq, "RocketMQ", "87654321").remark or "")
    assert "PUB on topic topicA" in (sent_as(mq, "RocketMQ", "12345678", "topicA").remark or "")

    thief = acl.create("web-shop", topics={"orders": "PUB"})["secret_key"]
    assert sent_as(mq, "web-shop", thief).code == 0
    words = ["--cluster", mq.name, "--access-key", "web-shop", "consume", "orders", "--group", "g"]
    consumed = CliRunner(env={"RMQ_SECRET_KEY": thief}).invoke(main, words)
    assert consumed.exit_code == 1 and "may not SUB on group g" in consumed.output
    began = time.monotonic()
    acl.revoke("web-shop", topic="orders")
    refused = sent_as(mq, "web-shop", thief)
    assert refused.code == 1 and "may not PUB on topic orders" in (refused.remark or "")
    assert time.monotonic() - began < WITHIN_S
    assert sent_as(mq, "RocketMQ", "12345678").code == 0, "others go on"

    changes = [line for line in mq.audit(lines=1_000) if line["party"] == "controller"]
    assert [line["new"]["did"] for line in changes] == ["ReplaceAll", "PutAccount", "RevokeRight"]
    assert thief not in str(changes) and "12345678" not in str(changes)
    assert thief not in str(acl.users()) + str(mq.status())

    pid = mq.status()["broker-a/0"]["pid"]
    os.kill(pid, signal.SIGKILL)

    def served() -> bool:
        try:
            return sent_as(mq, "RocketMQ", "12345678").code == 0
        except (RemotingError, rmq.RmqError, KeyError):
            return False

    eventually(served, 90)
    assert mq.status()["broker-a/0"]["pid"] != pid
    with judging():
        assert sent_as(mq, "web-shop", thief).code == 1
    eventually(lambda: mq.status()["accounts"]["untold"] == {}, 60)
    copies = [*(tmp_path / mq.name).rglob("access.rules")]
    assert len(copies) == 3, "of the controller, the name server and the broker"
    assert {path.stat().st_mode & 0o777 for path in copies} == {0o600}


def test_a_team_under_tls_goes_on_when_one_key_is_stolen_and_renewed(tmp_path: Path) -> None:
    """The set-up of docs/security.md, on this host."""
    pem = tmp_path / "pem"
    assert CliRunner().invoke(main, ["tls", "init", str(pem)]).exit_code == 0
    (tmp_path / "rmq.toml").write_text(
        f"""
        cluster = "team"
        foreign = "acl"
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

    def send(key: str, secret: str) -> None:
        with rmq.Producer(
            name_servers=list(mq.discovery.lookup().name_servers),
            cluster="team",
            tls=rmq.Tls(ca=str(pem / "ca.pem")),
            access_key=key,
            secret_key=secret,
        ) as producer:
            producer.send("orders", b"one")

    try:
        mq.admin.create_topic("orders")
        acl = mq.admin.acl
        stolen = acl.create("web-shop", topics={"orders": "PUB"})["secret_key"]
        billing = acl.create("billing", topics={"orders": "SUB"})["secret_key"]
        send("web-shop", stolen)
        with pytest.raises(rmq.RmqError, match="may not PUB on topic orders"):
            send("billing", billing)
        renewed = acl.update("web-shop", "")["secret_key"]
        with pytest.raises(rmq.RmqError):
            send("web-shop", stolen)
        send("web-shop", renewed)
    finally:
        mq.stop()


def test_a_cluster_without_accounts_says_how_to_have_some(
    start: Callable[..., rmq.Cluster],
) -> None:
    with pytest.raises(rmq.ConfigError, match="rmq-ray up --foreign acl"):
        start().admin.acl.users()
