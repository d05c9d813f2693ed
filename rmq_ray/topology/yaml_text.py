"""YAML of strangers' tools (RocketMQ's ``plain_acl.yml``, ``tools.yml``): text in, plain values
out.

Decides what is refused before anybody looks at the values: a text that is too long, a key that
stands twice in a mapping (the last would win without a word), and anchors, with which a short text
grows without end. Does not decide what the values mean. Pure.
"""

from __future__ import annotations

from typing import Any

import yaml

from rmq_ray.errors import ConfigError

YAML_BYTES_MAX = 8 << 20
"""Ten thousand accounts with their rights are a fraction of it."""


class _StrictLoader(yaml.SafeLoader):
    """Plain values only, each key once, no anchors."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuses aliases."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="anchors are not read; write the values out", problem_mark=self.get_mark()
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that stands twice."""
        seen = set()
        for key, _value in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r:.80} stands here for the second time",
                    problem_mark=key.start_mark,
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(text: str | bytes, source: str) -> Any:
    """The values of one document. ``ConfigError`` names ``source``, line and fault."""
    if len(text) > YAML_BYTES_MAX:
        raise ConfigError(f"{source} has more than {YAML_BYTES_MAX >> 20} MiB; it is not read")
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{source}, line {line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise ConfigError(f"{source} is no YAML: {error}") from None


def write_yaml(values: Any) -> str:
    """The text that ``read_yaml`` reads these values from."""
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100))
