"""How administration asks: one client instance, the masters by name, refusals as typed errors.

Called by: ``admin`` and its parts. Decides which answer is which error, and that a broker that
recovers or was elected a moment ago is asked again: it refused before it did anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.stopped_brokers import why_some_stopped, why_stopped
from rmq_ray.errors import AdminError, ClusterError, NotAuthorized, ResponseError, TopicNotFound
from rmq_ray.model.ids import MASTER_ID, Address
from rmq_ray.model.topics import BrokerData
from rmq_ray.ports import Discovery, ExplainsAbsence
from rmq_ray.remoting.wire.bodies import decode_cluster_info
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Buffer, Command
from rmq_ray.remoting.wire.headers import TopicHeader

TIMEOUT_MS = 10_000
POLL_MS = 5
AGAIN_MS = 50


class AdminLink:
    """One client instance, made when it is first needed; ``close`` it when done. ``timeout_ms``: of
    each request.
    """

    def __init__(self, discovery: Discovery, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._discovery = discovery
        self._timeout_ms = timeout_ms
        self._instance: ClientInstance | None = None
        self._lock = threading.RLock()  # a signal handler may close it

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as what it was made from: connections are opened where it goes."""
        return partial(type(self), self._discovery, timeout_ms=self._timeout_ms), ()

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        with self._lock:
            instance, self._instance = self._instance, None
        if instance is not None:
            instance.release()

    def brokers(self) -> list[BrokerData]:
        """Every broker name with its addresses by id, as a name server knows them."""
        return decode_cluster_info(
            body_of(self._name_server(Command(RequestCode.GET_BROKER_CLUSTER_INFO)))
        )

    def masters(self) -> dict[str, Address]:
        """Addresses of the masters by broker name. Waits for the brokers' registration at a name
        server that has just started.

        ``AdminError`` where there is none when the time-out is over; at once, with the command that
        helps, where all were stopped on purpose.
        """
        clock = self._client().clock
        deadline, asked = clock.monotonic_ms() + self._timeout_ms, False
        while True:
            found = {
                data.broker_name: Address.parse(data.addresses[MASTER_ID])
                for data in self.brokers()
                if MASTER_ID in data.addresses
            }
            if found:
                return found
            if not asked:
                asked, stopped = True, self._stopped()
                if why := why_stopped(stopped, stopped):
                    raise AdminError(why)
            if clock.monotonic_ms() > deadline:
                raise AdminError(
                    "no broker is registered at the name servers: see `rmq-ray status`"
                )
            clock.sleep_ms(POLL_MS)

    def _master(self, broker: str) -> Address:
        """``AdminError`` where it is not there: with the command that helps, where it was stopped
        on purpose.
        """
        masters = self.masters()
        if broker not in masters:
            known = ", ".join(sorted(masters))
            raise AdminError(
                why_stopped(self._stopped(), [broker])
                or f"no broker {broker!r} is registered; there are {known}",
                broker,
            )
        return masters[broker]

    def _no_topic(self, name: str) -> TopicNotFound:
        """No name server knows it: it may be on a broker that was stopped on purpose."""
        why = why_some_stopped(self._stopped())
        said = "in this cluster" if why is None else f"on the brokers that run; {why}"
        return TopicNotFound(f"topic {name!r} does not exist {said}", name)

    def _stopped(self) -> Mapping[str, bool]:
        """Broker -> whether it was stopped on purpose; nothing where nobody knows."""
        if not isinstance(self._discovery, ExplainsAbsence):
            return {}
        try:
            return self._discovery.stopped_brokers()
        except ClusterError:  # what is to be told is said without it
            return {}

    def _client(self) -> ClientInstance:
        instance = self._instance
        if instance is not None:
            return instance
        with self._lock:
            if self._instance is None:
                instance = ClientInstance.get_or_create(self._discovery)
                try:
                    instance.start()
                except BaseException:
                    instance.release()
                    raise
                self._instance = instance
            return self._instance

    def _ask(
        self, address: Address, command: Command, failure: str, accept: Iterable[int] = ()
    ) -> Command:
        clock = self._client().clock
        deadline = clock.monotonic_ms() + self._timeout_ms
        while True:
            answer = self._client().invoke(address, command, self._timeout_ms)
            if (
                answer.code != ResponseCode.STILL_RECOVERING
                or clock.monotonic_ms() + AGAIN_MS > deadline
            ):
                return accepted(answer, failure, accept)
            clock.sleep_ms(AGAIN_MS)

    def _forget_route(self, topic: str) -> None:
        """Every name server forgets a topic that the brokers have deleted."""
        fields = TopicHeader(topic=topic).to_fields()
        for answer in self._client().link.every_name_server_invoke(
            Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields=fields), self._timeout_ms
        ):
            accepted(answer, f"a name server did not delete topic {topic!r}")

    def _name_server(self, command: Command, accept: Iterable[int] = ()) -> Command:
        return accepted(
            self._client().name_server_invoke(command, self._timeout_ms),
            "the name server refused",
            accept,
        )


def accepted(answer: Command, failure: str, accept: Iterable[int] = ()) -> Command:
    """The answer if it succeeded or has a code out of ``accept``, else the error that it stands
    for.
    """
    if answer.code == ResponseCode.SUCCESS or answer.code in accept:
        return answer
    reason = f"{failure}: {answer.remark or 'code ' + str(answer.code)}"
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise TopicNotFound(reason)
    if answer.code == ResponseCode.NOT_AUTHORIZED:
        raise NotAuthorized(reason, answer.code)
    if answer.code in (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.MESSAGE_ILLEGAL,
    ):
        raise AdminError(reason, answer.code)
    raise ResponseError(reason, answer.code)


def body_of(answer: Command) -> Buffer:
    """The body that came over a connection: always one buffer."""
    assert not isinstance(answer.body, tuple)
    return answer.body
