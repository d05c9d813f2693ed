"""The programs of examples/ do what they say, on a real cluster. Each has ``main(cluster)``, and a test here that checks what it returns."""

from __future__ import annotations

import rmq_ray as rmq


def test_workers_bill_every_invoice(mq: rmq.Cluster) -> None:
    from examples import workers

    assert workers.main(mq.name) == 0


def test_jobs_are_done_by_more_workers_than_queues(mq: rmq.Cluster) -> None:
    from examples import jobs

    assert jobs.main(mq.name) == 0
