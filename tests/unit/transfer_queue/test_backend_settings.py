"""Settings of the back end of TransferQueue."""

from __future__ import annotations

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
        ({"queues": 0}, "queues must be 1 to"),
        ({"pickle": 1}, "pickle must be True or False"),
        ({"timeout_s": True}, "timeout_s must be"),
        ({"timeout_s": 0}, "timeout_s must be"),
    ],
)
def test_what_cannot_be_is_refused_and_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ClientError, ConfigError), match=said):
        BackendSettings.of(given)


def test_another_process_means_the_same_cluster_and_topics() -> None:
    settings = BackendSettings.of(
        {"topic": "experience", "name_servers": ["a:1"], "cluster": "rl", "client_name": "theirs"}
    )
    assert settings.name_servers == ("a:1",) and settings.ledger == "experience_ledger"
    assert settings.bound()["cluster"] == "rl"


def test_without_transfer_queue_it_says_how_it_comes() -> None:
    for use in (package.register, lambda: package.RmqStorageClient):
        with pytest.raises(ClientError, match="pip install TransferQueue"):
            use()


def test_the_package_says_what_it_has() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
