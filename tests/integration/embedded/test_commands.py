"""Tests of the commands on the directory of an embedded broker: `sandctl --data`, and `sandq --data`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sandq
from tests.support.paths import ROOT

TOPIC = "t"


def sandctl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sandctl", *map(str, arguments)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


def topics(data: Path) -> list[Any]:
    found = sandctl("--data", data, "-o", "json", "topic", "list")
    assert found.returncode == 0, found.stderr
    rows: list[Any] = json.loads(found.stdout)
    return [row["name"] for row in rows]


def test_sandctl_uses_the_directory(tmp_path: Path) -> None:
    with sandq.sync.embedded(tmp_path) as client:
        client.admin.create_topic(TOPIC)
        assert topics(tmp_path) == [TOPIC]  # through the socket of this process
    assert topics(tmp_path) == [TOPIC]  # no process has it open
    found = sandctl("--data", tmp_path, "produce", TOPIC, "one")
    assert found.returncode == 0, found.stderr
    with sandq.sync.embedded(tmp_path) as client, client.subscribe(TOPIC, group="g") as subscription:
        assert next(subscription).value == b"one"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data", "nothing"), "nothing has no data of a broker"),
        (("--data", "nothing", "--server", "127.0.0.1:7170"), "--server and --context do not go with it"),
    ],
)
def test_sandctl_refuses_bad_directories(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    found = sandctl(*arguments, "topic", "list")
    assert found.returncode == 2
    assert said in found.stderr
    assert not Path("nothing").exists()


def test_server_opens_the_directory_later(tmp_path: Path) -> None:
    data = tmp_path / "data"
    config = tmp_path / "node.yaml"
    config.write_text("node: {id: worker}\n")
    with sandq.sync.embedded(data, config=config) as client:
        client.admin.create_topic(TOPIC)
        client.produce(TOPIC, b"one")
        uuid = client.cluster_uuid
    addresses = {f"SANDQ_LISTEN__{name}": "127.0.0.1:0" for name in ("CLIENT", "PEER", "GOSSIP")}
    server = subprocess.Popen(
        [sys.executable, "-m", "sandq", "--data", str(data)],
        env=os.environ | addresses | {"PYTHONPATH": str(ROOT), "SANDQ_LISTEN__HTTP": "none"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        for line in server.stderr:
            if json.loads(line)["event"] == "ready":
                break
        with sandq.sync.embedded(data, share=True) as client, client.subscribe(TOPIC, group="g") as subscription:
            assert client.cluster_uuid == uuid
            assert next(subscription).value == b"one"
        assert topics(data) == [TOPIC]
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        server.kill()
        server.communicate()
