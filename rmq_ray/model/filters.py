"""What a user may say to subscribe to a topic: a tag expression as text, or ``Sql``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 condition over a message's properties, beside tag expressions in ``subscriptions``.
    Made by ``rmq_ray.sql``, which checks it.
    """

    expression: str


Expression = str | Sql | None
"""``"a || b"``, ``"*"``, None (everything), or ``Sql``."""
