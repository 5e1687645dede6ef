"""Nodes drained and removed, partitions transferred, as a client and HTTP ask for it, from any node."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

import sandq
from sandq.broker.snapshots.transfer import Throttle
from sandq.client.admin.partitions import partition_rows
from sandq.errors import Conflict, InvalidRequest, NotFound, UnknownPartition
from tests.support.http_client import NO_TLS
from tests.support.nodes.found import FoundNodes, found_nodes
from tests.support.nodes.http_requests import Web
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

NAMES = ("node1", "node2", "node3")
PARTITIONS = 6


async def node_rows(client: sandq.Client) -> dict[str, dict[str, Any]]:
    """Return the cluster's report of each node."""
    return {row["node"]: row for row in (await client.admin.cluster())["nodes"]}


async def until_row(client: sandq.Client, node: str, wanted: dict[str, Any]) -> None:
    """Wait until the cluster reports this state of a node."""
    await until_answer(partial(node_rows, client), lambda rows: wanted.items() <= rows.get(node, {}).items())


async def until_gone(client: sandq.Client, node: str) -> None:
    """Wait until the cluster does not know a node any more."""
    await until_answer(partial(node_rows, client), lambda rows: node not in rows)


def web_of(nodes: FoundNodes, name: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{nodes.running[name].http}", timeout=PATIENCE_S)


async def test_a_node_is_drained_and_removed(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES) as nodes, nodes.connect("node3") as client:
        await client.admin.create_topic("t", partitions=PARTITIONS, replicas=2)
        await client.produce("t", b"x", delay="1h")
        await until_row(client, "node2", {"standing": "in", "voter": True, "zone": "default", "weight": 1})
        before = await client.admin.cluster()
        assert sum(row["replicas"] for row in before["nodes"]) == 2 * PARTITIONS and before["moving"] == 0
        with pytest.raises(Conflict, match="drain it first"):
            await client.admin.remove_node("node2")
        with pytest.raises(NotFound, match="there are: node1, node2, node3"):
            await client.admin.drain_node("node9")
        await client.admin.drain_node("node2")
        await until_row(client, "node2", {"standing": "draining", "replicas": 0, "voter": False})
        # The topic's record may be updated later than the node's number of replicas.
        ask = partial(partition_rows, client.admin, "t")
        await until_answer(ask, lambda rows: {node for row in rows for node in row["nodes"]} == {"node1", "node3"})
        with pytest.raises(InvalidRequest, match="add a node first"):
            await client.admin.drain_node("node1")
        await client.admin.drain_node("node2", undo=True)
        await until_row(client, "node2", {"standing": "in", "replicas": PARTITIONS * 2 // 3, "voter": True})
        await client.admin.drain_node("node2")
        await until_row(client, "node2", {"replicas": 0, "voter": False})
        await client.admin.remove_node("node2")
        await until_gone(client, "node2")
        assert len([message async for message in client.messages("t").list()]) == 1


async def test_leadership_is_transferred(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES) as nodes, nodes.connect("node2") as client:
        record = await client.admin.create_topic("t", partitions=2, replicas=2)
        row = record.partitions[1]
        second = row.nodes[1]
        assert len(row.nodes) == 2 and not row.moving
        await until_answer(lambda: client.admin.topic("t"), lambda topic: topic.partitions[1].leader == row.nodes[0])
        await client.admin.transfer("t", 1, row.nodes[1])
        topic = await until_answer(lambda: client.admin.topic("t"), lambda topic: topic.partitions[1].leader == second)
        row = topic.partitions[1]
        assert row.nodes[0] == second and not row.moving
        (other,) = set(NAMES) - set(row.nodes)
        with pytest.raises(InvalidRequest, match=f"{other} does not hold partition 1"):
            await client.admin.transfer("t", 1, other)
        with pytest.raises(UnknownPartition):
            await client.admin.transfer("t", 7, "node1")


async def test_members_of_a_group_are_reported(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await client.produce("t", b"x")
        leader = await nodes.until_led()

        def members() -> list[tuple[str, bool, bool]]:
            return sorted((row["node"], row["voter"], row["behind"] > 0) for row in told["members"])

        (told,) = await client.admin.stats("t")
        with trio.fail_after(PATIENCE_S):
            while members() != [(name, True, False) for name in NAMES]:
                (told,) = await client.admin.stats("t")
        away = next(name for name in NAMES if name != leader)
        await nodes.stop(away)
        for _ in range(3):
            await client.produce("t", b"y")
        with trio.fail_after(PATIENCE_S):  # until an election is over
            while members() != [(name, True, name == away) for name in NAMES]:
                (told,) = await client.admin.stats("t")
        assert all(row["incarnation"] > 0 and "snapshot_sent" not in row for row in told["members"])


async def test_progress_of_a_snapshot_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the chunks one by one, each after its progress was read."""
    goes = trio.Semaphore(0)

    async def one_by_one(self: Throttle, size: int, times: int) -> None:
        await goes.acquire()

    monkeypatch.setattr(Throttle, "take", one_by_one)
    small = {"STORAGE__CHECKPOINT_BYTES": "1000000"}
    async with found_nodes(tmp_path, *NAMES, **small) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=1)
        async with client.producer("t") as producer:
            for _ in range(100):
                await producer.send(random.Random(5).randbytes(30_000), delay="1h")
        leader = await nodes.until_led()
        # the log has been trimmed, so a snapshot is needed
        await until_holds(lambda: nodes.host(leader).group.journal.first_index > 1)
        await client.admin.update_topic("t", replicas=2)
        seen: list[int] = []
        with trio.fail_after(PATIENCE_S):
            while not seen or (await client.admin.cluster())["moving"]:
                if goes.value == 0:
                    goes.release()
                (row,) = await partition_rows(client.admin, "t")
                for step in row["steps"]:
                    found = re.fullmatch(r"(node\d) is catching up (\d+) %", step)
                    if found:
                        seen.append(int(found[2]))
                        (learner,) = [one for one in row["members"] if one["node"] == found[1]]
                        assert not learner["voter"] and found[1] in row["nodes"]
                        assert learner["snapshot_sent"] >= 0 and learner["snapshot_bytes"] >= 3_000_000
        # If the leader has not heard yet that the snapshot is complete, it may offer the snapshot once more.
        rising = seen[: seen.index(max(seen)) + 1]
        assert rising == sorted(rising) and len(set(rising)) > 3, seen
        # The topic's record may be updated later than the node's number of replicas.
        (row,) = await until_answer(lambda: partition_rows(client.admin, "t"), lambda rows: not rows[0]["steps"])
        assert [member["voter"] for member in row["members"]] == [True, True]


async def test_every_node_answers_over_http(tmp_path: Path) -> None:
    async with (
        found_nodes(tmp_path, *NAMES, LISTEN__HTTP="127.0.0.1:0") as nodes,
        web_of(nodes, "node1") as one,
        web_of(nodes, "node2") as two,
        web_of(nodes, "node3") as three,
    ):
        webs = [Web(one), Web(two), Web(three)]
        await webs[1].post("/topics", {"name": "t", "partitions": 2, "replicas": 1}, 201)
        for web in webs:  # each node knows two partitions
            await web.post("/topics/t", {"text": "x", "delay": "1h"}, 201)
        changed = await webs[2].patch("/topics/t", {"numPartitions": PARTITIONS, "replicationFactor": 2})
        assert (changed["partitions"], changed["replicas"]) == (PARTITIONS, 2)
        for web in webs:
            await web.post(f"/topics/t/{PARTITIONS - 1}", {"text": "x", "delay": "1h"}, 201)
        assert len((await webs[0].get("/topics/t/messages"))["messages"]) == 6

        async def rows() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await webs[0].get("/cluster/partitions", topic="t"))["partitions"]
            return found

        row, *_ = await until_answer(
            rows, lambda found: not any(row["moving"] or len(row["nodes"]) < 2 for row in found)
        )
        assert row["steps"] == [] and {member["node"] for member in row["members"]} == set(row["nodes"])
        await webs[1].post("/cluster/transfer", {"topic": "t", "partition": 0, "node": row["nodes"][1]}, 204)
        # The nodes tell each other who leads.
        await until_answer(rows, lambda found: found[0]["leader"] == row["nodes"][1])
        assert await webs[0].post("/cluster/nodes/node3/drain", None, 202) == {
            "node": "node3", "standing": "draining",
        }  # fmt: skip
        async with nodes.connect("node1") as client:
            await until_row(client, "node3", {"standing": "draining", "replicas": 0, "voter": False})
            await webs[1].post("/cluster/nodes/node3/drain", {"undo": True}, 202)
            await until_row(client, "node3", {"standing": "in"})
            assert (await webs[2].delete("/cluster/nodes/node2", 409))["code"] == "CONFLICT"
            await webs[1].post("/cluster/nodes/node3/drain", {}, 202)
            await until_row(client, "node3", {"replicas": 0, "voter": False})
            assert (await webs[1].delete("/cluster/nodes/node3", 202))["standing"] == "removing"
            await until_gone(client, "node3")
        shown = await webs[0].get("/cluster")
        assert shown["moving"] == 0 and [row["node"] for row in shown["nodes"]] == ["node1", "node2"]


REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/cluster/nodes/node9/drain", None, 404, "no node 'node9'"),
    ("POST", "/cluster/nodes/node1/drain", None, 400, "add a node first"),
    ("POST", "/cluster/nodes/node1/drain", {"undone": True}, 400, "body.undone"),
    ("POST", "/cluster/nodes/no%20node/drain", None, 400, "the rule"),
    ("DELETE", "/cluster/nodes/node1", None, 409, "drain it first"),
    ("DELETE", "/cluster/nodes/node9", None, 404, "no node 'node9'"),
    ("POST", "/cluster/transfer", {"topic": "t", "partition": 0, "node": "node9"}, 400, "it is on node1"),
    ("POST", "/cluster/transfer", {"topic": "t", "partition": 5, "node": "node1"}, 404, "no partition 5"),
    ("POST", "/cluster/transfer", {"topic": "u", "partition": 0, "node": "node1"}, 404, "no topic 'u'"),
    ("POST", "/cluster/transfer", {"topic": "t", "partition": -1, "node": "node1"}, 400, "body.partition"),
    ("POST", "/cluster/transfer", {"topic": "t"}, 400, "body.partition"),
    ("GET", "/cluster/partitions?topic=u", None, 404, "no topic 'u'"),
    ("PATCH", "/topics/t", {"partitions": 1}, 400, "cannot become fewer"),
    ("PATCH", "/topics/t", {"replicas": 2}, 400, "2 replicas, and 1 nodes"),
    ("PATCH", "/topics/t", {"partitions": 0}, 400, "body.partitions"),
    ("PATCH", "/topics/t", {"partitions": 3, "numPartitions": 3}, 400, "mean the same"),
    ("PATCH", "/topics/t", {}, 400, "nothing to change"),
]


async def test_invalid_node_changes_over_http_are_refused(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", LISTEN__HTTP="127.0.0.1:0") as nodes, web_of(nodes, "node1") as one:
        web = Web(one)
        await web.post("/topics", {"name": "t", "partitions": 2}, 201)
        for method, path, body, status, words in REFUSED:
            found = await web.ask(method, path, body, status)
            assert words in found["detail"], (method, path, body)
        shown = await web.get("/topics/t")
        assert (shown["partitions"], shown["replicas"], shown["leaders"]) == (2, 1, ["node1"] * 2)
        assert (await web.get("/cluster/nodes"))["nodes"][0]["standing"] == "in"
