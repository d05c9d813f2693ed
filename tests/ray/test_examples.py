"""The programs of examples/ do what they say, on a real cluster. Each has ``main(cluster)``, and a
test here that checks what it returns.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import rmq_ray as rmq
from examples.transaction import QUICK
from rmq_ray.actors import discovery
from tests.support.outcomes import judging

OWN = {"broker_settings": QUICK}
"""The broker asks soon what became of a transaction."""


def test_workers_bill_every_invoice(mq: rmq.Cluster) -> None:
    from examples import workers

    assert workers.main(mq.name) == 0


def test_actors_send_and_count_every_visit(mq: rmq.Cluster) -> None:
    from examples import actors

    pages, complaint = actors.main(mq.name)
    assert pages.total() == actors.SENDERS * actors.VISITS + 1
    assert pages["home"] == pages["shop"] + 1 == pages["help"] + 1
    assert "no public method 'page'" in complaint


def test_orders_that_died_tell_why_and_are_packed_after_they_were_sent_again(
    mq: rmq.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples import order_pipeline as pipeline

    outcome = pipeline.main(mq.name)
    third = pipeline.ORDER_COUNT // 3
    assert outcome.packed_before == 2 * third
    assert outcome.reasons == {"LookupError: no tax rate for CH": third}
    assert outcome.resent == third
    rates = {"DE": 119, "FR": 120, "CH": 108}
    assert outcome.packed == {
        f"o-{number}": (1_000 + number) * rates[pipeline.COUNTRIES[number % 3]] // 100
        for number in range(pipeline.ORDER_COUNT)
    }
    assert "after 1 tries: LookupError: no tax rate for CH" in capsys.readouterr().out


def test_a_job_reads_every_order_that_it_sent(mq: rmq.Cluster) -> None:
    from examples import kuberay_job

    assert kuberay_job.main(mq.name) == kuberay_job.ORDERS


def test_jobs_are_done_by_more_workers_than_queues(mq: rmq.Cluster) -> None:
    from examples import jobs

    assert jobs.main(mq.name) == 0


def test_every_account_is_booked_in_its_order(mq: rmq.Cluster) -> None:
    from examples import orderly

    booked = orderly.main(mq.name)
    with judging():
        assert all(events == list(range(len(events))) for events in booked.values()), booked
    assert booked == {
        f"a-{account}": list(range(orderly.EVENTS)) for account in range(orderly.ACCOUNTS)
    }


def test_order_of_every_account_survives_a_teller_that_joins_and_one_that_is_killed(
    mq: rmq.Cluster,
) -> None:
    from examples import orderly_takeover

    booked, rested_s = orderly_takeover.main(mq.name)
    assert sorted(booked) == [f"a-{account}" for account in range(orderly_takeover.ACCOUNTS)]
    for rows in booked.values():
        numbers = [number for number, _ in rows]
        tellers = [teller for _, teller in rows]
        with judging():
            assert list(dict.fromkeys(numbers)) == list(range(orderly_takeover.EVENTS))
            assert all(after <= before + 1 for before, after in pairwise(numbers)), "one is skipped"
            assert tellers == sorted(tellers), "the first one booked behind the second one's back"
    assert {teller for rows in booked.values() for _, teller in rows} == {"first", "second"}
    assert rested_s < 50, "the locks of the killed one would have lived for 60 s"


def test_readers_go_on_where_the_one_before_was_and_an_auditor_reads_again(
    mq: rmq.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples import pull

    assert pull.main(mq.name) == {
        f"sensor-{number}": sum(range(2 * pull.READINGS)) for number in range(pull.SENSORS)
    }
    said = capsys.readouterr().out
    assert (
        f"['{pull.READINGS}', '{pull.READINGS + 1}'" in said
        and f"position {pull.READINGS + 10}" in said
    )


def test_a_listener_of_columns_counts_every_order(mq: rmq.Cluster) -> None:
    from examples import arrow_listener

    orders = arrow_listener.main(mq.name)
    assert (
        orders.total() == arrow_listener.ORDERS and max(orders.values()) - min(orders.values()) <= 1
    )


def test_every_cache_hears_every_price_once(mq: rmq.Cluster) -> None:
    from examples import broadcasting

    assert broadcasting.main(mq.name) == (
        2 * broadcasting.ARTICLES,
        2 * broadcasting.ARTICLES,
        True,
    )


def test_filters_let_through_what_python_says_they_should(
    mq: rmq.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples import filters

    assert filters.main(mq.name) == filters.expected()
    assert "character 29: NOT is followed by BETWEEN or IN" in capsys.readouterr().out


def test_every_way_to_send_arrives_and_orders_keep_their_steps(mq: rmq.Cluster) -> None:
    from examples import produce

    tags, out_of_order = produce.main(mq.name)
    assert (
        tags == {"order": 3 * produce.ORDERS, "web": 101, "catalogue": 1, "reminder": 1}
        and not out_of_order
    )


def test_requests_get_their_replies_and_a_question_without_an_answer_ends(mq: rmq.Cluster) -> None:
    from examples import request_reply

    asked, total, said = request_reply.main(mq.name)
    assert (asked, total) == (request_reply.PRICES, 275) and "no reply came within 500 ms" in said


def test_orders_and_their_messages_agree(
    own: rmq.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples import transaction

    orders, billed = transaction.main(own.name)
    with judging():
        assert set(billed) <= set(orders) == {"o-1", "o-2"}
    assert billed == orders
    assert "'o-' is rolled back" in capsys.readouterr().out


def test_a_sale_and_its_message_agree_although_processes_die_between_them(
    own: rmq.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples import sqlite_transaction

    with judging():
        assert sqlite_transaction.main(own.name) == (["s-1", "s-2"], ["s-1", "s-2"], 8)
    said = capsys.readouterr().out
    assert "s-2: its process died after its commit; open halves: 1" in said
    assert "s-3: its process died before its commit" in said


def test_reminders_come_in_time_and_in_order(mq: rmq.Cluster) -> None:
    from examples import delay

    came = delay.main(mq.name)
    assert [name for name, _ in came] == ["first", "second", "third"] and all(
        0 <= late_ms <= 1_000 for _, late_ms in came
    )


def test_a_table_comes_back_as_it_was_sent_and_a_bad_row_is_told(mq: rmq.Cluster) -> None:
    from examples import columns

    stored, same, complaint = columns.main(mq.name)
    with judging():
        assert stored == same == columns.READINGS
    assert "column 'body', row 1 is null" in complaint


def test_orders_become_bills_in_ray_data_and_a_repeated_write_stores_nothing_twice(
    mq: rmq.Cluster,
) -> None:
    from examples import ray_data

    with judging():
        stored, written, totals = ray_data.main(mq.name)
    paid = sum(cent for cent in range(1, ray_data.ORDERS_EACH + 1) if cent % 5)
    assert stored == ray_data.CUSTOMERS * ray_data.ORDERS_EACH and written == ray_data.CUSTOMERS
    with judging():
        assert totals == {f"c-{number}": paid for number in range(ray_data.CUSTOMERS)}
        assert mq.admin.to_arrow(ray_data.BILLS).num_rows == written


def test_readings_survive_the_death_of_a_master_a_hand_over_and_a_copy_that_is_gone_for_good(
    ray_here: None, tmp_path: Path
) -> None:
    from examples import failover

    found = failover.main(str(tmp_path), "example-failover")
    assert (
        found["arrived"] == failover.READINGS
        and set(found["handed_over"]) == {0, 1}
        and found["alone"] != found["handed_over"][1]
        and found["epochs"][1] >= found["epochs"][0] + 3
    )


def test_two_clusters_have_their_own_topics_and_a_call_says_which_one_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples import two_clusters

    monkeypatch.setattr(discovery, "_used", {})  # as in a process of its own
    found = two_clusters.main(tmp_path)
    assert found["market"] == [b"apples", b"pears"] and found["museum"] == [
        b"a bust",
        b"a coin",
        b"a vase",
    ]
    assert "uses the clusters market, museum: say which one is meant" in found["told"][0]


def test_a_night_on_a_table_reports_every_sale_once_and_keeps_what_is_none(
    mq: rmq.Cluster,
) -> None:
    from examples import nightly

    report, rejected = nightly.main(mq.name, shops=3, each=100)
    with judging():
        assert report == [(f"shop-{shop}", 200, 200 * shop) for shop in range(3)]
        assert rejected == 2


def test_a_model_as_of_a_moment_is_the_same_when_the_topic_has_gone_on(mq: rmq.Cluster) -> None:
    from examples import training_as_of

    found = training_as_of.main(mq.name)
    rows = training_as_of.ROWS
    for name in ("time", "group"):
        before, after = found[name]
        assert before == after and [round(value, 6) for value in before[1:]] == [3, 7]
    assert found["time"][0][0] == rows and rows // 2 <= found["group"][0][0] <= rows
    before, after = found["latest"]
    assert (before[0], after[0]) == (rows, 2 * rows) and after[1] < 2
