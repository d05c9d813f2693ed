"""What the site of the pages does with links to files that are not pages: code, tests, examples.

A page links them where they lie beside ``docs/``; the site has none of them, so there the words
stay and the link goes. Called by: ``mkdocs.yml``, as a hook.
"""

from __future__ import annotations

import re
from posixpath import join, normpath
from typing import Any

_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_more: Any) -> str:
    """The page without links that leave ``docs/``."""
    folder = page.file.src_uri.rpartition("/")[0]
    return _LINK.sub(lambda found: within(folder, *found.groups()) or found[0], markdown)


def within(folder: str, words: str, target: str) -> str | None:
    """The words alone where ``target``, told from a page in this folder of ``docs/``, lies outside
    of it; None where the link stays.

    >>> within("decisions", "a test", "../../tests/test_x.py"), within("", "a page", "guide.md")
    ('a test', None)
    """
    if "://" in target or target.startswith(("#", "/")):
        return None
    return words if normpath(join(folder, target)).startswith("..") else None
