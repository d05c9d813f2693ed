"""The alert rules and the dashboard: they name metrics that are served, and commands that exist.
``test_the_page_lists_every_name_and_no_other`` holds the page to what is served.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context

from rmq_ray.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
LISTED = dict(
    re.findall(
        r"^\| `(\w+)` \| (counter|gauge|histogram) \|",
        (ROOT / "docs/metrics.md").read_text(),
        re.MULTILINE,
    )
)
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0][
    "rules"
]
PANELS: list[dict[str, Any]] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
EXPRESSIONS = [rule["expr"] for rule in RULES] + [
    target["expr"] for panel in PANELS for target in panel["targets"]
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_name_metrics_that_are_served_and_rate_counters_alone(expression: str) -> None:
    named = re.findall(r"\b(?:rmq_ray|rmq_table|rocketmq)_\w+", expression)
    kinds = {name: LISTED.get(name.removesuffix("_bucket"), "") for name in named}
    assert named and all(kinds.values())
    rated = re.findall(r"(?:rate|increase)\((\w+)", expression)
    assert set(rated) == {name for name, kind in kinds.items() if kind in ("counter", "histogram")}
    assert all(name.endswith("_bucket") == (kind == "histogram") for name, kind in kinds.items())
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    commands = re.findall(r"rmq-ray ([a-z-]+)(?: ([a-z-]+))?", rule["annotations"]["runbook"])
    assert commands
    for first, second in commands:
        command = main.get_command(Context(main), first)
        assert command is not None, first
        if hasattr(command, "commands") and second:
            assert second in command.commands, (first, second)


def test_alerts_and_panels_are_told_apart() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
