"""What a checkpoint of TransferQueue keeps of the values: how far the ledger of which topic went.

    <directory of the checkpoint>/rmq_ray.json     {"topic": "experience", "position": 7}

Decides what is read of it. Invariant: the file is whole, or not there, whoever was killed.
"""

from __future__ import annotations

import json

from rmq_ray.errors import ClientError
from rmq_ray.files import FileSystem

SAVED = "rmq_ray.json"


def save_position(directory: str, topic: str, position: int) -> None:
    """On return it is on disk. ``StoreError`` where it cannot be."""
    files = FileSystem()
    files.make_dirs(directory)
    saved = {"topic": topic, "position": position}
    files.write_whole(f"{directory}/{SAVED}", json.dumps(saved).encode())


def load_position(directory: str, topic: str) -> int:
    """``StoreMissing`` where there is none, ``ClientError`` for one of another topic, and for what
    is none.
    """
    text = FileSystem().read_whole(f"{directory}/{SAVED}")
    try:
        saved = json.loads(text)
        of, position = saved["topic"], saved["position"]
        if type(position) is not int or position < 0:
            raise ValueError(f"position {position!r:.80}")
    except (KeyError, TypeError, ValueError) as error:
        raise ClientError(
            f"{directory}/{SAVED} is damaged: load another checkpoint", directory
        ) from error
    if of != topic:
        raise ClientError(
            f"{directory} was saved of the topic {of!r:.80}, and this is {topic!r}", str(of)[:80]
        )
    return position
