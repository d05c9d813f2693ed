"""Frames of one batch to one queue, one after the other, in the calling thread.

Decides what is told of the frames that are stored when one fails. Does not decide what is sent
again (``client.sending.sending``). Called by ``Producer.send_batch``, and for columns where there
is more to do with each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rmq_ray.client.interceptors.send_steps import SendSteps
from rmq_ray.client.outgoing.splitting import FrameParts
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.errors import RmqError, SendError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult
from rmq_ray.model.namespaces import queue_with_namespace, with_namespace


def send_frames(  # noqa: PLR0913 - a batch
    core: ProducerCore,
    steps: SendSteps | None,
    topic: str,
    frames: Iterable[FrameParts],
    queue: MessageQueue | None,
    timeout_ms: float,
    told: Callable[[int], object] = int,
) -> list[SendResult]:
    """All frames, through the producer's steps if it has some. ``queue``: where they must go.
    ``told``: how an error says how many are stored.
    """
    namespace = core.config.namespace
    topic = with_namespace(namespace, topic)
    pinned, started_ms = queue is not None, core.clock.monotonic_ms()
    target = (
        core.choose(topic, queue_with_namespace(namespace, queue), None, timeout_ms)
        if queue is not None
        else core.next_queue(topic, timeout_ms)
    )
    results: list[SendResult] = []
    left_ms = core.left_ms(timeout_ms, started_ms)  # of the first frame's time
    for parts in frames:
        try:
            if steps is None:
                results.append(core.send_frame(target, pinned, *parts, left_ms))
            else:
                with steps.around_frame(topic, target, parts) as (ctx, packed):
                    ctx.result = core.send_frame(target, pinned, *packed, left_ms)
                results.append(ctx.result)
        except SendError as error:
            if not results:
                raise
            raise partly(error, results, topic, told) from error
        target, left_ms = queue_with_namespace(namespace, results[-1].queue), timeout_ms
    return results


def partly(
    error: RmqError, results: list[SendResult], topic: str, told: Callable[[int], object] = int
) -> SendError:
    """The error of a batch of which these frames are stored: ``args[2]`` says how much."""
    stored = sum(result.count for result in results)
    kind = type(error) if isinstance(error, SendError) else SendError  # else: closed on the way
    return kind(f"{error}; the first {stored} messages are stored", topic, told(stored))
