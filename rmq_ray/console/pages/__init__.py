"""One module a page: what it asks, and what it shows. ``PAGES`` has them all, in the order of the
menu. See ``rmq_ray.console.page`` for what a page is.
"""

from __future__ import annotations

from rmq_ray.console.page import ConsolePage
from rmq_ray.console.pages import (
    audit,
    clients,
    cluster,
    dead_letters,
    groups,
    messages,
    offsets,
    settings,
    topics,
    waiting,
    writing,
)

PAGES: tuple[ConsolePage, ...] = (
    *cluster.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *waiting.PAGES,
    *offsets.PAGES,
    *writing.PAGES,
    *clients.PAGES,
    *settings.PAGES,
    *audit.PAGES,
)
