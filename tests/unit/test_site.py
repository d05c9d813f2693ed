"""The site of the pages: which there are, and what becomes of links to files that are not pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.site_links import within

ROOT = Path(__file__).resolve().parents[2]


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages(part)]


def test_every_page_stands_in_the_navigation_once() -> None:
    told = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = [str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")]
    assert sorted(told) == sorted(there)


@pytest.mark.parametrize(
    ("folder", "target", "stays"),
    [
        ("", "guide.md#send", True),
        ("", "../README.md", False),
        ("decisions", "../guide.md", True),
        ("decisions", "../../tests/test_x.py", False),
        ("", "https://ray.io/../x", True),
        ("", "#here", True),
    ],
)
def test_links_that_leave_the_pages_become_words(folder: str, target: str, stays: bool) -> None:
    assert within(folder, "words", target) == (None if stays else "words")
