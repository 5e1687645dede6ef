"""Schemathesis reads /openapi.json and searches for replies that the document does not describe, and for errors."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "negative_data_rejection",
)
# Objects that the routes need: a topic with messages, and a group that leased one. Another topic is deleted.
CONFIG = """
[parameters]
topic = "orders"
group = "g"
message = "{message}"
name = "hourly"
partition = 1
[[operations]]
include-name = "DELETE /topics/{{topic}}"
parameters = {{ topic = "other" }}
[[operations]]
include-path-regex = "/stream$"
enabled = false
[[operations]]
include-path-regex = "/topics/.topic./(keys|changes)"
parameters = {{ topic = "config", wait = "200ms" }}
"""


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


PHASES = "examples,fuzzing,stateful"
COVERAGE = f"{PHASES},coverage"
"""Phases with thousands of examples: each part of each request is made invalid in each possible way."""


def examine(directory: Path, phases: str, examples: int, seed: int) -> None:
    port = free_port()
    node = NodeProcess(directory, SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}")
    node.start()
    base = f"http://127.0.0.1:{port}"
    try:
        for name in ("orders", "other"):
            post(f"{base}/topics", {"name": name, "partitions": 3})
        post(f"{base}/topics", {"name": "config", "kind": "compacted", "partitions": 2})
        post(f"{base}/topics/config", {"messages": [{"text": "x", "key": f"k{n}"} for n in range(5)]})
        post(f"{base}/topics/orders", {"messages": [{"text": "x", "unique_key": f"k{n}"} for n in range(5)]})
        post(f"{base}/topics/orders/groups/g/lease", {"max": 2})
        post(f"{base}/topics/orders/schedules", {"name": "hourly", "text": "x", "every": "1h"})
        message = post(f"{base}/topics/orders", {"text": "later", "delay": "1h"})["id"]
        (directory / "schemathesis.toml").write_text(CONFIG.format(message=message))
        command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", "schemathesis.toml", "run"]
        options = ["--checks", ",".join(CHECKS), "--phases", phases, "-n", str(examples), "--seed", str(seed)]
        options += ["--generation-database", "none", "--request-timeout", "70", "--no-color"]
        done = subprocess.run(
            [*command, f"{base}/openapi.json", "--url", base, *options],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (
            f"seed {seed}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}\n{node.output()[-2000:]}"
        )
        assert "unexpected error" not in node.output()
    finally:
        node.close()


def test_replies_are_documented_and_no_server_errors(tmp_path: Path) -> None:
    examine(tmp_path, PHASES, 3, 1)


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("seed", [2, 3])
def test_many_more(tmp_path: Path, seed: int) -> None:
    examine(tmp_path, COVERAGE, 150, seed)
