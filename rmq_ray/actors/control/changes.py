"""What a changed topology file makes of a cluster that runs: which brokers and slaves are added,
which settings are set, which copies are restarted, and what cannot be done.

    a broker that is new, or a slave         created, on a store of its own
    a broker that gets its first slave       restarted, under the controller's elections from now on
    a setting that changes at run time       set (``protocol.live_settings``)
    another setting of a broker              each of its copies is restarted, one after the other
    [failover]                               the controller takes it; nothing is restarted
    everything else                          refused, with the reason

Decides that. Does not do it (``apply_changes``), and changes nothing. Invariant: a plan with a
refusal is refused whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from rmq_ray.actors.control.plan import CONTROLLER, ClusterPlan, plan_of
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import ConfigError
from rmq_ray.protocol import live_settings
from rmq_ray.topology.rules import Topology

NOT_COMPARED = {"name_servers", "store", "hold_link", "send_hooks", "limits"}
_DOWN = "stop the cluster with `rmq-ray down`, then start it"
_FIXED = {
    "path": f"a store stays where it is: {_DOWN}, after its files were moved",
    "foreign": f"all members must have the same: {_DOWN}",
    "tls": f"all members must have the same: {_DOWN}",
    "segment_bytes": "the files of a store have one size: a new broker may have another",
    "consume_queue_entries": "the files of a store have one size: a new broker may have another",
}
REMOVED = (
    "a broker keeps its messages: `rmq-ray broker drain` it, wait until groups have them, then "
    f"{_DOWN}"
)
SLAVES = f"slaves are removed while nobody leads: {_DOWN}"


class How(Enum):
    """What becomes of one part."""

    CREATE = "create"
    RESTART = "restart"
    SET = "set"
    """While it runs."""
    TAKE = "take"
    """The controller goes by it from now on."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """``part``: an actor, as ``broker-a/1``. ``what``: old and new value. ``why``: of a refusal.
    ``name``, ``value``: of a setting that is set, as ``protocol.live_settings`` writes it.
    """

    part: str
    how: How
    what: str
    why: str = ""
    name: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.part}: {self.what}{f': {self.why}' if self.why else ''}"

    def row(self) -> dict[str, str]:
        """For people."""
        return {
            "part": self.part,
            "action": self.how.value,
            "change": self.what,
            "why": self.why,
        }


def changes_of(topology: Topology, running: ClusterPlan) -> list[PlannedChange]:
    """In the order in which they are carried out; refusals first."""
    wanted = plan_of(topology, b"", one_node=False)
    found = [*_of_others(wanted, running), *_of_brokers(wanted, running)]
    order = [How.REFUSE, How.SET, How.TAKE, How.CREATE, How.RESTART]
    return sorted(found, key=lambda change: order.index(change.how))


def to_set(found: Iterable[PlannedChange]) -> dict[str, dict[str, str]]:
    """Copy -> its settings that are set while it runs."""
    settings: dict[str, dict[str, str]] = {}
    for change in found:
        if change.how is How.SET:
            settings.setdefault(change.part, {})[change.name] = change.value
    return settings


def to_lead(wanted: ClusterPlan, running: ClusterPlan) -> list[str]:
    """Brokers that run without slaves and get some."""
    alone = {one.broker_name for one in running.brokers} - running.replicas.keys()
    return sorted(alone & wanted.replicas.keys())


def to_restart(
    found: Iterable[PlannedChange], wanted: ClusterPlan, running: ClusterPlan
) -> list[tuple[str, int]]:
    """(broker, replica) of each copy, slaves before the copy that began as the master. Brokers that
    get their first slave are not among them: see ``to_lead``.
    """
    parts = {change.part for change in found if change.how is How.RESTART}
    anew = to_lead(wanted, running)
    copies = [
        (config.broker_name, config.broker_id)
        for key, config in running.all_copies()
        if key in parts and config.broker_name not in anew
    ]
    return sorted(copies, key=lambda copy: (copy[0], -copy[1]))


def _of_brokers(wanted: ClusterPlan, running: ClusterPlan) -> Iterator[PlannedChange]:
    new, old = dict(wanted.all_copies()), dict(running.all_copies())
    for name in to_lead(wanted, running):
        yield PlannedChange(name, How.RESTART, "gets its first slave")
    for key, config in new.items():
        if key in old:
            yield from _of_settings(key, config, old[key])
            if wanted.resources.get(key) != running.resources.get(key):
                what = f"resource {running.resources.get(key)} -> {wanted.resources.get(key)}"
                yield PlannedChange(key, How.REFUSE, what, f"a store stays where it is: {_DOWN}")
        else:
            yield PlannedChange(key, How.CREATE, f"is new, store {config.store.path}")
    for key in old:
        if key not in new:
            removed = old[key].broker_name not in {one.broker_name for one in new.values()}
            yield PlannedChange(
                key, How.REFUSE, "is gone from the file", REMOVED if removed else SLAVES
            )


def _of_settings(key: str, new: BrokerConfig, old: BrokerConfig) -> Iterator[PlannedChange]:
    for prefix, group, before in (("", new, old), (live_settings.STORE, new.store, old.store)):
        for field, one, other in _differing(before, group):
            what = f"{field} {getattr(one, 'value', one)} -> {getattr(other, 'value', other)}"
            if why := _FIXED.get(field, ""):
                yield PlannedChange(key, How.REFUSE, what, why)
            elif _is_settable(old, prefix + field, other):
                name, value = prefix + field, live_settings.told(other)
                yield PlannedChange(key, How.SET, what, name=name, value=value)
            else:
                yield PlannedChange(key, How.RESTART, what)


def _differing(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, old value, new value) of what a file changes in one configuration; a host that it
    leaves open is any.
    """
    for name in (field.name for field in fields(after)):
        one, other = getattr(before, name), getattr(after, name)
        if one != other and name not in NOT_COMPARED and (name != "host" or other):
            yield name, one, other


def _is_settable(config: BrokerConfig, name: str, value: Any) -> bool:
    """Whether it changes at run time, and to this value."""
    one = live_settings.SETTINGS.get(name)
    if one is None or not one.live:
        return False
    try:
        after = live_settings.effective(config, {name: live_settings.told(value)})
    except ConfigError:
        return False
    return bool(live_settings.configured(after, name) == value)


def _of_others(wanted: ClusterPlan, running: ClusterPlan) -> Iterator[PlannedChange]:
    for name, before, after in _differing(running.failover, wanted.failover):
        yield PlannedChange("controller", How.TAKE, f"{name} {before} -> {after}")
    if running.ledger is None and wanted.ledger is not None:
        yield PlannedChange("controller", How.TAKE, f"keeps who is master in {wanted.ledger}")
    elif wanted.ledger != running.ledger:
        yield PlannedChange(
            "controller", How.REFUSE, f"store {running.ledger} -> {wanted.ledger}", _DOWN
        )
    if wanted.accounts != running.accounts:
        what = f"accounts {running.accounts} -> {wanted.accounts}"
        yield PlannedChange("controller", How.REFUSE, what, _DOWN)
    brokers = {key for plan in (wanted, running) for key, _ in plan.all_copies()}
    for key in sorted((wanted.resources.keys() | running.resources.keys()) - brokers):
        before, after = running.resources.get(key), wanted.resources.get(key)
        moves = key != CONTROLLER or running.ledger is not None or wanted.ledger is None
        if before != after and moves:
            yield PlannedChange(key, How.REFUSE, f"resource {before} -> {after}", _DOWN)
    if len(wanted.name_servers) != len(running.name_servers):
        what = f"{len(running.name_servers)} -> {len(wanted.name_servers)}"
        why = f"brokers and clients know them by their addresses: {_DOWN}"
        yield PlannedChange("name servers", How.REFUSE, what, why)
        return
    for number, pair in enumerate(zip(running.name_servers, wanted.name_servers, strict=True)):
        for name, before, after in _differing(*pair):
            yield PlannedChange(
                f"name-server-{number}", How.REFUSE, f"{name} {before} -> {after}", _DOWN
            )
