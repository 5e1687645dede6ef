"""The commands and queries of docs/metrics.md run as they are (with ports of the test)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sandq.server.metrics.catalog import EVERY
from tests.support.documents import document
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import wait_until

PAGE = document("metrics")


def commands(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def web_port() -> int:
    return free_port()


@pytest.fixture
def node(tmp_path: Path, web_port: int) -> Iterator[NodeProcess]:
    shown = commands("bash")[1].split()
    assert shown[0] == "sandq"
    program = ("-m", "sandq.cli", *shown[1:])
    process = NodeProcess(tmp_path, program=program, SANDQ_LISTEN__HTTP=f"127.0.0.1:{web_port}")
    process.start()
    yield process
    process.close()


def test_scrape_and_log_commands_run(node: NodeProcess, web_port: int) -> None:
    command = commands("bash")[0].strip().replace("127.0.0.1:2108", f"127.0.0.1:{web_port}")
    for _ in range(2):  # the second request reports the first one
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    families = {family.name: family for family in text_string_to_metric_families(done.stdout)}
    assert {metric.name.removesuffix("_total") for metric in EVERY} <= {
        name.removesuffix("_total") for name in families
    }
    (request,) = families["sandq_http_requests"].samples
    assert request.labels == {"method": "GET", "route": "/metrics", "status": "200"} and request.value == 1
    # A request is logged after its answer.
    wait_until(lambda: node.output().count('"event": "request"') == 2)
    lines = [json.loads(line) for line in node.output().splitlines() if line.startswith("{")]
    assert {line["node"] for line in lines} == {"node1"}
    (one, two) = [line for line in lines if line["event"] == "request"]
    assert one["level"] == "debug" and one["request_id"] != two["request_id"]


def test_queries_name_metrics_and_labels_that_there_are() -> None:
    labels = {metric.name: set(metric.labels) for metric in EVERY}
    (shown,) = commands("promql")
    for query in (line for line in shown.splitlines() if not line.startswith("#")):
        names = [name.removesuffix("_bucket") for name in re.findall(r"sandq_\w+", query)]
        assert names and labels.keys() >= set(names)
        wanted = {label for part in re.findall(r"by \(([^)]*)\)", query) for label in part.split(", ")} - {"le"}
        assert wanted <= labels[names[0]]
