"""Groups that are pushed by three nodes. Each node pushes the partitions that it leads; if it fails, the others take
over."""

from __future__ import annotations

from pathlib import Path

import trio

import sandq
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.push_receiver import Receiver, receiving
from tests.support.waiting import until_answer, until_holds

PARTITIONS = 6
MESSAGES = 60
LOOPBACK = {"PUSH__ALLOW": "127.0.0.1", "PUSH__ALLOW_HTTP": "true", "PUSH__PORTS": ""}
SECRET = sandq.new_push_secret()


async def pushed(nodes: ThreeNodes, client: sandq.Client, receiver: Receiver, **more: object) -> None:
    """Create topic "t" and push its group "g"."""
    await client.admin.create_topic(
        "t", partitions=PARTITIONS, replicas=3, lease="2s", backoff={"kind": "none"}, max_attempts=None
    )
    await client.admin.set_push("t", "g", receiver.url, secrets=SECRET, **more)  # type: ignore[arg-type]


async def produce(client: sandq.Client, start: int, count: int) -> set[bytes]:
    bodies = [b"%d" % number for number in range(start, start + count)]
    async with client.producer("t") as producer:
        for number, body in enumerate(bodies):
            await producer.send(body, partition=number % PARTITIONS)
    return set(bodies)


async def pushing_nodes(client: sandq.Client) -> dict[int, list[str]]:
    """Return, for each partition, the nodes that report to push it."""
    (row,) = await client.admin.pushes("t")
    found: dict[int, list[str]] = {}
    for node in row["nodes"]:
        for partition in node["partitions"]:
            found.setdefault(partition, []).append(node["node"])
    return found


async def until_all_acked(client: sandq.Client) -> None:
    await until_answer(
        lambda: client.admin.groups("t"),
        lambda rows: len(rows) == PARTITIONS and not any(map(_left, rows)),
    )


def _left(row: dict[str, int]) -> int:
    return row["ready"] + row["leased"] + row["waiting"] + row["dead"]


async def test_each_partition_is_pushed_by_the_node_that_leads_it(tmp_path: Path) -> None:
    async with three_nodes(tmp_path, **LOOPBACK) as nodes, nodes.connect() as client, receiving() as receiver:
        await pushed(nodes, client, receiver)

        async def is_even() -> bool:
            leaders = {at: [row.leader] for at, row in enumerate((await client.admin.topic("t")).partitions)}
            return len(leaders) == PARTITIONS and await pushing_nodes(client) == leaders

        await until_answer(is_even, bool)
        bodies = await produce(client, 0, MESSAGES)
        await receiver.until(MESSAGES)
        await until_all_acked(client)
        assert sorted(got.body for got in receiver.got) == sorted(bodies), "each message must be pushed exactly once"
        # If another node becomes leader of a partition, that node pushes it.
        leader = await nodes.until_led()
        await nodes.hand_over(next(name for name in NAMES if name != leader))
        await until_answer(is_even, bool)
        bodies |= await produce(client, MESSAGES, PARTITIONS)
        await until_holds(lambda: {got.body for got in receiver.got} == bodies)
        await until_all_acked(client)


async def test_push_of_a_failed_node_continues_on_others(tmp_path: Path) -> None:
    """Requests hang while a node stops. Messages that it had leased are redelivered when their leases expire."""
    async with three_nodes(tmp_path, **LOOPBACK) as nodes, receiving() as receiver, nodes.connect() as client:
        receiver.hold = trio.Event()
        await pushed(nodes, client, receiver, concurrency=4, timeout="10m")
        bodies = await produce(client, 0, MESSAGES)
        await receiver.until(8)
        leader = await nodes.until_led()
        gone = {got.body for got in receiver.got}
        await nodes.stop(leader)
        receiver.hold.set()
        await until_holds(lambda: {got.body for got in receiver.got} == bodies)
        await until_all_acked(client)
        assert gone <= bodies
        for got in receiver.got:
            sandq.verify_push(got.headers, got.body, SECRET, tolerance="1d")
