"""The two calls of sandglass work unchanged.

They are sent to two nodes with configs/gossip1.yaml and gossip2.yaml. The ports of these files are the ports of
sandglass."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import trio

import sandq
from tests.support.paths import ROOT
from tests.support.ports import free_host
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, until_answer, wait_until

HOST = free_host()
"""A loopback address at which the default ports are free. `curl` resolves "localhost" to it."""
NODES = {"gossip1": 7170, "gossip2": 7171}
CREATE = """curl -XPOST http://localhost:2108/topics -d \
'{"name": "payments", "kind": 0, "replicationFactor": 2, "numPartitions": 6}'"""
PUBLISH = """curl -XPOST http://localhost:2108/topics/payments -d \
'{"value": "eyJoZWxsbyI6ICJ3b3JsZCIgfQo="}' -H 'Content-Type: application/json'"""
PAYLOAD = b'{"hello": "world" }\n'


def node(directory: Path, name: str, port: int) -> NodeProcess:
    """Return a node with a configuration as it ships, except for the address."""
    own = directory / name
    own.mkdir()
    text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    (own / "config.yaml").write_text(text.replace("127.0.0.1", HOST))
    made = NodeProcess(own, program=("-m", "sandq.cli", "--config", str(own / "config.yaml")), host=HOST)
    for key in ("NODE__DATA_DIR", "LISTEN__CLIENT", "LISTEN__HTTP", "LISTEN__PEER", "LISTEN__GOSSIP"):
        del made.environ[f"SANDQ_{key}"]
    made.port = port
    return made


def shell(command: str, directory: Path) -> str:
    """Return the output of a shell command."""
    (directory / ".curlrc").write_text(f'resolve = "localhost:2108:{HOST}"\nnoproxy = "*"\nfail-with-body\nsilent\n')
    environ = os.environ | {"CURL_HOME": str(directory), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


async def until_two() -> None:
    async with sandq.connect(f"{HOST}:{NODES['gossip1']}", timeout=PATIENCE_S) as client:
        await until_answer(client.admin.cluster, lambda found: sum(row["up"] for row in found["nodes"]) == 2)


def test_sandglass_calls_succeed(tmp_path: Path) -> None:
    nodes = [node(tmp_path, name, port) for name, port in NODES.items()]
    try:
        for started in nodes:
            started.start(wait=False)
        for started in nodes:
            started.wait_until_it_serves()
        trio.run(until_two)
        made = json.loads(shell(CREATE, tmp_path))
        assert made["name"] == "payments" and made["replicas"] == 2 and made["partitions"] == 6
        lease = """curl http://localhost:2108/topics/payments/groups/billing/lease -d '{"wait": "10s", "ack": true}'"""
        messages: list[dict[str, str]] = []

        def leased() -> bool:
            """Publish and lease. If the leader is deposed during a lease with "ack", the message is lost: retry."""
            json.loads(shell(PUBLISH, tmp_path))
            messages.extend(json.loads(shell(lease, tmp_path)).get("messages", ()))
            return bool(messages)

        wait_until(leased)
        assert messages[0]["text"].encode() == PAYLOAD
        # Publish again, and consume from the other node with `sandctl`.
        shell(PUBLISH, tmp_path)
        sandctl = [sys.executable, "-m", "sandctl", "--server", f"{HOST}:{NODES['gossip2']}"]
        consume = shlex.join([*sandctl, "consume", "payments", "--group", "billing", "--max", "1"])
        assert shell(consume, tmp_path).encode().startswith(PAYLOAD)
    finally:
        for started in nodes:
            started.close()
