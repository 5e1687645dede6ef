"""Diagnostics of a node that has a problem, and its log at level debug."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog
import trio

import sandq
from sandq.client.transport.requests import call
from sandq.errors import InvalidRequest
from sandq.node.running import Serving
from sandq.protocol.requests_debug import LogLevel
from sandq.server import logs
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S


async def test_dump_shows_the_state_of_the_node_and_no_values(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    await api.produce("t", b"a value that nobody is to read", key="a key", headers={"h": "a header"}, delay="1h")
    found = await api.admin.dump()
    assert found["process"]["version"] == sandq.__version__ and found["task_count"] == len(found["tasks"]) > 20
    assert "MainThread" in {row["name"] for row in found["threads"]} and found["loop_stall_count"] is None
    assert (found["raft_groups"]["count"], found["raft_groups"]["led"], found["stalled"]) == (3, 3, None)
    places = {(row["topic"], row["partition"]) for row in found["raft_groups"]["most_behind"]}
    assert places == {(None, None), ("t", 0), ("t", 1)}
    assert found["connections"]["count"] == len(found["connections"]["most_loaded"]) >= 1
    assert found["memory"]["accounts"]["answers"]["limit"] > 0
    assert any(line.startswith("  data_dir: ") for line in found["configuration"])
    text = json.dumps(found)
    assert not [said for said in ("a value that", "a key", "a header") if said in text]
    assert (await api.admin.dump("node1"))["process"]["pid"] == found["process"]["pid"]


async def test_process_watches_its_event_loop(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    try:
        await trio.to_thread.run_sync(node.start)
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            found = await client.admin.dump()
    finally:
        node.close()
    assert found["loop_stall_count"] == len(found["loop_stalls"])
    assert "loop watch" in {row["name"] for row in found["threads"]}


async def test_invalid_log_level_is_refused_by_the_node(node: Serving, api: sandq.Client) -> None:
    told = await api.admin.log_level(node="node1")
    assert told["level"] == told["configured"] == logs.level()
    for level, for_ms, why in (("loud", None, "level"), ("debug", 0, "for_ms"), ("debug", 86_400_001, "for_ms")):
        with pytest.raises(InvalidRequest, match=why):
            await call(api._cluster, LogLevel(level, for_ms))


async def test_a_message_is_followed_to_the_replicas(
    node: Serving, api: sandq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await api.admin.create_topic("t", partitions=1)
    logs.set_level("debug")
    caplog.set_level("DEBUG", "sandq.client")
    try:
        with structlog.testing.capture_logs() as lines:
            await api.produce("t", b"v")
    finally:
        logs.reset_level()
    (stored,) = [one.getMessage() for one in caplog.records if "is stored by entry" in one.getMessage()]
    request_id, index = int(stored.split("request ")[1].split()[0]), int(stored.split("entry ")[1])
    assert "1 messages to node1" in stored
    group = node.broker.catalog.topics["t"].record.partitions[0].group
    entries = [(one["group"], one["index"]) for one in lines if one["event"] == "an entry is applied"]
    assert (group, index) in entries
    answered = [(one["request"], one["request_id"]) for one in lines if one["event"] == "a request is answered"]
    assert ("produce", request_id) in answered


def test_latest_log_lines_are_kept(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        kept = logs._Remembered(file)
        for number in range(logs.RECENT_LINES + 5):
            kept.write(f"line {number} {'x' * logs.RECENT_LINE_CHARS}\n")
        kept.write("\n")
        kept.flush()
    last = logs.recent()
    assert len(last) == logs.RECENT_LINES and len(last[-1]) == logs.RECENT_LINE_CHARS
    assert last[-1].startswith(f"line {logs.RECENT_LINES + 4} ") and (tmp_path / "log").stat().st_size > 10**6
