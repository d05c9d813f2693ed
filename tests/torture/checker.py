"""The promises of docs/promises.md as rules over a ``History``. Each returns lines that begin with
its name; no line means that it was kept. Pure; knows nothing of how the product decides.

What the mode allows to lose (``Fault.may_lose``) is allowed for messages of that broker that were
acknowledged in the last ``LOSS_WINDOW_S`` before the fault, and for nothing else. A flipped bit
(``Fault.flips``) may cost one record, whichever: each rule of what is kept lets as many lines pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice, pairwise

from tests.torture.history import (
    EVERY_BROKER,
    Committed,
    Ended,
    Fate,
    Fault,
    History,
    Place,
    Send,
)

LOSS_WINDOW_S = 11.0
"""ASYNC_FLUSH may lose what is younger than the flush interval, the last 16 KiB up to 10 s, and the
flush that ran."""
REPEATS_A_FAULT = 4_000
"""At most: what is in flight to the consumers of a group (16 queues and more of 256 messages) plus
what an interval of commits (5 s) covers is more than this only where consumers are quicker than the
ones of a run."""
CUT_TOLD_S = 30.0
"""A reader beyond a cut of the log hears of it with its next pull, held for 15 s at most, and goes
on before the cut 10 s later."""
SHOWN = 3
CLOCK_ROUND_S = 1.0

Rule = Callable[[History], Iterator[str]]


def violations(history: History) -> list[str]:
    """Every line of every rule."""
    return [f"{rule.__name__}: {line}" for rule in RULES for line in rule(history)]


def one_each_for_a_flip(rule: Rule) -> Rule:
    """Without as many lines as bits were flipped."""

    @wraps(rule)
    def beyond(history: History) -> Iterator[str]:
        return islice(rule(history), sum(fault.flips for fault in history.faults), None)

    return beyond


@one_each_for_a_flip
def acknowledged_is_kept(history: History) -> Iterator[str]:
    """Nothing acknowledged is lost: it lies where the answer said; what was delayed, in its topic,
    but for what was sent while a broker's clock was ahead: that waits for this time.
    """
    losses, stored = _losses(history), _bodies(history)
    for send in history.sends:
        if send.outcome is not Ended.OK or send.fate is not Fate.NONE:
            continue
        if send.place is None:
            kept = stored[send.topic][send.body] > 0 or _by_a_wrong_clock(send.ended, history)
        else:
            kept = history.stored.get(send.topic, {}).get(send.place) == send.body
        if not kept and not _may_be_lost(send, losses):
            found = history.stored.get(send.topic, {}).get(send.place) if send.place else None
            yield (
                f"{send.body} was acknowledged at {send.place} of {send.topic}"
                f"{_after(history, send.ended)}; there is {found}"
            )


@one_each_for_a_flip
def committed_is_delivered_and_rolled_back_is_not(history: History) -> Iterator[str]:
    """An acknowledged commit is delivered, an acknowledged rollback never; once settled is
    settled.
    """
    losses = _losses(history)
    delivered = {(d.topic, d.body) for d in history.deliveries}
    stored = {(topic, body) for topic, places in history.stored.items() for body in places.values()}
    for send in history.sends:
        key = (send.topic, send.body)
        if send.fate is Fate.COMMITTED and key not in stored and not _may_be_lost(send, losses):
            at = _after(history, send.ended)
            yield f"{send.body} was committed{at} and is not in {send.topic}"
        if send.fate is Fate.ROLLED_BACK and (key in stored or key in delivered):
            yield f"{send.body} was rolled back and is in {send.topic}"


def nothing_is_made_up(history: History) -> Iterator[str]:
    """Whatever is stored or delivered was sent."""
    sent = {(send.topic, send.body) for send in history.sends}
    for topic, places in history.stored.items():
        for place, body in places.items():
            if (topic, body) not in sent:
                yield f"{topic} holds {body!r:.60} at {place}, which nobody sent"
    for delivery in history.deliveries:
        if (delivery.topic, delivery.body) not in sent:
            yield f"{delivery.group} got {delivery.body!r:.60}, which nobody sent"


def refused_is_not_stored(history: History) -> Iterator[str]:
    """A definite failure left nothing behind."""
    stored = _bodies(history)
    for send in history.sends:
        if send.outcome is Ended.FAILED and stored[send.topic][send.body]:
            yield f"{send.body} was refused and is in {send.topic}"


@one_each_for_a_flip
def stored_once_on_a_broker(history: History) -> Iterator[str]:
    """However often it was retried there. Not so a delayed message, which the broker copies to its
    topic: after its death it may do so again.
    """
    delayed = {(send.topic, send.body) for send in history.sends if send.due}
    for topic, places in history.stored.items():
        seen: Counter[tuple[str, str]] = Counter(
            (place.broker, body) for place, body in places.items()
        )
        for (broker, body), count in seen.items():
            if count > 1 and (topic, body) not in delayed:
                where = [place for place, held in places.items() if held == body]
                yield f"{topic} holds {body} {count} times on {broker}: {where}"


def offsets_are_dense(history: History) -> Iterator[str]:
    """0, 1, 2, ... in each queue; but one for each flipped bit."""
    spared = sum(fault.flips for fault in history.faults)
    for topic, places in history.stored.items():
        queues: dict[tuple[str, int], list[int]] = defaultdict(list)
        for place in places:
            queues[place.broker, place.queue].append(place.offset)
        for queue, offsets in queues.items():
            offsets.sort()
            spared -= offsets[0]
            if offsets[0] != 0 and spared < 0:
                yield f"{topic} {queue} begins at {offsets[0]}"
            for before, after in pairwise(offsets):
                spared -= after - before - 1
                if after != before + 1 and spared < 0:
                    yield f"{topic} {queue} has a hole between {before} and {after}"


def one_offset_is_one_message(history: History) -> Iterator[str]:
    """For ever; except where the mode may lose a suffix, and did."""
    losses = _losses(history)
    seen: dict[tuple[str, Place], tuple[str, float]] = {}
    for delivery in history.deliveries:
        if delivery.place is None or delivery.tries:
            continue
        key = (delivery.topic, delivery.place)
        body, at = seen.setdefault(key, (delivery.body, delivery.at))
        if body != delivery.body and not any(
            fault.broker in (delivery.place.broker, EVERY_BROKER) and at < fault.ended
            for fault in losses
        ):
            yield f"{delivery.topic} {delivery.place} was {body} and then {delivery.body}"


def order_is_that_of_answers(history: History) -> Iterator[str]:
    """If a was acknowledged before b was sent, a lies before b in their queue."""
    queues: dict[tuple[str, str, int], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Ended.OK and send.place is not None and send.fate is Fate.NONE:
            queues[send.topic, send.place.broker, send.place.queue].append(send)
    losses = _losses(history)
    for queue, sends in queues.items():
        kept = [send for send in sends if not _may_be_lost(send, losses)]
        begins = sorted(kept, key=lambda send: send.began)
        ends = sorted(kept, key=lambda send: send.ended)
        at, latest = 0, None
        for send in begins:
            while at < len(ends) and ends[at].ended < send.began:
                if latest is None or _offset(ends[at]) > _offset(latest):
                    latest = ends[at]
                at += 1
            if latest is not None and _offset(latest) > _offset(send):
                yield f"{queue}: {latest.body} was answered before {send.body} began, lies behind"


def everything_is_delivered(history: History) -> Iterator[str]:
    """At least once, to each group, or dead; what waits is told as lag."""
    for group, topics in history.groups.items():
        came = {(d.topic, d.body) for d in history.deliveries if d.group == group}
        dead = set(history.dead.get(group, ()))
        missing = [
            f"{topic} {place} {body}"
            for topic in topics
            for place, body in history.stored.get(topic, {}).items()
            if (topic, body) not in came and body not in dead
        ]
        waiting = history.waiting.get(group, 0)
        if len(missing) > waiting:
            yield (
                f"{group} never got {len(missing)} messages, {waiting} are said to wait: "
                f"{missing[:SHOWN]}"
            )
        elif waiting:
            yield f"{group}: {waiting} messages still waited at the end"


def repeats_are_few(history: History) -> Iterator[str]:
    """Only faults make repeats, and each of them a window."""
    for group in history.groups:
        counts = Counter(
            (d.topic, d.body) for d in history.deliveries if d.group == group and not d.tries
        )
        repeats = sum(counts.values()) - len(counts)
        if repeats > REPEATS_A_FAULT * len(history.faults):
            yield f"{group} got {repeats} messages again, with {len(history.faults)} faults"


def ordered_queues_come_in_order(history: History) -> Iterator[str]:
    """To groups in order: nothing comes before what lies in front of it has come once; a hole is
    another rule's.
    """
    queues: dict[tuple[str, str, str, int], int] = {}
    for delivery in history.deliveries:
        if delivery.group not in history.ordered or delivery.place is None:
            continue
        place = delivery.place
        key = (delivery.group, delivery.topic, place.broker, place.queue)
        furthest = queues.get(key, -1)
        stored = history.stored.get(delivery.topic, {})
        before = (Place(place.broker, place.queue, at) for at in range(furthest + 1, place.offset))
        if any(each in stored for each in before):
            yield f"{key} got {place.offset} before {furthest + 1}"
        queues[key] = max(furthest, place.offset)


def offsets_of_groups_do_not_go_back(history: History) -> Iterator[str]:
    """But for a named cause."""
    furthest: dict[tuple[str, str, str, int], Committed] = {}
    for commit in sorted(history.commits, key=lambda commit: commit.at):
        key = (commit.group, commit.topic, commit.broker, commit.queue)
        before = furthest.get(key)
        if before is not None and commit.offset < before.offset:
            named = any(
                fault.may_move_back
                and fault.broker in (commit.broker, EVERY_BROKER)
                and max(fault.ended, fault.over) + fault.may_lose * CUT_TOLD_S >= before.at
                and fault.began <= commit.at
                for fault in history.faults
            )
            if not named:
                yield (
                    f"{key} was committed up to {before.offset}{_after(history, before.at)}, up to "
                    f"{commit.offset}{_after(history, commit.at)}"
                )
        furthest[key] = commit


def no_commit_passes_what_did_not_come(history: History) -> Iterator[str]:
    """Everything below a group's offset was delivered to it."""
    latest: dict[tuple[str, str, str, int], int] = defaultdict(int)
    for commit in history.commits:
        key = (commit.group, commit.topic, commit.broker, commit.queue)
        latest[key] = max(latest[key], commit.offset)
    came: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for delivery in history.deliveries:
        came[delivery.group].add((delivery.topic, delivery.body))
    for (group, topic, broker, queue), offset in latest.items():
        stored = history.stored.get(topic, {})
        dead = set(history.dead.get(group, ()))
        for at in range(offset):
            body = stored.get(Place(broker, queue, at))
            if body is not None and (topic, body) not in came[group] and body not in dead:
                yield f"{(group, topic, broker, queue)} is committed up to {offset}, not so {at}"
                break


def delayed_is_never_early(history: History) -> Iterator[str]:
    """Not by a millisecond of the machine's clock, but for a broker whose clock jumped."""
    due = {send.body: send.due for send in history.sends if send.due}
    for delivery in history.deliveries:
        early = delivery.at < due.get(delivery.body, 0.0)
        if early and not _by_a_wrong_clock(delivery.at, history):
            early = due[delivery.body] - delivery.at
            yield f"{delivery.group} got {delivery.body} {early:.3f} s too early"


@one_each_for_a_flip
def dead_letters_come_after_all_tries(history: History) -> Iterator[str]:
    """And only what its listener refused; everything that it refused to the end is there."""
    poison = {send.body for send in history.sends if send.poison}
    for group, bodies in history.dead.items():
        tries: Counter[str] = Counter(d.body for d in history.deliveries if d.group == group)
        for body in set(bodies):
            if body not in poison:
                yield f"{body} is a dead letter of {group}, which never refused it"
            elif tries[body] < history.tries_max:
                yield f"{body} is a dead letter of {group} after {tries[body]} tries"
        refused = {
            d.body
            for d in history.deliveries
            if d.group == group and d.body in poison and d.tries + 1 >= history.tries_max
        }
        for body in refused - set(bodies):
            yield f"{body} was refused to the end by {group} and is no dead letter"


RULES: tuple[Rule, ...] = (
    acknowledged_is_kept,
    committed_is_delivered_and_rolled_back_is_not,
    nothing_is_made_up,
    refused_is_not_stored,
    stored_once_on_a_broker,
    offsets_are_dense,
    one_offset_is_one_message,
    order_is_that_of_answers,
    everything_is_delivered,
    repeats_are_few,
    ordered_queues_come_in_order,
    offsets_of_groups_do_not_go_back,
    no_commit_passes_what_did_not_come,
    delayed_is_never_early,
    dead_letters_come_after_all_tries,
)


def _losses(history: History) -> list[Fault]:
    return [fault for fault in history.faults if fault.may_lose]


def _may_be_lost(send: Send, losses: list[Fault]) -> bool:
    broker = None if send.place is None else send.place.broker
    return any(
        (broker is None or fault.broker in (broker, EVERY_BROKER))
        and fault.began - LOSS_WINDOW_S <= send.ended
        and send.began <= fault.ended
        for fault in losses
    )


def _after(history: History, at: float) -> str:
    began = history.faults[0].began if history.faults else 0.0
    return f" after {at - began:.1f} s"


def _by_a_wrong_clock(at: float, history: History) -> bool:
    return any(
        fault.early and fault.began <= at <= fault.ended + CLOCK_ROUND_S for fault in history.faults
    )


def _offset(send: Send) -> int:
    assert send.place is not None
    return send.place.offset


def _bodies(history: History) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for topic, places in history.stored.items():
        found[topic].update(places.values())
    return found
