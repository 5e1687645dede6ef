"""Tests that the dashboard and the alerts name existing metrics, labels and runbook pages."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from sandq.backup.standing import Standing, status_text
from sandq.server.metrics.catalog import EVERY, HISTOGRAM
from tests.support.boards import RULES, board, board_queries, panels, rule_queries, rules
from tests.support.documents import document

LABELS = {metric.name: {*metric.labels, *({"le"} if metric.type == HISTOGRAM else ())} for metric in EVERY}
OF_TARGETS = {"job", "instance"}
OF_BACKUPS = set(re.findall(r"# TYPE (\w+)", status_text(Standing(chain="b"), for_prometheus=True)))
"""Metrics in the status file of `sandctl backup`."""
OF_OTHERS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
ANYTHING = {"cluster": "c", "instance": ".*", "topic": ".*", "group": ".*"}
QUERIES = {**board_queries(**ANYTHING), **rule_queries()}


def names_in(query: str) -> set[str]:
    """Names of metrics without the bucket suffix."""
    named = {name.removesuffix("_bucket") for name in re.findall(r"\b(?:sandq|process)_\w+|\bup\b", query)}
    return {name for name in named if f"job:{name}:" not in query}


def labels_in(query: str) -> set[str]:
    grouped = {label for part in re.findall(r"(?:by|on) \(([^)]*)\)", query) for label in part.split(", ")}
    return grouped | set(re.findall(r"(\w+)(?:=~|!=|=)\"", query))


@pytest.mark.parametrize("name", QUERIES)
def test_metrics_and_labels_are_in_the_catalog(name: str) -> None:
    found = names_in(QUERIES[name])
    recorded = set(re.findall(r"job:\w+:\w+", QUERIES[name]))
    assert found or recorded
    assert found <= LABELS.keys() | OF_OTHERS | OF_BACKUPS, found - LABELS.keys()
    assert recorded <= rule_queries().keys()
    known = OF_TARGETS.union(*[LABELS.get(metric, set()) for metric in found])
    assert labels_in(QUERIES[name]) <= known


def test_names_and_labels_are_found_in_expressions() -> None:
    assert names_in("sum(rate(sandq_nonsense_total[5m])) / job:sandq_slo_burn_rate:1h") == {"sandq_nonsense_total"}
    assert labels_in('sum by (le, topic) (x{group=~"a",job!="b"}) / on (z) y') == {"le", "topic", "group", "job", "z"}


def test_variables_come_of_metrics_that_there_are() -> None:
    by_name = {variable["name"]: variable for variable in board()["templating"]["list"]}
    assert list(by_name) == ["datasource", "cluster", "instance", "topic", "group"]
    for name in ("cluster", "instance", "topic", "group"):
        # type: ignore[union-attr]
        metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", by_name[name]["definition"]).groups()
        assert label == name and label in LABELS[metric] | OF_TARGETS
        used = set(re.findall(r"\$(\w+)", by_name[name]["definition"]))
        assert used <= set(list(by_name)[: list(by_name).index(name)]), (
            "each variable depends on the variables before it"
        )


def test_dashboard_can_be_imported_with_any_data_source() -> None:
    found = board()
    assert "id" not in found and found["uid"] == "sandq" and found["templating"]["list"][0]["query"] == "prometheus"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids)) > 50
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"] and all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in _span(place["x"], place["w"]) for y in _span(place["y"], place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def _span(start: int, count: int) -> Iterator[int]:
    yield from range(start, start + count)


def test_page_describes_each_alert_and_no_other() -> None:
    page = document("operations")
    section = page.partition("\n## When an alert fires\n")[2].partition("\n## ")[0]
    headings = re.findall(r"^### (\w+)$", section, re.M)
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) > 25 and sorted(headings) == sorted(rule["alert"] for rule in alerts)
    for rule in alerts:
        assert rule["annotations"]["runbook"] == f"docs/operations/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}


def test_each_alert_is_seen_to_fire() -> None:
    tested = RULES.with_suffix(".test.yml").read_text(encoding="utf-8")
    for rule in rules():
        assert "alert" not in rule or f'alertname="{rule["alert"]}"' in tested, rule["alert"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: make system installs prometheus")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", RULES.name),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", f"{RULES.stem}.test.yml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_promtool_is_content(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
