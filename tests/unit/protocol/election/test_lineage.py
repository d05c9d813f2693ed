"""Where the logs of two copies part."""

from __future__ import annotations

import random

import pytest

from rmq_ray.protocol.election.parting_point import parting_point


@pytest.mark.parametrize(
    ("ours", "end", "theirs", "point"),
    [
        ([(3, 0), (5, 200)], 300, [(3, 0), (5, 200), (6, 250)], 250),
        ([(3, 0), (5, 200)], 300, [(3, 0), (6, 150)], 150),
        ([(3, 0), (5, 200)], 300, [(3, 0), (6, 200)], 200),
        ([(3, 0), (5, 200)], 300, [(3, 0), (5, 200), (6, 400)], 300),
        ([(3, 0), (5, 200), (6, 500)], 300, [(3, 0), (5, 200), (7, 250)], 250),
        ([(1, 0)], 100, [(2, 0)], None),
        ([(1, 0), (2, 50)], 100, [(1, 0), (3, 0)], 0),
        ([(3, 0), (5, 200)], 300, [(3, 0), (5, 200)], None),
        ([(4, 0)], 100, [(5, 100)], None),
        ([], 0, [(5, 0)], None),
    ],
)
def test_copies_share_an_epoch_as_far_as_both_go_in_it(
    ours: list[tuple[int, int]], end: int, theirs: list[tuple[int, int]], point: int | None
) -> None:
    assert parting_point(ours, end, theirs) == point


@pytest.mark.parametrize("seed", range(200))
def test_the_point_is_exactly_the_length_of_what_both_share(seed: int) -> None:
    """Masters write (epoch, number) one after the other on random copies; each election keeps what
    its winner has.
    """
    chance = random.Random(seed)
    logs: list[list[tuple[int, int]]] = [[], [], []]
    epochs: list[list[tuple[int, int]]] = [[], [], []]
    for epoch in range(1, chance.randrange(2, 9)):
        master = chance.randrange(3)
        epochs[master] = [*epochs[master], (epoch, len(logs[master]))]
        logs[master] = [*logs[master], *((epoch, number) for number in range(chance.randrange(6)))]
        for slave in range(3):
            if slave != master and chance.random() < 0.6:
                shared = _shared(logs[slave], logs[master])
                if shared < len(logs[slave]):
                    known = [entry for entry in epochs[slave] if entry[1] < len(logs[slave])]
                    point = parting_point(known, len(logs[slave]), epochs[master])
                    assert point == shared or (point is None and shared == 0)
                logs[slave] = logs[master][: max(shared, chance.randrange(len(logs[master]) + 1))]
                epochs[slave] = list(epochs[master])


def _shared(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
