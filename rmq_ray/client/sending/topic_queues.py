"""The wait for the queues that a topic may be written to: what is asked again, with which pauses,
and what is told in the end.

    RouteWait      attempt ──None──> pause ──> attempt ──> ... ──queues, or given_up──> caller
    TopicQueues    a thread sleeps between attempts; ``loop_route_wait``: tasks of an event loop

Decides that a name server which does not answer and a topic between two masters pass by themselves,
and nothing else: a topic that is read-only by its own permission stays so (``RouteCache`` tells it
from one whose broker is drained). Each caller waits for its own time-out.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import (
    BrokerUnreachable,
    ClientError,
    HandshakeFailed,
    NoRoute,
    RemotingError,
    RouteNotAuthorized,
    SendError,
    SendNotAuthorized,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.retry import BACK_OFF_FIRST_MS, BACK_OFF_MAX_MS

SHORT_MS = 500.0  # silence of so much time says little of who was asked


class RouteWait:
    """One wait; does not wait itself. ``default_queues``: of a topic that is not created yet."""

    def __init__(self, instance: ClientInstance, topic: str, default_queues: int) -> None:
        self.topic = topic
        self._clock = instance.clock
        self._routes = instance.routes
        self._stopped = instance.stopped
        self._default_queues = default_queues
        self._pause_ms = BACK_OFF_FIRST_MS
        self.met: Exception | None = None
        """What the first attempt came to, or the last that was not cut short: the cause of
        ``given_up``.
        """

    def attempt(self, until_ms: float) -> Sequence[MessageQueue] | None:
        """Look the route up once; blocks, until then (monotonic) at most. None: ask again after
        ``pause_ms``. ``NoRoute`` where no master is missing, or all that are were stopped on
        purpose; ``TopicNotWritable`` where the topic forbids it, ``SendNotAuthorized`` the account.
        """
        given_ms = until_ms - self._clock.monotonic_ms()
        try:
            return self._routes.find_publish(self.topic, self._default_queues, until_ms).queues
        except NoRoute as error:
            self.met = error
            if not self._routes.is_between_masters(self.topic):
                if why := self._stopped.why_some(until_ms):
                    raise NoRoute(
                        f"{error}; or it is on what is stopped: {why}", self.topic
                    ) from error
                raise
            if why := self._stopped.why(self._routes.brokers_missed(self.topic)):
                raise self._given_up(f"now: {why}") from error
        except RemotingError as error:
            if isinstance(error, RouteNotAuthorized):
                raise SendNotAuthorized(f"{error}; nothing was sent", self.topic) from error
            handshake = error.__class__ is HandshakeFailed
            left_ms = until_ms - self._clock.monotonic_ms()
            cut_short = given_ms < SHORT_MS and left_ms <= BACK_OFF_FIRST_MS
            if self.met is None or handshake or not cut_short:
                self.met = error
            if handshake:
                raise self.given_up(0) from error
        return None

    def pause_ms(self) -> float:
        """How long to wait before the next attempt: longer each time."""
        pause, self._pause_ms = self._pause_ms, min(self._pause_ms * 2, BACK_OFF_MAX_MS)
        return pause

    def given_up(self, timeout_ms: float) -> SendError:
        """What a caller is told who has waited for ``timeout_ms``: nothing was sent."""
        topic, met = self.topic, self.met
        if isinstance(met, NoRoute):
            return self._given_up(
                f"now, after {timeout_ms:.0f} ms: its master is gone, is drained, or takes no "
                f"messages"
            )
        why = (
            f"no answer within {timeout_ms:.0f} ms"
            if met is None
            else str(met).removesuffix("; nothing was sent")
        )
        if isinstance(met, HandshakeFailed):
            return SendNotAuthorized(
                f"the route of topic {topic!r} is unknown, no name server lets this client in: "
                f"{why}; nothing was sent",
                topic,
            )
        return BrokerUnreachable(
            f"the route of topic {topic!r} is unknown and no name server answers: {why}; "
            f"nothing was sent",
            topic,
        )

    def _given_up(self, why: str) -> NoRoute:
        return NoRoute(
            f"no broker takes messages of topic {self.topic!r} {why}; nothing was sent", self.topic
        )


class TopicQueues:
    """The queues of topics, for the threads of one producer. ``closing``: who waits for a route
    stops waiting.
    """

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self.group = config.group
        self.clock = instance.clock
        self.closing = False
        self._instance = instance
        self.routes = instance.routes
        self._default_queues = config.default_topic_queues

    def find(self, topic: str, timeout_ms: float) -> Sequence[MessageQueue]:
        """The queues of a topic; asks again, with pauses, while no name server answers or no master
        is there.

        Raises ``NoRoute``, ``TopicNotWritable``, ``BrokerUnreachable``, and ``ClientError`` when
        the producer is closed meanwhile.
        """
        found = self.routes.writable(topic)
        if found is not None:
            return found
        wait, deadline = self.wait_for(topic), self.clock.monotonic_ms() + timeout_ms
        while (found := wait.attempt(deadline)) is None:  # ends: at the deadline
            pause = wait.pause_ms()
            if self.closing:
                raise self.closed_meanwhile(topic)
            if self.clock.monotonic_ms() + pause >= deadline:
                raise wait.given_up(timeout_ms) from wait.met
            self.clock.sleep_ms(pause)
        return found

    def wait_for(self, topic: str) -> RouteWait:
        """A wait for the queues of a topic."""
        return RouteWait(self._instance, topic, self._default_queues)

    def closed_meanwhile(self, topic: str) -> ClientError:
        """What a caller is told who waits for a route when the producer is closed."""
        return ClientError(
            f"producer {self.group!r} was closed while a send waited for the route of topic "
            f"{topic!r}; nothing was sent",
            topic,
        )
