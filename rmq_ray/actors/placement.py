"""Where an actor may run: a custom resource of Ray, or ``label=value``, that only the node with its
disk offers; near such a node; or anywhere but on nodes that go.

Decides what Ray's options for that are and what a node offers; asks Ray nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

HEAD = "node:__internal_head__"
"""The resource that Ray gives the head node."""
NODE_LABEL = "ray.io/node-id"
"""The label that Ray gives every node."""


@dataclass(frozen=True, slots=True)
class Node:
    """A living node of the Ray cluster. ``resources``: what may be the place of an actor, its
    custom ones and its labels (``label=value``), without those that Ray gives every node.
    """

    address: str
    resources: frozenset[str]
    head: bool = False
    id: str = ""

    def offers(self, place: str | None) -> bool:
        """Whether an actor of this place may run here, also by what Ray gives every node:
        ``node:`` and its address. None = anywhere.
        """
        return (
            place is None
            or place in self.resources
            or place == f"node:{self.address}"
            or (place == HEAD and self.head)
        )

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Node:
        """As ``ray.nodes`` tells it."""
        labels = (
            f"{key}={value}" for key, value in row.get("Labels", {}).items() if key != NODE_LABEL
        )
        return cls(
            str(row["NodeManagerAddress"]),
            frozenset([*filter(_is_custom, row["Resources"]), *labels]),
            HEAD in row["Resources"],
            str(row["NodeID"]),
        )


def at(place: str | None) -> dict[str, Any]:
    """Ray's options for an actor or task of this place: a custom resource, or ``label=value`` of a
    node; None = any. Either holds a little of what its node has: a node of which nothing is in use
    is idle, and Ray's autoscaler takes it away.
    """
    if place is None:
        return {}
    label, is_label, value = place.partition("=")
    if is_label:
        return {"label_selector": {label: value}, "memory": 1}
    return {"resources": {place: 0.001}}


def near(place: str, nodes: Iterable[Node]) -> dict[str, Any]:
    """Ray's option for an actor or task that is on the first of these nodes that offers this place
    while that node lives; anywhere else then, and where none does. It holds a little memory: an
    actor that holds nothing Ray puts on any node, whatever it was told.
    """
    there = next((node.id for node in nodes if node.offers(place)), None)
    if there is None:
        return {}
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(there, soft=True), "memory": 1}


def elsewhere(nodes: Collection[str]) -> dict[str, Any]:
    """Ray's option for an actor that must not run on these nodes (ids)."""
    return {"label_selector": {NODE_LABEL: f"!in({','.join(nodes)})"}} if nodes else {}


def _is_custom(resource: str) -> bool:
    return resource not in (
        "CPU",
        "GPU",
        "memory",
        "object_store_memory",
    ) and not resource.startswith(("node:", "accelerator_type:"))
