"""Read the dashboard and the rules in `deploy/`, and the queries that they send to Prometheus."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from tests.support.paths import ROOT

BOARD = ROOT / "deploy" / "grafana" / "sandq.json"
RULES = ROOT / "deploy" / "prometheus" / "sandq-alerts.yml"


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BOARD.read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, without its rows."""
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    """Return the rules of all groups."""
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def board_queries(**variables: str) -> dict[str, str]:
    """Return the queries by panel and letter, with Grafana's variables replaced."""
    values = {"__rate_interval": "1m", "__range": "1h", **variables}
    found = {}
    for panel in panels():
        for target in panel["targets"]:
            expression = re.sub(r"\$(\w+)", lambda name: values[name[1]], target["expr"])
            found[f"{panel['title']}/{target['refId']}"] = expression
    return found


def rule_queries() -> dict[str, str]:
    """Return the queries by the name of the rule."""
    return {rule.get("alert", rule.get("record")): rule["expr"] for rule in rules()}
