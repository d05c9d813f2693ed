"""The layout of RocketMQ's config files: what fastjson writes with ``prettyFormat`` (store-format 12).

    {                                              string keys: one member a line, indented by tabs
        "offsetTable":{
            "TopicTest@groupA":{0:335,1:335        integer keys: in one line, the brace on the next
            }
        }
    }

Decides the layout only; scalars and keys are ``model.fastjson``'s. Called by: config files. Pure.
Members are sorted (RocketMQ's tables come in the order of a hash map; its readers do not care).
"""

from __future__ import annotations

from typing import Any

from rmq_ray.model.fastjson import dumps


def pretty(value: Any, depth: int = 0) -> str:
    """Text of a value; keys of one object are all strings, or integers, or tuples of pairs (object keys). Lists stay compact.

    >>> pretty({"a": {}, "b": {0: 5}})
    '{\\n\\t"a":{},\\n\\t"b":{0:5\\n\\t}\\n}'
    """
    if not isinstance(value, dict):
        return dumps(value)
    members = {key: item for key, item in value.items() if item is not None}
    if not members:
        return "{}"
    end = "\n" + "\t" * depth + "}"
    if all(isinstance(key, str) for key in members):
        line = "\n" + "\t" * (depth + 1)
        return "{" + ",".join(f"{line}{dumps(key)}:{pretty(members[key], depth + 1)}" for key in sorted(members)) + end
    keys = [(pretty(dict(key), depth + 1) if isinstance(key, tuple) else str(key), key) for key in sorted(members)]
    return "{" + ",".join(f"{text}:{pretty(members[key], depth + 1)}" for text, key in keys) + end
