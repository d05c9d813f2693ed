"""The console as a Ray actor: one of a cluster, on the head node or a named one. It goes on when
the command that made it has ended, and ends with the cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from rmq_ray.actors import gateway, names
from rmq_ray.actors.control.audit import newest_lines
from rmq_ray.actors.control.plan import ClusterPlan
from rmq_ray.actors.discovery import RayDiscovery
from rmq_ray.actors.placement import HEAD
from rmq_ray.console.settings import ConsoleSettings
from rmq_ray.console.source import ClusterView
from rmq_ray.console.web.serving import Running
from rmq_ray.errors import ClusterError, ConfigError, RmqError
from rmq_ray.server.security.audit_log import AuditQuestion

CONTROLLER_S = 1.5


class RayProbe:
    """What the cluster's controller and servers tell through Ray."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def controller(self) -> Mapping[str, Any]:
        """Its state; of each member how often it was created anew."""
        handle = gateway.controller(self._cluster)
        state, error = gateway.call(handle, "state", timeout_s=CONTROLLER_S)
        members = gateway.call(handle, "members", timeout_s=CONTROLLER_S)
        return {
            "state": state if error is None else f"{state}: {error.message}",
            "members": {
                name.partition("/")[2]: ", ".join(f"{key} {value}" for key, value in told.items())
                for name, told in members.items()
            },
        }

    def audit(self, lines: int, **wanted: Any) -> list[dict[str, Any]]:
        """See ``Cluster.audit``."""
        plan: ClusterPlan = gateway.call(
            gateway.controller(self._cluster), "plan", timeout_s=CONTROLLER_S
        )
        controllers = [names.controller(self._cluster)] * plan.has_accounts
        return newest_lines([*plan.listeners(), *controllers], AuditQuestion(lines, **wanted))


def has_accounts(cluster: str) -> bool:
    """Whether people have accounts there, and sign in with them."""
    return bool(gateway.call(gateway.controller(cluster), "plan").has_accounts)


class ConsoleShell:
    """Serves from the moment it is made."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._error: RmqError | None = None
        try:
            source = ClusterView(
                RayDiscovery(settings.cluster),
                deadline_ms=settings.deadline_ms,
                probe=RayProbe(settings.cluster),
            )
            self._running = Running(source, settings)
        except RmqError as error:
            self._error = error
            return
        threading.Thread(target=self._running.run, name="rmq-console", daemon=True).start()

    def address(self) -> tuple[str, ConsoleSettings]:
        """Where a browser begins, and what it was told. Raises what kept it from listening."""
        if self._error is not None:
            raise self._error
        return self._running.url, self._running.settings


def find_or_start(settings: ConsoleSettings, resource: str = "") -> tuple[str, ConsoleSettings]:
    """The address of a cluster's console, which runs from now on, and its settings: those of the
    one that ran already, where one did. ``resource``: a custom Ray resource of the node that it
    shall run on, "" = the head's.
    """
    gateway.cluster_address(settings.cluster)
    name = names.console(settings.cluster)
    handle = gateway.find(name)
    if handle is None:
        handle = gateway.create(ConsoleShell, name, (settings,), resource=resource or HEAD)
    try:
        url, told = gateway.call(handle, "address")
        return str(url), told
    except (ConfigError, ClusterError):
        gateway.kill(name, for_good=True)
        raise


def stop(cluster: str) -> bool:
    """End it; False where none runs."""
    return gateway.kill(names.console(cluster), for_good=True)
