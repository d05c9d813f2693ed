"""A cluster under TLS whose clients need accounts, from the file of a RocketMQ cluster to a stolen
key: it is found through Ray and without it, its accounts are in one place, hold everywhere within
seconds, and survive a broker that is killed; clients inside Ray that are an account have its rights
wherever they travel to, and no others.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray import data as mqd
from rmq_ray.actors.discovery import use_cluster
from rmq_ray.cli.main import main
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import RemotingError
from rmq_ray.model.ids import Address
from rmq_ray.protocol.access.signature import ACCESS_KEY, SIGNATURE, sign
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.brokers.failing_over import store_of
from tests.support.certificates import Certificates
from tests.support.clients.collecting import Collector
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
SECRET = "the secret of the shop"
REFUSED = "ray-shop may not .* on topic wages"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def secured(files: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rmq.Cluster]:
    cluster = rmq.start(
        "secured",
        store_path=str(tmp_path_factory.mktemp("store")),
        store_settings={"segment_bytes": 64 << 20},
        foreign="acl",
        tls=files.settings(),
    )
    for topic in ("orders", "wages"):
        cluster.admin.create_topic(topic, queues=1)
    yield cluster
    cluster.stop()


def asked(mq: rmq.Cluster, command: Command) -> Command:
    """What broker-a answers to whoever is no member of the cluster."""
    broker, tls = Address.parse(mq.addresses["broker-a"][0]), mq.discovery.lookup().tls
    connection = Connection(broker, None, RemotingLimits(), SYSTEM_CLOCK, tls=tls)
    try:
        return connection.request(command, WAIT_MS)
    finally:
        connection.close()


def test_a_cluster_under_tls_is_used_without_a_setting_and_tells_who_changed_it(
    secured: rmq.Cluster, files: Certificates
) -> None:
    secured.admin.create_topic("under-tls", queues=2)
    collector = Collector()
    with (
        secured.producer() as producer,
        secured.push_consumer(
            "g", listener=collector, subscriptions={"under-tls": "*"}, start_from="first"
        ),
    ):
        producer.send("under-tls", b"found through Ray")
        collector.wait_for(1, 30)
    where = secured.discovery.lookup()
    with rmq.Producer(
        name_servers=list(where.name_servers),
        secret=where.secret,
        cluster=secured.name,
        tls=files.client(),
    ) as producer:
        producer.send("under-tls", b"found by addresses")
    with (
        pytest.raises(rmq.RmqError, match="TLS"),
        rmq.Producer(
            name_servers=list(where.name_servers), secret=where.secret, cluster=secured.name
        ) as producer,
    ):
        producer.send("under-tls", b"in the clear")
    made = [line for line in secured.audit(lines=1_000) if "topic:under-tls" in line["resources"]]
    assert [(line["event"], line["resources"]) for line in made] == [
        ("changed", ["topic:under-tls"])
    ]
    assert made[0]["party"] == "broker broker-a" and made[0]["address"].startswith("127.")


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
    return asked(mq, Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"body"))


def test_accounts_are_imported_hold_everywhere_and_survive_a_killed_broker(
    secured: rmq.Cluster, tmp_path: Path
) -> None:
    acl = secured.admin.acl
    assert acl.users() == [] and sent_as(secured, "RocketMQ", "12345678").code == 1
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    made = acl.import_plain_acl(file)
    assert made["untold"] == {} and [one["access_key"] for one in acl.users()] == [
        "RocketMQ",
        "rocketmq2",
    ]
    assert sent_as(secured, "RocketMQ", "12345678").code == 0
    assert "Check signature failed" in (sent_as(secured, "RocketMQ", "87654321").remark or "")
    assert "PUB on topic topicA" in (
        sent_as(secured, "RocketMQ", "12345678", "topicA").remark or ""
    )

    thief = acl.create("web-shop", topics={"orders": "PUB"})["secret_key"]
    assert sent_as(secured, "web-shop", thief).code == 0
    words = f"--cluster {secured.name} --access-key web-shop consume orders --group g".split()
    consumed = CliRunner(env={"RMQ_SECRET_KEY": thief}).invoke(main, words)
    assert consumed.exit_code == 1 and "may not SUB on group g" in consumed.output
    began = time.monotonic()
    acl.revoke("web-shop", topic="orders")
    refused = sent_as(secured, "web-shop", thief)
    assert refused.code == 1 and "may not PUB on topic orders" in (refused.remark or "")
    assert time.monotonic() - began < WITHIN_S
    assert sent_as(secured, "RocketMQ", "12345678").code == 0, "others go on"

    changes = [line for line in secured.audit(lines=1_000) if line["party"] == "controller"]
    assert [line["new"]["did"] for line in changes] == ["ReplaceAll", "PutAccount", "RevokeRight"]
    assert thief not in str(changes) and "12345678" not in str(changes)
    assert thief not in str(acl.users()) + str(secured.status())

    pid = secured.status()["broker-a/0"]["pid"]
    os.kill(pid, signal.SIGKILL)

    def served() -> bool:
        try:
            return sent_as(secured, "RocketMQ", "12345678").code == 0
        except (RemotingError, rmq.RmqError, KeyError):
            return False

    eventually(served, 90)
    assert secured.status()["broker-a/0"]["pid"] != pid
    with judging():
        assert sent_as(secured, "web-shop", thief).code == 1
    eventually(lambda: secured.status()["accounts"]["untold"] == {}, 60)
    copies = [*store_of(secured, 0).parent.rglob("access.rules")]
    assert len(copies) == 3, "of the controller, the name server and the broker"
    assert {path.stat().st_mode & 0o777 for path in copies} == {0o600}


@ray.remote(num_cpus=0)
def sends(producer: rmq.Producer) -> str:
    """In a task, which has Ray and so could be a member."""
    with producer:
        producer.send("orders", b"of a task")
        with pytest.raises(rmq.NotAuthorized) as caught:
            producer.send("wages", b"of a task")
        return str(caught.value)


@pytest.fixture
def joined(secured: rmq.Cluster) -> Iterator[rmq.Cluster]:
    """Before and afterwards who names the cluster is a member of it, no account."""
    use_cluster(secured.name)
    yield secured
    use_cluster(secured.name)


def test_an_account_in_ray_has_its_rights_wherever_its_clients_go(joined: rmq.Cluster) -> None:
    joined.admin.acl.create("ray-shop", SECRET, topics={"orders": "PUB|SUB"})
    before = mqd.read_topic("orders", cluster=joined.name).count()
    shop = rmq.connect(joined.name, access_key="ray-shop", secret_key=SECRET)
    with shop.producer() as producer:
        producer.send("orders", b"of the driver")
        with pytest.raises(rmq.NotAuthorized, match=REFUSED):
            producer.send("wages", b"of the driver")
    assert re.search(REFUSED, ray.get(sends.remote(shop.producer())))
    actor: Any = rmq.ProducerActor.options(num_cpus=0).remote("of-an-actor")
    ray.get(actor.send.remote("orders", b"of an actor"))
    with pytest.raises(rmq.NotAuthorized, match=REFUSED):
        ray.get(actor.send.remote("wages", b"of an actor"))
    assert mqd.read_topic("orders").count() == before + 3
    with pytest.raises(rmq.NotAuthorized, match=REFUSED):
        mqd.read_topic("wages")
    joined.admin.acl.grant("ray-shop", topic="wages", right="PUB")

    def sent() -> bool:
        try:
            return bool(ray.get(actor.send.remote("wages", b"now")))
        except rmq.NotAuthorized:
            return False

    eventually(sent)
    assert shop.status(), "what asks the controller is open to all who have Ray"


def test_a_request_of_mqadmin_to_a_broker_changes_the_accounts_of_the_cluster(
    secured: rmq.Cluster,
) -> None:
    secured.admin.acl.create("shop-clerk", SECRET, topics={"orders": "PUB|SUB"})
    secured.admin.acl.create("operator", SECRET, admin=True)
    for key, code in (("shop-clerk", 1), ("operator", 0)):
        fields = {"accessKey": "made-by-tool", "secretKey": SECRET, ACCESS_KEY: key}
        fields[SIGNATURE] = sign(fields, b"", SECRET)
        answer = asked(secured, Command(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields=fields))
        assert answer.code == code, answer.remark
        made = [one["access_key"] for one in secured.admin.acl.users()]
        assert ("made-by-tool" in made) is (code == 0)


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
        with mq.producer() as producer:
            assert producer.send("orders", b"1").status is rmq.SendStatus.SEND_OK
        assert mq.status()["broker-a/0"]["tls"]["mode"] == "enforcing"
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


def test_a_cluster_without_accounts_says_how_to_have_some(mq: rmq.Cluster) -> None:
    with pytest.raises(rmq.ConfigError, match="rmq-ray up --foreign acl"):
        mq.admin.acl.users()
