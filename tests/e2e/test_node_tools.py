"""`sandq doctor` and `sandq wal dump` work with a running node, and with the files of a stopped one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq import cli
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import run_here
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    ports = {f"SANDQ_LISTEN__{name}": f"127.0.0.1:{free_port()}" for name in ("HTTP", "PEER", "GOSSIP")}
    process = NodeProcess(tmp_path, **ports)
    process.start()
    yield process
    process.close()


def run(node: NodeProcess, *args: str, code: int = 0) -> str:
    done = run_here(args, node.environ, node.directory, program=cli.main)
    assert done.code == code, (args, done)
    return done.out


def doctor(node: NodeProcess) -> dict[str, Any]:
    return {row["what"]: row for row in json.loads(run(node, "doctor", "--json"))["checks"]}


def dumped(node: NodeProcess, *args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(node, "wal", "dump", str(node.data_dir), "--json", *args).splitlines()]


def picture(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()
    }


def produce(node: NodeProcess, count: int) -> None:
    async def main() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            if not any(record.name == "t" for record in await client.admin.list_topics()):
                await client.admin.create_topic("t", partitions=2)
            async with client.producer("t") as producer:
                await producer.send_many([b"secret %d" % number for number in range(count)])

    trio.run(main)


def test_doctor_works_with_running_and_stopped_node(node: NodeProcess) -> None:
    produce(node, 100)
    found = doctor(node)
    assert "a node is running" in found["lock"]["found"]
    assert {found[what]["state"] for what in ("wal", "stores")} == {"skipped"}
    for what in ("port client", "port http"):
        assert "served by this node, node1" in found[what]["found"], found[what]
    rows = dumped(node)
    commands = [command for row in rows for command in row.get("commands", ())]
    assert sum(command.get("messages", 0) for command in commands) == 100
    assert {"create_topic", "append"} <= {command["command"] for command in commands}
    assert "secret" not in json.dumps(rows) and "secret 7" in json.dumps(dumped(node, "--values"))
    produce(node, 5)  # the node still works
    assert node.stop() == 0
    before = picture(node.data_dir)
    found = doctor(node)
    checked = ("lock", "mode", "identity", "wal", "stores", "port client")
    assert {found[what]["state"] for what in checked} == {"ok"}, found
    for path in node.data_dir.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is readable only by its owner"
    assert "stopped cleanly" in found["wal"]["found"] and "free" in found["port http"]["found"]
    assert dumped(node)
    assert picture(node.data_dir) == before, "nothing was changed"
    node.start()


def test_doctor_recognizes_a_paused_node(node: NodeProcess) -> None:
    """The doctor recognizes that the ports are used by the paused node, not by another program."""
    node.pause()
    try:
        command = [sys.executable, "-m", "sandq", "doctor", "--json"]
        rows = json.loads(subprocess.check_output(command, env=node.environ, cwd=node.directory))["checks"]
    finally:
        node.resume()
    found = {row["what"]: row for row in rows}
    assert {found[what]["state"] for what in ("port client", "port http")} == {"warning"}
    assert "by the node that is running" in found["port client"]["found"]


def test_dump_of_log_being_written_reports_no_damage(node: NodeProcess) -> None:
    """A record that is being written may be torn. The dump does not report it as damage."""
    produce(node, 1)
    code = (
        "import sandq, trio\n"
        "async def main():\n"
        f"    async with sandq.connect({node.address!r}) as client, client.producer('t') as producer:\n"
        "        while True: await (await producer.send(b'x' * 3000))\n"
        "trio.run(main)\n"
    )
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stderr=subprocess.DEVNULL) as writer:
        try:
            counts = [len(dumped(node)) for _ in range(3)]
            doctor(node)

            def has_grown() -> bool:
                counts.append(len(dumped(node)))
                return counts[-1] > counts[0]

            wait_until(has_grown)
            assert writer.poll() is None
        finally:
            writer.kill()
    assert counts == sorted(counts)


def test_after_a_kill(node: NodeProcess) -> None:
    produce(node, 100)
    node.kill()
    assert doctor(node)["wal"]["state"] == "ok" and dumped(node)
    segment = node.data_dir / "wal" / "0000000001.wal"
    whole = segment.read_bytes()
    damaged = bytearray(whole)
    damaged[300] ^= 1
    segment.write_bytes(damaged)
    assert "DAMAGE" in run(node, "wal", "dump", str(node.data_dir), code=1)
    assert "damaged at byte" in run(node, "doctor", code=1)
    segment.write_bytes(whole)
    node.start()
