"""One wait for the queues that a topic may be written to: what is asked again, with which pauses,
and what is told in the end.

    attempt ──None──> pause ──> attempt ──> ... ──queues, or given_up──> caller

Decides that a name server which does not answer and a topic between two masters pass by themselves,
and nothing else: a topic that is read-only by its own permission stays so (``RouteCache`` tells it
from one whose broker is drained). Does not wait: a thread sleeps between attempts
(``ProducerCore.find_queues``), an event loop awaits (``AsyncFinding.queues``).
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.client.instance.route_cache import RouteCache
from rmq_ray.errors import BrokerUnreachable, NoRoute, RemotingError, SendError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.retry import BACK_OFF_FIRST_MS, BACK_OFF_MAX_MS


class Finding:
    """See the module. ``default_queues``: of a topic that is not created yet."""

    def __init__(self, routes: RouteCache, topic: str, default_queues: int) -> None:
        self.topic = topic
        self._routes = routes
        self._default_queues = default_queues
        self._pause_ms = BACK_OFF_FIRST_MS
        self.met: Exception | None = None
        """What the last attempt came to: the cause of ``given_up``."""

    def attempt(self, until_ms: float) -> Sequence[MessageQueue] | None:
        """Look the route up once; blocks, until then (monotonic) at most. None: ask again after
        ``pause_ms``. ``NoRoute`` where no master is missing, ``TopicNotWritable`` where the topic
        forbids it.
        """
        try:
            return self._routes.find_publish(self.topic, self._default_queues, until_ms).queues
        except NoRoute as error:
            if not self._routes.is_between_masters(self.topic):
                raise
            self.met = error
        except RemotingError as error:
            self.met = error
        return None

    def pause_ms(self) -> float:
        """How long to wait before the next attempt: longer each time."""
        pause, self._pause_ms = self._pause_ms, min(self._pause_ms * 2, BACK_OFF_MAX_MS)
        return pause

    def given_up(self, timeout_ms: float) -> SendError:
        """What a caller is told who has waited for ``timeout_ms``: nothing was sent."""
        topic, met = self.topic, self.met
        if isinstance(met, NoRoute):
            said = f"no broker takes messages of topic {topic!r} now, after {timeout_ms:.0f} ms"
            return NoRoute(
                f"{said}: its master is gone, is drained, or takes no messages; nothing was sent",
                topic,
            )
        why = (
            f"no answer within {timeout_ms:.0f} ms"
            if met is None
            else str(met).removesuffix("; nothing was sent")
        )
        return BrokerUnreachable(
            f"the route of topic {topic!r} is unknown and no name server answers: {why}; "
            f"nothing was sent",
            topic,
        )
