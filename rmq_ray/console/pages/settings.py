"""What brokers are set to, as they say it themselves; where they differ first."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from rmq_ray.console.page import ConsolePage, Show, Visit
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Buffer, Command

OURS = "rmq_ray."
OF_ONE = (
    "brokerName",
    "brokerId",
    "brokerIP1",
    "listenPort",
    "storePathRootDir",
    "broker_name",
    "broker_id",
)
"""What must differ from broker to broker."""


def settings(visit: Visit) -> Response:
    """A row for each setting, a column for each broker."""
    answers = visit.source.ask(Command(RequestCode.GET_BROKER_CONFIG), read_settings)
    wanted = visit.query("q").strip().lower()
    rows = [row for row in _rows(answers.found) if wanted in row[0].lower()]
    brokers = sorted(answers.found)
    return visit.page(
        "settings.html", answers, rows=rows, found=len(rows), q=wanted, brokers=brokers
    )


def read_settings(body: Buffer) -> dict[str, str]:
    """
    >>> read_settings(b"brokerName=a\\nrmq_ray.x=1=2\\n")
    {'brokerName': 'a', 'rmq_ray.x': '1=2'}
    """
    lines = bytes(body).decode().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name}


def _rows(found: Mapping[str, Mapping[str, str]]) -> list[tuple[str, list[str], bool]]:
    """(name, value of each broker, whether they differ and should not)."""
    names = {name for told in found.values() for name in told}
    rows = []
    for name in sorted(names, key=lambda name: (not name.startswith(OURS), name)):
        values = [found[broker].get(name, "-") for broker in sorted(found)]
        own = name.removeprefix(OURS).rpartition(".")[2] in OF_ONE or name.endswith("store.path")
        rows.append((name, values, len(set(values)) > 1 and not own))
    return sorted(rows, key=lambda row: not row[2])


PAGES: tuple[ConsolePage, ...] = (Show("/settings", settings, nav="Settings"),)
