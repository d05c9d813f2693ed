"""How far messages with a delivery time were delivered: ``rmq_ray/timer.json`` of a store
(store-format 14).

    {"cancelFrom":3,"due":1700000000000,"first":17,"offset":41}

Decides: the form; safety is ``config_files.ConfigFile``'s. Not a file of Apache RocketMQ: its
``timercheck`` belongs to a wheel that we do not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmq_ray.files import FileSystem
from rmq_ray.store.io.config_files import ConfigFile


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """Everything up to (due, offset) was delivered. ``first``: no message before this offset of
    queue 0 waits; ``cancel_from``: nor matters any entry of queue 1 before this one.
    """

    due_ms: int = 0
    offset: int = -1
    first: int = 0
    cancel_from: int = 0


def timer_file(files: FileSystem, path: str) -> ConfigFile[TimerProgress]:
    """The file at ``path``."""
    return ConfigFile(files, path, _encode, _decode)


def _encode(progress: TimerProgress) -> dict[str, Any]:
    return {
        "cancelFrom": progress.cancel_from,
        "due": progress.due_ms,
        "first": progress.first,
        "offset": progress.offset,
    }


def _decode(value: Mapping[str, Any]) -> TimerProgress:
    return TimerProgress(
        int(value["due"]), int(value["offset"]), int(value["first"]), int(value["cancelFrom"])
    )
