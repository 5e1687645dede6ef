"""Tests of sandctl: drained and removed nodes, transferred partitions, and their progress."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandctl.commands import cluster_moves
from sandctl.output.progress import Progress
from sandq.model.features import KNOWN
from sandq.protocol.frames import Type
from sandq.protocol.replies import Partition
from tests.support.client.fake_server import FakeConnection, FakeServer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_moves, "POLL_S", 0.001)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return all texts that a terminal would show."""
    found: list[str] = []
    monkeypatch.setattr(Progress, "tell", lambda progress, text: found.append(text))
    return found


def test_drain_waits_until_the_node_holds_nothing(ctl: Any, server: FakeServer, shown: list[str]) -> None:
    result = ctl("cluster", "drain", "n3")
    assert (result.exit_code, result.output) == (0, "n3 is drained: it holds no replicas\n")
    assert shown == [
        "2 of 2 replicas left on n3",
        "1 of 2 replicas left on n3",
        "n3 still has a vote in the metadata group",
    ]
    server.registered["n3"]["replicas"] = 1
    found = json.loads(ctl("cluster", "drain", "n3", "-o", "json").stdout)
    assert found == {"node": "n3", "standing": "draining", "replicas": 0}
    assert ctl("cluster", "drain", "n3", "--undo").output == "n3 is in use again\n"
    assert server.registered["n3"]["standing"] == "in"


def test_drain_without_waiting_for_it(ctl: Any, server: FakeServer) -> None:
    assert ctl("cluster", "drain", "n3", "--no-wait").output == "n3 is being drained\n"
    assert not server.of_type(Type.CLUSTER_INFO)
    ctl("cluster", "drain", "n3", "--undo")
    server.registered["n3"]["replicas"] = 10**9
    late = ctl("cluster", "drain", "n3", "--timeout", "50ms")
    assert late.exit_code == 1 and "not done within 0.05 s; it continues: " in late.stderr
    assert server.registered["n3"]["standing"] == "draining"
    assert ctl("cluster", "drain", "n3", "--timeout", "soon").exit_code == 2
    refused = ctl("cluster", "drain", "nobody")
    assert (refused.exit_code, refused.stderr) == (1, "sandctl: no node 'nobody' is registered\n")


def test_stalled_move_is_reported_once(ctl: Any, server: FakeServer) -> None:
    for row in server.registered.values():
        row["failed_since_ms"] = 5
    server.registered["n3"]["replicas"] = 10**9

    def undo(connection: Any, frame: Any) -> None:
        server.registered["n3"]["standing"] = "in"
        server.answer(connection, frame)

    server.script[Type.CLUSTER_INFO] += [None] * 5 + [undo]
    stuck = ctl("cluster", "drain", "n3")
    assert stuck.exit_code == 1 and "the drain was cancelled" in stuck.stderr
    assert stuck.stderr.count("nothing moves while more than a third of the nodes have failed") == 1


def test_awaited_change_is_undone_by_another_client(ctl: Any, server: FakeServer) -> None:
    def undone(connection: FakeConnection, frame: Any) -> None:
        server.answer(connection, frame)
        server.registered["n3"]["standing"] = "in"

    server.registered["n3"]["replicas"] = 10**9
    server.script[Type.CLUSTER_INFO] += [server.answer, undone]
    result = ctl("cluster", "drain", "n3")
    assert result.exit_code == 1 and "n3 is in use again: the drain was cancelled" in result.stderr


def test_remove_confirms_and_waits_until_the_node_is_gone(
    ctl: Any, server: FakeServer, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = ctl("cluster", "remove", "n3")
    assert refused.exit_code == 2 and "say --yes" in refused.stderr
    monkeypatch.setattr("sandctl.options.confirmation.can_ask", lambda: True)
    assert ctl("cluster", "remove", "n3", input=b"n1\n").exit_code == 2
    assert not server.of_type(Type.NODE_CHANGE)
    result = ctl("cluster", "remove", "n3", input=b"n3\n")
    assert result.exit_code == 0 and result.stdout.endswith("n3 is removed\n")
    assert "n3" not in server.registered and shown[0] == "2 of 2 replicas left on n3"
    assert ctl("cluster", "remove", "n1", "--yes", "--no-wait").output == "n1 is being removed\n"
    assert server.registered["n1"]["standing"] == "removing"


def test_node_that_rejoins_immediately_counts_as_removed(ctl: Any, server: FakeServer) -> None:
    """The node returned with its old name and an empty disk. Its absence was too short to be seen."""

    def removed(connection: FakeConnection, frame: Any) -> None:
        server.answer(connection, frame)
        server.registered["n3"] |= {"standing": "in", "store_uuid": "another"}

    server.registered["n3"]["replicas"] = 10**9
    server.script[Type.NODE_CHANGE] += [removed]
    result = ctl("cluster", "remove", "n3", "--yes")
    assert (result.exit_code, result.stdout) == (0, "n3 is removed\n")


def test_transfer(ctl: Any, server: FakeServer) -> None:
    assert ctl("cluster", "transfer", "t", "0", "n3").output == "n3 leads partition 0 of t\n"
    assert server.of_type(Type.TRANSFER)[0][2:] == ["t", 0, "n3"]
    assert ctl("cluster", "transfer", "t", "first", "n3").exit_code == 2
    assert ctl("cluster", "transfer", "nope", "0", "n3").exit_code == 1


def test_rebuild(ctl: Any, server: FakeServer) -> None:
    assert ctl("cluster", "rebuild", "t", "0", "n3").output == "n3 rebuilds its replica of partition 0 of t\n"
    assert server.of_type(Type.REBUILD)[0][2:] == ["t", 0, "n3"]
    assert json.loads(ctl("cluster", "rebuild", "t", "0", "n3", "-o", "json").output)["node"] == "n3"
    assert ctl("cluster", "rebuild", "t", "first", "n3").exit_code == 2
    assert ctl("cluster", "rebuild", "nope", "0", "n3").exit_code == 1


def test_nodes_say_how_they_stand(ctl: Any, server: FakeServer) -> None:
    server.registered["n3"] |= {"standing": "draining", "failed_since_ms": 1_700_000_000_000, "voter": False}
    lines = [line.split("  ") for line in ctl("cluster", "nodes").output.splitlines()]
    heads, n1, n3, n2 = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert " ".join(heads) == "NODE MEMBER SINCE UP STANDING ZONE CLIENTS HTTP LEADS REPLICAS VOTER VERSION LEVELS"
    assert n1 == ["n1", "-", "-", "yes", "in", "a", "-", "-", "1", "2", "yes", "0.3.0", str(KNOWN.highest)]
    assert n3 == ["n3", "-", "-", "yes", "draining, failed", "a", "-", "-", "0", "2", "no", "0.3.0", str(KNOWN.highest)]
    assert n2 == ["n2", "-", "-", "-", "-", "-", "-", "-", "0", "-", "-", "-", "-"], "it is outside"
    rows = json.loads(ctl("cluster", "nodes", "-o", "json").output)
    assert rows[1]["failed_since"] == "2023-11-14T22:13:20.000Z" and rows[0]["failed_since"] is None


def test_partitions_say_where_they_go(ctl: Any, server: FakeServer) -> None:
    rows = [Partition(0, 7, "n1", ("n1", "n2"), True)]
    server.topics["t"] = server.topics["t"]._replace(partitions=rows, replicas=2)
    members = [
        {"node": "n3", "incarnation": 1, "voter": True, "behind": 0},
        {"node": "n2", "incarnation": 4, "voter": False, "behind": 1200},
        {"node": "n1", "incarnation": 2, "voter": True, "behind": 0},
    ]
    server.members = members
    lines = ctl("cluster", "partitions").output.splitlines()
    assert " ".join(lines[0].split()) == "TOPIC PARTITION LEADER NODES MOVING REPLICAS MESSAGES DELAYED BYTES"
    assert "n1, n2  n3 is being removed, n2 is catching up, 1,200 entries behind         2" in lines[1]
    (row,) = json.loads(ctl("cluster", "partitions", "-o", "json").output)
    assert row["nodes"] == ["n1", "n2"] and row["moving"] is True and row["members"] == members
    server.topics["t"] = server.topics["t"]._replace(partitions=[rows[0]._replace(moving=False)])
    assert "n1, n2  -  " in ctl("cluster", "partitions").output


def test_floors_and_clock_reset(ctl: Any, server: FakeServer) -> None:
    assert ctl("cluster", "clock", "floors").output == "none\n"
    assert ctl("cluster", "clock", "reset", "t", "--yes").output == "no partition is ahead of its leader's clock\n"
    assert server.of_type(Type.CLOCK_RESET) == []
    server.ahead_ms = 90_000
    lines = ctl("cluster", "clock", "floors", "t").output.splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITION", "FLOOR", "AHEAD", "EPOCH", "RESET"]
    assert lines[1].split()[:2] == ["t", "0"] and "1m30s" in lines[1]
    result = ctl("cluster", "clock", "reset", "t", "0", "--yes")
    assert result.output == "partition 0 of t: the reset has begun\n"
    assert server.of_type(Type.CLOCK_RESET)[0][2:] == ["t", 0]
    assert ctl("cluster", "clock", "reset", "t", "1", "--yes").output.startswith("no partition")
    assert ctl("cluster", "clock", "reset").exit_code == 2
    assert json.loads(ctl("cluster", "clock", "reset", "--yes", "-o", "json").output)["reset"][0]["outcome"] == "begun"
