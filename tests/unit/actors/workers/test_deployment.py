"""What @consumer takes and refuses, before any actor starts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

import rmq_ray as rmq
from rmq_ray.actors.workers.deployment import AsyncOneByOne, OneByOne, consumer
from rmq_ray.config import ConsumerConfig


def message(body: bytes) -> SimpleNamespace:
    return SimpleNamespace(body=body)


def test_the_decorated_function_can_still_be_called() -> None:
    @rmq.consumer("orders", group="billing", tags="paid")
    def bill(msg):
        """Bills."""
        return len(msg.body)

    assert bill(message(b"four")) == 4
    assert (bill.__name__, bill.__doc__, bill.group, bill.subscriptions) == (
        "bill",
        "Bills.",
        "billing",
        {"orders": "paid"},
    )
    assert "billing" in repr(bill) and "orders" in repr(bill)


def test_one_message_a_list_and_the_context_reach_handlers_as_they_ask() -> None:
    messages = [message(b"a"), message(b"b")]
    assert OneByOne(lambda msg: msg.body, (), True)(messages[:1], "ctx") == b"a"
    assert OneByOne(lambda msg, ctx: (msg.body, ctx), (), True)(messages[:1], "ctx") == (
        b"a",
        "ctx",
    )
    assert OneByOne(lambda batch: len(batch), (), False)(messages, "ctx") == 2


def test_a_class_is_made_once_with_its_arguments_and_its_public_methods_are_reached() -> None:
    class Count:
        def __init__(self, first):
            self.count = first

        def __call__(self, msg):
            self.count += 1

        def total(self):
            return self.count

    listener = OneByOne(Count, (5,), True)
    listener([message(b"")], None)
    assert listener.total() == 6
    with pytest.raises(AttributeError):
        listener._hidden  # noqa: B018 - the look-up is what is tested


def test_coroutine_functions_are_awaited() -> None:
    async def handle(msg, ctx):
        return msg.body, ctx

    assert asyncio.run(AsyncOneByOne(handle, (), True)([message(b"x")], 1)) == (b"x", 1)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"topic": "no spaces", "group": "g"}, "no spaces"),
        ({"topic": "orders", "group": "g", "tags": 5}, "5"),
        ({"topic": {}, "group": "g"}, "1 to"),
        ({"topic": "orders", "group": "no spaces"}, "no spaces"),
        ({"topic": "orders", "group": "g", "batch_sise": 2}, "batch_sise"),
        ({"topic": "orders", "group": "g", "model": "anycast"}, "anycast"),
    ],
)
def test_settings_that_no_consumer_could_have_are_refused_where_they_are_written(
    settings: dict[str, object], wrong: str
) -> None:
    with pytest.raises(rmq.RmqError, match=wrong):
        rmq.consumer(**settings)


def test_arrow_handlers_get_whole_batches_and_a_configuration_counts() -> None:
    columns = consumer("t", group="g", batch="arrow")(lambda batch: None)
    assert (
        not columns.single
        and "batch_size" not in columns.settings
        and "concurrency" not in columns.settings
    )
    assert consumer("t", group="g")(lambda msg: None).single
    assert not consumer("t", group="g", config=ConsumerConfig("g", batch_size=32))(
        lambda messages: None
    ).single


def test_handlers_of_the_wrong_shape_are_refused() -> None:
    decorate = rmq.consumer("orders", group="g")
    with pytest.raises(rmq.ConfigError, match="a function or a class"):
        decorate(3)
    with pytest.raises(rmq.ConfigError, match="a message, or a message and a context"):
        decorate(lambda: None)
    with pytest.raises(rmq.ConfigError, match="a message, or a message and a context"):
        decorate(lambda a, b, c: None)


def test_arguments_for_a_function_and_impossible_numbers_are_refused() -> None:
    app = rmq.consumer("orders", group="g")(lambda msg: None)
    with pytest.raises(rmq.ConfigError, match="handlers that are classes"):
        app.deploy(args=(1,))
    for actors in (0, True, 1.5, 100_000):
        with pytest.raises(rmq.ConfigError, match="number of actors"):
            app.deploy(actors)
    with pytest.raises(rmq.ConfigError, match="no common lag"):
        rmq.consumer("orders", group="g", model="broadcasting")(lambda msg: None).deploy(
            autoscale=rmq.Autoscale(actors_max=3)
        )
