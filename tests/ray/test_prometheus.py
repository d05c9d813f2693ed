"""The dashboard's queries and the alert rules, asked of a real Prometheus that scrapes a real
exporter.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import rmq_ray as rmq
from tests.support.tools import obtained
from tests.support.waiting import eventually
from tools import prometheus

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
WAIT_S = 60
EMPTY = {"Slave lag"}
"""Panels of a cluster that has no slaves."""

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def programs() -> Path:
    return obtained(prometheus.programs)


@pytest.fixture
def lively(start: Callable[..., rmq.Cluster]) -> rmq.Cluster:
    """With messages in and out, a group that lags and a dead letter."""
    mq = start(name="watched")
    mq.admin.create_topic("orders", queues=1)
    with mq.producer("p") as producer:
        producer.send_batch("orders", [b"x"] * 20)
    with mq.simple_consumer("orders", "bills", start_from="first") as worker:
        first, *others = worker.receive(8, wait=WAIT_S)
        first.reject()
        worker.ack_all(others)
    eventually(lambda: sum(row["lag"] for row in mq.admin.group_lag("bills")) == 12, WAIT_S)
    return mq


class Asked:
    """A Prometheus that runs."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **arguments: str) -> Any:
        with urllib.request.urlopen(
            f"{self._base}/{path}?{urllib.parse.urlencode(arguments)}", timeout=WAIT_S
        ) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Its series now."""
        return list(self.get("query", query=expression)["result"])

    def rules(self) -> dict[str, dict[str, Any]]:
        """Each alert with its state."""
        groups = self.get("rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def firing(self) -> set[str]:
        """Alerts that are not quiet."""
        return {name for name, rule in self.rules().items() if rule["state"] != "inactive"}


@pytest.fixture
def asked(programs: Path, lively: rmq.Cluster, tmp_path: Path) -> Iterator[Asked]:
    """It scrapes as the page says, each second; alerts do not wait."""
    target = urllib.parse.urlsplit(lively.metrics(host="127.0.0.1", port=0)).netloc
    rules = re.sub(r"\n +for: \w+", "", (MONITORING / "alerts.yml").read_text())
    (tmp_path / "alerts.yml").write_text(rules)
    scraped = block_of_page().replace("10.0.0.4:5557", target)
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{tmp_path / 'alerts.yml'}]\n{scraped}"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                str(programs / "prometheus"),
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'series'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    found = Asked(port)
    try:
        eventually(lambda: _answers(found, process), WAIT_S)
        yield found
    finally:
        process.kill()
        process.wait()


def _answers(found: Asked, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "Prometheus ended"
    with suppress(OSError):
        return len(found.query("rmq_ray_up == 1")) == 2
    return False


def block_of_page() -> str:
    """What the page tells to put into prometheus.yml."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    (found,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(found)


def panels() -> list[tuple[str, str]]:
    board = json.loads((MONITORING / "grafana.json").read_text())
    return [
        (panel["title"], target["expr"].replace("$cluster", "watched"))
        for panel in board["panels"]
        for target in panel["targets"]
    ]


def promtool(programs: Path, what: str, file: Path) -> subprocess.CompletedProcess[str]:
    """``check`` or ``test`` the rules of a file."""
    command = [str(programs / "promtool"), what, "rules", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)


def test_promtool_finds_no_fault_in_the_rules(programs: Path) -> None:
    done = promtool(programs, "check", MONITORING / "alerts.yml")
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


DEAD_LETTERS = """
rule_files: [RULES]
evaluation_interval: 30s
tests:
  - name: the first dead letter of a group
    interval: 30s
    input_series:
      - {series: 'rocketmq_send_to_dlq_messages_total{node_id="a"}', values: '_x40 1x60'}
    promql_expr_test:
      - {expr: 'count(ALERTS{alertname="RmqRayDeadLetters"})', eval_time: 19m, exp_samples: []}
      - expr: count(ALERTS{alertname="RmqRayDeadLetters"})
        eval_time: 22m
        exp_samples: [{labels: '{}', value: 1}]
      - {expr: 'count(ALERTS{alertname="RmqRayDeadLetters"})', eval_time: 35m, exp_samples: []}
  - name: old dead letters of a broker that was away for two minutes
    interval: 30s
    input_series:
      - {series: 'rocketmq_send_to_dlq_messages_total{node_id="a"}', values: '3x80 stale _x3 3x80'}
    promql_expr_test:
      - {expr: 'count(ALERTS{alertname="RmqRayDeadLetters"})', eval_time: 43m, exp_samples: []}
      - {expr: 'count(ALERTS{alertname="RmqRayDeadLetters"})', eval_time: 51m, exp_samples: []}
"""


def test_a_first_dead_letter_is_told_and_old_ones_not_again_when_a_broker_was_away(
    programs: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told.yml"
    told.write_text(DEAD_LETTERS.replace("RULES", str(MONITORING / "alerts.yml")))
    done = promtool(programs, "test", told)
    assert done.returncode == 0, done.stdout + done.stderr


GAPS = """
rule_files: [RULES]
evaluation_interval: 30s
tests:
  - name: an archivist that is back after two hours, with a gap
    interval: 30s
    input_series:
      - {series: 'rmq_table_gaps{topic="orders"}', values: '1x40 stale _x240 2x3000'}
    promql_expr_test:
      - {expr: 'count(ALERTS{alertname="RmqRayTableGap"})', eval_time: 19m, exp_samples: []}
      - expr: count(ALERTS{alertname="RmqRayTableGap"})
        eval_time: 3h
        exp_samples: [{labels: '{}', value: 1}]
      - {expr: 'count(ALERTS{alertname="RmqRayTableGap"})', eval_time: 25h, exp_samples: []}
  - name: a table near the default of hold_bytes
    interval: 30s
    input_series:
      - {series: 'rmq_table_held_bytes{topic="orders"}', values: '50000000000x20 60000000000x20'}
    promql_expr_test:
      - {expr: 'count(ALERTS{alertname="RmqRayTableHolds"})', eval_time: 9m, exp_samples: []}
      - expr: count(ALERTS{alertname="RmqRayTableHolds",alertstate="firing"})
        eval_time: 15m
        exp_samples: [{labels: '{}', value: 1}]
"""


def test_a_gap_of_a_table_is_told_also_by_an_archivist_that_was_away(
    programs: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told.yml"
    told.write_text(GAPS.replace("RULES", str(MONITORING / "alerts.yml")))
    done = promtool(programs, "test", told)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_shows_something_and_alerts_fire_for_what_happens_alone(
    lively: rmq.Cluster, asked: Asked
) -> None:
    for title, expression in panels():
        if title not in EMPTY:
            eventually(lambda expression=expression: asked.query(expression), WAIT_S)  # type: ignore[misc]
        else:
            assert asked.query(expression) == []
    eventually(lambda: asked.firing() == {"RmqRayDeadLetters"}, WAIT_S)
    assert {rule["health"] for rule in asked.rules().values()} == {"ok"}
    lively.stop_broker("broker-a", force=True)
    eventually(lambda: "RmqRayServerAway" in asked.firing(), WAIT_S)
    (alert,) = asked.rules()["RmqRayServerAway"]["alerts"]
    assert alert["annotations"]["summary"].startswith("broker-a/0 of cluster watched")
