"""Where an actor's log lines go: standard error, which Ray keeps, from WARNING on; and a rotated
file beside the broker's store from INFO on.

    text    2026-11-25 17:24:03,512 WARNING rmq_ray.server broker-a: the disk fills up (...)
    json    {"time":"2026-11-25T17:24:03.512Z","level":"WARNING","logger":"rmq_ray.server",
             "actor":"broker-a","message":"the disk fills up (...)"}; of an exception "error", too

Decides form, size and number of the files. Invariant: one record is one line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler

ROOT = "rmq_ray"


class JsonLines(logging.Formatter):
    """One JSON object a line. ``actor``: who writes."""

    def __init__(self, actor: str) -> None:
        super().__init__()
        self._actor = actor

    def format(self, record: logging.LogRecord) -> str:
        """
        >>> record = logging.LogRecord("rmq_ray.x", 30, "", 0, "a %s", ("b",), None)
        >>> json.loads(JsonLines("broker-a").format(record))["message"]
        'a b'
        """
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "actor": self._actor,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def formatter(actor: str, log_format: str) -> logging.Formatter:
    """``log_format``: "text" or "json"."""
    if log_format == "json":
        return JsonLines(actor)
    return logging.Formatter(f"%(asctime)s %(levelname)s %(name)s {actor}: %(message)s")


def log_to_stderr(actor: str, log_format: str) -> None:
    """From WARNING on, in this form; replaces what an earlier call set up."""
    root = logging.getLogger(ROOT)
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(formatter(actor, log_format))
    root.addHandler(handler)
    root.propagate = False


def log_to_file(path: str, actor: str, log_format: str, bytes_max: int, files_max: int) -> None:
    """From INFO on, into ``path``, which is renamed to ``path.1`` before it exceeds ``bytes_max``;
    at most ``files_max`` files are kept. ``OSError`` where it cannot be written.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # a rotated file is renamed, so with one file alone it would be emptied; there are two at least
    handler = RotatingFileHandler(
        path, maxBytes=bytes_max, backupCount=max(1, files_max - 1), encoding="utf-8"
    )
    handler.setLevel(logging.INFO)
    handler.setFormatter(formatter(actor, log_format))
    root = logging.getLogger(ROOT)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
