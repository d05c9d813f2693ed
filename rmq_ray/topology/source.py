"""A topology file's text: on which line something stands, and the error that names it.

Decides nothing. Called by the other modules of this folder and by ``actors.control.survey``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_ray.errors import ConfigError

Key = tuple[str | int, ...]
"""Where a value stands: ``("brokers", 1, "port")`` is the second broker's port."""


@dataclass(frozen=True, slots=True)
class TopologyText:
    """A topology file's text, to say where in it something stands."""

    path: str
    text: str

    def line_of(self, key: Key) -> int:
        """Line (from 1) on which this value, or the nearest table around it, begins.

        >>> text = 'cluster = "a"\\n\\n[[brokers]]\\nname = "x"\\nport = 1\\n'
        >>> TopologyText("", text).line_of(("brokers", 0, "port"))
        5
        """
        for part in (key[:length] for length in range(len(key), 0, -1)):
            begun = 1
            for number, found in self._prefixes():
                if _holds(found, part):
                    return begun
                begun = number + 1
        return 1

    def wrong(self, key: Key, message: str, value: object = None) -> ConfigError:
        """The error for what stands at ``key``."""
        return ConfigError(
            f"{self.path}, line {self.line_of(key)}: {message}",
            value if value is not None else ".".join(map(str, key)),
        )

    def has(self, key: Key) -> bool:
        """Whether the file says something there."""
        return _holds(tomllib.loads(self.text), key)

    def _prefixes(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """(lines, what they hold) for every number of lines that is TOML by itself, comments and
        empty lines before a value included in it.
        """
        lines = self.text.splitlines(keepends=True)
        for number in range(1, len(lines) + 1):
            try:
                yield number, tomllib.loads("".join(lines[:number]))
            except tomllib.TOMLDecodeError:
                continue  # within a value of several lines


def _holds(found: Any, key: Key) -> bool:
    for part in key:
        if isinstance(part, int):
            if not isinstance(found, list) or part >= len(found):
                return False
        elif not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True
