"""Every command of docs/operations.md is run in order, with one node or with three.

So are the HTTP lines of docs/start.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import document
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell
from tests.support.processes.shipped_cluster import ShippedCluster
from tests.support.waiting import wait_until

FINDS = "## A cluster that finds itself"
BY_HAND = "## Forming by hand"
CLUSTER, DIES, LOST, MAJORITY = (
    "## A cluster of three nodes",
    "### When a node of the cluster dies",
    "### When a node of the cluster has lost its disk",
    "### When a majority is lost",
)


def commands(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if re.match(r"    (sandq|sandctl|curl) ", line)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in which `curl` sends requests for port 2108 to the node."""
    port = free_port()
    node = NodeProcess(
        tmp_path, SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}", SANDQ_NODE__DATA_DIR=str(tmp_path / "sandq-data")
    )
    node.start()
    try:
        shell = Shell(tmp_path, SANDCTL_SERVERS=node.address, SANDQ_LISTEN__CLIENT=node.address)
        (tmp_path / "bin" / "curl").write_text(
            f'#!/bin/bash\nexec /usr/bin/env -S PATH="${{PATH#*:}}" curl "${{@/2108/{port}}}"\n'
        )
        (tmp_path / "bin" / "curl").chmod(0o755)
        yield shell
    finally:
        node.close()


def test_operations(shell: Shell) -> None:
    titles = [title.strip().removeprefix("## ") for title in (CLUSTER, FINDS, BY_HAND)]
    sections = document("operations").split("\n## ")
    lines = commands("\n".join(text for text in sections if text.partition("\n")[0] not in titles))
    assert len(lines) > 12
    for line in lines:
        shell(line)


def test_three_nodes(tmp_path: Path) -> None:
    section = document("operations").partition(CLUSTER)[2].partition("\n## ")[0]
    together, _, rest = section.partition(DIES)
    starts = [line for line in commands(together) if line.startswith("sandq ")]
    assert starts == [f"sandq --config configs/node{number}.yaml" for number in (1, 2, 3)]
    cluster = ShippedCluster(tmp_path)
    try:
        cluster.start()
        shell = Shell(tmp_path, SANDCTL_SERVERS=",".join(cluster.addresses))
        for line in commands(together)[len(starts) :]:
            shell(line)
        wait_until(lambda: shell("sandctl cluster nodes -o json").count('"up": true') == 3)
        cluster.nodes["node2"].kill()
        said = [shell(line) for line in commands(rest.partition(LOST)[0])]
        wait_until(lambda: '"up": false' in shell("sandctl cluster nodes -o json"))
        assert "17 parcels" in said[-1] and "17 more" in said[-1]
        shutil.rmtree(cluster.nodes["node2"].data_dir)
        cluster.nodes["node2"].start(wait=False)
        wait_until(lambda: "returned with another data directory" in cluster.nodes["node1"].output())
        assert cluster.nodes["node2"].runs
        (remove,) = commands(rest.partition(LOST)[2].partition(MAJORITY)[0])
        wait_until(lambda: node(shell, "node2")["failed_since_ms"] is not None)
        shell(remove)
        wait_until(lambda: node(shell, "node2").get("up") is True and node(shell, "node2").get("replicas") == 6)
        wait_until(lambda: '"moving": 0' in shell("sandctl cluster info -o json"))
        look, recover, *removals = commands(rest.partition(MAJORITY)[2])
        shell('sandctl produce payments "17 at last"')
        for name in ("node2", "node3"):
            cluster.nodes[name].kill()
            shutil.rmtree(cluster.nodes[name].data_dir)
        cluster.nodes["node1"].stop()
        config = str(tmp_path / "node1" / "config.yaml")
        shell.directory = tmp_path / "node1"
        assert "payments/5: node1, node2, node3: continues here alone" in shell(
            look.replace("configs/node1.yaml", config)
        )
        assert "7 groups have node1 as their only member" in shell(recover.replace("configs/node1.yaml", config))
        cluster.nodes["node1"].start()
        wait_until(lambda: node(shell, "node3").get("failed_since_ms") is not None)
        for line in removals:
            shell(line)
        wait_until(lambda: node(shell, "node3").get("standing") is None)
        assert "17 at last" in shell("sandctl consume payments --group desk")
    finally:
        cluster.close()


def test_three_nodes_that_find_each_other(tmp_path: Path) -> None:
    lines = commands(document("operations").partition(FINDS)[2].partition("\n## ")[0])
    starts = [line for line in lines if line.startswith("sandq ")]
    assert starts == [f"sandq --config configs/gossip{number}.yaml" for number in (1, 2, 3, 4)]
    starts = starts[:3]
    cluster = ShippedCluster(tmp_path, "gossip")
    try:
        cluster.start()
        shell = Shell(tmp_path, SANDCTL_SERVERS=",".join(cluster.addresses))
        # The links between the nodes exist already, but gossip may not know all three nodes yet.
        wait_until(lambda: shell("sandctl cluster nodes").count("alive") == 3)
        here = lines.index("sandq --config configs/gossip4.yaml")
        said = [shell(line) for line in lines[len(starts) : here]]
        assert "17 parcels" in said[-1]
        cluster.nodes["node4"].start()
        wait_until(
            lambda: node(shell, "node4").get("replicas") and '"moving": 0' in shell("sandctl cluster info -o json")
        )
        for line in lines[here + 1 :]:
            shell(line)
        # node4 still runs. It is no node of the cluster once the others have removed it.
        wait_until(lambda: node(shell, "node4").get("standing") is None)
    finally:
        cluster.close()


def node(shell: Shell, name: str) -> dict[str, Any]:
    """Return the row of a node in the cluster; an empty row if the node does not exist."""
    rows = [json.loads(line) for line in shell("sandctl cluster nodes -o jsonl").splitlines()]
    return next((row for row in rows if row["node"] == name), {})


def test_forming_by_hand(tmp_path: Path) -> None:
    """Form a cluster of two nodes that have each other as seeds."""
    gossip, web = [f"127.0.0.1:{free_port()}" for _ in range(2)], free_port()
    nodes = []
    for number in (0, 1):
        environ = {
            "NODE__ID": f"node{number + 1}",
            "CLUSTER__BOOTSTRAP": "false",
            "CLUSTER__SEEDS": gossip[1 - number],
            "LISTEN__GOSSIP": gossip[number],
            "LISTEN__PEER": f"127.0.0.1:{free_port()}",
            "LISTEN__HTTP": f"127.0.0.1:{web}" if number == 0 else "none",
        }
        (tmp_path / str(number)).mkdir()
        nodes.append(NodeProcess(tmp_path / str(number), **{f"SANDQ_{key}": text for key, text in environ.items()}))
    try:
        for node in nodes:
            node.start()
        shell = Shell(tmp_path, SANDCTL_SERVERS=nodes[0].address)
        wait_until(lambda: "node2" in shell("sandctl cluster info -o json"))
        ready = f"curl -s -o ready -w '%{{http_code}}' 127.0.0.1:{web}/readyz"
        assert shell(ready) == "503" and "sandctl cluster init" in (tmp_path / "ready").read_text()
        refused = shell.run("sandctl cluster init")
        assert refused.code == 2 and "say --yes" in refused.err
        looked, founded, again, listed = commands(document("operations").partition(BY_HAND)[2].partition("\n## ")[0])
        assert "sandctl cluster init" in shell(looked)
        assert founded == "sandctl cluster init --yes"
        uuid = json.loads(shell(f"{founded} -o json"))["cluster_uuid"]
        assert uuid in shell(again)
        wait_until(lambda: shell(listed).count("alive") == 2 and shell(f"{listed} -o json").count('"store_uuid"') == 2)
        # node1 has registered node2, but node2 reports that it joins until it receives the reply.
        joined = f"sandctl -s {nodes[1].address} cluster info -o json"
        wait_until(lambda: json.loads(shell(joined))["cluster_uuid"] == uuid)
        assert uuid in shell.run(f"sandctl -s {nodes[1].address} cluster init --yes").err
        nodes[0].kill()
        nodes[0].start()
        assert uuid in shell(again)
    finally:
        for node in nodes:
            node.close()


def test_http_commands_of_start_page_succeed(shell: Shell) -> None:
    lines = commands((ROOT / "docs" / "start.md").read_text(encoding="utf-8"))
    assert len(lines) == 3 and all(line.startswith("curl -s ") for line in lines)
    *_, last = [shell(line.replace("curl -s ", "curl -sf ")) for line in lines]
    assert '"json":{"hello":"world"}' in last


def test_tutorial_of_three_nodes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorials" / "three-nodes.md").read_text(encoding="utf-8")
    lines = [line for line in commands(page) if not line.startswith("sandq ")]
    assert [line for line in commands(page) if line.startswith("sandq ")] == [
        "sandq --data ./data/program",
        *(f"sandq --config configs/gossip{number}.yaml" for number in (1, 2, 3, 1)),
    ]
    assert "export SANDCTL_SERVERS=127.0.0.1:7170,127.0.0.1:7171,127.0.0.1:7172" in page
    list_data, list_messages, back_up, look, restore, partitions, consume, cancel, look_again = lines
    (program,) = re.findall(r"```python reminders.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "reminders.py").write_text(program.replace('"1m"', '"20s"'))
    command = [sys.executable, "-W", "error", "reminders.py"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output(command, cwd=tmp_path, env=environ, text=True) == "pay order 6\n"
    server = NodeProcess(tmp_path, program=("-m", "sandq.cli", "--data", str(tmp_path / "data" / "program")))
    cluster = ShippedCluster(tmp_path, "gossip")
    first, *_ = nodes = [cluster.nodes[f"node{number}"] for number in (1, 2, 3)]
    shell = Shell(tmp_path, SANDCTL_SERVERS=",".join([server.address, *cluster.addresses]))
    try:
        # The node removes the acked message soon. Under load, the second one may be due already.
        pending = [line.split()[0] for line in shell(list_data).splitlines() if re.search(r"order-[78]\b", line)]
        server.start()
        listed = shell(list_messages)
        assert len(pending) == 2 and all(message_id in listed for message_id in pending)
        shell(back_up)
        server.close()
        for one in nodes:
            one.start()
        wait_until(lambda: shell(look).count("alive") == 3)
        wait_until(lambda: all(node(shell, f"node{number}").get("voter") for number in (1, 2, 3)))
        shell(restore)
        wait_until(lambda: "node1, node2, node3" in shell(partitions))
        first.kill()
        assert "pay order 7" in shell(consume)
        assert "cancelled" in shell(cancel)
        assert "node1" in shell(look_again)
        first.start()
        wait_until(lambda: shell(look_again).count("alive") == 3)
    finally:
        server.close()
        cluster.close()
