"""Whether a Ray cluster has room for a number of equal actors: pure arithmetic on what its nodes
offer.

Decides how many actors fit into a list of nodes, and the words for too few. Does not ask Ray, nor
start anything. An actor lives on one node: four actors of 3 CPUs do not fit on two nodes of 6 and
one of 5 because the sum would do, but because each finds its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_ray.errors import TooFewResources

PARTS = 10_000  # of one CPU: Ray counts resources in these steps


@dataclass(frozen=True, slots=True)
class ActorResources:
    """What each actor of a group asks for: resource -> amount > 0, by Ray's names of resources."""

    each: Mapping[str, float]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ActorResources:
        """From Ray's actor options.

        >>> ActorResources.of({"num_cpus": 2, "num_gpus": 0, "resources": {"disk": 1}}).each
        {'CPU': 2, 'disk': 1}
        """
        named = {
            "CPU": options.get("num_cpus"),
            "GPU": options.get("num_gpus"),
            **(options.get("resources") or {}),
        }
        return cls({name: amount for name, amount in named.items() if amount})

    def places(self, nodes: Iterable[Mapping[str, float]]) -> int | None:
        """How many of these actors fit on nodes that offer this; None = any number.

        >>> ActorResources({"CPU": 0.1}).places([{"CPU": 0.3}, {"CPU": 0.05}])
        3
        """
        if not self.each:
            return None
        return sum(
            min(
                _parts(node.get(name, 0)) // max(1, _parts(amount))
                for name, amount in self.each.items()
            )
            for node in nodes
        )

    def require_room(
        self,
        actors: int,
        nodes: Sequence[Mapping[str, float]],
        free: Mapping[str, float],
        group: str,
    ) -> None:
        """``TooFewResources`` where ``actors`` could not all run even if nothing else ran on the
        nodes. ``free``: what nobody uses now, of all nodes.
        """
        places = self.places(nodes)
        if places is None or actors <= places:
            return
        fewer = f"at most {places} actors or " if places else ""
        raise TooFewResources(
            f"{self.asked(actors)}; the Ray cluster has {self._amounts(_total(nodes))} in total, "
            f"{self._amounts(free)} free now, and each actor must fit on one node: room for "
            f"{places}. No actor was created: ask for {fewer}less for each, or add nodes",
            group,
        )

    def shortage(
        self, actors: int, nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]
    ) -> str | None:
        """What ``actors`` more of them have to wait for; None where enough is free now."""
        if all(_parts(free.get(name, 0)) >= actors * _parts(n) for name, n in self.each.items()):
            return None
        return f"{self.asked(actors)}; {self.free_of(nodes, free)}"

    def asked(self, actors: int) -> str:
        """The demand in words.

        >>> ActorResources({"CPU": 2}).asked(9)
        '9 actors x CPU 2 = CPU 18 asked for'
        """
        all_of_them = {name: actors * amount for name, amount in self.each.items()}
        words = "actor" if actors == 1 else "actors"
        return f"{actors} {words} x {_words(self.each)} = {_words(all_of_them)} asked for"

    def free_of(self, nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]) -> str:
        """The supply in words.

        >>> ActorResources({"CPU": 2}).free_of([{"CPU": 4}], {})
        'free now are CPU 0 of CPU 4'
        """
        return f"free now are {self._amounts(free)} of {self._amounts(_total(nodes))}"

    def _amounts(self, amounts: Mapping[str, float]) -> str:
        return _words({name: amounts.get(name, 0) for name in self.each})


def _total(nodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.items():
            total[name] = total.get(name, 0) + amount
    return total


def _parts(amount: float) -> int:
    return round(amount * PARTS)


def _words(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {round(n, 4):g}" for name, n in amounts.items()) or "nothing"
