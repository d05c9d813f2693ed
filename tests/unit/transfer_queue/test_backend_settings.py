"""Settings of the back end of TransferQueue."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import rmq_ray.transfer_queue as package
from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.transfer_queue.settings import BackendSettings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"no_such": 1}, "no setting 'no_such'"),
        ({"topic": "a b"}, "a b"),
        ({"topic": ""}, "name one for each job"),
        ({"queues": 0}, "queues must be a whole number, 1 to"),
        ({"queues": 2.5}, "queues must be"),
        ({"retention_hours": "x"}, "retention_hours must be"),
        ({"pickle": 1}, "pickle must be True or False"),
        ({"timeout_s": True}, "timeout_s must be"),
        ({"timeout_s": 0}, "timeout_s must be"),
        ({"name_servers": 5}, "name_servers must be"),
        ({"tls": {"no_such": ""}}, "tls is no Tls"),
        ({"secret_key": {"key": b""}}, "secret_key is no AccountProof"),
    ],
)
def test_what_cannot_be_is_refused_and_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ClientError, ConfigError), match=said):
        BackendSettings.of({"topic": "experience"} | given)


def test_without_a_topic_it_says_that_each_job_has_one() -> None:
    with pytest.raises(ConfigError, match="name one for each job"):
        BackendSettings.of({})


def test_another_process_means_the_same_cluster_and_topics() -> None:
    settings = BackendSettings.of(
        {"topic": "experience", "name_servers": ["a:1"], "cluster": "rl", "client_name": "theirs"}
    )
    assert settings.name_servers == ("a:1",) and settings.ledger == "experience_ledger"
    assert settings.bound()["cluster"] == "rl"


@pytest.mark.parametrize(
    "given",
    [
        {"access_key": "rollouts", "secret_key": "no-secret-at-all"},
        {"secret": b"no-secret-at-all"},
        {"tls": {"ca": "ca.pem", "certificate": "c.pem", "key": "no-secret-at-all"}},
    ],
    ids=lambda given: next(iter(given)),
)
def test_account_and_tls_are_handed_on_as_plain_values_that_tell_no_secret(
    given: dict[str, Any],
) -> None:
    where = {"topic": "experience", "name_servers": "a:1", "cluster": "rl"}
    settings = BackendSettings.of(where | given)
    told = settings.bound()
    flat = [
        value
        for one in told.values()
        for value in (one.values() if isinstance(one, dict) else [one])
    ]
    assert all(isinstance(value, str | bytes | bool) for value in flat)
    assert "no-secret" not in repr(told) and repr(told).count("<hidden>") in (1, 2)
    again = BackendSettings.of(where | given | told)
    assert again.bound() == told
    assert again.discovery.lookup() == settings.discovery.lookup()


def test_without_transfer_queue_it_says_how_it_comes() -> None:
    for use in (package.register, lambda: package.RmqStorageClient):
        with pytest.raises(ClientError, match="pip install TransferQueue"):
            use()


def test_who_asks_for_transfer_queue_without_importing_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "transfer_queue.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    finders = list(sys.meta_path)
    loaded = list[str]()
    monkeypatch.setattr(package, "_load", loaded.append)
    package.register()
    for _ in range(2):
        assert importlib.util.find_spec("transfer_queue") is not None
    assert not loaded
    try:
        importlib.import_module("transfer_queue")
    finally:
        sys.modules.pop("transfer_queue", None)
    assert loaded == ["backend"] and sys.meta_path == finders


def test_the_package_says_what_it_has() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
