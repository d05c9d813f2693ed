"""Which account a client is: every source of keys, and where the secret must not be found."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from rmq_ray.actors import access_keys, discovery, gateway
from rmq_ray.actors.access_keys import AccountProof, keywords, secret_key_of
from rmq_ray.actors.client_actors import ClientActorClass
from rmq_ray.actors.clients.async_producers import AsyncProducer
from rmq_ray.actors.clients.consumers import PullConsumer, PushConsumer, SimpleConsumer
from rmq_ray.actors.clients.producers import Producer
from rmq_ray.actors.clients.transaction_producers import TransactionProducer
from rmq_ray.actors.discovery import discovery_for, use_cluster
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.scan.partition_sink import WriteTarget
from rmq_ray.client.scan.scan_plan import ScanPlan
from rmq_ray.client.sending.arrow_columns import Columns
from rmq_ray.client.transaction.transaction_listener import TransactionListener
from rmq_ray.cluster import Cluster
from rmq_ray.errors import ClientError, CredentialsInvalid
from rmq_ray.ports import ClusterAddress
from rmq_ray.protocol.access.accounts import Account
from rmq_ray.protocol.transaction import LocalTransactionState

SECRET = "the secret of the shop"
WEB = Account("web-shop", SECRET)
KEYS: dict[str, Any] = {"access_key": "web-shop", "secret_key": SECRET}
AT = {"name_servers": "127.0.0.1:9876"}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (access_keys.ACCESS_KEY, access_keys.SECRET_KEY, access_keys.FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(discovery, "_used", {})
    access_keys._warn_of_readers.cache_clear()


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the file that the environment names."""

    def write(text: str) -> Path:
        path = tmp_path / "tools.yml"
        path.write_text(text)
        path.chmod(0o600)
        monkeypatch.setenv(access_keys.FILE, str(path))
        return path

    return write


def who(**given: Any) -> tuple[str, bytes]:
    """Access key and proof of a client that is given this."""
    found = discovery_for(
        given.get("cluster"),
        given.get("name_servers", "127.0.0.1:9876"),
        given.get("secret", b""),
        None,
        given.get("access_key", ""),
        given.get("secret_key", ""),
    ).lookup()
    return found.access_key, found.secret


IS_WEB = ("web-shop", WEB.handshake_key("default"))


def test_without_keys_a_client_is_no_account() -> None:
    assert who() == ("", b"") and who(secret=b"member") == ("", b"member")


def test_keys_come_from_arguments_then_environment_then_file(
    monkeypatch: pytest.MonkeyPatch, credentials: Callable[[str], Path]
) -> None:
    credentials(f'accessKey: "of-file"\nsecretKey: "{SECRET}"\nother: 1\n')
    assert who()[0] == "of-file"
    monkeypatch.setenv(access_keys.ACCESS_KEY, "of-environment")
    monkeypatch.setenv(access_keys.SECRET_KEY, SECRET)
    assert who()[0] == "of-environment"
    assert who(**KEYS) == IS_WEB
    assert who(secret=b"member") == ("", b"member"), "a secret that is given counts more"


def test_a_proof_is_of_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert who(cluster="orders", **KEYS) == ("web-shop", WEB.handshake_key("orders"))
    proof = AccountProof.of("web-shop", SECRET, "orders")
    assert who(cluster="orders", **keywords(proof))[1] == WEB.handshake_key("orders")
    with pytest.raises(CredentialsInvalid, match="not 'web-shop' to 'default'"):
        who(**keywords(proof))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"access_key": "web-shop"}, "access_key is given without secret_key"),
        ({"secret_key": SECRET}, "secret_key is given without access_key"),
        (KEYS | {"secret": b"member"}, "secret and access_key are given"),
        ({"access_key": "web", "secret_key": SECRET}, "accessKey 'web' has 3 characters"),
        ({"access_key": "web-shop", "secret_key": "short"}, "secretKey has 5 characters"),
        ({"access_key": "web-shop", "secret_key": b"a secret of bytes"}, "must be a string"),
    ],
)
def test_keys_that_cannot_be_are_refused_without_the_secret(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(CredentialsInvalid, match=told) as caught:
        who(**given)
    secret = given.get("secret_key", SECRET)
    assert str(secret) not in repr(caught.value)


@pytest.mark.parametrize(("name", "missing"), [("ACCESS", "SECRET"), ("SECRET", "ACCESS")])
def test_half_of_an_account_in_the_environment_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, missing: str
) -> None:
    monkeypatch.setenv(f"RMQ_{name}_KEY", SECRET)
    with pytest.raises(CredentialsInvalid, match=f"RMQ_{name}_KEY without RMQ_{missing}_KEY") as e:
        who()
    assert SECRET not in repr(e.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accessKey: web-shop",
        f"secretKey: {SECRET}",
        f"- {SECRET}",
        f"accessKey: [web-shop]\nsecretKey: {SECRET}",
        f"accessKey: web-shop\nsecretKey: {SECRET}\nsecretKey: {SECRET}",
        f"accessKey: 'web-shop\nsecretKey: {SECRET}",
        f"accessKey: web-shop\nsecretKey: 1.5 # {SECRET}",
        "accessKey: web-shop\nsecretKey: short",
    ],
)
def test_a_faulty_file_is_told_with_its_name_and_without_the_secret(
    credentials: Callable[[str], Path], text: str
) -> None:
    credentials(text)
    with pytest.raises(CredentialsInvalid) as caught:
        who()
    assert SECRET not in repr(caught.value)
    assert "tools.yml" in str(caught.value) or "secretKey has 5" in str(caught.value)


def test_a_file_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access_keys.FILE, "/nowhere/tools.yml")
    with pytest.raises(CredentialsInvalid, match="RMQ_CREDENTIALS.*/nowhere/tools.yml"):
        who()


def test_digits_without_quotation_marks_are_a_key(credentials: Callable[[str], Path]) -> None:
    credentials("accessKey: rocketmq2\nsecretKey: 12345678\n")
    assert who() == ("rocketmq2", Account("rocketmq2", "12345678").handshake_key("default"))


def test_a_file_that_others_can_read_is_used_and_warned_of_once(
    credentials: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = credentials(f"accessKey: web-shop\nsecretKey: {SECRET}\n")
    with caplog.at_level(logging.WARNING, "rmq_ray.client"):
        assert who() == IS_WEB and not caplog.records
        path.chmod(0o644)
        assert who() == IS_WEB and who() == IS_WEB
    assert [f"chmod 600 {path}" in text and SECRET not in text for text in caplog.messages] == [
        True
    ]


def listener(*_: object) -> None:
    """Does nothing."""


class Commits(TransactionListener):
    """Whatever it was."""

    def execute_local_transaction(self, *_: Any) -> Any:
        return LocalTransactionState.COMMIT

    check_local_transaction = execute_local_transaction


@pytest.mark.parametrize(
    "make",
    [
        lambda **where: Producer("g", **where),
        lambda **where: TransactionProducer("g", listener=Commits(), **where),
        lambda **where: PushConsumer("g", listener=listener, subscriptions={"t": "*"}, **where),
        lambda **where: PullConsumer("g", **where),
        lambda **where: SimpleConsumer("t", "g", **where),
    ],
)
def test_clients_travel_as_their_account_and_without_its_secret(make: Callable[..., Any]) -> None:
    for where in (AT, {"cluster": "default"}):
        client = make(**where, **KEYS)
        packed = cloudpickle.dumps(client)
        assert SECRET.encode() not in packed and SECRET not in repr(vars(client))
        found = pickle.loads(packed)._discovery
        assert found.account == AccountProof.of("web-shop", SECRET, "default")
        assert repr(found.account.key) not in repr(found.account)


def test_a_producer_of_a_loop_is_an_account_too() -> None:
    found = AsyncProducer("g", **AT, **KEYS)._discovery
    assert found.account == AccountProof.of("web-shop", SECRET, "default")


def test_an_address_does_not_print_what_proves_it() -> None:
    where = AccountProof.of("web-shop", SECRET, "c").at(ClusterAddress("c", ("h:1",)))
    assert "web-shop" in repr(where) and repr(where.secret) not in repr(where)


def test_what_tasks_of_spark_and_ray_data_get_is_the_proof() -> None:
    where = discovery_for(None, "h:1", b"", None, **KEYS).lookup()
    plan = ScanPlan("t", (), where.cluster, where.secret, access_key=where.access_key)
    target = WriteTarget("t", Columns("body"), where, 1_000)
    for travels in (plan, target):
        assert SECRET.encode() not in cloudpickle.dumps(travels)
        assert repr(where.secret) not in repr(travels)
    proves = pickle.loads(pickle.dumps(plan)).credentials
    assert (proves.access_key, proves.secret) == IS_WEB


def test_who_connected_as_an_account_is_it_wherever_it_means_that_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proof = AccountProof.of("web-shop", SECRET, "orders")
    use_cluster("orders", proof)
    assert discovery_for(None, None, b"").account == proof
    assert discovery_for("payments", None, b"").account is None
    assert who(cluster="orders")[0] == "", "addresses may be those of another cluster"
    monkeypatch.setattr(gateway, "session", lambda: "another Ray")
    assert discovery_for("orders", None, b"").account is None


def test_a_handles_clients_are_its_account_unless_they_are_given_another() -> None:
    handle = Cluster("orders", AccountProof.of("web-shop", SECRET, "orders"))
    assert handle.producer()._discovery.account.access_key == "web-shop"
    assert handle.admin._discovery.account.access_key == "web-shop"
    other = handle.pull_consumer("g", access_key="web-shed", secret_key=SECRET)
    assert other._discovery.account.access_key == "web-shed"
    assert Cluster("orders").producer()._discovery.account is None
    assert SECRET.encode() not in cloudpickle.dumps(handle)


class Kept:
    """Stands for Ray: keeps what an actor is made with."""

    def remote(self, *_: Any, **settings: Any) -> dict[str, Any]:
        return settings


@pytest.mark.parametrize("where", [AT, {"cluster": "default"}])
def test_an_actor_gets_the_proof_and_not_the_secret(where: dict[str, Any]) -> None:
    class Shell: ...

    made = ClientActorClass(Shell, Kept()).remote(**where, **KEYS)
    assert made["access_key"] == "web-shop" and SECRET.encode() not in cloudpickle.dumps(made)
    assert who(**made) == IS_WEB


def test_one_client_id_is_not_two_accounts() -> None:
    first = ClientInstance.get_or_create(discovery_for(None, "h:1", b"", None, **KEYS), "shared")
    try:
        with pytest.raises(ClientError, match="shared is account 'web-shop'"):
            ClientInstance.get_or_create(discovery_for(None, "h:1", b""), "shared")
    finally:
        first.release()


def test_a_command_that_names_its_account_finds_the_secret_elsewhere(
    monkeypatch: pytest.MonkeyPatch, credentials: Callable[[str], Path]
) -> None:
    with pytest.raises(CredentialsInvalid, match="RMQ_SECRET_KEY.*RMQ_CREDENTIALS"):
        secret_key_of("web-shop")
    credentials(f"accessKey: web-shop\nsecretKey: {SECRET}\n")
    assert secret_key_of("web-shop") == SECRET
    with pytest.raises(CredentialsInvalid, match="'web-shed' is not known"):
        secret_key_of("web-shed")
    monkeypatch.setenv(access_keys.SECRET_KEY, "another secret")
    assert secret_key_of("web-shed") == "another secret"


def test_no_argument_of_the_command_line_takes_a_secret() -> None:
    from rmq_ray.cli.main import main

    assert not [name for option in main.params for name in option.opts if "secret" in name]
    assert os.environ.get(access_keys.SECRET_KEY) is None
