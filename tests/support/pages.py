"""Code blocks of the pages, so that tests can run what users read."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def section(page: str, heading: str) -> str:
    """What stands under a heading of the second level, up to the next one."""
    text = (ROOT / page).read_text("utf-8")
    return re.split(r"^## ", text.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def blocks(page: str, heading: str) -> list[tuple[str, str]]:
    """(language, text) of the code blocks under a heading, in their order."""
    return _BLOCK.findall(section(page, heading))


def all_blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of every code block of a page, in their order."""
    return _BLOCK.findall((ROOT / page).read_text("utf-8"))


def block(page: str, heading: str, number: int = 0, language: str = "python") -> str:
    """The code block ``number`` of a language under a heading."""
    return [text for found, text in blocks(page, heading) if found == language][number]
