"""The sum of what clients say of themselves: one series whoever says it, and counters that never
fall because a client ends.
"""

from __future__ import annotations

from rmq_ray.actors.client_metrics import KEPT_MS, SILENT_MS, ClientSeries
from rmq_ray.clock import ManualClock
from rmq_ray.model.metrics import Family, Sample


def said(count: float, waiting: float, topic: str = "orders") -> list[Family]:
    labels = {"topic": topic}
    return [
        Family("sent_total", "counter", "Sent.", (Sample(labels, count),)),
        Family(
            "took",
            "histogram",
            "Took.",
            (Sample(labels, count, "_count"), Sample(labels, 2 * count, "_sum")),
        ),
        Family("waiting", "gauge", "Waiting.", (Sample({}, waiting),)),
    ]


def told(series: ClientSeries) -> dict[tuple[str, str], float]:
    """(name, topic) -> value."""
    return {
        (family.name + sample.part, sample.labels.get("topic", "")): sample.value
        for family in series.families()
        for sample in family.samples
    }


def test_clients_are_summed_up_and_the_last_word_of_each_counts() -> None:
    series = ClientSeries(ManualClock())
    series.take("one", said(5, 2))
    series.take("other", said(10, 3))
    series.take("one", said(7, 1))
    assert told(series) == {
        ("sent_total", "orders"): 17,
        ("took_count", "orders"): 17,
        ("took_sum", "orders"): 34,
        ("waiting", ""): 4,
    }


def test_a_client_that_has_gone_leaves_its_counts_and_nothing_else() -> None:
    clock = ManualClock()
    series = ClientSeries(clock)
    series.take("one", said(5, 2))
    series.take("other", said(10, 3))
    clock.advance_ms(SILENT_MS / 2)
    series.take("other", said(11, 3))
    clock.advance_ms(SILENT_MS / 2 + 1)
    assert told(series)["sent_total", "orders"] == 16
    assert told(series)["waiting", ""] == 3
    series.take("third", said(1, 0))
    assert told(series)["sent_total", "orders"] == 17


def test_series_end_when_nobody_told_them_for_an_hour() -> None:
    clock = ManualClock()
    series = ClientSeries(clock)
    series.take("one", said(5, 2, "gone"))
    clock.advance_ms(KEPT_MS / 2)
    series.take("other", said(1, 0))
    assert told(series)["sent_total", "orders"] == 1
    clock.advance_ms(KEPT_MS)
    series.take("other", said(2, 0, "gone"))
    assert told(series) == {
        ("sent_total", "gone"): 2,
        ("took_count", "gone"): 2,
        ("took_sum", "gone"): 4,
        ("waiting", ""): 0,
    }
