"""The programs of examples/ that need Spark do what they say, on real RayDP: ``main(cluster,
session)`` is run and what it returns is checked.
"""

from __future__ import annotations

from typing import Any

import pytest

import rmq_ray as rmq
from tests.support.outcomes import judging

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket"
)  # pyspark leaves the sockets of collect() to the garbage collector


def test_departures_are_counted_by_the_hour_and_written_back(session: Any, mq: rmq.Cluster) -> None:
    from examples import flights_hourly

    flights = flights_hourly.departures()
    hours = (
        flights["origin"]
        + "-"
        + flights["time_hour"].str.slice(0, 10)
        + "-"
        + flights["time_hour"].str.slice(11, 13)
    )
    counted = flights_hourly.main(mq.name, session)
    with judging():
        assert counted == hours.value_counts().to_dict()


def test_ray_train_learns_each_row_once_though_a_worker_is_killed(
    session: Any, mq: rmq.Cluster
) -> None:
    from examples import training

    rows, weights = training.main(mq.name, session, kill=True)
    with judging():
        assert rows == training.HISTORY + training.FRESH
    assert max(abs(weights - training.WEIGHTS)) < 0.02
    assert {row["lag"] for row in mq.admin.group_lag("trainers")} == {0}


@pytest.mark.timeout(900)
def test_a_topic_goes_through_spark_into_a_topic_each_row_once_though_the_driver_is_killed(
    session: Any, mq: rmq.Cluster
) -> None:
    from examples import spark_round_trip

    with judging():
        killed_at, found = spark_round_trip.main(mq.name, session)
        assert len(found) == spark_round_trip.ROWS
    assert 0 < killed_at < spark_round_trip.ROWS, "in the middle"
    assert {row["lag"] for row in mq.admin.group_lag(spark_round_trip.GROUP)} == {0}
    assert spark_round_trip.GROUP in mq.admin.groups()


def test_a_span_of_time_is_replayed_into_a_table_and_a_topic(session: Any, mq: rmq.Cluster) -> None:
    from examples import replay

    bad = len(replay.BAD)
    found = replay.main(mq.name, session)
    with judging():
        assert found == (bad, bad, sum(replay.BAD))


def test_nightly_batches_and_a_loop_over_batches_agree_though_a_night_failed(
    session: Any, mq: rmq.Cluster
) -> None:
    from examples import warehouse

    each = warehouse.ORDERS // warehouse.NIGHTS
    with judging():
        nights, totals = warehouse.main(mq.name, session)
        assert nights == [2 * each, each]
        assert totals == {
            shop: sum(n % 50 for n in range(warehouse.ORDERS) if n % 2 == odd)
            for odd, shop in enumerate(("web", "app"))
        }
