"""The audit logs of a cluster's servers as one: asked all at once, merged by time.

Called by ``Cluster.audit``. Invariant: a server that does not answer is told of, not left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq_ray.actors import gateway
from rmq_ray.errors import RmqError
from rmq_ray.server.security.audit_log import AuditQuestion

ANSWER_S = 5.0


def newest_lines(servers: Sequence[str], question: AuditQuestion) -> list[dict[str, Any]]:
    """What these actors have noted, oldest first; before it a line for each that is silent."""
    handles = {name: gateway.find(name) for name in servers}
    found: list[dict[str, Any]] = []
    silent: list[dict[str, Any]] = []
    for name, answer in gateway.call_each(handles, "audit", question, timeout_s=ANSWER_S).items():
        if isinstance(answer, RmqError):
            party = name.partition("/")[2]
            silent.append({"event": "unknown", "party": party, "reason": answer.message})
        else:
            found += answer
    return silent + sorted(found, key=lambda line: str(line.get("time", "")))[-question.lines :]
