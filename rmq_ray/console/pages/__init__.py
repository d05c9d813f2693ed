"""One module a page: what it asks, and what it shows. ``PAGES`` has them all, in the order of the
menu. See ``rmq_ray.console.page`` for what a page is.
"""

from __future__ import annotations

from rmq_ray.console.page import Page
from rmq_ray.console.pages import audit, clients, cluster, groups, settings, topics

PAGES: tuple[Page, ...] = (
    *cluster.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *clients.PAGES,
    *settings.PAGES,
    *audit.PAGES,
)
