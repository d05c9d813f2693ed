"""Where two copies of a log part: what a returning master has to cut off (design contract 12).

    ours    (3, 0) ........ (5, 200) ----- 300       epoch 5 was ours, up to 300
    theirs  (3, 0) ........ (5, 200) - (6, 250) ...   whoever was elected into epoch 6 had epoch 5
                                                      up to 250: we part at 250

An epoch has one writer, so copies that have an epoch from the same offset on have the same bytes in
it, as far as both go, and below it. Decides that point. Does not cut. Pure. Called by the slave's
side of replication. Invariant: never below what both lineages share.
"""

from __future__ import annotations

from collections.abc import Sequence

Epochs = Sequence[tuple[int, int]]
"""(epoch, log offset where it starts), oldest first."""


def parting_point(ours: Epochs, our_end: int, theirs: Epochs) -> int | None:
    """The log offset from which on our copy, which ends at ``our_end``, differs from theirs;
    ``our_end`` when it does not as far as epochs tell.

    None when that cannot be told: no epoch is shared, or the last one of theirs is (then bytes
    differ that one writer wrote).

    >>> parting_point([(3, 0), (5, 200)], 300, [(3, 0), (5, 200), (6, 250)])
    250
    """
    known = dict(theirs)
    until = our_end
    for epoch, start in reversed(ours):
        if start < our_end or start == 0:
            if known.get(epoch) == start:
                following = min((begin for number, begin in theirs if number > epoch), default=None)
                return None if following is None else min(until, following)
            until = start
    return None
