"""What a broker has of security where its settings ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.security.access_guard import AccessGuard
from rmq_ray.server.security.audit_log import AuditLog


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """``audit``: where refusals and changes are noted. ``guard``: who may what, where connections
    need an account; ``access``: this broker's copy of the accounts, then.
    """

    audit: AuditLog | None = None
    guard: AccessGuard | None = None
    access: AccessCopy | None = None
