"""Administration of whole brokers: taking one out of service for new messages, and back. A part of
``Admin``.

Decides nothing: the broker refuses sends and tells its name servers; this asks, and waits until it
shows.
"""

from __future__ import annotations

from typing import Any

import msgpack

from rmq_ray.client.admin.admin_link import POLL_MS, AdminLink, body_of
from rmq_ray.errors import AdminError
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import Permission
from rmq_ray.remoting.wire.bodies import decode_route
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import RouteHeader

_WRITE = int(Permission.WRITE)


class AdminBrokers(AdminLink):
    """``broker`` is a broker's name; its master is asked."""

    def drain_broker(self, broker: str) -> dict[str, Any]:
        """The broker takes no new messages from now on, until ``undrain_broker`` or its next start;
        it serves and delivers what it has.

        On return its queues are shown without write permission. Sends that still reach it are
        refused and go to another broker by themselves; where a topic has no other broker they are
        repeated until their time-out. Returns ``broker``, ``address``, ``draining``, ``was``.
        ``AdminError`` for an unknown name.
        """
        return self._drain(broker, True)

    def undrain_broker(self, broker: str) -> dict[str, Any]:
        """End of ``drain_broker``: on return the name servers show its topics with the permissions
        that they have.
        """
        return self._drain(broker, False)

    def delete_expired(self, broker: str) -> None:
        """Segments of the broker's log that are older than its ``reserved_hours`` go within the
        next minutes, whatever the hour; the newest one never.
        """
        self._ask(
            self._master(broker),
            Command(RequestCode.DELETE_EXPIRED_COMMITLOG),
            f"broker {broker} did not begin to clean",
        )

    def broker_status(self, broker: str) -> dict[str, Any]:
        """What the master tells of itself (operations: status)."""
        answer = self._ask(
            self._master(broker),
            Command(RequestCode.BROKER_STATUS),
            f"broker {broker} did not tell its state",
        )
        found: dict[str, Any] = msgpack.unpackb(body_of(answer), strict_map_key=False)
        return found

    def _drain(self, broker: str, draining: bool) -> dict[str, Any]:
        address = self._master(broker)
        what = "drained" if draining else "taken back"
        answer = self._ask(
            address,
            Command(RequestCode.DRAIN_BROKER, body=msgpack.packb([draining])),
            f"broker {broker} was not {what}",
        )
        self._wait_until_shown(broker, not draining)
        return {"broker": broker, "address": str(address), **msgpack.unpackb(body_of(answer))}

    def _master(self, broker: str) -> Address:
        masters = self.masters()
        if broker not in masters:
            raise AdminError(
                f"no broker {broker!r} is registered; there are {', '.join(sorted(masters))}",
                broker,
            )
        return masters[broker]

    def _wait_until_shown(self, broker: str, writable: bool) -> None:
        """A name server shows the topic that each broker has under its own name with the permission
        that is meant.
        """
        clock = self._client().clock
        deadline = clock.monotonic_ms() + self._timeout_ms
        command = Command(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            fields=RouteHeader(topic=broker, accept_standard_json_only=True).to_fields(),
        )
        while True:
            route = decode_route(body_of(self._name_server(command)))
            if {
                bool(queue.permission & _WRITE)
                for queue in route.queues
                if queue.broker_name == broker
            } == {writable}:
                return
            if clock.monotonic_ms() > deadline:
                raise AdminError(
                    f"the name servers do not show the change of broker {broker} after "
                    f"{self._timeout_ms // 1000} s",
                    broker,
                )
            clock.sleep_ms(POLL_MS)
