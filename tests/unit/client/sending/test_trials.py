"""A crowd of threads keeps to one core as long as that is not slower, and to the one that is
faster.
"""

from __future__ import annotations

from rmq_ray.client.sending.trials import KEEP_MS_MAX, KEEP_MS_MIN, SETTLE_MS, TRIAL_MS, Trials
from rmq_ray.remoting.home_core import HomeCore


class TwoCores(HomeCore):
    """Cores 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.core = 0

    def move(self, now_ms: float) -> int | None:
        self.core = 1 - self.core
        return 1 - self.core

    def move_back(self, core: int | None, now_ms: float) -> None:
        assert core is not None
        self.core = core


class Crowd:
    """A message stream whose rate (messages a ms) depends on the way: core 0, core 1, or None for
    no home.
    """

    def __init__(self) -> None:
        self.home = TwoCores()
        self.trials = Trials(self.home)
        self.now_ms = 1_000.0

    def run(self, rates: dict[int | None, float], lasts_ms: float) -> list[int | None]:
        """The way at each ms."""
        ways: list[int | None] = []
        for _ in range(int(lasts_ms)):
            at_home = self.trials.at_home(self.now_ms)
            if at_home:
                self.home.of_crowd(self.now_ms)
            else:
                assert self.home.of_reader(self.now_ms) is None  # readers are not at home either
            ways.append(self.home.core if at_home else None)
            self.trials.count(int(rates[ways[-1]]))
            self.now_ms += 1.0
        return ways


def test_a_crowd_begins_at_home_and_leaves_it_after_two_trials_that_were_better() -> None:
    crowd = Crowd()
    ways = crowd.run({0: 30, 1: 30, None: 40}, 10_000)
    first = ways.index(None)
    second = ways.index(None, first + int(SETTLE_MS + TRIAL_MS))
    assert first >= KEEP_MS_MIN + TRIAL_MS
    assert all(way is not None for way in ways[first + int(SETTLE_MS + TRIAL_MS) : second])
    assert ways[second:].count(None) > 0.9 * len(ways[second:])
    back = crowd.run({0: 41, 1: 41, None: 40}, 20_000)
    assert back.count(None) < KEEP_MS_MAX + 20 * TRIAL_MS


def test_a_crowd_moves_to_the_core_that_is_faster_and_stays_there() -> None:
    ways = Crowd().run({0: 25, 1: 40, None: 30}, 10_000)
    assert set(ways[: int(KEEP_MS_MIN)]) == {0}
    assert ways.index(1) <= 2 * KEEP_MS_MIN
    settled = ways[ways.index(1) :]
    assert settled.count(1) > 0.85 * len(settled)


def test_equal_rates_leave_the_crowd_where_it_is_but_for_trials_that_become_rare() -> None:
    crowd = Crowd()
    ways = crowd.run({0: 21, 1: 22, None: 22}, 30_000)
    tried = [at for at in range(1, len(ways)) if ways[at] != 0 and ways[at - 1] == 0]
    pauses = [after - before for before, after in zip(tried, tried[1:], strict=False)]
    assert len(ways) - ways.count(0) == (SETTLE_MS + TRIAL_MS) * len(tried)
    assert [ways[at] for at in tried[:4]] == [1, None, 1, None]
    assert pauses == sorted(pauses) and pauses[-1] == KEEP_MS_MAX + SETTLE_MS + 2 * TRIAL_MS


def test_one_burst_does_not_drive_a_crowd_from_home() -> None:
    crowd = Crowd()
    ways = crowd.run({0: 30, 1: 30, None: 60}, KEEP_MS_MIN)
    while crowd.trials.at_home(crowd.now_ms):
        ways = crowd.run({0: 30, 1: 30, None: 60}, 1)
    crowd.run({0: 30, 1: 30, None: 60}, SETTLE_MS + TRIAL_MS)
    assert crowd.run({0: 30, 1: 30, None: 20}, 20_000).count(None) <= 20_000 / KEEP_MS_MAX * (
        SETTLE_MS + TRIAL_MS
    )
    assert ways


def test_few_slow_frames_decide_nothing() -> None:
    trials, now_ms = Trials(TwoCores()), 1_000.0
    for turn in range(1_000):
        assert trials.at_home(now_ms)
        trials.count(64 if turn % 2 else 1)
        now_ms += 60.0


def test_a_rate_with_a_pause_in_it_decides_nothing() -> None:
    crowd = Crowd()
    crowd.run({0: 30, 1: 30, None: 30}, KEEP_MS_MIN + TRIAL_MS + 1)
    assert crowd.home.core == 1  # the first trial
    crowd.trials.count(1_000_000)
    assert crowd.trials.at_home(crowd.now_ms + 4 * TRIAL_MS) and crowd.home.core == 0
