"""The start, the failed start and the stop of a node process: its output and its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

import sandq
from sandq import cli
from tests.support.paths import ROOT
from tests.support.pipes import fill
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import run_here
from tests.support.processes.shipped_cluster import ShippedCluster
from tests.support.waiting import PATIENCE_S, wait_until

MakeNode = Callable[..., NodeProcess]


@pytest.fixture
def fresh_node(make_node: MakeNode) -> MakeNode:
    """Return a function that makes nodes with a Python process of their own, for tests of their output."""
    return partial(make_node, is_fresh=True)


def run(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandq.cli", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


TEXT = ("-m", "sandq.cli", "--log-format", "text")


def test_start_prints_data_directory_and_address(fresh_node: MakeNode) -> None:
    node = fresh_node(program=TEXT)
    node.start()
    wait_until(lambda: f"clients: {node.address}" in node.output())
    assert node.stop() == 0
    assert str(node.data_dir) in node.output()
    assert f"clients: {node.address}" in node.output()


def test_insecure_node_prints_warning_at_every_start(make_node: MakeNode) -> None:
    """127.1 is this machine, but the node warns: an incomplete address could be the name of any machine."""
    open_port = "listen.client on 127.1 without TLS (tls.client: require) and authentication"
    between = {"SANDQ_LISTEN__PEER": "127.0.0.1:0", "SANDQ_LISTEN__GOSSIP": "127.0.0.1:0"}
    refused = make_node(program=TEXT, host="127.1", SANDQ_SECURITY__INSECURE="false", **between)
    refused.start(wait=False)
    assert refused.ended() == 1 and open_port in refused.output()
    node = make_node(program=TEXT, host="127.1", **between)
    for number in (1, 2):
        node.start()
        wait_until(lambda number=number: node.output().count(f"INSECURE: {open_port}") == number)
        assert node.stop() == 0  # after its end, the node has printed everything
        assert node.output().count("this node accepts any client") == number


def test_start_and_stop_are_logged_as_events(fresh_node: MakeNode) -> None:
    node = fresh_node()
    node.start()
    wait_until(lambda: '"ready"' in node.output())
    assert node.stop() == 0
    lines = [json.loads(line) for line in node.output().splitlines()]
    ours = [line for line in lines if line["event"] in ("started", "ready", "stopping", "stopped")]
    assert [line["event"] for line in ours] == ["started", "ready", "stopping", "stopped"]
    assert (ours[1]["clients"], ours[1]["data_dir"]) == (node.address, str(node.data_dir))
    assert {(line["level"], line["node"]) for line in ours} == {("info", "node1")}


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("output", ["full", "broken", "stuck"])
def test_unwritable_output_prevents_neither_start_nor_stop(fresh_node: MakeNode, output: str, log_format: str) -> None:
    """Standard output and error are a full disk, a pipe whose reader has ended, or a pipe that is never read."""
    node = fresh_node(program=("-m", "sandq.cli", "--log-level", "debug", "--log-format", log_format))

    async def use() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("t")
            await client.produce("t", b"x")

    with taking_nothing(output) as descriptor:
        node.start(log=descriptor)
        trio.run(use)
        assert node.stop() == 0


@contextlib.contextmanager
def taking_nothing(output: str) -> Iterator[int]:
    """Open a descriptor to which a write fails or blocks."""
    if output == "full":
        with open("/dev/full", "wb") as full:
            yield full.fileno()
        return
    reader, writer = os.pipe()
    try:
        if output == "broken":
            os.close(reader)
        else:
            fill(writer)
        yield writer
    finally:
        os.close(writer)
        if output != "broken":
            os.close(reader)


def test_clean_stop_keeps_all_messages(make_node: MakeNode) -> None:
    node = make_node()

    async def put() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("t", partitions=3)
            for number in range(30):
                await client.produce("t", b"%d" % number, key=b"%d" % number)

    async def take() -> set[bytes | None]:
        got: set[bytes | None] = set()
        async with (
            sandq.connect(node.address, timeout=PATIENCE_S) as client,
            client.subscribe("t", group="g") as subscription,
        ):
            async for message in subscription:
                got.add(message.value)
                await message.ack()
                if len(got) == 30:
                    break
        return got

    node.start()
    trio.run(put)
    assert node.stop() == 0
    node.start()
    assert trio.run(take) == {b"%d" % number for number in range(30)}
    assert node.stop() == 0


def test_data_directory_in_use_fails_at_start(make_node: MakeNode) -> None:
    first, second = make_node(), make_node()
    first.start()
    second.data_dir = first.data_dir
    second.environ["SANDQ_NODE__DATA_DIR"] = str(first.data_dir)
    second.start(wait=False)
    assert second.ended() == 1
    assert " uses the data directory" in second.output()
    assert str(first.data_dir) in second.output()
    assert "Traceback" not in second.output()


def test_port_in_use_fails_at_start(make_node: MakeNode) -> None:
    node = make_node()
    with socket.socket() as other:
        other.bind(("127.0.0.1", node.port))
        other.listen()
        node.start(wait=False)
        assert node.ended() == 1
    assert "listen.client" in node.output()
    assert "Traceback" not in node.output()


def test_invalid_configuration_lists_all_errors(tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text("node: {id: 'a b', datadir: ./x}\nlisten: {client: nowhere}\nclock:\n  max_drift: soon\n")
    checked = run("check-config", str(config), cwd=tmp_path)
    assert checked.returncode == 1
    for line in (
        "bad.yaml:1:12: node.id",
        "node.datadir",
        "bad.yaml:2:18: listen.client",
        "bad.yaml:4:14: clock.max_drift",
    ):
        assert line in checked.stderr, checked.stderr
    assert "Traceback" not in checked.stderr
    started = run("--config", str(config), cwd=tmp_path)
    assert started.returncode == 1
    assert "listen.client" in started.stderr
    assert not (tmp_path / "sandq-data").exists(), "nothing was begun"


def test_shipped_configurations_are_valid(tmp_path: Path) -> None:
    for name in ("single", "node1", "node2", "node3"):
        checked = run_here(["check-config", str(ROOT / "configs" / f"{name}.yaml")], {}, tmp_path, program=cli.main)
        assert (checked.code, checked.err) == (0, ""), name


def test_shipped_configurations_form_a_cluster(tmp_path: Path) -> None:
    cluster = ShippedCluster(tmp_path)
    assert len(cluster.ports) == 12, "for clients, HTTP, peers and gossip of each"

    async def use() -> None:
        async with sandq.connect(*cluster.addresses, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("t", replicas=3)
            await client.produce("t", b"kept by all three")

    try:
        cluster.start()
        trio.run(use)
        assert [node.stop() for node in cluster.nodes.values()] == [0, 0, 0]
        assert all((node.data_dir / "identity").exists() for node in cluster.nodes.values())
    finally:
        cluster.close()


def test_unknown_variable_fails_at_start(tmp_path: Path) -> None:
    started = run(cwd=tmp_path, SANDQ_NODE__IDD="x")
    assert started.returncode == 1
    assert "SANDQ_NODE__IDD" in started.stderr


def test_version_and_help_are_printed(tmp_path: Path) -> None:
    assert sandq.__version__ in run("--version", cwd=tmp_path).stdout
    shown = run("--help", cwd=tmp_path).stdout
    assert "--config" in shown and "check-config" in shown
