"""The queries of the dashboard and the alerts (docs/how-to/boards.md) work in a real Prometheus.

It scrapes a node that requires authentication."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.boards import board_queries, rule_queries
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is missing: make system installs it"
)
PAGE = (ROOT / "docs" / "how-to" / "boards.md").read_text(encoding="utf-8")
EMPTY = {
    "Deaths by reason/A": "none died",
    "Paused, stalled, held by a limit/A": "none is paused",
    "Paused, stalled, held by a limit/B": "none is stalled",
    "Paused, stalled, held by a limit/C": "none has a limit",
    "Requests that failed/A": "none failed",
    "Clocks/B": "a node alone compares its clock with nobody's",
    "Certificates end in/A": "it has no TLS",
}
"""Panels that may be empty on a healthy single node, with the reasons."""


class Prometheus:
    """Prometheus with the shipped configuration. It scrapes a node every half second."""

    def __init__(self, directory: Path, target: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        rules = yaml.safe_load((directory / "sandq-alerts.yml").read_text(encoding="utf-8"))
        for group in rules["groups"]:
            group["interval"] = "1s"
        (directory / "sandq-alerts.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
        text = (directory / "prometheus.yml").read_text(encoding="utf-8")
        text = text.replace("127.0.0.1:2108", target).replace("15s", "500ms")
        text = re.sub(r"# (authorization: )", r"\1", text)
        (directory / "prometheus.yml").write_text(text, encoding="utf-8")
        with (directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"),
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                cwd=directory,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def samples(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    def has(self, query: str) -> bool:
        try:
            return bool(self.samples(query))
        except OSError:  # Prometheus does not listen yet
            return False

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Prometheus as the page says, for a node with traffic."""
    directory = tmp_path_factory.mktemp("boards")
    web = f"127.0.0.1:{free_port()}"
    node = NodeProcess(directory, SANDQ_LISTEN__HTTP=web, SANDQ_SECURITY__AUTHENTICATION="require")
    node.start()
    asked = None
    try:
        token = node.data_dir / "admin.token"
        wait_until(token.exists)
        shell = Shell(directory, SANDCTL_SERVERS=node.address, XDG_CONFIG_HOME=str(directory / "config"))
        shell(f"sandctl login --token-file {token}")
        (directory / "deploy").symlink_to(ROOT / "deploy")
        for line in re.findall(r"^    (.+)$", PAGE, re.M):
            shell(line)
        asked = Prometheus(directory, web)
        for line in (
            "sandctl topic create orders --partitions 2",
            "sandctl produce orders now",
            "sandctl produce orders later --in 4m",
            "sandctl consume orders -g shop --max 1",
            "sandctl group limit orders other --max-in-flight 9",
        ):
            shell(line)
        wait_until(lambda: asked.has('rate(sandq_http_requests_total{route="/metrics"}[1m]) > 0'))
        shell("sandctl produce orders again --in 0.1s")
        shell("sandctl consume orders -g shop --max 1")
        wait_until(lambda: asked.has("sum(rate(sandq_slo_deliveries_total[1m])) > 0"))
        yield asked
    finally:
        if asked is not None:
            asked.stop()
        node.close()


def test_dashboard_queries_return_samples(prometheus: Prometheus) -> None:
    variables = {"cluster": "sandq", "instance": "127.0.0.1:.*", "topic": ".*", "group": ".*"}
    found: dict[str, list[dict[str, Any]]] = {}

    def empty() -> set[str]:
        """Return the panels without samples. After a scrape that took too long, all have none until the next scrape."""
        found.update({name: prometheus.samples(query) for name, query in board_queries(**variables).items()})
        return {name for name, samples in found.items() if not samples}

    wait_until(lambda: empty() <= EMPTY.keys())
    assert found["Delivered early/A"][0]["value"][1] == "0"


def test_variables_have_values(prometheus: Prometheus) -> None:
    assert prometheus.get("label/cluster/values", **{"match[]": "sandq_build_info"}) == ["sandq"]
    assert prometheus.get("label/topic/values", **{"match[]": "sandq_topic_messages"}) == ["orders"]
    assert "shop" in prometheus.get("label/group/values", **{"match[]": 'sandq_group_lag{topic=~".*"}'})


def test_rules_are_evaluated_and_none_fires(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in evaluated()))
    assert {rule["name"] for rule in evaluated()} == rule_queries().keys()
    assert [rule for rule in evaluated() if rule["health"] != "ok" or rule.get("lastError")] == []
    # Alerts about the machine, such as its disk or CPU, fire only after some time, so no alert may fire yet.
    assert [rule["name"] for rule in evaluated() if rule.get("state") == "firing"] == []
    wait_until(lambda: prometheus.has("job:sandq_slo_burn_rate:5m"))


def test_scrape_without_token_is_refused(prometheus: Prometheus) -> None:
    (target,) = prometheus.get("targets")["activeTargets"]
    assert target["health"] == "up"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(target["scrapeUrl"])


def test_autoscaling_query_returns_samples(prometheus: Prometheus) -> None:
    """docs/how-to/autoscaling.md and the example for KEDA contain the same query."""
    scaled = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "keda.yaml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "how-to" / "autoscaling.md").read_text(encoding="utf-8")
    (query,) = re.findall(r"```promql\n(.*?)```", page, re.S)
    asked = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert asked.split() == query.split()
    # One message is leased and not acked; the other one is due within four minutes.
    query = query.replace("billing.invoices", "orders").replace("mailer", "shop")
    assert prometheus.samples(query) and prometheus.samples(query.replace("1m", "5m"))
