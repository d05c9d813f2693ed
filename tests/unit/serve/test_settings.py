"""What Serve's config may say to the adapter."""

from __future__ import annotations

import pickle
from math import inf
from typing import Any

import pytest
from ray.serve.schema import TaskProcessorConfig

from rmq_ray.client.consumer.key_limits import KeyLimits
from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.protocol.breaker import Breaker
from rmq_ray.serve.adapter import RmqTaskProcessorAdapter
from rmq_ray.serve.settings import RmqAdapterConfig, TaskSettings

WHERE = {"name_servers": ["127.0.0.1:9876"]}
OFF = {"breaker": False}


def settings(**given: Any) -> TaskSettings:
    given = {"queue_name": "images", "adapter_config": WHERE, **given}
    return TaskSettings.of(TaskProcessorConfig(**given))


def test_a_queue_has_topics_and_groups_of_its_name() -> None:
    found = settings()
    assert (found.results, found.revoked, found.ordered) == (
        "rmq_results_images",
        "rmq_revoked_images",
        "rmq_ordered_images",
    )
    assert found.failed == found.unprocessable == "images" and found.retries_max == 3
    assert settings(max_retries=None).retries_max == inf
    assert settings(failed_task_queue_name="broken").failed == "broken"


def test_pauses_double_up_to_their_limit() -> None:
    adapter = WHERE | {"retry_backoff_s": 0.5, "retry_backoff_max_s": 3.0}
    found = settings(adapter_config=adapter)
    assert [found.backoff_s(tries) for tries in (1, 2, 3, 4, 10_000)] == [0.5, 1, 2, 3, 3]


@pytest.mark.parametrize("given", [True, {}, Breaker()])
def test_a_breaker_is_none_or_that_of_a_consumer(given: Any) -> None:
    assert settings().breaker is None and settings(adapter_config=WHERE | OFF).breaker is None
    found = settings(adapter_config=WHERE | {"breaker": given})
    assert found.breaker == Breaker() == pickle.loads(pickle.dumps(found)).breaker


@pytest.mark.parametrize("given", [{"rate": 2}, KeyLimits(rate=2)])
def test_limits_of_keys_are_none_or_those_of_a_consumer(given: Any) -> None:
    assert settings().key_limits is None
    found = settings(adapter_config=WHERE | {"key_limits": given})
    assert found.key_limits == KeyLimits(rate=2) == pickle.loads(pickle.dumps(found)).key_limits


def test_limits_of_keys_and_a_message_group_are_refused_together() -> None:
    adapter = WHERE | {"key_limits": {"concurrency": 1}}
    tasks = RmqTaskProcessorAdapter(
        TaskProcessorConfig(queue_name="images", adapter_config=adapter)
    )
    with pytest.raises(ClientError, match="message_group beside key_limits"):
        tasks.enqueue_task_sync("resize", message_group="user-7")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lease": 3}, "no key 'lease'"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": True}, "lease_s"),
        ({"task_timeout_s": "1"}, "task_timeout_s"),
        ({"result_ttl_s": float("nan")}, "result_ttl_s"),
        ({"queues": 0}, "queues"),
        ({"pickle": 1}, "pickle"),
        ({"breaker": {"share": 2}}, "breaker"),
        ({"breaker": "yes"}, "breaker"),
        ({"key_limits": 3}, "key_limits"),
        ({"key_limits": {}}, "key_limits"),
        ({"key_limits": {"concurrency": -1}}, "key_limits"),
        (7, "mapping"),
    ],
)
def test_wrong_settings_are_named(given: Any, said: str) -> None:
    config = WHERE | given if isinstance(given, dict) else given
    with pytest.raises(ConfigError, match=said):
        settings(adapter_config=config)


@pytest.mark.parametrize("name", ["", "no topic", "a" * 101, "rmq_results_a"])
def test_names_that_cannot_be_topics_are_refused(name: str) -> None:
    with pytest.raises((ConfigError, ClientError)):
        settings(queue_name=name)
    if not name.startswith(("a", "rmq")) and name:
        with pytest.raises((ConfigError, ClientError)):
            settings(failed_task_queue_name=name)


def test_a_config_travels_without_the_secret_key() -> None:
    config = RmqAdapterConfig(**WHERE, access_key="replicas", secret_key="12345678")
    assert b"12345678" not in pickle.dumps(config) and config.access_key == "replicas"
    assert pickle.loads(pickle.dumps(config)) == config
