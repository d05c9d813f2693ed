"""What failed while a breaker was open is called again as if it had never been; once more with the
breaker closed it fails for its own sake.
"""

from __future__ import annotations

from typing import Any

from rmq_ray.client.push.consume_concurrently import ConcurrentConsumption
from rmq_ray.client.push.listener_breaker import ListenerBreaker
from rmq_ray.protocol.breaker import Breaker
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.clients.consumer_rig import ConsumerRig
from tests.support.clients.orderly_rig import OrderlyRig

QUICK = Breaker(share=1.0, window=1, pause=1.0)
"""Each failure opens it, each success closes it."""
POISON = 0


def fails(messages: Any, _ctx: Any) -> None:
    if messages[0].queue_offset == POISON:
        raise ValueError("for its own sake")


def test_one_that_fails_again_behind_a_success_goes_back_to_its_broker() -> None:
    rig = ConsumerRig(listener=fails, batch_size=1)
    breaker = ListenerBreaker(QUICK, "g", rig.clock)
    rig.consumption = ConcurrentConsumption(
        rig.parts, fails, rig.send_back, rig.puller.resume_if_drained, breaker=breaker
    )
    work = rig.take()
    rig.pull(work)
    poison, good = rig.found(work, [POISON, 1])

    def sent_back() -> int:
        return len(rig.client.requests(RequestCode.CONSUMER_SEND_MSG_BACK))

    rig.consume(poison)
    assert breaker.open and sent_back() == 0
    rig.consume(poison)
    assert breaker.open and sent_back() == 0, "as long as it is open no try counts"
    rig.consume(good)
    assert not breaker.open
    rig.consume(poison)
    assert sent_back() == 1, "one success and one poison message could take turns for ever"


def test_an_ordered_one_that_fails_again_behind_a_success_has_had_a_try() -> None:
    rig = OrderlyRig(fails)
    breaker = rig.orderly._breaker = ListenerBreaker(QUICK, "g", rig.clock)
    work, other = rig.take_locked(), rig.take_locked(queue_id=1)
    rig.pulled(work, POISON)
    rig.work_off()
    rig.later(1_000)
    assert breaker.open and rig.calls == [[POISON]] * 2
    rig.pulled(other, 7)
    rig.work_off()
    assert not breaker.open
    rig.later(1_000)
    rig.later(1_000)
    assert rig.retries == [[0], [0], [0], [0], [1]]
