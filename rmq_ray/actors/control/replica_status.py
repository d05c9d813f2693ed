"""What people see of a broker's copies: one row for each replica, made from what actors and
controller say of themselves.

Decides: how a row is named, when a broker has too few copies, and which will have too few when one
is away. Asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rmq_ray.actors import names
from rmq_ray.clock import local_time
from rmq_ray.config import BrokerConfig, ReplicationMode
from rmq_ray.protocol.election.copies import needs_all, not_delivered

MASTER, SLAVE, WAITING = "master", "slave", "waiting"
SERVING, STOPPED, BROKEN = "serving", "stopped", "broken"
RESTARTING, AWAY = "restarting", "away"


def rows(
    brokers: Sequence[tuple[str, BrokerConfig]],
    statuses: Mapping[str, Any],
    elections: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """``brokers``: (key, config) of every replica; ``statuses``: "broker-a/1" -> its actor's
    status; ``elections``: what the controller decided.

    Columns: broker, replica, id (None while it has none), role, address, epoch, in_sync, lag_bytes,
    lag_ms (None: unknown), state, error.
    """
    found = []
    for _, config in brokers:
        number = config.broker_id
        status = statuses.get(f"{config.broker_name}/{number}") or {}
        found.append(
            _row(
                config.broker_name,
                number,
                status,
                _status_of_master(statuses, brokers, config.broker_name),
                elections.get(config.broker_name),
            )
        )
    return found


def is_last(copies: Iterable[Mapping[str, Any]], name: str, replica: int | None) -> bool:
    """Whether nothing would serve without this copy; False where it does not serve itself."""
    serving = [
        (row["broker"], row["replica"]) for row in copies if row["state"] in (SERVING, "draining")
    ]
    return len(serving) == 1 and serving[0][0] == name and replica in (None, serving[0][1])


def too_few(
    brokers: Sequence[tuple[str, BrokerConfig]], found: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """(broker, what is wrong with it) for each broker with slaves that nobody could take over from,
    or whose sends are not acknowledged.
    """
    for key, config in brokers:
        mine = [row for row in found if row["broker"] == config.broker_name]
        if key != names.replica_key(config.broker_name, 0) or len(mine) < 2:
            continue
        in_sync = sum(1 for row in mine if row["in_sync"])
        if not any(row["role"] == MASTER for row in mine):
            yield config.broker_name, "no master"
        elif config.replication is ReplicationMode.SYNC_MASTER and in_sync < config.copies_min:
            yield (
                config.broker_name,
                f"{not_delivered(in_sync)} ({in_sync} of {len(mine)} copies, "
                f"copies_min={config.copies_min})",
            )
        elif in_sync < 2:
            yield config.broker_name, f"1 of {len(mine)} copies in sync: none to take over"


def said(actor: str, status: Mapping[str, Any]) -> str:
    """What does not serve of an actor ("broker-a/0"), since when if that is known, and what helps;
    the state alone where it serves.

    >>> said("broker-a/1", {"state": "stopped"})
    'stopped: `rmq-ray broker start broker-a --replica 1` starts it'
    """
    state = str(status.get("state", SERVING))
    if state == SERVING:
        return state
    broker, _, number = actor.partition("/")
    start = f"`rmq-ray broker start {broker} --replica {number}`"
    since = f" since {local_time(status['since_ms'])}" if status.get("since_ms") else ""
    if not number.isdigit():
        return f"{state}{since}"
    if state == RESTARTING:
        return f"{state}{since}, for its settings"
    if state == STOPPED:
        return f"{state}{since}: {start} starts it"
    if state == AWAY:
        return f"{state}{since}: it left its node, and starts where its disk is next; or by {start}"
    error = status.get("error")
    if state == BROKEN:
        return f"{state} ({error}): when that is mended, {start}"
    return f"{state}{f' ({error})' if error else ''}: see `rmq-ray doctor` and `ray logs`"


def cautions(brokers: Iterable[tuple[BrokerConfig, int]]) -> list[str]:
    """What it means for each of these that it needs all of its copies. ``brokers``: a master's
    settings, and how many slaves it has.
    """
    found = [
        needs_all(config.broker_name, 1 + slaves, config.copies_min)
        for config, slaves in brokers
        if config.replication is ReplicationMode.SYNC_MASTER
    ]
    return [text for text in found if text is not None]


def _row(
    broker: str,
    number: int,
    status: Mapping[str, Any],
    master: Mapping[str, Any] | None,
    election: Mapping[str, Any] | None,
) -> dict[str, Any]:
    role = _role(status)
    copied = status.get("replica") or {}
    lag = (0, 0) if role == MASTER else (copied.get("lag_bytes"), copied.get("lag_ms"))
    return {
        "broker": broker,
        "replica": number,
        "id": status.get("broker_id") if role in (MASTER, SLAVE) else None,
        "role": role,
        "address": status.get("address"),
        "epoch": status.get("epoch"),
        "in_sync": _in_sync(number, status, master, election),
        "lag_bytes": lag[0],
        "lag_ms": lag[1],
        "state": "draining"
        if status.get("draining") and status.get("state") == SERVING
        else status.get("state", "missing"),
        "error": status.get("error") or copied.get("fault"),
    }


def _role(status: Mapping[str, Any]) -> str | None:
    """None where it does not answer."""
    if "broker_id" not in status:
        return None
    told = status.get("role")
    if told is not None:
        return str(told)
    if (
        status.get("state") != SERVING or status["broker_id"] < 0
    ):  # under a controller it has no id before it is told one
        return WAITING
    return SLAVE if status["broker_id"] else MASTER


def _in_sync(
    number: int,
    status: Mapping[str, Any],
    master: Mapping[str, Any] | None,
    election: Mapping[str, Any] | None,
) -> bool:
    """Whether it could be elected and answers: in the controller's set, or, without slaves under a
    controller, as its master counts it.
    """
    if "broker_id" not in status:
        return False
    if election is not None:
        return number in election.get("sync_state_set", ())
    if status is master or master is None:
        return status is master
    slaves = (master.get("replication") or {}).get("slaves", {})
    return bool(slaves.get(status["broker_id"], {}).get("in_sync"))


def _status_of_master(
    statuses: Mapping[str, Any], brokers: Sequence[tuple[str, BrokerConfig]], broker: str
) -> Mapping[str, Any] | None:
    for _, config in brokers:
        status: Mapping[str, Any] | None = (
            statuses.get(f"{broker}/{config.broker_id}") if config.broker_name == broker else None
        )
        if status and _role(status) == MASTER:
            return status
    return None
